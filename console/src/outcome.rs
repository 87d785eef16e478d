//! Results of a command, as its exit code tells them to scripts.

use std::fmt;
use std::process::ExitCode;

use super::harmless::harmless_lines;

/// Result of a command that could be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Yes: all is as it should be, or the packet arrives.
    Yes,
    /// No: something differs, is refused, or not ready.
    No,
    /// Not yet: all that differs is known to the program, which writes or retries it.
    Pending,
}

/// Reason for which a command could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A mistake in what was asked.
    Asked(String),
    /// The program cannot be asked, or has no answer.
    Unanswered(String),
    /// The named object is not there.
    NotFound(String),
    /// The result cannot be written to its file.
    NotWritten(String),
}

impl Verdict {
    /// Returns the exit code: 0, 1 or 5.
    #[must_use]
    pub fn code(self) -> ExitCode {
        match self {
            Self::Yes => ExitCode::SUCCESS,
            Self::No => ExitCode::from(1),
            Self::Pending => ExitCode::from(5),
        }
    }
}

impl From<bool> for Verdict {
    fn from(is_so: bool) -> Self {
        if is_so { Self::Yes } else { Self::No }
    }
}

impl Failure {
    /// Returns the exit code: 2, 3, 4 or 6.
    #[must_use]
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Asked(_) => 2,
            Self::Unanswered(_) => 3,
            Self::NotFound(_) => 4,
            Self::NotWritten(_) => 6,
        })
    }

    /// Returns the reason as it is.
    #[must_use]
    pub fn text(&self) -> &str {
        let (Self::Asked(text)
        | Self::Unanswered(text)
        | Self::NotFound(text)
        | Self::NotWritten(text)) = self;
        text
    }
}

impl fmt::Display for Failure {
    /// For a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&harmless_lines(self.text()))
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_nothing_that_a_terminal_obeys() {
        let failure = Failure::Unanswered("no\nanswer: \u{1b}[2J\u{9b}".to_owned());
        assert_eq!(failure.to_string(), "no\nanswer: \\u{1b}[2J\\u{9b}");
    }
}
