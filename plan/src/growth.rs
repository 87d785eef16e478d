//! Growth of sets: how full the kernel's sets are, and when they have to grow.
//!
//! A hash set is made for a number of entries, and refuses those past it. So it grows before it is
//! full: the kernel side makes a larger one beside it, and exchanges the two.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::actual::ActualSet;
use crate::capacity::{Capacity, SetSize};
use crate::hash::HashMap;
use crate::op::Op;
use crate::sets::{SetId, SetType};

/// Capacity and number of entries of the kernel's sets: as they were read, and with what was
/// written since then. Entries that other programs add or delete are not noticed until a set is
/// read again.
#[derive(Debug, Default)]
pub struct SetSizes(HashMap<SetId, KnownSize>);

#[derive(Debug, Clone, Copy)]
struct KnownSize {
    capacity: Capacity,
    entries: usize,
}

/// Effect that operations will have on a set.
#[derive(Debug, Default)]
struct Planned {
    /// It is made, or made larger.
    capacity: Option<Capacity>,
    is_new: bool,
    added: usize,
}

impl SetSizes {
    /// The sizes of these sets.
    #[must_use]
    pub fn of(sets: &HashMap<SetId, ActualSet>) -> Self {
        Self(sets.iter().map(|(set, found)| (*set, KnownSize::of(found))).collect())
    }

    /// Notes how a set was found; none: it is not there.
    pub fn found(&mut self, set: SetId, found: Option<&ActualSet>) {
        match found {
            Some(found) => self.0.insert(set, KnownSize::of(found)),
            None => self.0.remove(&set),
        };
    }

    /// Notes an operation that was carried out.
    pub fn carried_out(&mut self, op: &Op) {
        match op {
            Op::CreateSet(set, SetSize { capacity, .. }) => {
                self.0.insert(*set, KnownSize { capacity: *capacity, entries: 0 });
            }
            Op::GrowSet(set, SetSize { capacity, .. }) => {
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

    /// Inserts the [`Op::GrowSet`] operations that these additions need. Removals run later, so
    /// they are ignored. No set gets larger than `most`. `ops` are by phases, and stay so.
    pub fn insert_growth(&self, ops: &mut Vec<Op>, most: Capacity) {
        let mut planned: BTreeMap<SetId, Planned> = BTreeMap::new();
        for op in &*ops {
            match op {
                Op::AddEntry(set, _) => planned.entry(*set).or_default().added += 1,
                Op::CreateSet(set, size) => {
                    let planned = planned.entry(*set).or_default();
                    planned.capacity = Some(size.capacity);
                    planned.is_new = true;
                }
                Op::GrowSet(set, size) => {
                    planned.entry(*set).or_default().capacity = Some(size.capacity);
                }
                _ => {}
            }
        }
        let before = ops.len();
        let growth = |(set, planned)| self.growth(set, &planned, most);
        ops.extend(planned.into_iter().filter_map(growth));
        if ops.len() > before {
            ops.sort_by_key(Op::phase);
        }
    }

    fn growth(&self, set: SetId, planned: &Planned, most: Capacity) -> Option<Op> {
        // It has a place for every port.
        if planned.added == 0 || set.set_type() == SetType::BitmapPort {
            return None;
        }
        let there = if planned.is_new { KnownSize::default() } else { self.known(set) };
        let expected = there.entries + planned.added;
        let now = planned.capacity.unwrap_or(there.capacity);
        let capacity = now.grown_for(expected)?.min(most);
        (capacity > now).then_some(Op::GrowSet(set, SetSize { capacity, expected }))
    }

    fn known(&self, set: SetId) -> KnownSize {
        self.0.get(&set).copied().unwrap_or_default()
    }
}

impl KnownSize {
    fn of(found: &ActualSet) -> Self {
        Self { capacity: found.capacity, entries: found.n_entries() }
    }
}

impl Default for KnownSize {
    fn default() -> Self {
        Self { capacity: Capacity::FIRST, entries: 0 }
    }
}
