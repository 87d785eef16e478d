//! Verdict on a run in a guest.

use std::fmt;
use std::time::Duration;

use super::host_tool::last_lines;

/// The setup before the program failed.
const EXIT_SETUP_FAILED: u8 = 120;
/// The guest died, twice, before its user space was up.
const EXIT_NEVER_UP: u8 = 121;
/// The kernel panicked or had an oops, which is made a panic.
const EXIT_PANIC: u8 = 122;
/// The guest went away without a word.
const EXIT_VANISHED: u8 = 123;
/// The time limit was reached, as in timeout(1).
const EXIT_TIME_LIMIT: u8 = 124;
/// The bed itself could not be made or started, so nothing is known about the program.
pub(crate) const EXIT_BED_FAILED: u8 = 125;

/// Number of lines of the kernel's log that are shown when a guest did not end well.
const LOG_LINES: usize = 30;
/// Words of which the first line of a panic's story has one, also when an oops led to it.
const START_OF_PANIC: [&str; 5] =
    ["BUG: ", "Oops", "general protection fault", "cut here", "Kernel panic - not syncing"];

/// Verdict on a run in a guest. The text form is a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The program ended by itself with this exit code; 128 and the number for a signal.
    Exited(u8),
    /// The setup ended with this exit code, so the program was not started.
    SetupFailed(u8),
    /// The program had not ended when the time was over. With the end of the kernel's log.
    TimeLimit { limit: Duration, log: String },
    /// The kernel panicked. With the part of its log that tells why.
    Panic { log: String },
    /// The guest ended without a panic and without the program's exit code.
    Vanished { log: String },
    /// The guest's user space never came up.
    NeverUp { log: String },
}

/// Report of the guest's first process to the host (`init.sh` has the words).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// User space works.
    pub(crate) up: bool,
    /// The setup's exit code, if that was not zero.
    pub(crate) setup: Option<u8>,
    /// The files in /job/out could not be handed over.
    pub(crate) output_lost: bool,
    /// The program's exit code.
    pub(crate) exit: Option<u8>,
}

/// Reason that the host stopped waiting for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The guest has told how its program ended, or switched itself off.
    Itself,
    /// The time limit was reached.
    TimeLimit(Duration),
}

impl Verdict {
    /// From what the guest reported, what ended it, and the kernel's log.
    pub(crate) fn judge(report: Report, end: End, kernel_log: &str) -> Self {
        let log = last_lines(kernel_log, LOG_LINES);
        match (report, end) {
            (Report { exit: Some(code), .. }, _) => Self::Exited(code),
            (Report { setup: Some(code), .. }, _) => Self::SetupFailed(code),
            (Report { up: false, .. }, _) => Self::NeverUp { log },
            _ if kernel_log.contains("Kernel panic - not syncing") => {
                Self::Panic { log: story_of_panic(kernel_log) }
            }
            (_, End::TimeLimit(limit)) => Self::TimeLimit { limit, log },
            (_, End::Itself) => Self::Vanished { log },
        }
    }

    /// The exit code for a shell. Codes from 120 on are ours, and the sentence on standard error
    /// tells them from a program that happens to use the same.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Exited(code) => *code,
            Self::SetupFailed(_) => EXIT_SETUP_FAILED,
            Self::NeverUp { .. } => EXIT_NEVER_UP,
            Self::Panic { .. } => EXIT_PANIC,
            Self::Vanished { .. } => EXIT_VANISHED,
            Self::TimeLimit { .. } => EXIT_TIME_LIMIT,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = match self {
            Self::Exited(0) => return write!(formatter, "the program succeeded"),
            Self::Exited(code) => {
                return write!(formatter, "the program failed with exit code {code}");
            }
            Self::SetupFailed(code) => {
                return write!(
                    formatter,
                    "the setup failed with exit code {code}; the program was not started"
                );
            }
            Self::TimeLimit { limit, log } => {
                write!(
                    formatter,
                    "the program did not end within {} s, the time limit",
                    limit.as_secs()
                )?;
                log
            }
            Self::Panic { log } => {
                return write!(formatter, "the guest's kernel panicked; from its log:\n{log}");
            }
            Self::Vanished { log } => {
                write!(
                    formatter,
                    "the guest ended without a panic and without the program's exit code"
                )?;
                log
            }
            Self::NeverUp { log } => {
                write!(formatter, "the guest ended before its user space was up")?;
                log
            }
        };
        if log.is_empty() {
            write!(formatter, "; its kernel log is empty")
        } else {
            write!(formatter, "; the end of its kernel log:\n{log}")
        }
    }
}

impl Report {
    /// From what came over the report port so far; the last line may be incomplete.
    pub(crate) fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match line.trim_end().split_once('=') {
                None if line.trim_end() == "up" => report.up = true,
                Some(("setup", code)) => report.setup = code.parse().ok(),
                Some(("exit", code)) => report.exit = code.parse().ok(),
                Some(("output", _)) => report.output_lost = true,
                _ => {}
            }
        }
        report
    }

    /// True if nothing more will come.
    pub(crate) fn is_final(self) -> bool {
        self.exit.is_some() || self.setup.is_some()
    }
}

/// The log from where the trouble began. Its very end has registers for the most part.
fn story_of_panic(kernel_log: &str) -> String {
    kernel_log
        .lines()
        .skip_while(|line| !START_OF_PANIC.iter().any(|start| line.contains(start)))
        .take(LOG_LINES)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: End = End::TimeLimit(Duration::from_secs(60));

    fn judge(report: &str, end: End, log: &str) -> Verdict {
        Verdict::judge(Report::parse(report), end, log)
    }

    #[test]
    fn a_report_counts_whole_lines_only() {
        assert_eq!(Report::parse(""), Report::default());
        assert_eq!(Report::parse("up\nexit=1"), Report { up: true, ..Report::default() });
        let whole = Report::parse("up\noutput=1\nexit=12\n");
        assert_eq!(whole, Report { up: true, output_lost: true, exit: Some(12), setup: None });
        assert!(whole.is_final() && !Report::parse("up\n").is_final());
        assert!(Report::parse("up\r\nsetup=3\r\n").is_final());
    }

    #[test]
    fn every_end_is_told_from_the_others() {
        let panic = "[ 1.0] Kernel panic - not syncing: Attempted to kill init!\n";
        let verdicts = [
            judge("up\nexit=0\n", End::Itself, ""),
            judge("up\nsetup=2\n", End::Itself, ""),
            judge("up\n", LIMIT, "last words\n"),
            judge("up\n", End::Itself, panic),
            judge("up\n", End::Itself, "last words\n"),
            judge("", End::Itself, panic),
        ];
        let codes: Vec<u8> = verdicts.iter().map(Verdict::exit_code).collect();
        assert_eq!(codes, [0, 120, 124, 122, 123, 121]);
        assert!(verdicts[2].to_string().contains("within 60 s"));
        assert!(verdicts[2].to_string().ends_with("last words"));
        assert!(verdicts[3].to_string().contains("panicked"));
    }

    #[test]
    fn a_panic_is_told_from_its_beginning() {
        let registers = "R10: 0000000000000000\n".repeat(50);
        let log = format!(
            "eth0: up\nBUG: kernel NULL pointer dereference\n{registers}\
             Kernel panic - not syncing: Fatal exception\n"
        );
        let Verdict::Panic { log } = judge("up\n", End::Itself, &log) else { panic!() };
        assert!(log.starts_with("BUG: kernel NULL"));
        assert_eq!(log.lines().count(), LOG_LINES);
    }

    #[test]
    fn a_panic_is_not_taken_for_a_hang_and_an_exit_code_beats_all() {
        let panic = "Kernel panic - not syncing: Fatal exception\n";
        assert_eq!(judge("up\n", LIMIT, panic).exit_code(), 122);
        assert_eq!(judge("up\nexit=7\n", LIMIT, panic), Verdict::Exited(7));
        assert_eq!(judge("", LIMIT, "").exit_code(), 121);
    }
}
