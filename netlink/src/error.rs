//! Errors, in a type that callers branch on by asking it.

use std::fmt;
use std::io;

use rustix::io::Errno;

use crate::attribute::DecodeError;

/// Errors of system calls on a socket that is in order: something is short, or not allowed.
const PASSING: [Errno; 9] = [
    Errno::INTR,
    Errno::AGAIN,
    Errno::NOBUFS,
    Errno::NOMEM,
    Errno::PERM,
    Errno::ACCESS,
    Errno::MSGSIZE,
    Errno::MFILE,
    Errno::NFILE,
];

/// A request that did not do what it should, or an answer that could not be had.
///
/// It displays as a sentence: what was tried, and what the kernel said.
#[derive(Debug)]
pub struct Error(Box<Kind>);

/// The kernel's "no" to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// A positive error number. Subsystems have their own above 4096 (ipset does).
    pub errno: i32,
    /// The kernel's explanation, where it gave one (extended acknowledgement, since Linux 4.12).
    pub explanation: Option<String>,
    /// The refused request as the kernel sent it back, header included; empty where it did not.
    pub request: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    System { call: &'static str, source: io::Error },
    Refused(Refusal),
    Decode(DecodeError),
    Interrupted { attempts: usize },
    Truncated { length: usize },
    AnswerLost,
    NoAnswer,
    TooLong,
}

impl Error {
    pub(crate) fn system(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self(Box::new(Kind::System { call, source: source.into() }))
    }

    pub(crate) fn interrupted(attempts: usize) -> Self {
        Self(Box::new(Kind::Interrupted { attempts }))
    }

    pub(crate) fn truncated(length: usize) -> Self {
        Self(Box::new(Kind::Truncated { length }))
    }

    pub(crate) fn answer_lost() -> Self {
        Self(Box::new(Kind::AnswerLost))
    }

    pub(crate) fn no_answer() -> Self {
        Self(Box::new(Kind::NoAnswer))
    }

    pub(crate) fn too_long() -> Self {
        Self(Box::new(Kind::TooLong))
    }

    /// The error number: the kernel's refusal, or the failed system call's.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match &*self.0 {
            Kind::Refused(refusal) => Some(refusal.errno),
            Kind::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// The kernel's refusal, if that is what this is.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match &*self.0 {
            Kind::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// True if the request may or may not have been carried out: its answer did not arrive, or the
    /// socket itself failed.
    #[must_use]
    pub fn is_answer_lost(&self) -> bool {
        matches!(&*self.0, Kind::AnswerLost | Kind::NoAnswer) || self.is_socket_failure()
    }

    /// True if the socket itself failed, rather than the kernel refused: the socket's descriptor
    /// was closed, or is something else now. The socket is opened again before its next use.
    #[must_use]
    pub fn is_socket_failure(&self) -> bool {
        let Kind::System { source, .. } = &*self.0 else { return false };
        let errno = source.raw_os_error().map(Errno::from_raw_os_error);
        errno.is_some_and(|errno| !PASSING.contains(&errno))
    }

    /// True if an answer came that cannot be read.
    #[must_use]
    pub fn is_undecodable(&self) -> bool {
        matches!(&*self.0, Kind::Decode(_))
    }

    /// True if changes disturbed a dump each time it was tried.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(&*self.0, Kind::Interrupted { .. })
    }

    /// True if the receive buffer overran (`ENOBUFS`): notifications were lost.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::System { call, source } => write!(f, "{call}: {source}"),
            Kind::Refused(refusal) => refusal.fmt(f),
            Kind::Decode(error) => write!(f, "the kernel's answer could not be read: {error}"),
            Kind::Interrupted { attempts } => {
                write!(f, "the listing was disturbed by changes in each of {attempts} tries")
            }
            Kind::Truncated { length } => {
                write!(f, "an answer of {length} bytes did not fit into the receive buffer")
            }
            Kind::AnswerLost => f.write_str(
                "the answer was lost (receive buffer full), it may or may not have been done",
            ),
            Kind::NoAnswer => {
                f.write_str("the kernel did not answer in time, it may or may not have been done")
            }
            Kind::TooLong => f.write_str("the request is longer than a netlink message can be"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::System { source, .. } => Some(source),
            Kind::Decode(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self(Box::new(Kind::Decode(error)))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self(Box::new(Kind::Refused(refusal)))
    }
}

impl Refusal {
    /// A refusal that the kernel does not explain.
    #[must_use]
    pub fn new(errno: i32) -> Self {
        Self { errno, explanation: None, request: Vec::new() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.errno).fmt(f)?;
        match &self.explanation {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}
