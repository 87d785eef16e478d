//! Errors, in types that callers branch on by asking them.

use std::fmt;

use rustix::io::Errno;

use crate::data::Data;
use crate::name::Name;
use crate::object::TableId;

/// `ERESTART` (include/linux/errno.h), which is no error number of user space's.
const RESTART: i32 = 85;

/// A request that did not do what it should, or an answer that could not be had.
///
/// It displays as a sentence: what was tried, on which object, and what the kernel answered.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
enum Inner {
    /// A request or a listing, and the reason why it failed.
    One(Attempt, netlink::Error),
    /// Changes of a transaction that the kernel refused: at least one.
    Refused(Vec<Refused>),
    /// A change came between the parts of a listing, each of this many times.
    Disturbed { attempt: Attempt, times: usize },
}

/// A change that the kernel refused, for which nothing of its transaction was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// Place of the change among those of its batch; none if the refusal is about the transaction as a whole.
    pub place: Option<usize>,
    /// The change.
    pub attempt: Attempt,
    /// A positive error number.
    pub errno: i32,
    /// The kernel's explanation, where it gave one.
    pub explanation: Option<String>,
}

/// A request to the kernel, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// To open a socket.
    Open,
    /// To carry out a transaction.
    Commit,
    /// To read the generation.
    ReadGeneration,
    /// To wait for notifications.
    Listen,
    /// To do something with one object, or with all of a kind.
    Do {
        /// A verb and a noun, as `create set` or `list rules`.
        what: &'static str,
        /// The table; none if it is about all tables.
        table: Option<TableId>,
        /// Name of the chain, set or flow table.
        name: Option<Name>,
        /// Key of the first element.
        key: Option<Data>,
    },
}

impl Error {
    pub(crate) fn new(attempt: Attempt, error: netlink::Error) -> Self {
        Self(Box::new(Inner::One(attempt, error)))
    }

    pub(crate) fn disturbed(attempt: Attempt, times: usize) -> Self {
        Self(Box::new(Inner::Disturbed { attempt, times }))
    }

    pub(crate) fn refused(refused: Vec<Refused>) -> Self {
        Self(Box::new(Inner::Refused(refused)))
    }

    /// Returns the changes that the kernel refused. If there are any, nothing of the transaction was carried out.
    #[must_use]
    pub fn refusals(&self) -> &[Refused] {
        match &*self.0 {
            Inner::Refused(refused) => refused,
            Inner::One(..) | Inner::Disturbed { .. } => &[],
        }
    }

    /// The error number: the kernel's first refusal, or the failed system call's.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match &*self.0 {
            Inner::One(_, error) => error.raw_os_error(),
            Inner::Refused(refused) => refused.first().map(|refused| refused.errno),
            Inner::Disturbed { .. } => None,
        }
    }

    /// True if it is not known whether a transaction was carried out.
    #[must_use]
    pub fn is_answer_lost(&self) -> bool {
        matches!(&*self.0, Inner::One(_, error) if error.is_answer_lost())
    }

    /// True if the object, or one that it needs, does not exist. A chain type or an expression whose module is
    /// missing does not exist either.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is(Errno::NOENT.raw_os_error())
    }

    /// True if the object exists, and is not as it was to be created.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.is(Errno::EXIST.raw_os_error())
    }

    /// True if something still refers to the object.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is(Errno::BUSY.raw_os_error())
    }

    /// True if the process may not change nf_tables, or if another socket owns the table.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        self.is(Errno::PERM.raw_os_error())
    }

    /// True if the kernel has no nf_tables, or not what was asked for: flags of a table, another priority of a chain.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT, Errno::INVAL]
            .iter()
            .any(|errno| self.is(errno.raw_os_error()))
    }

    /// True if nf_tables had changed since the generation of [`Batch::of_generation`](crate::Batch::of_generation).
    #[must_use]
    pub fn is_generation_over(&self) -> bool {
        self.is(RESTART)
    }

    /// True if notifications were lost: what they told must be read anew.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.is(Errno::NOBUFS.raw_os_error())
    }

    fn is(&self, errno: i32) -> bool {
        self.raw_os_error() == Some(errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Inner::One(attempt, error) => write!(f, "{attempt}: {error}"),
            Inner::Disturbed { attempt, times } => {
                write!(f, "{attempt}: changes disturbed the listing in each of {times} tries")
            }
            Inner::Refused(refused) => {
                if let Some(first) = refused.first() {
                    first.fmt(f)?;
                }
                match refused.len() {
                    0 | 1 => Ok(()),
                    number => write!(f, " (and {} more changes of the transaction)", number - 1),
                }
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Inner::One(_, error) => Some(error),
            Inner::Refused(_) | Inner::Disturbed { .. } => None,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == RESTART {
            return write!(
                f,
                "{}: nf_tables has changed since the batch's generation",
                self.attempt
            );
        }
        write!(f, "{}: {}", self.attempt, std::io::Error::from_raw_os_error(self.errno))?;
        match &self.explanation {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}

impl Attempt {
    pub(crate) fn on_table(what: &'static str, table: &TableId) -> Self {
        Self::Do { what, table: Some(table.clone()), name: None, key: None }
    }

    pub(crate) fn on_object(what: &'static str, table: &TableId, name: &Name) -> Self {
        Self::Do { what, table: Some(table.clone()), name: Some(name.clone()), key: None }
    }

    pub(crate) fn on_all(what: &'static str) -> Self {
        Self::Do { what, table: None, name: None, key: None }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open nf_tables"),
            Self::Commit => f.write_str("commit an nf_tables transaction"),
            Self::ReadGeneration => f.write_str("read the generation of nf_tables"),
            Self::Listen => f.write_str("wait for changes of nf_tables"),
            Self::Do { what, table, name, key } => {
                f.write_str(what)?;
                for part in [name.as_ref().map(Name::as_str)].into_iter().flatten() {
                    write!(f, " {part}")?;
                }
                if let Some(table) = table {
                    let of = if name.is_some() { " of table" } else { "" };
                    write!(f, "{of} {table}")?;
                }
                match key {
                    Some(key) => write!(f, ", key {key}"),
                    None => Ok(()),
                }
            }
        }
    }
}
