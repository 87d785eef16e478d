//! Guests side by side.

use std::path::Path;
use std::sync::Mutex;
use std::thread;

use super::{Job, SuiteResult};
use crate::vm::accel::AccelChoice;

/// Thread that runs guests one after the other, beside other lanes. An emulated guest needs a processor of
/// its own, or the deadlines in its tests pass; one in user mode waits for two thirds of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    EmulatedFirst,
    UserModeFirst,
    UserModeOnly,
}

/// The lanes of a machine with two processors or more. One with a single processor has the first alone.
const LANES: [Lane; 4] =
    [Lane::EmulatedFirst, Lane::UserModeFirst, Lane::UserModeOnly, Lane::UserModeOnly];

/// Runs all of them. Returns their results in the order of the jobs.
pub(super) fn side_by_side(jobs: &[Job], daemon: &Path) -> Vec<SuiteResult> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let lanes = if processors == 1 { &LANES[..1] } else { &LANES };
    let waiting: Mutex<Vec<(usize, &Job)>> = Mutex::new(jobs.iter().enumerate().collect());
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for lane in lanes {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().ok().and_then(|mut waiting| lane.take(&mut waiting));
                    let Some((place, job)) = next else { return };
                    let outcome = job.run(daemon, jobs.len() == 1);
                    if let Ok(mut done) = done.lock() {
                        done.push((place, outcome));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

impl Lane {
    /// Takes the first of the jobs that are for this lane.
    fn take<'jobs>(self, waiting: &mut Vec<(usize, &'jobs Job)>) -> Option<(usize, &'jobs Job)> {
        let is_emulated = |(_, job): &(usize, &Job)| job.accel() != AccelChoice::Uml;
        let wants_emulated = self == Self::EmulatedFirst;
        let preferred = waiting.iter().position(|it| is_emulated(it) == wants_emulated);
        let any = (self != Self::UserModeOnly && !waiting.is_empty()).then_some(0);
        preferred.or(any).map(|place| waiting.remove(place))
    }
}
