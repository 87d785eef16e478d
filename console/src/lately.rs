//! Counts of repairs lately, minute by minute: the journal may have lost its notes of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use reconcile::observer::{Observer, Report};

/// Time for which repairs are counted, and the shorter one.
pub const HOUR: Duration = Duration::from_secs(3_600);
/// The shorter time.
pub const TEN_MINUTES: Duration = Duration::from_secs(600);

/// Repairs in less time than this are counted together.
const GRAIN: Duration = Duration::from_secs(60);

/// Counts of repairs of what other programs had changed. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Repairs(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// Repairs from a time on, the oldest first; at most one for each minute of an hour, and one more.
    by_minute: VecDeque<(Instant, u64)>,
    last: Option<SystemTime>,
}

/// Observer of the loop that counts repairs.
#[derive(Debug)]
pub struct RepairsObserver(Repairs);

impl Repairs {
    /// Returns the observer that counts.
    #[must_use]
    pub fn observer(&self) -> RepairsObserver {
        RepairsObserver(self.clone())
    }

    /// Number of operations within a time, an hour at most, to the minute.
    #[must_use]
    pub fn within(&self, time: Duration) -> u64 {
        self.within_at(time, Instant::now())
    }

    /// Time of the last ones; none: there were none.
    #[must_use]
    pub fn last(&self) -> Option<SystemTime> {
        self.0.lock().last
    }

    fn within_at(&self, time: Duration, now: Instant) -> u64 {
        let counts = self.0.lock();
        let lately = counts.by_minute.iter().rev();
        let lately = lately.take_while(|(since, _)| now.saturating_duration_since(*since) < time);
        lately.map(|(_, number)| number).sum()
    }

    fn count_at(&self, number: u64, now: Instant) {
        let mut counts = self.0.lock();
        counts.last = Some(SystemTime::now());
        while counts
            .by_minute
            .front()
            .is_some_and(|(since, _)| now.saturating_duration_since(*since) >= HOUR)
        {
            counts.by_minute.pop_front();
        }
        match counts.by_minute.back_mut() {
            Some((since, same)) if now.saturating_duration_since(*since) < GRAIN => *same += number,
            _ => counts.by_minute.push_back((now, number)),
        }
    }
}

impl Observer for RepairsObserver {
    fn report(&mut self, report: &Report<'_>) {
        if let Report::Drifted { repairs, .. } = report {
            self.0.count_at(repairs.len() as u64, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_counted_for_an_hour_and_the_last_is_remembered() {
        let (repairs, start) = (Repairs::default(), Instant::now());
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        assert_eq!((repairs.within_at(HOUR, start), repairs.last()), (0, None));
        repairs.count_at(3, at(0));
        repairs.count_at(2, at(0) + GRAIN / 2);
        repairs.count_at(7, at(55));
        let lately = |minutes| [HOUR, TEN_MINUTES].map(|time| repairs.within_at(time, at(minutes)));
        assert_eq!(lately(56), [12, 7]);
        assert_eq!(lately(61), [7, 7]);
        assert_eq!(lately(70), [7, 0]);
        assert_eq!(lately(120), [0, 0]);
        assert!(repairs.last().is_some());
    }

    #[test]
    fn a_storm_of_repairs_takes_no_memory() {
        let (repairs, start) = (Repairs::default(), Instant::now());
        for seconds in 0..20_000 {
            repairs.count_at(1, start + Duration::from_secs(seconds));
        }
        let n_kept = repairs.0.lock().by_minute.len();
        assert!(n_kept <= 61, "{n_kept}");
        let n_lately = repairs.within_at(HOUR, start + Duration::from_secs(20_000));
        assert!((3_480..=3_600).contains(&n_lately), "{n_lately}");
    }
}
