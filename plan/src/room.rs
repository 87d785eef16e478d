//! Capacity of sets: the number of entries that they hold, and when they have to grow.
//!
//! A hash set is made for a number of entries, and refuses those past it. So it grows while there
//! is room left: the kernel side makes a larger one beside it, and exchanges the two.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::actual::ActualSet;
use crate::op::Op;
use crate::sets::{SetId, SetType};

/// Number of entries that a set may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Capacity(u32);

/// Capacity that a set is to have, and the expected number of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Room {
    /// Number of entries that it may hold.
    pub capacity: Capacity,
    /// Number of entries that it is about to hold, as far as that is known.
    pub expected: usize,
}

/// The room that the kernel's sets have, as far as we know: as they were found, and with what was
/// written since then. Entries that others add or delete are not noticed until a set is read again.
#[derive(Debug, Clone, Default)]
pub struct Rooms(HashMap<SetId, Known>);

#[derive(Debug, Clone, Copy)]
struct Known {
    capacity: Capacity,
    entries: usize,
}

/// Effect that operations would have on a set.
#[derive(Debug, Default)]
struct Coming {
    /// It is made, or made larger.
    capacity: Option<Capacity>,
    is_new: bool,
    added: usize,
}

// === impl Capacity ===

impl Capacity {
    /// Capacity that a set is made with if that is enough: kube-proxy's number. Its
    /// `ipset create -exist` fails on a set that was made for another one. The ports of a
    /// `bitmap:port` are as many.
    pub const FIRST: Self = Self(65_536);

    /// The largest: what a number of 32 bits leaves of the powers of two.
    const LARGEST: Self = Self(1 << 31);

    /// Makes a capacity of this number of entries.
    #[must_use]
    pub const fn new(entries: u32) -> Self {
        Self(entries)
    }

    /// Returns the number of entries.
    #[must_use]
    pub const fn entries(self) -> u32 {
        self.0
    }

    /// Returns the capacity that a new set for this number of entries is made with.
    #[must_use]
    pub fn of_new(entries: usize) -> Self {
        Self::FIRST.grown_for(entries).unwrap_or(Self::FIRST)
    }

    /// Returns the capacity to which a set of this capacity has to grow before it holds this number
    /// of entries; none: it need not. It has to when the entries are more than seven eighths of
    /// what it may hold, and then to at least twice their number, so that what copying costs is
    /// spread over as many new ones.
    #[must_use]
    pub fn grown_for(self, entries: usize) -> Option<Self> {
        let entries = entries as u64;
        if entries.saturating_mul(8) <= u64::from(self.0) * 7 {
            return None;
        }
        let enough = entries.saturating_mul(2).checked_next_power_of_two();
        let enough = enough.and_then(|enough| u32::try_from(enough).ok()).map(Self);
        Some(enough.unwrap_or(Self::LARGEST)).filter(|enough| *enough > self)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl Room ===

impl Room {
    /// For a new set that is about to hold so many entries.
    #[must_use]
    pub fn of_new(set: SetId, expected: usize) -> Self {
        let capacity = match set.set_type() {
            SetType::BitmapPort => Capacity::FIRST,
            _ => Capacity::of_new(expected),
        };
        Self { capacity, expected }
    }

    /// The same, but no larger than this.
    #[must_use]
    pub fn at_most(self, most: Capacity) -> Self {
        Self { capacity: self.capacity.min(most), ..self }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.capacity)
    }
}

// === impl Rooms ===

impl Rooms {
    /// The room that these sets have.
    #[must_use]
    pub fn of(sets: &HashMap<SetId, ActualSet>) -> Self {
        Self(sets.iter().map(|(set, found)| (*set, Known::of(found))).collect())
    }

    /// Notes how a set was found; none: it is not there.
    pub fn found(&mut self, set: SetId, found: Option<&ActualSet>) {
        match found {
            Some(found) => self.0.insert(set, Known::of(found)),
            None => self.0.remove(&set),
        };
    }

    /// Notes an operation that was carried out.
    pub fn carried_out(&mut self, op: &Op) {
        match op {
            Op::CreateSet(set, Room { capacity, .. }) => {
                self.0.insert(*set, Known { capacity: *capacity, entries: 0 });
            }
            Op::GrowSet(set, Room { capacity, .. }) => {
                self.0.entry(*set).or_default().capacity = *capacity;
            }
            Op::AddEntry(set, _) => self.0.entry(*set).or_default().entries += 1,
            Op::RemoveEntry(set, _) => {
                let known = self.0.entry(*set).or_default();
                known.entries = known.entries.saturating_sub(1);
            }
            _ => {}
        }
    }

    /// Returns the number of entries that a set may hold.
    #[must_use]
    pub fn capacity(&self, set: SetId) -> Capacity {
        self.known(set).capacity
    }

    /// Returns the number of entries that the kernel has in a set, those of others included.
    #[must_use]
    pub fn n_entries(&self, set: SetId) -> usize {
        self.known(set).entries
    }

    /// Adds what it takes that there is room for the entries that these operations add, without
    /// counting on those that they remove, which they do later. No set gets larger than `most`.
    /// `ops` are by phases, and stay so.
    pub fn make(&self, ops: &mut Vec<Op>, most: Capacity) {
        let mut coming: BTreeMap<SetId, Coming> = BTreeMap::new();
        for op in &*ops {
            match op {
                Op::AddEntry(set, _) => coming.entry(*set).or_default().added += 1,
                Op::CreateSet(set, room) => {
                    let coming = coming.entry(*set).or_default();
                    coming.capacity = Some(room.capacity);
                    coming.is_new = true;
                }
                Op::GrowSet(set, room) => {
                    coming.entry(*set).or_default().capacity = Some(room.capacity);
                }
                _ => {}
            }
        }
        let before = ops.len();
        let growth = |(set, coming)| self.growth(set, &coming, most);
        ops.extend(coming.into_iter().filter_map(growth));
        if ops.len() > before {
            ops.sort_by_key(Op::phase);
        }
    }

    fn growth(&self, set: SetId, coming: &Coming, most: Capacity) -> Option<Op> {
        // It has a place for every port.
        if coming.added == 0 || set.set_type() == SetType::BitmapPort {
            return None;
        }
        let there = if coming.is_new { Known::default() } else { self.known(set) };
        let expected = there.entries + coming.added;
        let now = coming.capacity.unwrap_or(there.capacity);
        let capacity = now.grown_for(expected)?.min(most);
        (capacity > now).then_some(Op::GrowSet(set, Room { capacity, expected }))
    }

    fn known(&self, set: SetId) -> Known {
        self.0.get(&set).copied().unwrap_or_default()
    }
}

// === impl Known ===

impl Known {
    fn of(found: &ActualSet) -> Self {
        Self { capacity: found.capacity, entries: found.n_entries() }
    }
}

impl Default for Known {
    fn default() -> Self {
        Self { capacity: Capacity::FIRST, entries: 0 }
    }
}
