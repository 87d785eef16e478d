//! A set whose members are there as long as someone needs them.

use std::hash::Hash;

use crate::hash::HashMap;

/// Members, and how many need each.
#[derive(Debug, Clone)]
pub(super) struct Counted<T>(HashMap<T, u32>);

impl<T: Eq + Hash> Counted<T> {
    /// One more needs it. Returns whether it is new.
    pub(super) fn add(&mut self, member: T) -> bool {
        let count = self.0.entry(member).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// One less needs it. Returns whether it is gone.
    pub(super) fn remove(&mut self, member: &T) -> bool {
        match self.0.get_mut(member) {
            Some(1) => {
                self.0.remove(member);
                true
            }
            Some(count) => {
                *count -= 1;
                false
            }
            None => false,
        }
    }

    pub(super) fn contains(&self, member: &T) -> bool {
        self.0.contains_key(member)
    }

    /// Number of those that need it.
    pub(super) fn count(&self, member: &T) -> u32 {
        self.0.get(member).copied().unwrap_or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}
