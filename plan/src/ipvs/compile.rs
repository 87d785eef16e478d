//! One Service, its endpoints and the node: what the kernel should have for it.
//!
//! | frontend | virtual server | on `kube-ipvs0` |
//! | --- | --- | --- |
//! | cluster address | address and port | always |
//! | external or load-balancer address | address and port | unless it is the node's own |
//! | node port | each address that serves node ports | never |
//!
//! An external frontend with externalTrafficPolicy Local has an internal frontend besides, and on the fast path every frontend: see
//! [`InternalFrontendNetworks`](crate::settings::InternalFrontendNetworks). A frontend without endpoints
//! has no virtual server, and the rules refuse what is sent there.
//!
//! A Service is served in the families in which it has a cluster address.

mod claims;
mod hand_drains;
mod internal_frontends;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::claimants::{ClaimKind, Origin};
use crate::endpoints::EndpointChoice;
use crate::exposure::{Addresses, Budget, Exposure, FamilyExposure, PortExposure, Verdict};
use crate::facts::NodeFacts;
use crate::ipvs::fragment::Fragment;
use crate::kernel_objects::{Entry, Frontend, RealServer, VirtualServer};
use crate::model::{Family, Protocol, Service, ServicePort, TrafficPolicy};
use crate::problem::Problem;
use crate::sets::{SetId, SetKind};
use crate::settings::Settings;
use claims::{Claims, Served};
use internal_frontends::{Needed, NeededInternalFrontend};

/// Result of compiling a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compiled {
    /// Kernel state that the Service asks for.
    pub fragment: Fragment,
    /// Problems of the Service, in order and without repetition.
    pub problems: Vec<Problem>,
}

/// Compiles what a Service asks of the node to IPVS and what goes with it.
#[must_use]
pub fn compile(exposure: &Exposure<'_>, facts: &NodeFacts, settings: &Settings) -> Compiled {
    let mut problems = exposure.problems.clone();
    let service = exposure.service;
    let server = virtual_server(service, facts, settings, &mut problems);
    let families = hand_drains::kept(&exposure.families, &server);
    let mut compiler = Compiler {
        service,
        facts,
        settings,
        budget: exposure.budget.clone(),
        claims: Claims::new(service.created, server),
        needed: BTreeMap::new(),
        on_full_path: BTreeSet::new(),
        addresses: Vec::new(),
        entries: Vec::new(),
        problems,
    };
    let families = families.iter();
    let families: Vec<Admitted<'_>> = families.map(|it| compiler.family(it)).collect();
    compiler.frontends(&families);
    compiler.finish()
}

struct Compiler<'a> {
    service: &'a Service,
    facts: &'a NodeFacts,
    settings: &'a Settings,
    budget: Budget<'a>,
    claims: Claims,
    needed: BTreeMap<(ClaimKind, Frontend), NeededInternalFrontend>,
    /// Frontends for whose internal frontends there is no room, but for promised ones.
    on_full_path: BTreeSet<Frontend>,
    addresses: Vec<IpAddr>,
    entries: Vec<(SetId, Entry)>,
    problems: Vec<Problem>,
}

/// A Service in one family, with the ports whose own entries fit into the sets.
struct Admitted<'a> {
    family: Family,
    addresses: &'a Addresses,
    ports: Vec<&'a PortExposure<'a>>,
}

impl<'a> Compiler<'a> {
    fn family<'e>(&mut self, exposure: &'e FamilyExposure<'e>) -> Admitted<'e> {
        let FamilyExposure { family, addresses, ports } = exposure;
        self.health_check(*family);
        let ports = ports.iter().filter(|port| self.loop_back(*family, port, addresses)).collect();
        Admitted { family: *family, addresses, ports }
    }

    /// Every endpoint on this node, ready or not: as long as it lives it may reach itself through
    /// the Service, by a connection made earlier. Returns false if there is no room for them: then
    /// the port's frontends are left out.
    fn loop_back(
        &mut self,
        family: Family,
        port: &PortExposure<'_>,
        addresses: &Addresses,
    ) -> bool {
        let set = set(SetKind::LoopBack, family);
        let n_frontends = addresses.n_frontends(port.port, self.facts, self.settings);
        if !self.budget.take_port_entries(set, port.here.len(), n_frontends) {
            return false;
        }
        let protocol = port.port.protocol;
        self.entries.extend(port.here.iter().map(|endpoint| {
            let address = endpoint.ip();
            let target = Frontend { address, protocol, port: endpoint.port() };
            (set, Entry::AddressPortAddress(target, address))
        }));
        true
    }

    /// Adds the frontends in the order of `Origin`: of several claims to a frontend, the first one
    /// has it, and what comes last may meet a limit.
    fn frontends(&mut self, families: &[Admitted<'_>]) {
        for Admitted { addresses, ports, .. } in families {
            ports.iter().for_each(|port| self.cluster_address(port, addresses));
        }
        for Admitted { family, ports, .. } in families {
            ports.iter().for_each(|port| self.node_port_frontends(port, *family));
        }
        for Admitted { addresses, ports, .. } in families {
            ports.iter().for_each(|port| self.load_balancer_addresses(port, addresses));
        }
        for Admitted { addresses, ports, .. } in families {
            ports.iter().for_each(|port| self.external_addresses(port, addresses));
            self.bind(addresses);
        }
        for Admitted { family, addresses, .. } in families {
            self.internal_frontends(*family, addresses);
        }
    }

    /// The node's own addresses are reachable as they are, and must not move to another interface.
    fn bind(&mut self, addresses: &Addresses) {
        let outer = addresses.external.iter().chain(&addresses.load_balancer);
        let local = self.facts.local_addresses();
        let bound = outer.filter(|address| !local.contains(*address)).chain(&addresses.cluster);
        // One of which every frontend is left out would lead packets here to nothing.
        let bound: Vec<_> = bound.filter(|it| self.claims.has_address(**it)).collect();
        bound.into_iter().for_each(|address| self.bind_one(*address));
    }

    /// Binds an address unless a route stands for it: the rules guard that by the route's network.
    fn bind_one(&mut self, address: IpAddr) {
        if !self.settings.is_to_be_bound(address) {
            return;
        }
        self.addresses.push(address);
        let set = set(SetKind::IpvsAddresses, Family::of(address));
        self.entries.push((set, Entry::Address(address)));
    }

    fn cluster_address(&mut self, port: &PortExposure<'_>, addresses: &Addresses) {
        let Some(address) = addresses.cluster else { return };
        let frontend = frontend(address, port.port);
        let entry = (set(SetKind::ClusterIp, frontend.family()), Entry::AddressPort(frontend));
        let local = self.service.internal_policy == TrafficPolicy::Local;
        let served = Served {
            origin: Origin::ClusterAddress,
            real_servers: real_servers(&port.choice, local),
            entries: vec![entry],
            refusal: refusal(&frontend, &port.choice, local),
            internal_frontend_of: None,
            kind: ClaimKind::Frontend,
        };
        let real_servers = served.real_servers;
        let needed = self.needed_at_cluster_address(real_servers);
        if self.take(&frontend, real_servers.len(), &needed, 0)
            && let Some(origin) = self.claim(port.index, frontend, served)
        {
            self.note_internal_frontends(origin, port, frontend, &needed, false);
        }
    }

    fn external_addresses(&mut self, port: &PortExposure<'_>, addresses: &Addresses) {
        let kind = if self.service.is_external_policy_local() {
            SetKind::ExternalIpLocal
        } else {
            SetKind::ExternalIp
        };
        let n_admitted = self.budget.frontends(addresses.external.len());
        for address in addresses.external.iter().take(n_admitted) {
            let frontend = frontend(*address, port.port);
            let entries = vec![(set(kind, frontend.family()), Entry::AddressPort(frontend))];
            if self.admit(&frontend, &port.choice, 0) {
                self.external(Origin::External, port, frontend, entries, false);
            }
        }
    }

    fn load_balancer_addresses(&mut self, port: &PortExposure<'_>, addresses: &Addresses) {
        let n_admitted = self.budget.frontends(addresses.load_balancer.len());
        for address in addresses.load_balancer.iter().take(n_admitted) {
            let frontend = frontend(*address, port.port);
            let set = |kind| set(kind, frontend.family());
            let itself = Entry::AddressPort(frontend);
            let mut entries = vec![(set(SetKind::LoadBalancer), itself)];
            if self.service.is_external_policy_local() {
                entries.push((set(SetKind::LoadBalancerLocal), itself));
            }
            if !self.admit(&frontend, &port.choice, addresses.source_ranges.len()) {
                continue;
            }
            entries.extend(self.source_ranges(&frontend, addresses));
            self.external(Origin::LoadBalancer, port, frontend, entries, true);
        }
    }

    /// Returns the entries for the clients that may use a load balancer's frontend, if not all may.
    fn source_ranges(&self, frontend: &Frontend, addresses: &Addresses) -> Vec<(SetId, Entry)> {
        let ranges = &addresses.source_ranges;
        if ranges.is_empty() {
            return Vec::new();
        }
        let set = |kind| set(kind, frontend.family());
        let mut entries = vec![(set(SetKind::LoadBalancerFirewall), Entry::AddressPort(*frontend))];
        entries.extend(ranges.iter().map(|net| {
            (set(SetKind::LoadBalancerSourceCidr), Entry::AddressPortNet(*frontend, *net))
        }));
        // The node's own clients reach a bound address from that same address.
        let own = self.facts.own_address(frontend.family());
        if own.is_some_and(|own| ranges.iter().any(|net| net.contains(&own))) {
            let itself = Entry::AddressPortAddress(*frontend, frontend.address);
            entries.push((set(SetKind::LoadBalancerSourceIp), itself));
        }
        entries
    }

    fn node_port_frontends(&mut self, port: &PortExposure<'_>, family: Family) {
        let Some(node_port) = port.port.node_port else { return };
        let protocol = port.port.protocol;
        let (any, local) = match protocol {
            Protocol::Tcp => (SetKind::NodePortTcp, SetKind::NodePortLocalTcp),
            Protocol::Udp => (SetKind::NodePortUdp, SetKind::NodePortLocalUdp),
            Protocol::Sctp => (SetKind::NodePortSctp, SetKind::NodePortLocalSctp),
        };
        let mut n_addresses = 0_usize;
        for address in self.facts.node_port_addresses(family) {
            n_addresses += 1;
            let frontend = Frontend { address, protocol, port: node_port.get() };
            let entry = match protocol {
                Protocol::Sctp => Entry::AddressPort(frontend),
                Protocol::Tcp | Protocol::Udp => Entry::Port(node_port.get()),
            };
            let mut entries = vec![(set(any, family), entry)];
            if self.service.is_external_policy_local() {
                entries.push((set(local, family), entry));
            }
            if self.admit(&frontend, &port.choice, 0) {
                self.external(Origin::NodePort, port, frontend, entries, false);
            }
        }
        if n_addresses == 0 {
            self.problems.push(Problem::NoNodePortAddress { family });
        }
    }

    /// A frontend for clients outside the cluster, with its internal frontend for the others.
    fn external(
        &mut self,
        origin: Origin,
        port: &PortExposure<'_>,
        frontend: Frontend,
        entries: Vec<(SetId, Entry)>,
        is_restricted: bool,
    ) {
        let choice = &port.choice;
        let local = self.service.is_external_policy_local();
        let served = Served {
            origin,
            real_servers: real_servers(choice, local),
            entries,
            refusal: refusal(&frontend, choice, local),
            internal_frontend_of: None,
            kind: ClaimKind::Frontend,
        };
        let served_for = self.claim(port.index, frontend, served);
        // One that is its cluster address as well has what the policy for that promises.
        if let Some(origin) = served_for.filter(|it| *it != Origin::ClusterAddress) {
            let needed = self.needed_outside(choice);
            self.note_internal_frontends(origin, port, frontend, &needed, is_restricted);
        }
    }

    fn health_check(&mut self, family: Family) {
        if let Some(port) = self.service.answers_health_checks() {
            let set = set(SetKind::HealthCheckNodePort, family);
            self.entries.push((set, Entry::Port(port.get())));
        }
    }

    fn claim(&mut self, index: usize, frontend: Frontend, served: Served<'_>) -> Option<Origin> {
        let served_for = self.claims.add(index, frontend, served);
        if served_for.is_none() {
            self.problems.push(Problem::FrontendTwice { frontend });
        }
        served_for
    }

    /// A scheduler that goes on choosing a real server that drains leaves no time for that.
    fn drain_deadline_seconds(&self) -> Option<u32> {
        let chosen =
            self.service.overrides.as_ref().and_then(|overrides| overrides.drain_deadline_seconds);
        let scheduler = self.claims.scheduler().known();
        if scheduler.is_some_and(|it| !it.can_drain) { Some(0) } else { chosen }
    }

    fn finish(mut self) -> Compiled {
        let drain_deadline_seconds = self.drain_deadline_seconds();
        let claims = self.claims.finish();
        self.problems.extend(self.budget.problems());
        self.problems.sort_unstable();
        self.problems.dedup();
        let fragment = Fragment::new(drain_deadline_seconds, claims, self.addresses, self.entries);
        Compiled { fragment, problems: self.problems }
    }

    /// True if the limits leave room for a frontend for clients outside the cluster.
    fn admit(&mut self, frontend: &Frontend, choice: &EndpointChoice, n_ranges: usize) -> bool {
        let local = self.service.is_external_policy_local();
        let needed = self.needed_outside(choice);
        self.take(frontend, real_servers(choice, local).len(), &needed, n_ranges)
    }

    /// Takes room for a frontend and the internal frontends that it may have. Without room for those that are not promised, the
    /// frontend goes without, on the full path. Returns false if there is no room for the frontend.
    fn take(
        &mut self,
        frontend: &Frontend,
        n_real_servers: usize,
        needed: &Needed<'_>,
        n_ranges: usize,
    ) -> bool {
        let (mut promised, mut all) = ((1, n_real_servers), (1, n_real_servers));
        for (kind, real_servers) in needed.iter().flatten() {
            if self.internal_frontend(frontend, *kind).is_some() {
                let counted = [Some(&mut all), kind.is_promised().then_some(&mut promised)];
                for (n_frontends, n_real_servers) in counted.into_iter().flatten() {
                    *n_frontends += 1;
                    *n_real_servers += real_servers.len();
                }
            }
        }
        let (n_frontends, n_real_servers) = if all == promised || self.budget.has_room(all.0, all.1)
        {
            all
        } else {
            self.on_full_path.insert(*frontend);
            promised
        };
        let ranges = (set(SetKind::LoadBalancerSourceCidr, frontend.family()), n_ranges);
        self.budget.take_frontend(n_frontends, n_real_servers, ranges)
    }
}

/// Returns how a Service's virtual servers balance: as it chose, as far as operator and kernel
/// allow, otherwise as the operator chose.
fn virtual_server(
    service: &Service,
    facts: &NodeFacts,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> VirtualServer {
    let overrides = service.overrides.as_deref();
    let mut chosen = overrides.and_then(|overrides| overrides.scheduler.as_ref());
    let mut flags = overrides.and_then(|overrides| overrides.scheduler_flags);
    let allowed = &settings.limits.schedulers;
    if let Some(other) = chosen.filter(|it| !allowed.is_empty() && !allowed.contains(it)) {
        problems.push(Problem::SchedulerNotAllowed { scheduler: other.clone() });
        chosen = None;
        flags = None;
    }
    if let Some(missing) = chosen.filter(|scheduler| facts.lacks_scheduler(scheduler)) {
        problems.push(Problem::SchedulerMissing { scheduler: missing.clone() });
        chosen = None;
        flags = None;
    }
    let scheduler = chosen.unwrap_or(&settings.scheduler).clone();
    let known = scheduler.known();
    VirtualServer {
        scheduler,
        // The kernel takes 0 for "not persistent".
        persistence: service.affinity.filter(|seconds| *seconds > 0),
        scheduler_flags: known.map_or(flags.unwrap_or(0), |known| known.flags(flags)),
    }
}

fn real_servers(choice: &EndpointChoice, local: bool) -> &Arc<[RealServer]> {
    if local { &choice.local } else { &choice.cluster }
}

/// The entry that has the rules refuse what is sent to a frontend without endpoints.
fn refusal(frontend: &Frontend, choice: &EndpointChoice, local: bool) -> Option<(SetId, Entry)> {
    let kind = match choice.verdict(local) {
        Verdict::Endpoints(_) => return None,
        Verdict::NoEndpoints => SetKind::NoEndpoints,
        Verdict::NoLocalEndpoints => SetKind::NoLocalEndpoints,
    };
    Some((set(kind, frontend.family()), Entry::AddressPort(*frontend)))
}

fn set(kind: SetKind, family: Family) -> SetId {
    SetId { kind, family }
}

fn frontend(address: IpAddr, port: &ServicePort) -> Frontend {
    Frontend { address, protocol: port.protocol, port: port.port.get() }
}
