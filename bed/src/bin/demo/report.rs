//! Output of the running demo, and the number of expectations that came true.

use std::time::Instant;

use anyhow::Result;

/// The run so far.
#[derive(Debug)]
pub(crate) struct Report {
    started: Instant,
    held: usize,
    expected: usize,
}

impl Report {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), held: 0, expected: 0 }
    }

    /// Says what comes next, with the seconds since the start.
    pub(crate) fn step(&self, text: &str) {
        println!("[{:5.1} s] {text}", self.started.elapsed().as_secs_f64());
    }

    /// Says whether what was expected came true, and if not, what happened instead.
    pub(crate) fn expect(&mut self, what: &str, outcome: Result<()>) {
        self.expected += 1;
        match outcome {
            Ok(()) => {
                self.held += 1;
                println!("    ok      {what}");
            }
            Err(error) => println!("    FAILED  {what}: {error:#}"),
        }
    }

    pub(crate) fn all_held(&self) -> bool {
        self.held == self.expected
    }

    pub(crate) fn summary(&self) -> String {
        format!("{} of {} expectations held", self.held, self.expected)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn one_failure_is_enough() {
        let mut report = Report::start();
        report.expect("rain", Ok(()));
        assert!(report.all_held());
        report.expect("snow", Err(anyhow!("the sun shines")));
        report.expect("rain", Ok(()));
        assert!(!report.all_held());
        assert_eq!(report.summary(), "2 of 3 expectations held");
    }
}
