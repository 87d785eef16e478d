//! A kernel in memory: it takes operations as strictly as the real one does, and can be read.

mod chains;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::actual::{Actual, ActualRealServer, ActualSet, ActualVirtualServer};
use crate::capacity::{Capacity, SetSize};
use crate::chains::{ChainId, SharedChain};
use crate::hash::{HashMap, HashSet};
use crate::kernel_objects::{Deadline, Entry, Frontend, RealServer, VirtualServer};
use crate::mode::{Mode, OtherRules};
use crate::model::Family;
use crate::op::Op;
use crate::routes::{LocalRoute, RouteOp};
use crate::rule_set::Table;
use crate::sets::SetId;

/// A kernel in memory. A new one has nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryKernel {
    state: Actual,
    mode: Mode,
    /// Families whose constant rules are to be without their dispatch.
    without_dispatch: HashSet<Family>,
}

/// Reason for which an operation was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MemoryRefusal {
    /// The interface is there already.
    #[error("the interface exists")]
    LinkExists,
    /// There is no interface to put an address on.
    #[error("no such interface")]
    NoLink,
    /// The set is there already.
    #[error("the set exists")]
    SetExists,
    /// There is no such set.
    #[error("no such set")]
    NoSet,
    /// The set is as large already.
    #[error("the set is as large already")]
    SetNotLarger,
    /// The set has as many entries as it may hold.
    #[error("the set is full")]
    SetFull,
    /// The entry is there already.
    #[error("the entry is in the set")]
    EntryExists,
    /// There is no such entry.
    #[error("the entry is not in the set")]
    NoEntry,
    /// The virtual server is there already.
    #[error("the virtual server exists")]
    VirtualServerExists,
    /// There is no such virtual server.
    #[error("no such virtual server")]
    NoVirtualServer,
    /// The real server is there already.
    #[error("the real server exists")]
    RealServerExists,
    /// There is no such real server.
    #[error("no such real server")]
    NoRealServer,
    /// The address is there already.
    #[error("the address exists")]
    AddressExists,
    /// There is no such address.
    #[error("no such address")]
    NoAddress,
    /// There is no such route.
    #[error("no such route")]
    NoRoute,
    /// There is no such chain.
    #[error("no such chain")]
    NoChain,
    /// Another chain has a rule that leads to the chain.
    #[error("the chain is in use")]
    ChainInUse,
    /// There is no such rule.
    #[error("no such rule")]
    NoRule,
}

impl MemoryKernel {
    /// A kernel in this state.
    #[must_use]
    pub fn new(state: Actual) -> Self {
        Self { state, ..Self::default() }
    }

    /// The same with the constant rules of this mode. Writing them makes the mode's shared
    /// chains that are not there.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the constant rules of a family that are desired.
    pub fn desire(&mut self, family: Family, mode: Mode, has_dispatch: bool) {
        self.mode = mode;
        if has_dispatch {
            self.without_dispatch.remove(&family);
        } else {
            self.without_dispatch.insert(family);
        }
    }

    /// True if rules of another mode lead a family's connections: in ipvs mode those of iptables mode, in
    /// iptables mode portals.
    #[must_use]
    pub fn is_led_by_rules(&self, family: Family) -> bool {
        let led_by = self.mode.properties().led_by;
        if led_by == OtherRules::Portals {
            let is_portal = |chain: &ChainId| chain.family == family && is_portal(chain);
            return self.state.chains.iter().any(|(id, rules)| is_portal(id) && !rules.is_empty());
        }
        let rules = |chain| {
            let chain = ChainId::shared(family, Table::Nat, chain);
            self.state.chains.get(&chain).map_or(&[][..], Vec::as_slice)
        };
        let has_node_ports = !rules(SharedChain::NodePorts).is_empty();
        let leads = |rule: &str| has_node_ports || !rule.ends_with("KUBE-NODEPORTS");
        led_by == OtherRules::Any && rules(SharedChain::Services).iter().any(|rule| leads(rule))
    }

    /// The mode of the constant rules.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The state.
    #[must_use]
    pub fn actual(&self) -> &Actual {
        &self.state
    }

    /// The state, for someone else to change.
    pub fn actual_mut(&mut self) -> &mut Actual {
        &mut self.state
    }

    /// Carries out an operation.
    pub fn apply(&mut self, op: &Op) -> Result<(), MemoryRefusal> {
        match op {
            Op::CreateLink => refuse_if(self.state.link, MemoryRefusal::LinkExists)
                .map(|()| self.state.link = true),
            Op::CreateSet(set, size) => self.create_set(*set, *size),
            Op::GrowSet(set, size) => self.grow_set(*set, size.capacity),
            Op::WriteRuleSet(family) => {
                self.write_rule_set(*family);
                Ok(())
            }
            Op::AddEntry(set, entry) => self.add_entry(*set, *entry),
            Op::RemoveEntry(set, entry) => self.remove_entry(*set, entry),
            Op::CreateVirtualServer(frontend, server) => self.create(*frontend, server),
            Op::ChangeVirtualServer(frontend, server) => {
                self.virtual_server(frontend)?.server = Some(server.clone());
                Ok(())
            }
            Op::RemoveVirtualServer(frontend) | Op::RemoveVirtualServerWhenDrained(frontend) => {
                self.state
                    .virtual_servers
                    .remove(frontend)
                    .map(drop)
                    .ok_or(MemoryRefusal::NoVirtualServer)
            }
            Op::AddRealServer(frontend, real) => self.add_real_server(frontend, *real),
            Op::ChangeRealServer(frontend, real) => self.change_real_server(frontend, *real),
            Op::DrainRealServer(frontend, socket, deadline) => {
                self.drain_real_server(frontend, socket, *deadline)
            }
            Op::RemoveRealServer(frontend, socket) => self.remove_real_server(frontend, socket),
            Op::BindAddress(address) => self.bind(*address),
            Op::UnbindAddress(address) => self.unbind(*address),
            Op::Route(RouteOp::Add(LocalRoute { network, source: None })) => {
                self.add_route(*network)
            }
            // It takes the place of another one.
            Op::Route(RouteOp::Add(route)) => {
                self.state.routes.insert(route.network);
                Ok(())
            }
            Op::Route(RouteOp::Remove(network)) => {
                refuse_if(!self.state.routes.remove(network), MemoryRefusal::NoRoute)
            }
            Op::Chain(op) => chains::apply(&mut self.state.chains, op),
        }
    }

    fn write_rule_set(&mut self, family: Family) {
        self.state.rule_sets.insert(family);
        let has_dispatch = !self.without_dispatch.contains(&family);
        for chain in ChainId::all_shared(self.mode, family) {
            self.state.chains.entry(chain).or_default();
        }
        if !self.mode.leads_by_rules() && has_dispatch {
            // It is another chain by the same name.
            let services = ChainId::shared(family, Table::Nat, SharedChain::Services);
            self.state.chains.entry(services).and_modify(Vec::clear);
        }
        if !self.mode.relays() && has_dispatch {
            // No jump leads to them any more.
            let is_portal = |chain: &ChainId| chain.family == family && is_portal(chain);
            let portals = self.state.chains.iter_mut().filter(|(id, _)| is_portal(id));
            portals.for_each(|(_, rules)| rules.clear());
        }
    }

    fn create_set(&mut self, set: SetId, size: SetSize) -> Result<(), MemoryRefusal> {
        refuse_if(self.state.sets.contains_key(&set), MemoryRefusal::SetExists)?;
        let made = ActualSet { capacity: size.capacity, ..ActualSet::default() };
        self.state.sets.insert(set, made);
        Ok(())
    }

    fn grow_set(&mut self, set: SetId, capacity: Capacity) -> Result<(), MemoryRefusal> {
        let there = self.state.sets.get_mut(&set).ok_or(MemoryRefusal::NoSet)?;
        refuse_if(there.capacity >= capacity, MemoryRefusal::SetNotLarger)?;
        there.capacity = capacity;
        Ok(())
    }

    fn add_entry(&mut self, set: SetId, entry: Entry) -> Result<(), MemoryRefusal> {
        let there = self.state.sets.get_mut(&set).ok_or(MemoryRefusal::NoSet)?;
        refuse_if(there.entries.contains(&entry), MemoryRefusal::EntryExists)?;
        refuse_if(there.n_entries() >= there.capacity.entries() as usize, MemoryRefusal::SetFull)?;
        there.entries.insert(entry);
        Ok(())
    }

    fn remove_entry(&mut self, set: SetId, entry: &Entry) -> Result<(), MemoryRefusal> {
        let there = self.state.sets.get_mut(&set).ok_or(MemoryRefusal::NoSet)?;
        refuse_if(!there.entries.remove(entry), MemoryRefusal::NoEntry)
    }

    fn create(&mut self, frontend: Frontend, server: &VirtualServer) -> Result<(), MemoryRefusal> {
        let there = self.state.virtual_servers.contains_key(&frontend);
        refuse_if(there, MemoryRefusal::VirtualServerExists)?;
        let server = Some(server.clone());
        let made = ActualVirtualServer { server, real_servers: HashMap::default() };
        self.state.virtual_servers.insert(frontend, made);
        Ok(())
    }

    fn virtual_server(
        &mut self,
        name: &Frontend,
    ) -> Result<&mut ActualVirtualServer, MemoryRefusal> {
        self.state.virtual_servers.get_mut(name).ok_or(MemoryRefusal::NoVirtualServer)
    }

    fn add_real_server(
        &mut self,
        frontend: &Frontend,
        real: RealServer,
    ) -> Result<(), MemoryRefusal> {
        let real_servers = &mut self.virtual_server(frontend)?.real_servers;
        refuse_if(real_servers.contains_key(&real.socket()), MemoryRefusal::RealServerExists)?;
        let made =
            ActualRealServer { weight: real.weight, plain: true, deadline: None, connections: 0 };
        real_servers.insert(real.socket(), made);
        Ok(())
    }

    fn change_real_server(
        &mut self,
        frontend: &Frontend,
        real: RealServer,
    ) -> Result<(), MemoryRefusal> {
        let real_servers = &mut self.virtual_server(frontend)?.real_servers;
        let there = real_servers.get_mut(&real.socket()).ok_or(MemoryRefusal::NoRealServer)?;
        there.weight = real.weight;
        there.plain = true;
        there.deadline = None;
        Ok(())
    }

    fn drain_real_server(
        &mut self,
        frontend: &Frontend,
        socket: &SocketAddr,
        deadline: Deadline,
    ) -> Result<(), MemoryRefusal> {
        let real_servers = &mut self.virtual_server(frontend)?.real_servers;
        let there = real_servers.get_mut(socket).ok_or(MemoryRefusal::NoRealServer)?;
        there.weight = 0;
        there.plain = true;
        there.deadline = Some(deadline);
        Ok(())
    }

    fn remove_real_server(
        &mut self,
        frontend: &Frontend,
        socket: &SocketAddr,
    ) -> Result<(), MemoryRefusal> {
        let real_servers = &mut self.virtual_server(frontend)?.real_servers;
        real_servers.remove(socket).map(drop).ok_or(MemoryRefusal::NoRealServer)
    }

    fn bind(&mut self, address: IpAddr) -> Result<(), MemoryRefusal> {
        refuse_if(!self.state.link, MemoryRefusal::NoLink)?;
        refuse_if(!self.state.addresses.insert(address), MemoryRefusal::AddressExists)
    }

    /// Making one that is there is no error, since it is written with `NLM_F_REPLACE`. Those of
    /// IPv6 are on the loopback interface.
    fn add_route(&mut self, network: IpNet) -> Result<(), MemoryRefusal> {
        refuse_if(!self.state.link && network.addr().is_ipv4(), MemoryRefusal::NoLink)?;
        self.state.routes.insert(network);
        Ok(())
    }

    fn unbind(&mut self, address: IpAddr) -> Result<(), MemoryRefusal> {
        refuse_if(!self.state.link, MemoryRefusal::NoLink)?;
        refuse_if(!self.state.addresses.remove(&address), MemoryRefusal::NoAddress)
    }
}

impl MemoryRefusal {
    /// The number by which the kernel says so. Most are of include/uapi/asm-generic/errno-base.h
    /// and errno.h; sets have `IPSET_ERR_EXIST` (include/uapi/linux/netfilter/ipset/ip_set.h) for
    /// an entry that is there already as well as for one that is not there. Which is said when is
    /// in net/netfilter/ipvs/ip_vs_ctl.c, net/netfilter/ipset/ip_set_core.c and the address
    /// families' devinet.c and addrconf.c.
    #[must_use]
    pub const fn errno(self) -> i32 {
        const ENOENT: i32 = 2;
        const ESRCH: i32 = 3;
        const EBUSY: i32 = 16;
        const EEXIST: i32 = 17;
        const ENODEV: i32 = 19;
        const EADDRNOTAVAIL: i32 = 99;
        const IPSET_ERR_EXIST: i32 = 4103;
        const IPSET_ERR_HASH_FULL: i32 = 4352;
        match self {
            Self::LinkExists
            | Self::SetExists
            | Self::SetNotLarger
            | Self::VirtualServerExists
            | Self::RealServerExists
            | Self::AddressExists => EEXIST,
            Self::NoSet | Self::NoRealServer | Self::NoChain | Self::NoRule => ENOENT,
            Self::ChainInUse => EBUSY,
            Self::NoLink => ENODEV,
            Self::NoVirtualServer | Self::NoRoute => ESRCH,
            Self::EntryExists | Self::NoEntry => IPSET_ERR_EXIST,
            Self::SetFull => IPSET_ERR_HASH_FULL,
            Self::NoAddress => EADDRNOTAVAIL,
        }
    }
}

fn is_portal(chain: &ChainId) -> bool {
    chain.has_portals() && chain.table == Table::Nat
}

fn refuse_if(wrong: bool, refusal: MemoryRefusal) -> Result<(), MemoryRefusal> {
    if wrong { Err(refusal) } else { Ok(()) }
}
