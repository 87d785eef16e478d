//! State found in the kernel at the start, and its adoption.
//!
//! Services are planned in rounds. Each round takes out of here what it desires, so that only what
//! is lacking is written. In the end, no Service desires what is left.

use std::net::IpAddr;

use crate::actual::{Actual, ActualSet, ListedVirtualServer};
use crate::chains::{ActualChains, ChainId};
use crate::hash::{HashMap, HashSet};
use crate::iptables::adoption::UnadoptedChains;
use crate::iptables::desired::DesiredChains;
use crate::ipvs::desired::Desired;
use crate::ipvs::diff;
use crate::ipvs::ownership::Ownership;
use crate::kernel_objects::{Entry, Frontend, VirtualServer};
use crate::model::Family;
use crate::op::{Op, Subject};
use crate::routes::{self, RouteOp};
use crate::sets::{SetId, SetKind};
use crate::settings::Settings;

/// State that was found and no Service has asked for yet. Virtual servers are held as their listing
/// shows them: the real servers of each are read when its turn comes, so that they are never all in
/// memory.
#[derive(Debug)]
pub struct Unadopted {
    beside: Actual,
    virtual_servers: HashMap<Frontend, Option<VirtualServer>>,
    /// Virtual servers for which no ownership marker was found.
    unowned: HashSet<Frontend>,
    chains: UnadoptedChains,
}

/// Result of adopting what a plan asks for.
#[derive(Debug, Default)]
pub struct Adopted {
    /// Planned operations on what was not found, and the removal of refusals that no longer hold.
    pub lacking: Vec<Op>,
    /// The virtual servers that were found. They may be as they should be, or not.
    pub found: Vec<ListedVirtualServer>,
}

impl Unadopted {
    /// Returns the addresses that sets say clients can ask, unlike those of internal frontends.
    #[must_use]
    pub fn served_addresses(&self) -> HashSet<IpAddr> {
        self.beside.served_addresses()
    }

    /// The virtual servers and all that is beside them, before the first plan.
    pub(crate) fn new(
        beside: Actual,
        listed: Vec<ListedVirtualServer>,
        settings: &Settings,
    ) -> Self {
        let desired = Desired::default();
        let ownership = Ownership { desired: &desired, actual: &beside, settings };
        let frontends = listed.iter().map(|it| it.frontend);
        let unowned = frontends.filter(|frontend| !ownership.is_ours(frontend)).collect();
        let virtual_servers = listed.into_iter().map(|it| (it.frontend, it.server)).collect();
        Self { beside, virtual_servers, unowned, chains: UnadoptedChains::default() }
    }

    /// The same, with the last rules that shared chains should have.
    pub(crate) fn with_tails(self, tails: Vec<(ChainId, Vec<Box<str>>)>) -> Self {
        Self { chains: UnadoptedChains::new(tails), ..self }
    }

    /// The same, with the chains of iptables mode that were found, of each family.
    #[must_use]
    pub fn with_chains(mut self, found: impl IntoIterator<Item = ActualChains>) -> Self {
        found.into_iter().for_each(|found| self.chains.insert(found));
        self
    }

    /// Takes out what these planned operations are about. What is not in here, because it was not
    /// found or was taken out before, is left to the operations.
    pub fn adopt(&mut self, ops: Vec<Op>) -> Adopted {
        let mut adopted = Adopted::default();
        let (mut taken, mut opened) = (HashSet::default(), Vec::new());
        adopted.lacking.extend(self.chains.missing_tails().into_iter().map(Op::Chain));
        for op in ops {
            let op = match op {
                Op::Chain(op) => {
                    adopted.lacking.extend(self.chains.adopt(op).into_iter().map(Op::Chain));
                    continue;
                }
                op => op,
            };
            let is_there = match (&op, op.subject()) {
                (Op::BindAddress(address), _) => self.beside.addresses.remove(address),
                (Op::AddEntry(set, entry), _) => {
                    self.beside.sets.get_mut(set).is_some_and(|there| there.entries.remove(entry))
                }
                (_, Subject::VirtualServer(frontend)) => {
                    if let Some(server) = self.virtual_servers.remove(&frontend) {
                        adopted.found.push(ListedVirtualServer { frontend, server });
                        taken.insert(frontend);
                    }
                    taken.contains(&frontend)
                }
                _ => false,
            };
            if let Op::CreateVirtualServer(frontend, _) = &op {
                opened.push(*frontend);
            }
            if !is_there {
                adopted.lacking.push(op);
            }
        }
        adopted.lacking.extend(opened.into_iter().flat_map(|frontend| self.allow(frontend)));
        adopted
    }

    /// Returns the operations that end the refusal of connections to a frontend that had no
    /// endpoints, and has some now. Services that want it refused still have taken their entry out.
    fn allow(&mut self, frontend: Frontend) -> Vec<Op> {
        let refusals = [SetKind::NoEndpoints, SetKind::NoLocalEndpoints];
        let sets = refusals.map(|kind| SetId { kind, family: frontend.family() });
        let entry = Entry::AddressPort(frontend);
        let mut is_refused = |set: &SetId| {
            self.beside.sets.get_mut(set).is_some_and(|there| there.entries.remove(&entry))
        };
        let refusing = sets.into_iter().filter(|set| is_refused(set));
        refusing.map(|set| Op::RemoveEntry(set, entry)).collect()
    }

    /// Takes out leftover virtual servers to be removed, or to be changed so that they can be.
    /// Returns a part of them per call, and none at the end. Other programs' virtual servers stay.
    pub fn next_virtual_servers(
        &mut self,
        at_most: usize,
        desired: &Desired,
        settings: &Settings,
    ) -> Vec<ListedVirtualServer> {
        let nothing = Actual::default();
        let ownership = Ownership { desired, actual: &nothing, settings };
        let concerns_us = |frontend: &&Frontend| {
            desired.owner(frontend).is_some()
                || !self.unowned.contains(frontend)
                || ownership.is_ours(frontend)
        };
        let ours = self.virtual_servers.keys().filter(concerns_us);
        let mut ours: Vec<Frontend> = ours.take(at_most).copied().collect();
        ours.sort_unstable();
        let taken = ours.into_iter().filter_map(|frontend| {
            let server = self.virtual_servers.remove(&frontend)?;
            Some(ListedVirtualServer { frontend, server })
        });
        taken.collect()
    }

    /// True if local routes of ours were found to more than one address each.
    #[must_use]
    pub fn has_routes(&self) -> bool {
        self.beside.routes.iter().any(|route| route.prefix_len() < route.max_prefix_len())
    }

    /// Takes out entries of a set that are left, and returns the operations that remove them: a part
    /// of them per call, and none at the end. Those that must not be touched stay.
    pub fn excess_entries(
        &mut self,
        set: SetId,
        at_most: usize,
        desired: &Desired,
        settings: &Settings,
    ) -> Vec<Op> {
        let Some(left) = self.beside.sets.get_mut(&set) else { return Vec::new() };
        let is_ours = |entry: &&Entry| diff::is_removable(entry, desired, settings);
        let mut ours: Vec<Entry> = left.entries.iter().filter(is_ours).copied().collect();
        ours.sort_unstable();
        ours.truncate(at_most);
        left.entries.retain(|entry| ours.binary_search(entry).is_err());
        ours.into_iter().map(|entry| Op::RemoveEntry(set, entry)).collect()
    }

    /// Takes out the entries that are left by which the access filter lets clients past to these frontends,
    /// where their address stays local, and returns the operations that remove them.
    pub fn excess_admissions(
        &mut self,
        frontends: &[Frontend],
        desired: &Desired,
        settings: &Settings,
    ) -> Vec<Op> {
        let stays_local =
            |it: &&Frontend| desired.has_address(it.address) || settings.is_routed(it.address);
        let local = frontends.iter().filter(stays_local);
        let entries: Vec<Entry> = local.map(|it| Entry::AddressPort(*it)).collect();
        let mut ops = Vec::new();
        for (set, left) in self.beside.sets.iter_mut().filter(|(set, _)| set.kind.admits()) {
            let removable = entries.iter().filter(|entry| {
                diff::is_removable(entry, desired, settings) && left.entries.remove(*entry)
            });
            ops.extend(removable.map(|entry| Op::RemoveEntry(*set, *entry)));
        }
        ops.sort_unstable_by_key(Op::subject);
        ops
    }

    /// Takes out addresses that are left, but for those that must not be touched. Returns the
    /// operations that remove them, a part of them per call; and with the last part, those that remove
    /// the local routes that stood for others.
    pub fn excess_addresses(&mut self, at_most: usize, settings: &Settings) -> Vec<Op> {
        let is_ours = |address: &&IpAddr| {
            settings.families.contains(&Family::of(**address)) && !settings.excludes(**address)
        };
        let mut ours: Vec<IpAddr> = self.beside.addresses.iter().filter(is_ours).copied().collect();
        diff::sort_for_removal(&mut ours);
        let is_last = ours.len() <= at_most;
        ours.truncate(at_most);
        for address in &ours {
            self.beside.addresses.remove(address);
        }
        let mut ops: Vec<Op> = ours.into_iter().map(Op::UnbindAddress).collect();
        if is_last {
            for op in routes::compare(&self.beside.routes, settings) {
                if let RouteOp::Remove(network) = &op {
                    self.beside.routes.remove(network);
                    ops.push(Op::Route(op));
                }
            }
        }
        ops
    }

    /// Takes out the chains and rules that are left. Returns the operations that remove them, and
    /// that give the shared chains the order that they should have, by phases.
    pub fn excess_chains(&mut self, desired: &DesiredChains) -> Vec<Op> {
        let mut ops: Vec<Op> = self.chains.excess(desired).into_iter().map(Op::Chain).collect();
        ops.sort_by_key(Op::phase);
        ops
    }

    /// Returns the number of virtual servers that are left.
    #[must_use]
    pub fn n_virtual_servers(&self) -> usize {
        self.virtual_servers.len()
    }

    /// Returns the number of entries of a set that are left.
    #[must_use]
    pub fn n_entries(&self, set: SetId) -> usize {
        self.beside.sets.get(&set).map_or(0, ActualSet::n_entries)
    }
}
