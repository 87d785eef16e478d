//! Networks of the clients of load balancers: a set of nf_tables for each length of a prefix.
//!
//! A set of ranges (pipapo) takes milliseconds for each change, and more the more it has. ipset's `hash:ip,port,net`
//! goes by the lengths in use as well.

use std::collections::BTreeSet;

use crate::model::Family;
use crate::sets::{SetId, SetKind};

/// Lengths of the networks that are, or have been, in use, of both families.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceRanges(BTreeSet<(Family, u8)>);

impl SourceRanges {
    /// Adds a length. Returns true if it is new: its set and its rule are to be made.
    pub fn add(&mut self, family: Family, length: u8) -> bool {
        self.0.insert((family, length))
    }

    /// The lengths of a family, the longest first.
    pub fn lengths(&self, family: Family) -> impl Iterator<Item = u8> {
        self.0.iter().rev().filter(move |(of, _)| *of == family).map(|(_, length)| *length)
    }
}

/// Returns the name of the set of networks of this length.
#[must_use]
pub fn set_name(family: Family, length: u8) -> String {
    format!("{}-{length}", networks(family))
}

/// Returns the length of the networks in a set of this name, if it is one of a family's.
#[must_use]
pub fn length_of(family: Family, set: &str) -> Option<u8> {
    set.strip_prefix(networks(family).name())?.strip_prefix('-')?.parse().ok()
}

/// Returns the set that all of a family's networks are in, to the planner.
#[must_use]
pub fn networks(family: Family) -> SetId {
    SetId { kind: SetKind::LoadBalancerSourceCidr, family }
}
