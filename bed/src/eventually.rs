//! Waiting for something that takes its time.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Shortest and longest pause between two attempts: many run programs, for which guests have no time to spare.
const SHORTEST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_millis(200);
/// Part of the time so far that a pause takes.
const PART: u32 = 8;

/// Tries until an attempt succeeds, at least once, and returns its result.
///
/// # Errors
/// The last attempt's error, once `limit` has passed.
pub fn eventually<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        let outcome = attempt();
        let so_far = started.elapsed();
        if outcome.is_ok() || so_far >= limit {
            return outcome.with_context(|| format!("waited {limit:?} for {what}"));
        }
        thread::sleep((so_far / PART).clamp(SHORTEST_REST, LONGEST_REST));
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn the_first_success_ends_the_wait() {
        let mut attempts = 0;
        let value = eventually(Duration::from_secs(60), "the third attempt", || {
            attempts += 1;
            if attempts < 3 { bail!("attempt {attempts}") } else { Ok(attempts) }
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn the_last_error_is_reported() {
        let outcome: Result<()> = eventually(Duration::ZERO, "rain", || bail!("the sun shines"));
        assert_eq!(format!("{:#}", outcome.unwrap_err()), "waited 0ns for rain: the sun shines");
    }
}
