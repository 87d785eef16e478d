//! Parts of a change that is too large to be made at once.
//!
//! A Service with tens of thousands of frontends changes a part of them in each round. So it holds
//! up the Services behind it for no longer than others do.

use std::cmp::{Ordering, Reverse};

use crate::ipvs::desired::only_in_second;
use crate::ipvs::fragment::{Claim, ClaimClass, Fragment};

/// Fragment on the way from one to another, with some of the claims that differ.
#[derive(Debug)]
pub(crate) struct FragmentPart {
    pub(crate) fragment: Fragment,
    /// Class of the first claim that is left.
    pub(crate) next: ClaimClass,
}

/// Limit on one part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartLimit {
    /// About as many operations as this at most.
    pub(crate) operations: usize,
    /// No claims of a class behind this one.
    pub(crate) up_to: ClaimClass,
}

/// Change of one claim. Claims are made in the order of their classes, and go in reverse.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Remove(Reverse<ClaimClass>),
    Make(ClaimClass),
}

/// Claims to one frontend: the one that is there, and the one that follows.
type Pair<'a> = (Option<&'a Claim>, Option<&'a Claim>);

/// Next part on the way to a fragment. None: the rest is within the limit, so that `target` can
/// follow at once.
///
/// New addresses come with the last part, and former ones go with the first one: traffic meets no
/// frontend that is not there yet, or is there no more.
pub(crate) fn next_part(
    current: Option<&Fragment>,
    target: Option<&Fragment>,
    limit: PartLimit,
) -> Option<FragmentPart> {
    let empty = Fragment::default();
    let (from, to) = (current.unwrap_or(&empty), target.unwrap_or(&empty));
    let is_small = from.size().max(to.size()) <= limit.operations;
    if is_small && limit.up_to == ClaimClass::LAST {
        return None;
    }
    let pairs: Vec<Pair<'_>> = Pairs { from: &from.claims, to: &to.claims }.collect();
    let mut steps: Vec<(Step, usize)> = pairs.iter().zip(0..).filter_map(step).collect();
    steps.sort_unstable();
    let mut left = limit.operations.max(1);
    let n_taken = steps.partition_point(|(step, _)| step.is_up_to(limit.up_to));
    let n_taken = steps.iter().take(n_taken).take_while(|(_, at)| {
        let is_within = left > 0;
        let weight = pairs.get(*at).map_or(0, weight);
        left = left.saturating_sub(weight);
        is_within
    });
    let n_taken = n_taken.count();
    let (next, _) = steps.get(n_taken)?;
    let next = next.class();
    let mut is_left = vec![false; pairs.len()];
    for (_, at) in steps.iter().skip(n_taken) {
        if let Some(is_left) = is_left.get_mut(*at) {
            *is_left = true;
        }
    }
    let claims = pairs.iter().zip(is_left);
    let claims = claims.filter_map(|((was, is), is_left)| if is_left { *was } else { *is });
    let claims = claims.cloned().collect();
    let drain_deadline_seconds = target.unwrap_or(from).drain_deadline_seconds;
    let mut entries = from.entries.clone();
    entries.extend(only_in_second(&from.entries, &to.entries));
    let stays = |address: &&_| to.addresses.binary_search(address).is_ok();
    let addresses = from.addresses.iter().filter(stays).copied().collect();
    Some(FragmentPart {
        fragment: Fragment::new(drain_deadline_seconds, claims, addresses, entries),
        next,
    })
}

/// Change of a claim, if it changes.
fn step((pair, at): (&Pair<'_>, usize)) -> Option<(Step, usize)> {
    let step = match pair {
        (was, is) if was == is => return None,
        (_, Some(is)) => Step::Make(is.class()),
        (was, None) => Step::Remove(Reverse((*was)?.class())),
    };
    Some((step, at))
}

fn weight((was, is): &Pair<'_>) -> usize {
    was.iter().chain(is).map(|claim| claim.size()).max().unwrap_or_default()
}

// === impl Step ===

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
