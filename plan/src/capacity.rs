//! Capacity of sets: the number of entries that they hold.

use std::fmt;

use crate::sets::{SetId, SetType};

/// Number of entries that a set may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Capacity(u32);

/// Size that a set is to have: its capacity, and the expected number of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetSize {
    /// Number of entries that it may hold.
    pub capacity: Capacity,
    /// Number of entries that it is about to hold, as far as that is known.
    pub expected: usize,
}

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

impl SetSize {
    /// The size of a new set that is about to hold this number of entries.
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

impl fmt::Display for SetSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.capacity)
    }
}
