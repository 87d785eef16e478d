//! Parts of a change that is too large to be made at once.
//!
//! A Service with tens of thousands of frontends changes a part of them in each round. So it holds
//! up the Services behind it for no longer than others do.

use std::cmp::{Ordering, Reverse};
use std::net::IpAddr;
use std::sync::Arc;

use crate::hash::HashSet;
use crate::ipvs::desired::only_in_second;
use crate::ipvs::fragment::{Claim, ClaimClass, Fragment};
use crate::kernel_objects::Frontend;

/// Fragment on the way from one to another, with some of the claims that differ.
#[derive(Debug)]
pub(crate) struct FragmentPart {
    pub(crate) fragment: Fragment,
    /// Class of the first claim that is left.
    pub(crate) next: ClaimClass,
    /// Place of the last claim in it.
    pub(crate) last: Option<Place>,
    /// Number of parts that the rest takes, about.
    pub(crate) n_left: usize,
}

/// Limit on one part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartLimit {
    /// About as many operations as this at most.
    pub(crate) operations: usize,
    /// No claims of a class behind this one.
    pub(crate) up_to: ClaimClass,
    /// Place of the last claim of the part before: this one goes on behind it, and begins again at
    /// the end. So a Service that goes on changing has all its claims changed in turn.
    pub(crate) behind: Option<Place>,
}

/// Number of parts that a change is planned in at most, about: each part compiles all of the Service,
/// and all of them together are to cost no more than a multiple of that.
pub(crate) const MOST_PARTS: usize = 16;

/// Place of a claim in the order in which claims change.
pub(crate) type Place = (Step, Frontend);

/// Change of one claim. Claims are made in the order of their classes, and go in reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Remove(Reverse<ClaimClass>),
    Make(ClaimClass),
}

/// Claims to one frontend: the one that is there, and the one that follows.
type Pair<'a> = (Option<&'a Claim>, Option<&'a Claim>);

/// Next part on the way to a fragment. None: the rest is within the limit, so that `target` can
/// follow at once.
///
/// A new address comes when all claims at it are made, and former ones go with the first part: traffic
/// meets no frontend that is not there yet, or is there no more.
pub(crate) fn next_part(
    current: Option<&Fragment>,
    target: Option<&Fragment>,
    limit: PartLimit,
) -> Option<FragmentPart> {
    let empty = Fragment::default();
    let (from, to) = (current.unwrap_or(&empty), target.unwrap_or(&empty));
    let pairs: Vec<Pair<'_>> = Pairs { from: &from.claims, to: &to.claims }.collect();
    let mut steps: Vec<(Place, usize)> = pairs.iter().zip(0..).filter_map(step).collect();
    let weight_of = |at: &usize| pairs.get(*at).map_or(0, weight);
    let total: usize = steps.iter().map(|(_, at)| weight_of(at)).sum();
    let others = from.entries.len().abs_diff(to.entries.len());
    let is_small = total + others <= limit.operations;
    if is_small && limit.up_to == ClaimClass::LAST {
        return None;
    }
    steps.sort_unstable();
    if let Some(behind) = limit.behind.filter(|_| limit.up_to == ClaimClass::LAST) {
        let n_before = steps.partition_point(|(place, _)| *place <= behind);
        steps.rotate_left(n_before);
    }
    let operations = limit.operations.max(total / MOST_PARTS).max(1);
    let mut left = operations;
    let is_in_turn = |((step, _), _): &&(Place, usize)| step.is_up_to(limit.up_to);
    let n_taken = steps.iter().take_while(is_in_turn).take_while(|(_, at)| {
        let is_within = left > 0;
        left = left.saturating_sub(weight_of(at));
        is_within
    });
    let n_taken = n_taken.count();
    let ((next, _), _) = steps.get(n_taken)?;
    let next = next.class();
    let last = n_taken.checked_sub(1).and_then(|at| steps.get(at)).map(|(place, _)| *place);
    let mut is_left = vec![false; pairs.len()];
    for (_, at) in steps.iter().skip(n_taken) {
        if let Some(is_left) = is_left.get_mut(*at) {
            *is_left = true;
        }
    }
    let pairs = pairs.iter().zip(is_left);
    let unmade = pairs.clone().filter(|((was, _), is_left)| *is_left && was.is_none());
    let unmade: HashSet<IpAddr> =
        unmade.filter_map(|((_, is), _)| Some(is.as_ref()?.frontend.address)).collect();
    let claims = pairs.filter_map(|((was, is), is_left)| if is_left { *was } else { *is });
    let claims = claims.cloned().collect();
    let drain_deadline_seconds = target.unwrap_or(from).drain_deadline_seconds;
    let mut entries = from.entries.clone();
    entries.extend(only_in_second(&from.entries, &to.entries));
    let is_complete = |address: &&IpAddr| {
        from.addresses.binary_search(address).is_ok() || !unmade.contains(*address)
    };
    let addresses = to.addresses.iter().filter(is_complete).copied().collect();
    Some(FragmentPart {
        fragment: Fragment::new(drain_deadline_seconds, claims, addresses, entries),
        next,
        last,
        n_left: total / operations,
    })
}

/// Change of a claim, if it changes.
fn step((pair, at): (&Pair<'_>, usize)) -> Option<(Place, usize)> {
    let place = match pair {
        (was, is) if was == is => return None,
        (_, Some(is)) => (Step::Make(is.class()), is.frontend),
        (was, None) => {
            let was = (*was)?;
            (Step::Remove(Reverse(was.class())), was.frontend)
        }
    };
    Some((place, at))
}

/// Returns the number of operations, about, between two claims to a frontend. If another Service may
/// have it because of the change, or had it, that is all of the claim.
fn weight((was, is): &Pair<'_>) -> usize {
    let (Some(was), Some(is)) = (was, is) else {
        return was.iter().chain(is).map(|claim| claim.size()).sum();
    };
    if (was.origin, was.created) != (is.origin, is.created) {
        return was.size().max(is.size());
    }
    let real_servers = if Arc::ptr_eq(&was.real_servers, &is.real_servers) {
        0
    } else {
        n_different(&was.real_servers, &is.real_servers)
    };
    1 + real_servers + n_different(&was.entries, &is.entries)
}

/// Number of items that only one of two lists in order has.
fn n_different<T: Ord>(mut one: &[T], mut other: &[T]) -> usize {
    let mut n_different = 0;
    while let (Some(first), Some(second)) = (one.first(), other.first()) {
        let order = first.cmp(second);
        n_different += usize::from(order.is_ne());
        if order.is_le() {
            one = one.get(1..).unwrap_or_default();
        }
        if order.is_ge() {
            other = other.get(1..).unwrap_or_default();
        }
    }
    n_different + one.len() + other.len()
}

impl Step {
    fn is_up_to(&self, class: ClaimClass) -> bool {
        match self {
            Self::Remove(_) => true,
            Self::Make(of) => *of <= class,
        }
    }

    /// Class of claims that may be made by the time of this step.
    fn class(&self) -> ClaimClass {
        match self {
            Self::Remove(_) => ClaimClass::FIRST,
            Self::Make(class) => *class,
        }
    }
}

/// Claims of two lists in order, each with the one to the same frontend in the other.
struct Pairs<'a> {
    from: &'a [Claim],
    to: &'a [Claim],
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

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
