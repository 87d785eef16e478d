//! Parts of a change that is too large to be made at once.
//!
//! A Service with tens of thousands of frontends changes a part of them in each round. So it holds
//! up the Services behind it for no longer than others do.

use std::cmp::Ordering;

use crate::desired::only_in_second;
use crate::fragment::{Claim, Fragment};

/// Fragment on the way from one to another, with some of the claims that differ. None: at most
/// `most` operations are left, so that the other one can follow at once.
///
/// New addresses come with the last part, and former ones go with the first one: traffic meets no
/// frontend that is not there yet, or is there no more.
pub(crate) fn part(
    current: Option<&Fragment>,
    target: Option<&Fragment>,
    most: usize,
) -> Option<Fragment> {
    let empty = Fragment::default();
    let (from, to) = (current.unwrap_or(&empty), target.unwrap_or(&empty));
    let is_small = from.size().max(to.size()) <= most;
    // One that was made anew is another one in rank as well: all its claims differ.
    if is_small || (current.is_some() && target.is_some() && from.created != to.created) {
        return None;
    }
    let mut room = most.max(1);
    let mut is_cut = false;
    let mut claims = Vec::with_capacity(from.claims.len().max(to.claims.len()));
    for (was, is) in (Pairs { from: &from.claims, to: &to.claims }) {
        if was == is {
            claims.extend(is.cloned());
        } else if room > 0 {
            let weight = was.into_iter().chain(is).map(Claim::size).max();
            room = room.saturating_sub(weight.unwrap_or_default());
            claims.extend(is.cloned());
        } else {
            is_cut = true;
            claims.extend(was.cloned());
        }
    }
    if !is_cut {
        return None;
    }
    let identity = target.unwrap_or(from);
    let mut entries = from.entries.clone();
    entries.extend(only_in_second(&from.entries, &to.entries));
    let stays = |address: &&_| to.addresses.binary_search(address).is_ok();
    let addresses = from.addresses.iter().filter(stays).copied().collect();
    Some(Fragment::new(identity.created, identity.drain_seconds, claims, addresses, entries))
}

/// Claims of two lists in order, each with the one to the same frontend in the other.
struct Pairs<'a> {
    from: &'a [Claim],
    to: &'a [Claim],
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (Option<&'a Claim>, Option<&'a Claim>);

    fn next(&mut self) -> Option<Self::Item> {
        let first = match (self.from.first(), self.to.first()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(was), Some(is)) => was.frontend.cmp(&is.frontend),
        };
        let was = if first.is_le() { self.from.split_off_first() } else { None };
        let is = if first.is_ge() { self.to.split_off_first() } else { None };
        Some((was, is))
    }
}
