//! The kernel's clock, by which deadlines are noted in the kernel.

use std::time::Duration;

use plan::kernel_objects::Deadline;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// `CLOCK_MONOTONIC`: like IPVS, it lives as long as the kernel, and no program can set it.
/// [`Instant`] goes by it as well and hides its number, so one timestamp is read from both. In
/// tests, where time is paused, the two stay as far apart as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    read_at: Instant,
    shown: Duration,
}

impl Clock {
    pub(super) fn read() -> Self {
        let shown = clock_gettime(ClockId::Monotonic);
        let read_at = Instant::from_std(std::time::Instant::now());
        // Neither part is negative, as of a clock that began at 0.
        let seconds = u64::try_from(shown.tv_sec).unwrap_or_default();
        let nanoseconds = u32::try_from(shown.tv_nsec).unwrap_or_default();
        Self { read_at, shown: Duration::new(seconds, nanoseconds) }
    }

    /// Returns the first whole second that is not before an instant.
    pub(super) fn deadline(&self, instant: Instant) -> Deadline {
        let shown = match instant.checked_duration_since(self.read_at) {
            Some(later) => self.shown.saturating_add(later),
            None => self.shown.saturating_sub(self.read_at.duration_since(instant)),
        };
        Deadline::at(shown.as_secs().saturating_add(u64::from(shown.subsec_nanos() > 0)))
    }

    /// Returns the instant of a deadline. One long ago may come out as less long ago.
    pub(super) fn instant(&self, deadline: Deadline) -> Instant {
        let shown = Duration::from_secs(deadline.second().into());
        match shown.checked_sub(self.shown) {
            Some(later) => self.read_at + later,
            None => {
                self.read_at.checked_sub(self.shown.saturating_sub(shown)).unwrap_or(self.read_at)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_and_its_deadline_are_less_than_a_second_apart() {
        let clock = Clock::read();
        for seconds in [0, 1, 900, 86_400] {
            let instant = Instant::now() + Duration::from_secs(seconds);
            let noted = clock.instant(clock.deadline(instant));
            assert!(noted >= instant && noted - instant < Duration::from_secs(1), "{seconds}");
            assert_eq!(clock.deadline(noted), clock.deadline(instant), "said once more");
        }
    }

    #[test]
    fn it_shows_the_same_after_a_restart() {
        let (before, after) = (Clock::read(), Clock::read());
        let instant = Instant::now() + Duration::from_secs(900);
        let (one, other) = (before.instant(before.deadline(instant)), after.deadline(instant));
        // Reading the two clocks takes a moment, in which a second may end.
        let again = after.instant(other);
        assert!(one.max(again) - one.min(again) < Duration::from_millis(1_100));
        assert!(after.instant(Deadline::at(0)) <= Instant::now());
        assert!(after.instant(Deadline::LAST) > Instant::now());
    }
}
