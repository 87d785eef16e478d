//! Growing a set: a larger set is created, filled with its entries, and swapped with it. A set is
//! brought back to its first capacity in the same way.
//!
//! The swap is atomic for packets (`ip_set_swap` in net/netfilter/ipset/ip_set_core.c): rules look
//! into the larger set from one packet to the next, so no packet misses an entry. A failure before
//! the swap leaves the set unchanged.

#[cfg(test)]
mod tests;

use ipset::{Batch, Client, Error, Name, Set};
use plan::capacity::{Capacity, SetSize};
use plan::model::Family;
use plan::sets::SetId;

use super::super::translate::{hash_size, is_same_kind, set_name};
use super::super::{Refusal, RefusalClass};
use super::{of_other_kind, set_refusal};

/// Prefix of our sets' names.
const OURS: &str = "KUBE-";
/// Prefix of the larger sets' names, of the same length: some names are as long as ipset allows.
const BESIDE: &str = "KTMP-";

/// Grows a set. Keeps all its entries with their options, also those that are not ours. Entries
/// that other programs add or delete meanwhile may get lost; the audit finds that.
///
/// # Errors
/// When the set could not be grown. It is then unchanged, and the larger set is removed, unless
/// another program refers to that one.
pub(super) fn grow(ipset: &mut Client, set: SetId, size: SetSize) -> Result<(), Refusal> {
    let unasked = |error| Refusal::new(RefusalClass::Other, error);
    let (name, beside) = (set_name(set).map_err(unasked)?, beside(set).map_err(unasked)?);
    let there = ipset.list(name).map_err(|error| set_refusal(&error))?;
    let capacity = there.header.options.max_elements;
    if capacity.is_some_and(|capacity| capacity >= size.capacity.entries()) {
        return Ok(());
    }
    if let Some(reason) = hindrance(set, &there) {
        return Err(Refusal::new(RefusalClass::Other, reason));
    }
    let made = make(ipset, beside, &there, size).and_then(|()| exchange(ipset, name, beside));
    made.map_err(|error| {
        let Refusal { class, reason } = set_refusal(&error);
        let capacity = capacity.unwrap_or_default();
        // A set that is only being listed gives another error number.
        let hint = if error.is_busy() && class == RefusalClass::Other {
            format!(". Remove the rules that use it (iptables-save | grep {beside})")
        } else {
            String::new()
        };
        Refusal::new(
            class,
            format_args!("{reason}{hint}. {name} stays, with a capacity of {capacity} entries"),
        )
    })
}

/// Makes a set that has grown anew with the capacity that kube-proxy makes it with. Returns whether
/// it had another one.
///
/// # Errors
/// When it has more entries than that, or could not be made anew, in words. It is then unchanged.
pub(in super::super) fn shrink(ipset: &mut Client, set: SetId) -> Result<bool, String> {
    let unasked = |error: ipset::ParseError| error.to_string();
    let (name, beside) = (set_name(set).map_err(unasked)?, beside(set).map_err(unasked)?);
    let there = match ipset.list(name) {
        Ok(there) => there,
        Err(error) if error.is_no_such_set() => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let most = Capacity::FIRST.entries();
    if there.header.options.max_elements.is_none_or(|capacity| capacity == most) {
        return Ok(false);
    }
    if there.entries.len() > most as usize {
        return Err(format!("it has {} entries, and kube-proxy's has {most}", there.entries.len()));
    }
    if let Some(reason) = hindrance(set, &there) {
        return Err(reason);
    }
    let size = SetSize { capacity: Capacity::FIRST, expected: there.entries.len() };
    make(ipset, beside, &there, size)
        .and_then(|()| exchange(ipset, name, beside))
        .map(|()| true)
        .map_err(|error| error.to_string())
}

/// Removes larger sets that a process left behind by ending before the swap. Returns the errors of
/// those that could not be removed.
///
/// # Errors
/// When the sets' names could not be listed.
pub(in super::super) fn remove_leftovers(ipset: &mut Client) -> Result<Vec<Error>, Error> {
    let ours = Family::BOTH.into_iter().flat_map(SetId::all).filter_map(|set| beside(set).ok());
    let ours: Vec<Name> = ours.collect();
    let found: Vec<Name> =
        ipset.list_names()?.into_iter().filter(|name| ours.contains(name)).collect();
    let mut batch = Batch::new();
    for name in found {
        batch.destroy(name);
    }
    Ok(ipset.send(&batch)?.into_iter().filter_map(Result::err).collect())
}

/// Returns the reason why a set cannot be copied, in words; none if it can.
fn hindrance(set: SetId, there: &Set) -> Option<String> {
    if !is_same_kind(set, &there.header.identity) {
        return Some(of_other_kind(set, &there.header.identity));
    }
    (there.undecoded > 0).then(|| {
        format!(
            "{} of its entries have options that kube-ipvs never sets (such as nomatch) and would \
             be lost. Delete them: ipset list {set}",
            there.undecoded
        )
    })
}

/// Makes the larger set and fills it.
fn make(ipset: &mut Client, beside: Name, there: &Set, size: SetSize) -> Result<(), Error> {
    let expected = size.expected.max(there.entries.len());
    let mut spec = there.header.spec();
    spec.options.hash_size = Some(hash_size(SetSize { expected, ..size }));
    spec.options.max_elements = Some(size.capacity.entries());
    match ipset.destroy(beside) {
        Err(error) if !error.is_no_such_set() => return Err(error),
        _ => ipset.create(beside, spec)?,
    }
    let mut batch = Batch::new();
    for listed in &there.entries {
        match &listed.options {
            Some(options) => batch.add_with(beside, listed.entry, options.as_ref().clone()),
            None => batch.add(beside, listed.entry),
        };
    }
    let filled = ipset.send(&batch).and_then(|results| results.into_iter().collect());
    if filled.is_err() {
        remove(ipset, beside);
    }
    filled
}

/// Swaps the larger set with the smaller one, which then has the larger one's name, and removes it.
fn exchange(ipset: &mut Client, name: Name, beside: Name) -> Result<(), Error> {
    let swapped = ipset.swap(name, beside);
    remove(ipset, beside);
    swapped
}

/// Removes a set. One that cannot be removed now is removed before the next growth and at the next
/// start.
fn remove(ipset: &mut Client, beside: Name) {
    match ipset.destroy(beside) {
        Err(error) if !error.is_no_such_set() => {
            tracing::warn!("cannot remove a leftover of growing a set: {error}");
        }
        _ => {}
    }
}

/// Name of the set that is to replace this one. It differs for every set: another program that
/// grows a set at the same time can never give one set the entries of another.
fn beside(set: SetId) -> Result<Name, ipset::ParseError> {
    Name::new(set.name().replacen(OURS, BESIDE, 1))
}
