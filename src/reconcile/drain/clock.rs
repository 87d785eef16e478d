//! The kernel's clock, by which deadlines are noted in the kernel.

use std::time::Duration;

use plan::kernel::Deadline;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// `CLOCK_MONOTONIC`: like IPVS, it lives as long as the kernel, and no program can set it.
/// [`Instant`] goes by it as well and hides its number, so one moment is noted by both. In tests,
/// where time is paused, the two stay as far apart as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    moment: Instant,
    shown: Duration,
}

// === impl Clock ===

impl Clock {
    pub(super) fn read() -> Self {
        let shown = clock_gettime(ClockId::Monotonic);
        let moment = Instant::from_std(std::time::Instant::now());
        // Neither part is negative, as of a clock that began at 0.
        let seconds = u64::try_from(shown.tv_sec).unwrap_or_default();
        let nanoseconds = u32::try_from(shown.tv_nsec).unwrap_or_default();
        Self { moment, shown: Duration::new(seconds, nanoseconds) }
    }

    /// The first whole second that is not before this moment.
    pub(super) fn deadline(&self, moment: Instant) -> Deadline {
        let shown = match moment.checked_duration_since(self.moment) {
            Some(later) => self.shown.saturating_add(later),
            None => self.shown.saturating_sub(self.moment.duration_since(moment)),
        };
        Deadline::at(shown.as_secs().saturating_add(u64::from(shown.subsec_nanos() > 0)))
    }

    /// Returns the moment of a deadline. A deadline long ago may be said to be less long ago.
    pub(super) fn moment(&self, deadline: Deadline) -> Instant {
        let shown = Duration::from_secs(deadline.second().into());
        match shown.checked_sub(self.shown) {
            Some(later) => self.moment + later,
            None => {
                self.moment.checked_sub(self.shown.saturating_sub(shown)).unwrap_or(self.moment)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_and_its_deadline_are_less_than_a_second_apart() {
        let clock = Clock::read();
        for seconds in [0, 1, 900, 86_400] {
            let moment = Instant::now() + Duration::from_secs(seconds);
            let noted = clock.moment(clock.deadline(moment));
            assert!(noted >= moment && noted - moment < Duration::from_secs(1), "{seconds}");
            assert_eq!(clock.deadline(noted), clock.deadline(moment), "said once more");
        }
    }

    #[test]
    fn it_shows_the_same_after_a_restart() {
        let (before, after) = (Clock::read(), Clock::read());
        let moment = Instant::now() + Duration::from_secs(900);
        let (one, other) = (before.moment(before.deadline(moment)), after.deadline(moment));
        // Reading the two clocks takes a moment, in which a second may end.
        let again = after.moment(other);
        assert!(one.max(again) - one.min(again) < Duration::from_millis(1_100));
        assert!(after.moment(Deadline::at(0)) <= Instant::now());
        assert!(after.moment(Deadline::LAST) > Instant::now());
    }
}
