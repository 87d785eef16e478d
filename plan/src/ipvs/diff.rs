//! Differences between the desired state and what was found, as operations.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::actual::{Actual, ActualSet, ActualVirtualServer};
use crate::capacity::SetSize;
use crate::hash::HashSet;
use crate::ipvs::desired::Desired;
use crate::ipvs::ownership::Ownership;
use crate::kernel_objects::{Entry, Frontend};
use crate::model::Family;
use crate::op::Op;
use crate::routes;
use crate::sets::SetId;
use crate::settings::Settings;
use crate::virtual_server::{self, DesiredFrontend};

/// Returns the operations that turn the actual state into the desired one, by phases.
///
/// Objects that are found and not desired are removed only if they are ours: an address on
/// `kube-ipvs0`, a route of ours, an entry of our sets, a virtual server that one of these marks. Families that are not in the settings are left alone, and so is what is not desired inside
/// excluded networks.
#[must_use]
pub fn diff(desired: &Desired, actual: &Actual, settings: &Settings) -> Vec<Op> {
    let mut ops = prerequisites(actual, settings, |set| desired.n_entries(set));
    for family in &settings.families {
        for set in SetId::all(*family) {
            let entries = self::set(desired, actual.sets.get(&set), settings, set);
            ops.extend(entries.into_iter().filter(|op| !op.is_prerequisite()));
        }
    }
    let ownership = Ownership { desired, actual, settings };
    let found = actual.virtual_servers.keys().filter(|frontend| ownership.is_ours(frontend));
    let frontends: BTreeSet<&Frontend> = desired.frontends().chain(found).collect();
    let each = frontends.into_iter();
    ops.extend(each.flat_map(|it| repair(desired, it, actual.virtual_servers.get(it))));
    ops.extend(addresses(desired, &actual.addresses, settings));
    let routes = routes::compare(&actual.routes, settings).into_iter().map(Op::Route);
    ops.extend(routes.filter(|op| !op.is_prerequisite()));
    ops.sort_by_key(Op::phase);
    ops
}

/// Returns the operations that create missing prerequisites: the interface, sets, rules, routes.
/// `expected`: number of entries that a set is about to have, as far as that is known.
#[must_use]
pub fn prerequisites(
    actual: &Actual,
    settings: &Settings,
    expected: impl Fn(SetId) -> usize,
) -> Vec<Op> {
    let mut ops = Vec::new();
    if !actual.link {
        ops.push(Op::CreateLink);
    }
    for family in &settings.families {
        let missing = SetId::all(*family).filter(|set| !actual.sets.contains_key(set));
        let most = settings.limits.set_size;
        let size = |set| SetSize::of_new(set, expected(set)).at_most(most);
        ops.extend(missing.map(|set| Op::CreateSet(set, size(set))));
        if !actual.rule_sets.contains(family) {
            ops.push(Op::WriteRuleSet(*family));
        }
    }
    let routes = routes::compare(&actual.routes, settings).into_iter().map(Op::Route);
    ops.extend(routes.filter(Op::is_prerequisite));
    ops.sort_by_key(Op::phase);
    ops
}

/// Returns the operations that turn a set, which may be missing, into the desired one, by phases.
#[must_use]
pub fn set(
    desired: &Desired,
    found: Option<&ActualSet>,
    settings: &Settings,
    set: SetId,
) -> Vec<Op> {
    let mut ops = Vec::new();
    if found.is_none() {
        let size = SetSize::of_new(set, desired.n_entries(set));
        ops.push(Op::CreateSet(set, size.at_most(settings.limits.set_size)));
    }
    let is_found = |entry: &Entry| found.is_some_and(|there| there.entries.contains(entry));
    let mut missing: Vec<Entry> =
        desired.entries(set).filter(|entry| !is_found(entry)).copied().collect();
    missing.sort_unstable();
    ops.extend(missing.into_iter().map(|entry| Op::AddEntry(set, entry)));
    let is_ours = |entry: &Entry| is_removable(entry, desired, settings);
    let mut extra: Vec<Entry> = found
        .into_iter()
        .flat_map(|there| &there.entries)
        .filter(|entry| !desired.has_entry(set, entry) && is_ours(entry))
        .copied()
        .collect();
    extra.sort_unstable();
    ops.extend(extra.into_iter().map(|entry| Op::RemoveEntry(set, entry)));
    ops
}

/// True if an entry that is not desired is ours to remove. One at an excluded address is if a
/// Service has its frontend: it would refuse or admit that Service's clients.
pub(crate) fn is_removable(entry: &Entry, desired: &Desired, settings: &Settings) -> bool {
    !entry.address().is_some_and(|address| settings.excludes(address))
        || entry.frontend().is_some_and(|frontend| desired.owner(&frontend).is_some())
}

/// Returns the operations that turn the addresses of `kube-ipvs0` into the desired ones, by phases.
#[must_use]
pub fn addresses(desired: &Desired, found: &HashSet<IpAddr>, settings: &Settings) -> Vec<Op> {
    let missing = desired.addresses().filter(|address| !found.contains(address));
    let mut missing: Vec<_> = missing.collect();
    missing.sort_unstable();
    let extra = found.iter().copied().filter(|address| {
        !desired.has_address(*address)
            && settings.families.contains(&Family::of(*address))
            && !settings.excludes(*address)
    });
    let mut extra: Vec<_> = extra.collect();
    sort_for_removal(&mut extra);
    let missing = missing.into_iter().map(Op::BindAddress);
    missing.chain(extra.into_iter().map(Op::UnbindAddress)).collect()
}

/// The largest first: of IPv6 addresses, the kernel has what was added last at the front of the
/// list that it looks through (`inet6_addr_del` in net/ipv6/addrconf.c), and they are added in
/// order. Those of IPv4 cost the same in any order.
pub(crate) fn sort_for_removal(addresses: &mut [IpAddr]) {
    addresses.sort_unstable_by(|one, other| other.cmp(one));
}

/// Returns the operations by which a virtual server takes no new connections, and goes when the old
/// ones have ended.
#[must_use]
pub fn close(
    desired: &Desired,
    frontend: &Frontend,
    actual: Option<&ActualVirtualServer>,
) -> Vec<Op> {
    let closed = DesiredFrontend::Closed;
    let mut ops = virtual_server::repair(*frontend, actual, closed, desired.seed());
    ops.sort_by_key(Op::phase);
    ops
}

/// Returns the operations that turn one virtual server into the desired one.
///
/// An undesired one is removed whether it is ours or not: this is for subjects of operations.
#[must_use]
pub fn repair(
    desired: &Desired,
    frontend: &Frontend,
    actual: Option<&ActualVirtualServer>,
) -> Vec<Op> {
    let mut ops = virtual_server::repair(*frontend, actual, desired.at(frontend), desired.seed());
    ops.sort_by_key(Op::phase);
    ops
}
