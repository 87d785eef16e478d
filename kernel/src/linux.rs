//! The real kernel: IPVS, ipset, the dummy interface and the rules, behind the port.

mod addresses;
mod arp;
pub mod bridges;
mod chains;
mod connections;
mod count;
mod drift_check;
mod dummy;
mod flows;
pub(super) mod grow;
mod messages;
mod open;
mod routes;
mod rules;
mod set_copy;
mod sets;
mod sysctls;
mod tables;
mod versions;
#[cfg(test)]
mod tests {
    #[cfg(feature = "kernel-tests")]
    mod kernel;
}

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use plan::actual::{ActualSet, ActualVirtualServer, Addresses, ListedVirtualServer};
use plan::chains::ActualChains;
use plan::hash::HashSet;
use plan::kernel_objects::{Frontend, LINK};
use plan::mode::Mode;
use plan::model::Family;
use plan::op::{Op, PartKind};
use plan::rule_set::RuleSet;
use plan::scheduler::SchedulerName;
use plan::sets::SetId;

pub use routes::{LocalServiceAddresses, neighbourhoods};
pub use versions::Versions;

use super::link::{AddressScope, LinkAddress, Links};
use super::route::Routes;
use super::sysctl::{Sysctl, SysctlChange, SysctlError};
use super::{
    DriftCheck, Kernel, Listing, OpenConnections, ReadError, Refusal, RefusalClass, RuleRepairer,
    RuleSetReading, SetReader, TrackedFlows, VirtualServerReading, modules, sysctl, translate,
};
use bridges::Bridges;
use count::VirtualServerCount;
use flows::SharedConntrack;
use messages::{
    by_place, in_place, is_done_already, is_removal, lacks_scheduler, push_ipvs, push_set,
    set_by_set, unasked,
};
use rules::SharedRules;
use sets::{ForeignSets, SharedSets};
use sysctls::Kept;
use tables::SharedTables;

/// Every handle that changes the kernel, in the network namespace they were opened in.
#[derive(Debug)]
pub struct Linux {
    mode: Mode,
    /// None in a mode that does without IPVS: then there are no sets either, and no interface.
    ipvs: Option<ipvs::Client>,
    ipset: Option<ipset::Client>,
    links: Links,
    routes: Routes,
    conntrack: SharedConntrack,
    families: Vec<Family>,
    /// Shared with repairs of the constant rules.
    rules: SharedRules,
    /// Sets and constant rules in nf_tables, in the place of ipsets and iptables'.
    tables: Option<SharedTables>,
    count: VirtualServerCount,
    /// Reads sets beside the worker.
    set_reader: SharedSets,
    /// Shared with readings of sets.
    foreign_sets: ForeignSets,
    /// There are many sets that are not ours.
    is_crowded: bool,
    /// The dummy interface's index, looked up when it is first needed and after it went missing.
    index: Option<u32>,
    /// Index of an interface of another kind that has been reported.
    reported: Option<u32>,
    /// AddressScope that addresses are bound with.
    scope: AddressScope,
    /// IPv6 addresses that were found on the interface and are chosen as a source, which the next drift
    /// checks change.
    preferred: Vec<IpAddr>,
    kept: Kept,
    bridges: Bridges,
}

impl Linux {
    /// Counts netlink requests and sends so far: IPVS, ipset, nf_tables and rtnetlink.
    #[must_use]
    pub fn traffic(&self) -> netlink::Traffic {
        let of_routes = [self.links.traffic(), self.routes.traffic()];
        let of_ipvs = self.ipvs.iter().map(ipvs::Client::traffic);
        let of_sets = self.ipset.iter().map(ipset::Client::traffic);
        let of_tables = self.tables.iter().map(|tables| tables.lock().traffic());
        of_routes.into_iter().chain(of_ipvs).chain(of_sets).chain(of_tables).sum()
    }

    fn index(&mut self) -> Result<Option<u32>, netlink::Error> {
        if self.index.is_none()
            && let Some(link) = self.links.find()?
        {
            if link.kind != "dummy" && self.reported != Some(link.index) {
                self.reported = Some(link.index);
                tracing::warn!(
                    kind = link.kind,
                    "{LINK} is not a dummy interface; it is used as it is. If no other program uses \
                     it, delete it (ip link delete {LINK}); kube-ipvs then creates a dummy one"
                );
            }
            self.index = Some(link.index);
        }
        Ok(self.index)
    }

    fn all_addresses(&mut self) -> Result<(Option<u32>, Vec<LinkAddress>), ReadError> {
        let unread = |error: netlink::Error| ReadError::new("interface addresses", error);
        self.index = None;
        let index = self.index().map_err(unread)?;
        Ok((index, self.links.addresses().map_err(unread)?))
    }

    /// True if the mode uses IPVS, sets and the interface. A kernel without them has none then, which matters where
    /// it is only read.
    fn uses_ipvs(&self) -> bool {
        self.mode.uses(PartKind::VirtualServers)
    }

    /// Returns IPVS, if this mode uses it.
    fn ipvs(&mut self) -> Result<&mut ipvs::Client, ReadError> {
        self.ipvs.as_mut().ok_or_else(|| ReadError::new("virtual servers", UNUSED))
    }

    /// Reads the real servers of a virtual server that was found.
    fn with_real_servers(
        &mut self,
        frontend: &Frontend,
        found: Result<ipvs::VirtualServerStatus, ipvs::Error>,
    ) -> Result<VirtualServerReading, ReadError> {
        let ipvs = self.ipvs()?;
        let found = found.and_then(|found| {
            let real_servers = ipvs.list_destinations(&found.server.id)?;
            let server = translate::in_our_words(&found.server);
            Ok(translate::actual_virtual_server(server, &real_servers))
        });
        reading(frontend, found)
    }

    /// Reads the real servers of a listed virtual server. The kernel's answer is the same for a
    /// virtual server without real servers and for one that is gone.
    fn real_servers_of(
        &mut self,
        listed: &ListedVirtualServer,
    ) -> Result<VirtualServerReading, ReadError> {
        let id = translate::virtual_server_id(&listed.frontend);
        let ipvs = self.ipvs()?;
        let found = ipvs.list_destinations(&id).and_then(|real_servers| {
            let server = if real_servers.is_empty() {
                translate::in_our_words(&ipvs.service(&id)?.server)
            } else {
                listed.server.clone()
            };
            Ok(translate::actual_virtual_server(server, &real_servers))
        });
        reading(&listed.frontend, found)
    }

    fn apply_part(&mut self, kind: PartKind, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        if let Some(tables) = &self.tables {
            match kind {
                PartKind::Sets => return tables.lock().apply(ops),
                PartKind::Rules => {
                    let families = ops.iter().filter_map(|op| op.subject().family());
                    return families.map(|family| tables.lock().write_rules(family)).collect();
                }
                _ => {}
            }
        }
        match kind {
            PartKind::Link | PartKind::Addresses | PartKind::Routes if self.ipvs.is_none() => {
                all_failed(ops, &unused())
            }
            PartKind::Link => ops.iter().map(|_| self.create_link()).collect(),
            PartKind::Rules => {
                let mut rules = self.rules.lock();
                let families = ops.iter().filter_map(|op| op.subject().family());
                families.map(|family| rules.write_rule_set(family)).collect()
            }
            PartKind::Sets => ops
                .chunk_by(|one, next| grows(one) == grows(next))
                .flat_map(|ops| match ops {
                    [Op::GrowSet(..), ..] => ops.iter().map(|op| self.grow_set(op)).collect(),
                    ops => self.apply_sets(ops),
                })
                .collect(),
            PartKind::VirtualServers => self.apply_ipvs(ops),
            PartKind::Addresses => self.apply_addresses(ops),
            PartKind::Routes => self.apply_routes(ops),
            PartKind::Chains => self.rules.lock().apply_chains(ops),
        }
    }

    fn create_link(&mut self) -> Result<(), Refusal> {
        self.index = None;
        match self.links.create() {
            Ok(()) => {}
            Err(error) if is(&error, rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(refusal(&error)),
        }
        self.allow_ipv6();
        Ok(())
    }

    fn grow_set(&mut self, op: &Op) -> Result<(), Refusal> {
        let Op::GrowSet(set, size) = op else { return Ok(()) };
        if let Some(what) = self.foreign_sets.lock().get(set) {
            return Err(Refusal::new(RefusalClass::Conflict, what));
        }
        // The kernel swaps no set that is being listed.
        let _unread = self.set_reader.lock();
        grow::grow(self.ipset.as_mut().ok_or_else(unused)?, *set, *size)
    }

    fn apply_sets(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let Some(ipset) = &mut self.ipset else { return all_failed(ops, &unused()) };
        let (places, ops) = set_by_set(ops);
        let mut batch = ipset::Batch::new();
        let foreign_sets = self.foreign_sets.lock();
        let foreign = |op: &Op| foreign_sets.get(&op.set()?);
        let mut unasked = unasked(&ops, |op| match foreign(op) {
            // Another type may take an entry and keep some of it, so it is not tried.
            Some(what) => Err(what.clone()),
            None => push_set(&mut batch, op).map_err(|error| error.to_string()),
        });
        for (index, refusal) in &mut unasked {
            if ops.get(*index).and_then(foreign).is_some() {
                refusal.class = RefusalClass::Foreign;
            }
        }
        let results = match ipset.send(&batch) {
            Ok(results) => in_place(&ops, unasked, results, |_, error| Err(set_refusal(&error))),
            Err(error) => all_failed(&ops, &set_refusal(&error)),
        };
        by_place(places, results)
    }

    fn apply_ipvs(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let Some(ipvs) = &mut self.ipvs else { return all_failed(ops, &unused()) };
        let mut batch = ipvs::Batch::new();
        let unasked = unasked(ops, |op| push_ipvs(&mut batch, op));
        let mut gone = HashSet::default();
        let results = match ipvs.send(&batch) {
            Ok(results) => in_place(ops, unasked, results, |op, error| {
                if is_done_already(op, &error) {
                    if is_removal(op) {
                        gone.insert(op.subject());
                    }
                    return Ok(());
                }
                let mut refusal = ipvs_refusal(&error);
                if lacks_scheduler(op, &error) {
                    refusal.class = RefusalClass::NoScheduler;
                }
                Err(refusal)
            }),
            Err(error) => all_failed(ops, &ipvs_refusal(&error)),
        };
        for (op, result) in ops.iter().zip(&results) {
            match result {
                // The count does not include what was already gone. If another program removed it,
                // a drift check notices.
                Ok(()) if is_removal(op) && gone.contains(&op.subject()) => {}
                Ok(()) => self.count.done(op),
                Err(refusal) if refusal.class == RefusalClass::AnswerLost => self.count.forget(),
                Err(_) => {}
            }
        }
        results
    }
}

impl Kernel for Linux {
    fn drift_check(&mut self) -> Result<DriftCheck, ReadError> {
        self.look()
    }

    fn list_virtual_servers(&mut self) -> Result<Listing, ReadError> {
        self.listing()
    }

    fn read_virtual_servers(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        if self.ipvs.is_none() && self.uses_ipvs() {
            return Ok(frontends.iter().map(|_| Ok(None)).collect());
        }
        let ids: Vec<_> = frontends.iter().map(translate::virtual_server_id).collect();
        let found = self.ipvs()?.services(&ids);
        let found = found.map_err(|error| ReadError::new("virtual servers", error))?;
        let each = frontends.iter().zip(found);
        each.map(|(frontend, found)| self.with_real_servers(frontend, found)).collect()
    }

    fn read_listed(
        &mut self,
        listed: &[ListedVirtualServer],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        listed.iter().map(|listed| self.real_servers_of(listed)).collect()
    }

    fn count_open_connections(&mut self, most: u64) -> Result<Option<OpenConnections>, ReadError> {
        connections::count_open(most)
    }

    fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        if let Some(tables) = &self.tables {
            return tables.lock().read_set(set);
        }
        if self.ipset.is_none() && self.uses_ipvs() {
            return Ok(None);
        }
        sets::read(self.ipset.as_mut(), set, &self.foreign_sets)
    }

    fn read_addresses(&mut self) -> Result<Addresses, ReadError> {
        let (index, addresses) = self.all_addresses()?;
        self.bridges.check(&mut self.links, &addresses);
        let (ours, others): (Vec<LinkAddress>, Vec<LinkAddress>) =
            addresses.into_iter().partition(|address| Some(address.index) == index);
        let ours = ours.iter().filter(|address| !address.is_link_local_v6());
        let routes = self.read_routes()?;
        Ok(Addresses {
            link: index.is_some(),
            bound: ours.map(|address| address.address).collect(),
            routes: routes.all,
            incomplete_routes: routes.incomplete,
            local: others.iter().map(|address| address.address).collect(),
        })
    }

    fn read_rule_set(&mut self, family: Family) -> Result<RuleSetReading, ReadError> {
        if let Some(tables) = &self.tables {
            return tables.compare(family);
        }
        self.rules.lock().compare_rule_set(family)
    }

    fn read_chains(&mut self, family: Family) -> Result<ActualChains, ReadError> {
        self.rules.lock().chains_of(family, self.mode)
    }

    fn set_desired_rules(&mut self, rule_set: RuleSet) {
        if let Some(tables) = &self.tables {
            return tables.lock().desire(rule_set);
        }
        self.rules.lock().desire(rule_set);
    }

    fn rule_repairer(&self) -> Arc<dyn RuleRepairer> {
        match &self.tables {
            Some(tables) => Arc::new(tables.clone()),
            None => Arc::new(self.rules.clone()),
        }
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        ops.chunk_by(|one, next| one.kind() == next.kind())
            .flat_map(|ops| ops.first().map_or_else(Vec::new, |op| self.apply_part(op.kind(), ops)))
            .collect()
    }

    fn loaded_schedulers(&mut self, mut names: Vec<SchedulerName>) -> Vec<SchedulerName> {
        names.retain(|name| modules::has_scheduler(Path::new(modules::LOADED), name));
        names
    }

    fn has_ipvs(&mut self) -> bool {
        self.ipvs.is_some() && (self.ipset.is_some() || self.tables.is_some())
    }

    fn writes_whole_tables(&mut self) -> bool {
        self.rules.lock().are_of_x_tables()
    }

    fn set_sysctl(&mut self, sysctl: &Sysctl) -> Result<Option<SysctlChange>, SysctlError> {
        self.put_back(sysctl)
    }

    fn tracked_flows(&self) -> Arc<dyn TrackedFlows> {
        Arc::new(self.conntrack.clone())
    }

    fn set_reader(&self) -> Arc<dyn SetReader> {
        match &self.tables {
            Some(tables) => Arc::new(tables.clone()),
            None => Arc::new(self.set_reader.clone()),
        }
    }
}

/// Takes in the kernel's answer about a virtual server: an error may be that server's own fault.
fn reading(
    frontend: &Frontend,
    found: Result<ActualVirtualServer, ipvs::Error>,
) -> Result<VirtualServerReading, ReadError> {
    match found {
        Ok(found) => Ok(Ok(Some(found))),
        Err(error) if error.is_no_such_service() => Ok(Ok(None)),
        Err(error) => {
            // An error in the answer or in the request concerns this virtual server alone.
            let is_its_own = error.is_undecodable() || error.is_invalid();
            let error = ReadError::new(format!("virtual server {frontend}"), error);
            if is_its_own { Ok(Err(error)) } else { Err(error) }
        }
    }
}

fn of_other_kind(set: SetId, found: &ipset::Identity) -> String {
    format!(
        "it is of type {} ({}), and {} is needed; another program made it. Remove the rules that \
         use it, then the set (ipset destroy {set})",
        found.set_type,
        found.family,
        set.set_type().name(),
    )
}

/// A set grows by requests of its own.
const fn grows(op: &Op) -> bool {
    matches!(op, Op::GrowSet(..))
}

fn is(error: &netlink::Error, errno: rustix::io::Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn refusal(error: &netlink::Error) -> Refusal {
    let class = if error.is_answer_lost() {
        RefusalClass::AnswerLost
    } else {
        Refusal::class_of(error.raw_os_error())
    };
    Refusal::new(class, error)
}

fn ipvs_refusal(error: &ipvs::Error) -> Refusal {
    let class = if error.is_answer_lost() {
        RefusalClass::AnswerLost
    } else if error.is_unsupported() {
        RefusalClass::NotSupported
    } else {
        Refusal::class_of(error.raw_os_error())
    };
    Refusal::new(class, error)
}

fn set_refusal(error: &ipset::Error) -> Refusal {
    let class = if error.is_set_full() {
        RefusalClass::SetFull
    } else if error.is_answer_lost() {
        RefusalClass::AnswerLost
    } else if error.is_unknown_type() || error.is_unsupported() {
        RefusalClass::NotSupported
    } else {
        Refusal::class_of(error.raw_os_error())
    };
    Refusal::new(class, error)
}

/// The answer to what only ipvs mode asks for.
const UNUSED: &str = "this mode does not use IPVS, sets and the interface";

fn unused() -> Refusal {
    Refusal::new(RefusalClass::NotSupported, UNUSED)
}

fn all_failed(ops: &[Op], refusal: &Refusal) -> Vec<Result<(), Refusal>> {
    ops.iter().map(|_| Err(refusal.clone())).collect()
}
