//! Time from the arrival of an endpoint change to the kernel, for each change.

use std::mem;

use prometheus::Histogram;
use tokio::time::Instant;

/// Most times of arrival that are kept. Changes beyond are counted with the last one.
const MOST: usize = 4_096;

/// Endpoint changes that are on their way to the kernel.
#[derive(Debug)]
pub(super) struct EndpointChanges {
    durations: Histogram,
    /// Number of changes that arrived and may change nothing.
    arrived: u64,
    /// Those of the last batch of input.
    taken: u64,
    /// Changes that wait to be written, with their time of arrival.
    waiting: Vec<(Instant, u64)>,
    /// True once everything was written. What arrives before that is the state at the start, which
    /// is no change.
    is_running: bool,
}

impl EndpointChanges {
    /// None yet. Their durations go to this histogram.
    pub(super) fn new(durations: Histogram) -> Self {
        Self { durations, arrived: 0, taken: 0, waiting: Vec::new(), is_running: false }
    }

    /// A change arrived.
    pub(super) fn arrived(&mut self) {
        self.arrived += 1;
    }

    /// The changes that have arrived were taken. What follows says if any of them needs writing.
    pub(super) fn taken(&mut self) {
        self.taken = mem::take(&mut self.arrived);
    }

    /// Counts the taken changes as waiting for the kernel.
    pub(super) fn wait(&mut self, now: Instant) {
        let count = mem::take(&mut self.taken);
        if !self.is_running || count == 0 {
            return;
        }
        let is_full = self.waiting.len() >= MOST;
        match self.waiting.last_mut().filter(|_| is_full) {
            Some((_, last)) => *last += count,
            None => self.waiting.push((now, count)),
        }
    }

    /// All that waited is written.
    pub(super) fn written(&mut self, now: Instant) {
        self.is_running = true;
        for (arrived, count) in self.waiting.drain(..) {
            let took = now.saturating_duration_since(arrived).as_secs_f64();
            for _ in 0..count {
                self.durations.observe(took);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::HistogramOpts;

    use super::*;

    fn changes() -> (EndpointChanges, Histogram, Instant) {
        let histogram = Histogram::with_opts(HistogramOpts::new("name", "help")).unwrap();
        (EndpointChanges::new(histogram.clone()), histogram, Instant::now())
    }

    /// Has so many changes arrive, of which some need writing.
    fn arrive(changes: &mut EndpointChanges, count: usize, at: Instant) {
        (0..count).for_each(|_| changes.arrived());
        changes.taken();
        changes.wait(at);
    }

    #[test]
    fn each_change_is_counted_from_its_own_arrival() {
        let (mut changes, histogram, start) = changes();
        changes.written(start);
        arrive(&mut changes, 3, start);
        arrive(&mut changes, 1, start + Duration::from_secs(2));
        changes.written(start + Duration::from_secs(4));
        assert_eq!(histogram.get_sample_count(), 4);
        assert!((histogram.get_sample_sum() - 14.0).abs() < 1e-9, "{histogram:?}");
        changes.written(start + Duration::from_secs(9));
        assert_eq!(histogram.get_sample_count(), 4);
    }

    #[test]
    fn the_state_at_the_start_is_no_change() {
        let (mut changes, histogram, start) = changes();
        arrive(&mut changes, 100, start);
        changes.written(start + Duration::from_secs(30));
        assert_eq!(histogram.get_sample_count(), 0);
    }

    #[test]
    fn a_change_that_changes_nothing_does_not_wait() {
        let (mut changes, histogram, start) = changes();
        changes.written(start);
        changes.arrived();
        changes.taken();
        // Something else does, much later.
        changes.taken();
        changes.wait(start + Duration::from_secs(600));
        changes.written(start + Duration::from_secs(601));
        assert_eq!(histogram.get_sample_count(), 0);
    }

    #[test]
    fn a_storm_is_counted_whole_with_bounded_memory() {
        let (mut changes, histogram, start) = changes();
        changes.written(start);
        (0..MOST + 10).for_each(|_| arrive(&mut changes, 2, start));
        assert_eq!(changes.waiting.len(), MOST);
        changes.written(start);
        assert_eq!(histogram.get_sample_count(), 2 * (MOST as u64 + 10));
    }
}
