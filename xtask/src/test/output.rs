//! Output of test programs: passed on, counted, and timed test by test.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::build;

/// Sum of the closing lines of test programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Test programs that closed with a line.
    pub(crate) programs: usize,
}

/// Passes on the output, keeps it for the count, and notes when each line came.
#[derive(Debug, Default)]
pub(crate) struct Tee {
    kept: Vec<u8>,
    /// Start, in `kept`, of the line that is not yet complete.
    line: usize,
    /// Time at which the line before it ended.
    previous: Option<Instant>,
    timed: Vec<Timed>,
    /// Heading under which everything is passed on at the end. Without one, output is passed on at once.
    heading: Option<String>,
}

/// A test that ran alone, and how long it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) test: String,
    pub(crate) took: Duration,
}

/// Runs those of all tests that these words of cargo choose, and passes on what they say. Returns how many passed.
pub(crate) fn passed(words: &[&str], environment: &[(&str, &str)]) -> Result<usize> {
    let mut output = Tee::default();
    build::cargo_into(&[&build::TEST[..], words].concat(), environment, &mut output)?;
    Ok(output.finish().0.passed)
}

impl Tee {
    pub(crate) fn at_the_end(heading: &str) -> Self {
        Self { heading: Some(heading.to_owned()), ..Self::default() }
    }

    pub(crate) fn finish(self) -> (Tally, Vec<Timed>) {
        if let Some(heading) = &self.heading {
            let mut stdout = std::io::stdout().lock();
            // A reader that closed its end wants no more.
            let _ = writeln!(stdout, "\n=== {heading}");
            let _ = stdout.write_all(&self.kept);
        }
        (Tally::parse(&String::from_utf8_lossy(&self.kept)), self.timed)
    }

    /// A program that runs one test at a time writes the line of each as it ends, so that a line
    /// took as long as its test.
    fn keep(&mut self, bytes: &[u8], now: Instant) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.kept.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                continue;
            }
            let line = self.kept.get(self.line..).unwrap_or_default();
            let ended = test_that_ended(&String::from_utf8_lossy(line));
            if let Some((test, previous)) = ended.zip(self.previous) {
                self.timed.push(Timed { test, took: now.duration_since(previous) });
            }
            self.previous = Some(now);
            self.line = self.kept.len();
        }
    }
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.heading.is_none() {
            let mut stdout = std::io::stdout();
            stdout.write_all(bytes)?;
            stdout.flush()?;
        }
        self.keep(bytes, Instant::now());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush()
    }
}

/// The name in a line such as `test flows::every_flow ... ok`.
fn test_that_ended(line: &str) -> Option<String> {
    let (test, result) = line.trim_end().strip_prefix("test ")?.split_once(" ... ")?;
    matches!(result, "ok" | "FAILED").then(|| test.to_owned())
}

impl Tally {
    /// Adds up lines such as `test result: ok. 17 passed; 1 failed; 0 ignored; …`.
    fn parse(text: &str) -> Self {
        let mut tally = Self::default();
        for line in text.lines() {
            let Some((_, counts)) = line.split_once("test result: ") else { continue };
            tally.programs += 1;
            for count in counts.split(['.', ';']) {
                let mut words = count.split_whitespace();
                let (Some(number), Some(word)) = (words.next(), words.next()) else { continue };
                let Ok(number) = number.parse::<usize>() else { continue };
                match word {
                    "passed" => tally.passed += number,
                    "failed" => tally.failed += number,
                    "ignored" => tally.ignored += number,
                    _ => {}
                }
            }
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let text = "running 3 tests\n\
            test result: ok. 18 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
            finished in 0.02s\n\
            noise\n\
            test result: FAILED. 17 passed; 1 failed; 2 ignored; 0 measured\n";
        assert_eq!(Tally::parse(text), Tally { passed: 35, failed: 1, ignored: 2, programs: 2 });
        assert_eq!(Tally::parse("no tests here"), Tally::default());
    }

    #[test]
    fn a_test_took_as_long_as_its_line() {
        let mut tee = Tee::at_the_end("guest");
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        tee.keep(b"running 2 tests\n", at(3));
        tee.keep(b"test a::quick ... ", at(3));
        tee.keep(b"ok\ntest b::slow ... ", at(4));
        tee.keep(b"FAILED\n\ntest result: FAILED. 1 passed; 1 failed\n", at(64));
        let timed = |test: &str, seconds| Timed {
            test: test.to_owned(),
            took: Duration::from_secs(seconds),
        };
        assert_eq!(tee.timed, [timed("a::quick", 1), timed("b::slow", 60)]);
    }
}
