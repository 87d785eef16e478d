//! Errors, in types that callers branch on by asking them.

use std::fmt;
use std::sync::Arc;

use netlink::DecodeError;
use rustix::io::Errno;

use crate::entry::Entry;
use crate::name::Name;
use crate::set::SetType;
use crate::uapi::err;

/// A request that did not do what it should, or an answer that could not be had.
///
/// It displays as a sentence: what was tried on which set, what the kernel answered, and where
/// that is not obvious what to do.
#[derive(Debug)]
pub struct Error(Box<Inner>);

/// Text that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    what: &'static str,
    text: String,
    problem: String,
}

#[derive(Debug)]
struct Inner {
    attempt: Attempt,
    cause: Cause,
}

/// Operation that was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    Open,
    Revisions(SetType),
    Create(Name, SetType),
    Destroy(Option<Name>),
    Flush(Option<Name>),
    Rename(Name, Name),
    Swap(Name, Name),
    Add(Name, Entry),
    Delete(Name, Entry),
    Test(Name, Entry),
    Identify(Name),
    List(Option<Name>),
    Send,
}

#[derive(Debug)]
enum Cause {
    /// The kernel's error number and, where it gave one, its explanation.
    Refused { errno: i32, explanation: Option<String> },
    /// The socket, or an answer that was lost or could not be read. Shared by the entries of a
    /// message.
    Netlink(Arc<netlink::Error>),
    /// It was not sent, for this reason.
    NotSent(String),
    /// The kernel speaks other versions of the protocol, from the first to the second.
    Protocol { min: u8, max: u8 },
    /// The kernel did not send what was asked for.
    NoAnswer,
}

impl Error {
    pub(crate) fn new(attempt: Attempt, error: netlink::Error) -> Self {
        let cause = match error.refusal() {
            Some(refusal) => {
                Cause::Refused { errno: refusal.errno, explanation: refusal.explanation.clone() }
            }
            None => Cause::Netlink(Arc::new(error)),
        };
        Self(Box::new(Inner { attempt, cause }))
    }

    pub(crate) fn shared(attempt: Attempt, error: &Arc<netlink::Error>) -> Self {
        Self(Box::new(Inner { attempt, cause: Cause::Netlink(Arc::clone(error)) }))
    }

    pub(crate) fn not_sent(attempt: Attempt, reason: impl Into<String>) -> Self {
        Self(Box::new(Inner { attempt, cause: Cause::NotSent(reason.into()) }))
    }

    pub(crate) fn protocol(min: u8, max: u8) -> Self {
        Self(Box::new(Inner { attempt: Attempt::Open, cause: Cause::Protocol { min, max } }))
    }

    pub(crate) fn no_answer(attempt: Attempt) -> Self {
        Self(Box::new(Inner { attempt, cause: Cause::NoAnswer }))
    }

    /// The same cause for another attempt.
    pub(crate) fn during(self, attempt: Attempt) -> Self {
        Self(Box::new(Inner { attempt, ..*self.0 }))
    }

    /// The error number: the kernel's refusal, or the failed system call's. ipset has its own from
    /// 4097 on (include/uapi/linux/netfilter/ipset/ip_set.h).
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match &self.0.cause {
            Cause::Refused { errno, .. } => Some(*errno),
            Cause::Netlink(error) => error.raw_os_error(),
            _ => None,
        }
    }

    /// True if the set has as many entries as it may have. A larger one can be created, filled, and
    /// swapped with it.
    #[must_use]
    pub fn is_set_full(&self) -> bool {
        self.is(err::HASH_FULL) && !self.0.attempt.is_bitmap()
    }

    /// True if the port is outside of the range that the set was created for.
    #[must_use]
    pub fn is_out_of_range(&self) -> bool {
        self.is(err::BITMAP_RANGE) && self.0.attempt.is_bitmap()
    }

    /// True if the entry to be added is in the set, or if there is a set of the name that was to be
    /// given. A set to be created exists if it differs from what was wanted or, if the batch is
    /// strict, in any case.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        let second = self.is(err::EXIST_SETNAME2) && matches!(self.0.attempt, Attempt::Rename(..));
        let entry = self.is(err::EXIST) && matches!(self.0.attempt, Attempt::Add(..));
        second || entry || self.is(Errno::EXIST.raw_os_error())
    }

    /// True if the entry or the set that the change is about does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        let entry = self.is(err::EXIST) && !matches!(self.0.attempt, Attempt::Add(..));
        entry || self.is_no_such_set()
    }

    /// True if the set does not exist, be the change about itself or about an entry of it. Of a
    /// swap it can be either set.
    #[must_use]
    pub fn is_no_such_set(&self) -> bool {
        let second = self.is(err::EXIST_SETNAME2) && matches!(self.0.attempt, Attempt::Swap(..));
        second || self.is(Errno::NOENT.raw_os_error())
    }

    /// True if the set is in use: an iptables rule or a list of sets refers to it, or it is being listed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        [err::BUSY, err::REFERENCED, Errno::BUSY.raw_os_error()].into_iter().any(|e| self.is(e))
    }

    /// True if the kernel does not have the set type, or not in that revision and family.
    #[must_use]
    pub fn is_unknown_type(&self) -> bool {
        self.is(err::FIND_TYPE)
    }

    /// True if the two sets to swap hold different things.
    #[must_use]
    pub fn is_type_mismatch(&self) -> bool {
        self.is(err::TYPE_MISMATCH)
    }

    /// True if `CAP_NET_ADMIN` in the network namespace's user namespace is missing (`EPERM`,
    /// `EACCES`).
    #[must_use]
    pub fn is_permission(&self) -> bool {
        [Errno::PERM, Errno::ACCESS].into_iter().any(|e| self.is(e.raw_os_error()))
    }

    /// True if the kernel has no ipset (the module `ip_set` is not loaded), or speaks other versions of the protocol.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        match (&self.0.attempt, &self.0.cause) {
            (_, Cause::Protocol { .. }) => true,
            // nfnetlink answers EINVAL if no module has the subsystem; a kernel without nfnetlink
            // refuses the socket.
            (Attempt::Open, _) => [Errno::INVAL, Errno::PROTONOSUPPORT, Errno::OPNOTSUPP]
                .into_iter()
                .any(|e| self.is(e.raw_os_error())),
            _ => false,
        }
    }

    /// True if the change may or may not have been carried out: its answer did not arrive.
    #[must_use]
    pub fn is_answer_lost(&self) -> bool {
        matches!(&self.0.cause, Cause::Netlink(error) if error.is_answer_lost())
    }

    /// True if an answer came that cannot be read.
    #[must_use]
    pub fn is_undecodable(&self) -> bool {
        matches!(&self.0.cause, Cause::NoAnswer)
            || matches!(&self.0.cause, Cause::Netlink(error) if error.is_undecodable())
    }

    fn is(&self, errno: i32) -> bool {
        self.raw_os_error() == Some(errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { attempt, cause } = &*self.0;
        write!(f, "{attempt}: ")?;
        match cause {
            _ if self.is_unsupported() && !matches!(cause, Cause::Protocol { .. }) => f.write_str(
                "the kernel has no ipset (is the module ip_set there, and may it be loaded?)",
            ),
            Cause::Refused { errno, explanation } => {
                match attempt.words(*errno) {
                    Some(words) => f.write_str(words)?,
                    None => std::io::Error::from_raw_os_error(*errno).fmt(f)?,
                }
                match explanation {
                    Some(text) => write!(f, " ({text})"),
                    None => Ok(()),
                }
            }
            Cause::Netlink(error) => error.fmt(f),
            Cause::NotSent(reason) => f.write_str(reason),
            Cause::Protocol { min, max } => write!(
                f,
                "the kernel speaks ipset protocol {min} to {max}, and this library 6 to 7"
            ),
            Cause::NoAnswer => f.write_str("the kernel's answer lacks what was asked for"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            // The netlink error is part of the text already; what is behind it is not lost.
            Cause::Netlink(error) => error.source(),
            _ => None,
        }
    }
}

impl Attempt {
    /// True if a type's own error numbers are those of the bitmap types.
    fn is_bitmap(&self) -> bool {
        match self {
            Self::Create(_, set_type) => set_type.is_bitmap(),
            Self::Add(_, entry) | Self::Delete(_, entry) | Self::Test(_, entry) => {
                entry.set_type().is_bitmap()
            }
            _ => false,
        }
    }

    /// Returns the meaning of an error number for this operation, if it is known.
    fn words(&self, errno: i32) -> Option<&'static str> {
        self.general_words(errno)
            .or_else(|| standard_words(errno))
            .or_else(|| if self.is_bitmap() { bitmap_words(errno) } else { hash_words(errno) })
    }

    /// Error numbers that mean the same for every type.
    fn general_words(&self, errno: i32) -> Option<&'static str> {
        Some(match errno {
            err::PROTOCOL => match self {
                Self::Add(..) | Self::Delete(..) | Self::Test(..) => {
                    "it does not fit the set's type or family"
                }
                _ => "the kernel cannot read the request",
            },
            err::FIND_TYPE => {
                "the kernel does not have that set type (is its ip_set module there, and may it \
                 be loaded?)"
            }
            err::MAX_SETS => "the kernel holds as many sets as it can",
            err::BUSY | err::REFERENCED => {
                "the set is in use: an iptables rule or a list of sets refers to it"
            }
            err::EXIST_SETNAME2 => match self {
                Self::Swap(..) => "the second set does not exist",
                _ => "a set with the new name exists",
            },
            err::TYPE_MISMATCH => "the sets differ in type or family",
            err::EXIST => match self {
                Self::Add(..) => "it is in the set",
                _ => "it is not in the set",
            },
            err::INVALID_CIDR => "the prefix length is invalid",
            err::INVALID_NETMASK => "the netmask is invalid",
            err::INVALID_FAMILY => "the type does not have that family",
            err::TIMEOUT => "the set was created without timeout",
            err::IPADDR_IPV4 => "an IPv4 address is expected",
            err::IPADDR_IPV6 => "an IPv6 address is expected",
            err::COUNTER => "the set was created without counters",
            err::COMMENT => "the set was created without comment",
            err::INVALID_MARKMASK => "the mark's mask is invalid",
            err::SKBINFO => "the set was created without skbinfo",
            _ => return None,
        })
    }
}

/// Error numbers of the hash types alone.
fn hash_words(errno: i32) -> Option<&'static str> {
    Some(match errno {
        err::HASH_FULL => {
            "the set is full (maxelem): it needs a larger one, swapped into its place"
        }
        err::HASH_ELEM => "the zero address cannot be an entry",
        err::INVALID_PROTO => "the set cannot hold that protocol",
        err::MISSING_PROTO => "the protocol is missing",
        err::HASH_RANGE_UNSUPPORTED => "the set does not take ranges",
        err::HASH_RANGE => "the range is invalid",
        _ => return None,
    })
}

/// Error numbers of the bitmap types alone.
fn bitmap_words(errno: i32) -> Option<&'static str> {
    Some(match errno {
        err::BITMAP_RANGE => "it is outside of the range that the set was created for",
        err::BITMAP_RANGE_SIZE => "the range is larger than sets of this type can have",
        _ => return None,
    })
}

/// Error numbers of the system, where ipset means something particular by them.
fn standard_words(errno: i32) -> Option<&'static str> {
    // ipset's own numbers are no `Errno`, so it is looked for and not converted to.
    let known = [
        (Errno::NOENT, "there is no such set"),
        (Errno::EXIST, "a set of that name exists and differs, or was not to exist"),
        (Errno::BUSY, "the set is being listed: try again"),
        (Errno::PERM, "not permitted: CAP_NET_ADMIN is needed"),
        (Errno::ACCESS, "not permitted: CAP_NET_ADMIN is needed"),
        (Errno::NOMEM, "the kernel has not enough memory"),
    ];
    known.iter().find(|(known, _)| known.raw_os_error() == errno).map(|(_, words)| *words)
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open ipset"),
            Self::Revisions(set_type) => write!(f, "ask for the revisions of {set_type}"),
            Self::Create(set, set_type) => write!(f, "create set {set} of type {set_type}"),
            Self::Destroy(Some(set)) => write!(f, "destroy set {set}"),
            Self::Destroy(None) => f.write_str("destroy all sets"),
            Self::Flush(Some(set)) => write!(f, "flush set {set}"),
            Self::Flush(None) => f.write_str("flush all sets"),
            Self::Rename(from, to) => write!(f, "rename set {from} to {to}"),
            Self::Swap(one, other) => write!(f, "swap sets {one} and {other}"),
            Self::Add(set, entry) => write!(f, "add {entry} to set {set}"),
            Self::Delete(set, entry) => write!(f, "delete {entry} from set {set}"),
            Self::Test(set, entry) => write!(f, "test {entry} in set {set}"),
            Self::Identify(set) => write!(f, "look up set {set}"),
            Self::List(Some(set)) => write!(f, "list set {set}"),
            Self::List(None) => f.write_str("list sets"),
            Self::Send => f.write_str("send to ipset"),
        }
    }
}

impl ParseError {
    pub(crate) fn new(what: &'static str, text: impl Into<String>, problem: &str) -> Self {
        Self { what, text: text.into(), problem: problem.to_owned() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = if self.what.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        write!(f, "`{}` is not {article} {}: {}", self.text, self.what, self.problem)
    }
}

impl std::error::Error for ParseError {}

impl From<ParseError> for DecodeError {
    fn from(error: ParseError) -> Self {
        Self::new(error.what, error.to_string())
    }
}

#[cfg(test)]
mod tests;
