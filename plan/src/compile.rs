//! One Service, its endpoints and the node: what the kernel should have for it.
//!
//! | frontend | virtual server | on `kube-ipvs0` |
//! | --- | --- | --- |
//! | cluster address | address and port | always |
//! | external or load-balancer address | address and port | unless it is the node's own |
//! | node port | each address that serves node ports | never |
//!
//! A Service is served in the families in which it has a cluster address.

mod addresses;

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::endpoints::{Candidate, FrontendClass, Request, candidates};
use crate::facts::NodeFacts;
use crate::fragment::{Claim, Fragment};
use crate::kernel::{Entry, Frontend, RealServer, VirtualServer};
use crate::local::{HealthCheck, LocalGap, Side};
use crate::model::{
    EndpointSlice, Family, Protocol, Service, ServiceKind, ServicePort, TrafficPolicy,
};
use crate::problem::Problem;
use crate::sets::{SetId, SetKind};
use crate::settings::Settings;
use addresses::Addresses;

/// `IP_VS_SVC_F_SCHED2` (include/uapi/linux/ip_vs.h), which `mh` knows as
/// `IP_VS_SVC_F_SCHED_MH_PORT`: the source port counts for the hash.
const MH_PORT: u32 = 0x10;

/// What compiling yields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compiled {
    /// What the kernel should have.
    pub fragment: Fragment,
    /// What is wrong with the Service, in order and without repetition.
    pub problems: Vec<Problem>,
    /// What a load balancer is told, if it asks.
    pub health_check: Option<HealthCheck>,
    /// Where endpoints exist, but none that a traffic policy allows.
    pub local_gap: LocalGap,
}

/// Compiles a Service. `slices` are those of this Service.
#[must_use]
pub fn compile(
    service: &Service,
    slices: &[&EndpointSlice],
    facts: &NodeFacts,
    settings: &Settings,
) -> Compiled {
    let mut compiler = Compiler {
        service,
        slices,
        facts,
        settings,
        server: virtual_server(service, settings),
        claims: BTreeMap::new(),
        addresses: Vec::new(),
        entries: Vec::new(),
        problems: Vec::new(),
        health_check: None,
        local_gap: LocalGap::default(),
    };
    for family in &settings.families {
        compiler.family(*family);
    }
    compiler.finish()
}

struct Compiler<'a> {
    service: &'a Service,
    slices: &'a [&'a EndpointSlice],
    facts: &'a NodeFacts,
    settings: &'a Settings,
    server: VirtualServer,
    /// With the index of the service port that claims.
    claims: BTreeMap<Frontend, (usize, Claim)>,
    addresses: Vec<IpAddr>,
    entries: Vec<(SetId, Entry)>,
    problems: Vec<Problem>,
    health_check: Option<HealthCheck>,
    local_gap: LocalGap,
}

/// The real servers of a service port's frontends.
struct RealServers {
    internal: Arc<[RealServer]>,
    external: Arc<[RealServer]>,
}

// === impl Compiler ===

impl Compiler<'_> {
    fn family(&mut self, family: Family) {
        if self.service.cluster_address(family).is_none() || self.service.ports.is_empty() {
            return;
        }
        let addresses = Addresses::of(self.service, family, self.settings, &mut self.problems);
        self.bind(family, &addresses);
        let mut local_ready = HashSet::new();
        for (index, port) in self.service.ports.iter().enumerate() {
            let candidates = candidates(port, family, self.slices);
            self.loop_back(family, port.protocol, &candidates);
            local_ready.extend(self.local_ready(&candidates));
            let real_servers = self.real_servers(&candidates);
            self.local_gaps(family, &candidates, &real_servers);
            self.cluster_address(index, port, &addresses, &real_servers);
            self.external_addresses(index, port, &addresses, &real_servers);
            self.load_balancer_addresses(index, port, &addresses, &real_servers);
            self.node_ports(index, port, family, &real_servers);
        }
        self.health_check(family, local_ready.len());
    }

    fn local_ready<'c>(
        &self,
        candidates: &'c [Candidate<'c>],
    ) -> impl Iterator<Item = IpAddr> + use<'c, '_> {
        let node_name = Some(&*self.settings.node_name);
        let usable = candidates.iter().filter(move |c| {
            c.endpoint.conditions.ready && c.endpoint.node.as_deref() == node_name
        });
        usable.map(|candidate| candidate.endpoint.address)
    }

    /// Endpoints exist that would do, but for their being elsewhere.
    fn local_gaps(
        &mut self,
        family: Family,
        candidates: &[Candidate<'_>],
        real_servers: &RealServers,
    ) {
        let exist = candidates.iter().any(|candidate| {
            let conditions = candidate.endpoint.conditions;
            conditions.ready || (conditions.serving && conditions.terminating)
        });
        if !exist {
            return;
        }
        if self.service.internal_policy == TrafficPolicy::Local && real_servers.internal.is_empty()
        {
            self.local_gap.add(Side::Internal, family);
        }
        if self.service.is_external_policy_local() && real_servers.external.is_empty() {
            self.local_gap.add(Side::External, family);
        }
    }

    /// The node's own addresses are reachable as they are, and must not move to another interface.
    fn bind(&mut self, family: Family, addresses: &Addresses) {
        let outer = addresses.external.iter().chain(&addresses.load_balancer);
        let local = self.facts.local_addresses();
        let bound = outer.filter(|address| !local.contains(*address)).chain(&addresses.cluster);
        for address in bound {
            self.addresses.push(*address);
            self.entries.push((set(SetKind::IpvsAddresses, family), Entry::Address(*address)));
        }
    }

    /// Every endpoint on this node, ready or not: as long as it lives it may reach itself through
    /// the Service, by a connection made earlier.
    fn loop_back(&mut self, family: Family, protocol: Protocol, candidates: &[Candidate<'_>]) {
        let set = set(SetKind::LoopBack, family);
        let node_name = Some(&*self.settings.node_name);
        for candidate in candidates.iter().filter(|c| c.endpoint.node.as_deref() == node_name) {
            let address = candidate.endpoint.address;
            let target = Frontend { address, protocol, port: candidate.port };
            self.entries.push((set, Entry::AddressPortAddress(target, address)));
        }
    }

    fn real_servers(&self, candidates: &[Candidate<'_>]) -> RealServers {
        let of_class = |class| {
            Request {
                service: self.service,
                class,
                node_name: &self.settings.node_name,
                zone: self.facts.node().zone.as_deref(),
                candidates,
            }
            .real_servers()
        };
        let internal = of_class(FrontendClass::Internal);
        let external = of_class(FrontendClass::External);
        let external = if external == internal { Arc::clone(&internal) } else { external };
        RealServers { internal, external }
    }

    fn cluster_address(
        &mut self,
        index: usize,
        port: &ServicePort,
        addresses: &Addresses,
        real_servers: &RealServers,
    ) {
        if let Some(address) = addresses.cluster {
            let frontend = frontend(address, port);
            let entries =
                vec![(set(SetKind::ClusterIp, frontend.family()), Entry::AddressPort(frontend))];
            self.claim(index, frontend, &real_servers.internal, entries);
        }
    }

    fn external_addresses(
        &mut self,
        index: usize,
        port: &ServicePort,
        addresses: &Addresses,
        real_servers: &RealServers,
    ) {
        let kind = if self.service.is_external_policy_local() {
            SetKind::ExternalIpLocal
        } else {
            SetKind::ExternalIp
        };
        for address in &addresses.external {
            let frontend = frontend(*address, port);
            let entries = vec![(set(kind, frontend.family()), Entry::AddressPort(frontend))];
            self.claim(index, frontend, &real_servers.external, entries);
        }
    }

    fn load_balancer_addresses(
        &mut self,
        index: usize,
        port: &ServicePort,
        addresses: &Addresses,
        real_servers: &RealServers,
    ) {
        for address in &addresses.load_balancer {
            let frontend = frontend(*address, port);
            let set = |kind| set(kind, frontend.family());
            let itself = Entry::AddressPort(frontend);
            let mut entries = vec![(set(SetKind::LoadBalancer), itself)];
            if self.service.is_external_policy_local() {
                entries.push((set(SetKind::LoadBalancerLocal), itself));
            }
            if !addresses.source_ranges.is_empty() {
                entries.push((set(SetKind::LoadBalancerFirewall), itself));
            }
            entries.extend(addresses.source_ranges.iter().map(|net| {
                (set(SetKind::LoadBalancerSourceCidr), Entry::AddressPortNet(frontend, *net))
            }));
            // The node's own clients reach a bound address from that same address.
            let own = self.facts.own_address(frontend.family());
            if own.is_some_and(|own| addresses.source_ranges.iter().any(|n| n.contains(&own))) {
                entries.push((
                    set(SetKind::LoadBalancerSourceIp),
                    Entry::AddressPortAddress(frontend, *address),
                ));
            }
            self.claim(index, frontend, &real_servers.external, entries);
        }
    }

    fn node_ports(
        &mut self,
        index: usize,
        port: &ServicePort,
        family: Family,
        real_servers: &RealServers,
    ) {
        let Some(node_port) = port.node_port else { return };
        let (any, local) = match port.protocol {
            Protocol::Tcp => (SetKind::NodePortTcp, SetKind::NodePortLocalTcp),
            Protocol::Udp => (SetKind::NodePortUdp, SetKind::NodePortLocalUdp),
            Protocol::Sctp => (SetKind::NodePortSctp, SetKind::NodePortLocalSctp),
        };
        let mut n_addresses = 0_usize;
        for address in self.facts.node_port_addresses(family) {
            n_addresses += 1;
            let frontend = Frontend { address, protocol: port.protocol, port: node_port.get() };
            let entry = match port.protocol {
                Protocol::Sctp => Entry::AddressPort(frontend),
                Protocol::Tcp | Protocol::Udp => Entry::Port(node_port.get()),
            };
            let mut entries = vec![(set(any, family), entry)];
            if self.service.is_external_policy_local() {
                entries.push((set(local, family), entry));
            }
            self.claim(index, frontend, &real_servers.external, entries);
        }
        if n_addresses == 0 {
            self.problems.push(Problem::NoNodePortAddress { family });
        }
    }

    fn health_check(&mut self, family: Family, n_local: usize) {
        if self.service.kind == ServiceKind::LoadBalancer
            && self.service.is_external_policy_local()
            && let Some(port) = self.service.health_check_node_port
        {
            let set = set(SetKind::HealthCheckNodePort, family);
            self.entries.push((set, Entry::Port(port.get())));
            let none = HealthCheck { port, local_v4: 0, local_v6: 0 };
            let check = self.health_check.get_or_insert(none);
            match family {
                Family::V4 => check.local_v4 = n_local,
                Family::V6 => check.local_v6 = n_local,
            }
        }
    }

    /// The same address may be there for several reasons, such as an external address that is a
    /// load-balancer's too: then all entries count, and the first reason's real servers.
    fn claim(
        &mut self,
        index: usize,
        frontend: Frontend,
        real_servers: &Arc<[RealServer]>,
        entries: Vec<(SetId, Entry)>,
    ) {
        match self.claims.entry(frontend) {
            Slot::Vacant(slot) => {
                let server = self.server.clone();
                let real_servers = Arc::clone(real_servers);
                slot.insert((index, Claim { frontend, server, real_servers, entries }));
            }
            Slot::Occupied(mut slot) => {
                let (owner, claim) = slot.get_mut();
                if *owner == index {
                    claim.entries.extend(entries);
                } else {
                    self.problems.push(Problem::FrontendTwice { frontend });
                }
            }
        }
    }

    fn finish(mut self) -> Compiled {
        let mut claims: Vec<Claim> = self.claims.into_values().map(|(_, claim)| claim).collect();
        for claim in &mut claims {
            claim.entries.sort_unstable();
            claim.entries.dedup();
            claim.entries.shrink_to_fit();
        }
        self.addresses.sort_unstable();
        self.addresses.dedup();
        self.addresses.shrink_to_fit();
        self.entries.sort_unstable();
        self.entries.dedup();
        self.entries.shrink_to_fit();
        self.problems.sort_unstable();
        self.problems.dedup();
        let fragment = Fragment {
            created: self.service.created,
            claims,
            addresses: self.addresses,
            entries: self.entries,
        };
        Compiled {
            fragment,
            problems: self.problems,
            health_check: self.health_check,
            local_gap: self.local_gap,
        }
    }
}

fn virtual_server(service: &Service, settings: &Settings) -> VirtualServer {
    VirtualServer {
        scheduler: settings.scheduler.clone(),
        // The kernel takes 0 for "not persistent".
        persistence: service.affinity.filter(|seconds| *seconds > 0),
        scheduler_flags: if settings.scheduler.as_str() == "mh" { MH_PORT } else { 0 },
    }
}

fn set(kind: SetKind, family: Family) -> SetId {
    SetId { kind, family }
}

fn frontend(address: IpAddr, port: &ServicePort) -> Frontend {
    Frontend { address, protocol: port.protocol, port: port.port.get() }
}
