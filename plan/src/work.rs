//! Counts what planning does, for tests: each comparison and each hash of a frontend or a name.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use crate::kernel_objects::Frontend;
use crate::model::{NameParts, ObjectName, Protocol};

thread_local! {
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// Number of comparisons and hashes that this takes.
pub(crate) fn of<T>(task: impl FnOnce() -> T) -> u64 {
    let before = DONE.get();
    drop(task());
    DONE.get() - before
}

fn count() {
    DONE.set(DONE.get() + 1);
}

/// Implements what a type derives otherwise, by its `key`, and counts each use.
macro_rules! counted {
    ($type:ty) => {
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                count();
                key(self) == key(other)
            }
        }

        impl Eq for $type {}

        impl Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                count();
                key(self).hash(state);
            }
        }

        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $type {
            fn cmp(&self, other: &Self) -> Ordering {
                count();
                key(self).cmp(&key(other))
            }
        }
    };
}

/// Type that is compared by a key.
trait Keyed {
    type Key<'a>: Ord + Hash
    where
        Self: 'a;

    fn key(&self) -> Self::Key<'_>;
}

fn key<T: Keyed>(item: &T) -> T::Key<'_> {
    item.key()
}

impl Keyed for Frontend {
    type Key<'a> = (IpAddr, Protocol, u16);

    fn key(&self) -> Self::Key<'_> {
        (self.address, self.protocol, self.port)
    }
}

impl Keyed for ObjectName {
    type Key<'a> = &'a NameParts;

    fn key(&self) -> Self::Key<'_> {
        self
    }
}

counted!(Frontend);
counted!(ObjectName);
