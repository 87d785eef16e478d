//! Differences, as operations: between two desired states, and between a desired state and what was
//! found.

mod ownership;

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::actual::{Actual, ActualSet, ActualVirtualServer};
use crate::desired::Desired;
use crate::kernel::{Entry, Frontend, RealServer, VirtualServer};
use crate::model::Family;
use crate::op::Op;
use crate::order;
use crate::room::Room;
use crate::sets::SetId;
use crate::settings::Settings;
pub(crate) use ownership::{Ownership, recorded, records};

/// Desired state of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesiredFrontend<'a> {
    /// Nothing: no Service claims it.
    Unclaimed,
    /// No virtual server, because there are no endpoints. What there was takes no new connections,
    /// and goes when the old ones have ended.
    Closed,
    /// A virtual server, with its real servers in the order of address and port.
    Open(&'a VirtualServer, &'a [RealServer]),
}

/// A virtual server that is to be turned into another: one that was desired, or one that was
/// found.
#[derive(Debug, Default)]
struct Before<'a> {
    /// Parameters of balancing. None: such as we never ask for.
    server: Option<&'a VirtualServer>,
    /// Real servers with their weights, in the order of address and port. None: such as we never
    /// make.
    real_servers: Vec<(SocketAddr, Option<u32>)>,
}

// === impl Before ===

impl<'a> From<&'a ActualVirtualServer> for Before<'a> {
    fn from(found: &'a ActualVirtualServer) -> Self {
        let real = found.real_servers.iter();
        let mut real_servers: Vec<_> =
            real.map(|(at, real)| (*at, real.plain.then_some(real.weight))).collect();
        real_servers.sort_unstable();
        Self { server: found.server.as_ref(), real_servers }
    }
}

/// Returns the operations that turn the actual state into the desired one, by phases.
///
/// Objects that are found and not desired are removed only if they are ours: an address on
/// `kube-ipvs0`, a route of ours, an entry of our sets, a virtual server that one of these tells
/// of. Families that are not in the settings are left alone, and so is what is not desired inside
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
    let routes = routes(&actual.routes, settings);
    ops.extend(routes.into_iter().filter(|op| !op.is_prerequisite()));
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
        let room = |set| Room::of_new(set, expected(set)).at_most(most);
        ops.extend(missing.map(|set| Op::CreateSet(set, room(set))));
        if !actual.rule_sets.contains(family) {
            ops.push(Op::WriteRuleSet(*family));
        }
    }
    ops.extend(routes(&actual.routes, settings).into_iter().filter(Op::is_prerequisite));
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
        let room = Room::of_new(set, desired.n_entries(set));
        ops.push(Op::CreateSet(set, room.at_most(settings.limits.set_size)));
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

/// Returns the operations that turn the local routes that are ours into the desired ones, by
/// phases.
#[must_use]
pub fn routes(found: &HashSet<IpNet>, settings: &Settings) -> Vec<Op> {
    let mut ops = Vec::new();
    for family in &settings.families {
        let desired = settings.routes(*family);
        let missing = desired.iter().filter(|route| !found.contains(route));
        ops.extend(missing.copied().map(Op::AddRoute));
        let of_family = found.iter().filter(|route| Family::of_net(route) == *family);
        let mut extra: Vec<_> = of_family.filter(|r| !desired.contains(r)).copied().collect();
        extra.sort_unstable();
        ops.extend(extra.into_iter().map(Op::RemoveRoute));
    }
    ops.sort_by_key(Op::phase);
    ops
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

/// Returns the operations that turn one virtual server into the desired one.
///
/// An undesired one is removed without asking whose it is: this is for looking again at what an
/// operation was about.
#[must_use]
pub fn repair(
    desired: &Desired,
    frontend: &Frontend,
    actual: Option<&ActualVirtualServer>,
) -> Vec<Op> {
    let mut ops = Vec::new();
    turn(*frontend, actual.map(Before::from), desired.at(frontend), desired.seed(), &mut ops);
    ops.sort_by_key(Op::phase);
    ops
}

/// Adds the operations that turn one desired state of a frontend into another. `seed` differs
/// between nodes.
pub(crate) fn between(
    frontend: Frontend,
    before: DesiredFrontend<'_>,
    after: DesiredFrontend<'_>,
    seed: u64,
    ops: &mut Vec<Op>,
) {
    let before = match before {
        // It may still be there, draining.
        DesiredFrontend::Closed if after == DesiredFrontend::Unclaimed => Some(Before::default()),
        DesiredFrontend::Unclaimed | DesiredFrontend::Closed => None,
        DesiredFrontend::Open(server, real) => {
            let real = real.iter().map(|real| (real.socket(), Some(real.weight)));
            Some(Before { server: Some(server), real_servers: real.collect() })
        }
    };
    turn(frontend, before, after, seed, ops);
}

/// Turns a virtual server, if there is one, into what is desired.
fn turn(
    frontend: Frontend,
    before: Option<Before<'_>>,
    after: DesiredFrontend<'_>,
    seed: u64,
    ops: &mut Vec<Op>,
) {
    match (before, after) {
        (None, DesiredFrontend::Unclaimed | DesiredFrontend::Closed) => {}
        (None, DesiredFrontend::Open(server, real)) => create(frontend, server, real, seed, ops),
        (Some(_), DesiredFrontend::Unclaimed) => ops.push(Op::RemoveVirtualServer(frontend)),
        (Some(before), DesiredFrontend::Closed) => {
            turn_real_servers(frontend, before.real_servers, &[], ops);
            ops.push(Op::RetireVirtualServer(frontend));
        }
        (Some(before), DesiredFrontend::Open(server, real)) => {
            if before.server != Some(server) {
                ops.push(Op::ChangeVirtualServer(frontend, server.clone()));
            }
            turn_real_servers(frontend, before.real_servers, real, ops);
        }
    }
}

fn turn_real_servers(
    frontend: Frontend,
    before: Vec<(SocketAddr, Option<u32>)>,
    after: &[RealServer],
    ops: &mut Vec<Op>,
) {
    let mut after = after.iter().peekable();
    for (at, weight) in before {
        while let Some(new) = after.next_if(|real| real.socket() < at) {
            ops.push(Op::AddRealServer(frontend, *new));
        }
        match after.next_if(|real| real.socket() == at) {
            None => ops.push(Op::RemoveRealServer(frontend, at)),
            Some(real) if weight != Some(real.weight) => {
                ops.push(Op::ChangeRealServer(frontend, *real));
            }
            Some(_) => {}
        }
    }
    ops.extend(after.map(|real| Op::AddRealServer(frontend, *real)));
}

fn create(
    frontend: Frontend,
    server: &VirtualServer,
    real_servers: &[RealServer],
    seed: u64,
    ops: &mut Vec<Op>,
) {
    ops.push(Op::CreateVirtualServer(frontend, server.clone()));
    let added = order::of_new(&frontend, server, real_servers, seed);
    ops.extend(added.map(|real| Op::AddRealServer(frontend, *real)));
}
