//! The input as it is now, and which Services have to be looked at again.

mod api_server;
mod contention;
mod in_use;
mod index;
mod queue;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use ipnet::IpNet;

use crate::backend;
use crate::endpoints::EndpointsByPort;
use crate::event::Event;
use crate::facts::{BoundAddresses, MANY_ENDPOINTS, NodeFacts};
use crate::hand_drain::HandDrain;
use crate::hash::HashMap;
use crate::model::{EndpointSlice, Family, Node, OtherNode, Service, ServiceName, SliceName};
use crate::scheduler::SchedulerName;
use crate::sets::{SetId, SetKind};
use crate::settings::Settings;
use crate::userspace::{ProxyPortId, ProxyPortState, ProxyPorts};
use api_server::ApiServer;
use in_use::inside;
use index::Index;
use queue::Queue;
pub use turn::Turn;

/// All objects, and what has changed since it was last asked.
#[derive(Debug, Default)]
pub struct Store {
    records: HashMap<ServiceName, Record>,
    /// The Services that there are, in order: so that they can be walked a few at a time.
    names: BTreeSet<ServiceName>,
    /// Under which Service a slice is kept.
    service_of: HashMap<SliceName, ServiceName>,
    /// The slices that say for which zones an endpoint is.
    for_zones: BTreeSet<SliceName>,
    index: Index,
    facts: NodeFacts,
    /// The addresses of the cluster's other nodes; no empty lists.
    others: HashMap<Arc<str>, OtherNode>,
    api_server: ApiServer,
    /// The proxy ports that the relay has; no empty maps.
    proxy_ports: HashMap<ServiceName, ProxyPorts>,
    dirty: Queue,
    /// True if the kernel was read, and those in `dirty` are still to be put in their order.
    is_order_due: bool,
    /// The families whose rules have become different, and since when.
    dirty_rules: BTreeMap<Family, u64>,
    /// Number of Services with a cluster address, by family.
    n_clustered: [usize; 2],
    /// Number of endpoints of all service ports, by family; not counted in ipvs mode.
    n_endpoints: [usize; 2],
}

/// Objects that there are under a Service's name. Slices may come before their Service.
#[derive(Debug, Default)]
struct Record {
    service: Option<Box<Service>>,
    /// In the order of their names. Most Services have one, for which a map would take ten times
    /// the room.
    slices: Vec<EndpointSlice>,
    /// Number of endpoints of its ports, by family; not counted in ipvs mode.
    n_endpoints: [usize; 2],
}

/// Number of endpoints below which rules about endpoints have comments again. All rules are written again for that, so
/// a cluster that moves around a thousand endpoints must not cross a limit at each rollout.
const FEWEST_UNCOMMENTED_ENDPOINTS: usize = 800;

/// Numbers of objects in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InputCounts {
    /// Services that are balanced.
    pub services: usize,
    /// EndpointSlices of Services, those included whose Service is not there yet.
    pub slices: usize,
    /// Endpoints in these slices, ready or not.
    pub endpoints: usize,
}

impl Store {
    /// Sets the current timestamp.
    pub fn set_now(&mut self, now: u64) {
        self.dirty.set_now(now);
    }

    /// Takes an event with this timestamp. One that changes nothing makes nothing dirty.
    pub fn apply(&mut self, event: Event, now: u64, settings: &Settings) {
        self.dirty.set_now(now);
        // What comes now waits for those that waited when the kernel was read.
        self.put_in_order(settings);
        match event {
            Event::ServiceApplied(service) => self.apply_service(service, settings),
            Event::ServiceRemoved(name) => self.remove_service(&name, settings),
            Event::SliceApplied(slice) => self.apply_slice(slice, settings),
            Event::SliceRemoved(name) => self.remove_slice(&name, settings),
            Event::NodeApplied(node) => self.apply_node(*node, settings),
            Event::LocalAddresses(addresses) => self.apply_local_addresses(addresses, settings),
            Event::OtherNodeApplied(name, node) => self.apply_other_node(&name, node, settings),
            Event::OtherNodeRemoved(name) => {
                self.apply_other_node(&name, OtherNode::default(), settings);
            }
            Event::ApiServerAddresses(addresses) => self.apply_api_server(addresses),
            Event::SchedulerMissing(scheduler) => self.apply_scheduler(&scheduler, true),
            Event::SchedulerLoaded(scheduler) => self.apply_scheduler(&scheduler, false),
            Event::ProxyPort(id, state) => self.apply_proxy_port(*id, state),
            Event::HandDrainBegan(drain) => self.apply_hand_drain(&drain, true),
            Event::HandDrainEnded(drain) => self.apply_hand_drain(&drain, false),
        }
    }

    /// Returns the facts about this node.
    #[must_use]
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// A Service and its slices, in the order of their names.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<(&Service, Vec<&EndpointSlice>)> {
        let record = self.records.get(name)?;
        let service = record.service.as_deref()?;
        Some((service, record.slices.iter().collect()))
    }

    /// The proxy ports of a Service that the relay has; none if it has none.
    #[must_use]
    pub fn proxy_ports(&self, name: &ServiceName) -> Option<&ProxyPorts> {
        self.proxy_ports.get(name)
    }

    /// True if the relay has a proxy port, of whatever Service.
    #[must_use]
    pub fn has_proxy_ports(&self) -> bool {
        !self.proxy_ports.is_empty()
    }

    /// True if anything waits to be taken.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty.len() > 0 || !self.dirty_rules.is_empty()
    }

    /// Returns the number of Services that have to be compiled again.
    #[must_use]
    pub fn n_dirty(&self) -> usize {
        self.dirty.len()
    }

    /// True if one of them has a turn ahead of those that had to be then.
    #[must_use]
    pub fn has_ahead(&self) -> bool {
        self.dirty.has_ahead()
    }

    /// Number of those that had to be when the kernel was read.
    #[must_use]
    pub fn n_early(&self) -> usize {
        if self.is_order_due { self.dirty.len() } else { self.dirty.n_early() }
    }

    /// Returns the timestamp since which something waits.
    #[must_use]
    pub fn oldest_dirty(&self) -> Option<u64> {
        self.dirty_rules.values().copied().chain(self.dirty.oldest()).min()
    }

    /// Returns the number of entries that the largest sets are about to have, at least nearly:
    /// those that every Service has entries in. Walks all Services.
    #[must_use]
    pub fn entries_to_come(&self) -> HashMap<SetId, usize> {
        let mut entries = HashMap::default();
        for service in self.records.values().filter_map(|record| record.service.as_deref()) {
            let v4 = service.cluster_v4.map(IpAddr::V4);
            let cluster = v4.into_iter().chain(service.cluster_v6.map(IpAddr::V6));
            for address in cluster.clone() {
                let set = SetId { kind: SetKind::ClusterIp, family: Family::of(address) };
                *entries.entry(set).or_insert(0) += service.ports.len();
            }
            let others = service.external.iter().chain(&service.load_balancer).copied();
            for address in cluster.chain(others) {
                let set = SetId { kind: SetKind::IpvsAddresses, family: Family::of(address) };
                *entries.entry(set).or_insert(0) += 1;
            }
        }
        entries
    }

    /// Takes note that the kernel was read. The Services that have to be compiled again are put in order at once, or if
    /// the API server's is among them, before the next event and before any other is taken: it does not wait for that.
    pub fn kernel_was_read(&mut self, settings: &Settings) {
        self.is_order_due = true;
        if !self.dirty.has_api_server() {
            self.put_in_order(settings);
        }
    }

    /// True if they are still to be put in order.
    #[must_use]
    pub fn is_order_due(&self) -> bool {
        self.is_order_due
    }

    /// Puts the Services that have to be compiled again in the order of their age, if that is due. Those that claim
    /// what others claim too are planned by classes of their claims ([`Turn`]), so that none has
    /// for a moment what another one has a better reason for. Walks all Services.
    fn put_in_order(&mut self, settings: &Settings) {
        if !std::mem::take(&mut self.is_order_due) {
            return;
        }
        let records = &self.records;
        let services = records.values().filter_map(|record| record.service.as_deref());
        let contending = contention::contending(services, settings);
        let created = |name: &ServiceName| {
            let service = records.get(name)?.service.as_deref()?;
            Some(service.created)
        };
        let contends_since =
            |name: &ServiceName| contending.contains(name).then(|| created(name)).flatten();
        self.dirty.sort_by_key(|name| (created(name), name.clone()), contends_since);
    }

    /// Begins to take Services for another round.
    pub fn begin_round(&mut self) {
        self.dirty.begin_round();
    }

    /// Takes the Service that has to be compiled next, and the turn that it has.
    pub fn next_dirty(&mut self, settings: &Settings) -> Option<(ServiceName, Turn)> {
        if self.is_order_due
            && let Some(api_server) = self.dirty.pop_api_server()
        {
            return Some(api_server);
        }
        self.put_in_order(settings);
        self.dirty.pop()
    }

    /// Has a Service compiled once more, after others.
    pub fn put_back(&mut self, service: ServiceName, turn: Turn) {
        self.dirty.put_back(service, turn);
    }

    /// Notes the families with service addresses that are local although rules lead to Services.
    /// Returns those where that is new.
    pub(crate) fn note_bound(&mut self, bound: BTreeMap<Family, BoundAddresses>) -> Vec<Family> {
        self.facts.note_bound(bound)
    }

    fn apply_service(&mut self, mut service: Box<Service>, settings: &Settings) {
        if !settings.external_ips {
            service.external.clear();
        }
        let record = self.records.entry(service.name.clone()).or_default();
        if record.service.as_ref() == Some(&service) {
            return;
        }
        count_families(&mut self.n_clustered, record.service.as_deref(), Some(&service));
        match &record.service {
            Some(former) => self.index.remove(former, settings),
            None => drop(self.names.insert(service.name.clone())),
        }
        self.index.insert(&service, settings);
        let name = service.name.clone();
        self.dirty.push(name.clone());
        record.service = Some(service);
        self.count_endpoints(&name, settings);
    }

    fn remove_service(&mut self, name: &ServiceName, settings: &Settings) {
        let Some(record) = self.records.get_mut(name) else { return };
        let Some(former) = record.service.take() else { return };
        self.names.remove(name);
        count_families(&mut self.n_clustered, Some(&former), None);
        self.index.remove(&former, settings);
        self.dirty.push(name.clone());
        self.count_endpoints(name, settings);
        self.drop_if_empty(name);
    }

    fn apply_slice(&mut self, slice: Box<EndpointSlice>, settings: &Settings) {
        // A slice that has moved leaves its former Service, or that one would keep a stale copy.
        if self.service_of.get(&slice.name).is_some_and(|former| *former != slice.service) {
            self.remove_slice(&slice.name, settings);
        }
        let record = self.records.entry(slice.service.clone()).or_default();
        if record.slice(&slice.name) == Some(&*slice) {
            return;
        }
        if record.service.is_some() {
            self.dirty.push_endpoints(slice.service.clone());
        }
        if is_for_zones(&slice) {
            self.for_zones.insert(slice.name.clone());
        } else {
            self.for_zones.remove(&slice.name);
        }
        let former = inside(record.slice(&slice.name), settings);
        let now = inside(Some(&*slice), settings);
        self.service_of.insert(slice.name.clone(), slice.service.clone());
        let service = slice.service.clone();
        record.put(*slice);
        self.note_inside(&former, &now, settings);
        self.count_endpoints(&service, settings);
        self.note_api_server_endpoints(&service);
    }

    fn remove_slice(&mut self, name: &SliceName, settings: &Settings) {
        let Some(service) = self.service_of.remove(name) else { return };
        self.for_zones.remove(name);
        if let Some(record) = self.records.get_mut(&service) {
            let former = inside(record.slice(name), settings);
            record.remove(name);
            if record.service.is_some() {
                self.dirty.push_endpoints(service.clone());
            }
            self.note_inside(&former, &[], settings);
        }
        self.count_endpoints(&service, settings);
        self.note_api_server_endpoints(&service);
        self.drop_if_empty(&service);
    }

    /// Counts a Service's endpoints again. If there are very many now, or no longer, all Services'
    /// rules are different.
    fn count_endpoints(&mut self, service: &ServiceName, settings: &Settings) {
        let Some(record) = self.records.get_mut(service) else { return };
        if !backend::of(settings.mode).drops_comments {
            return;
        }
        let count = record.count_endpoints();
        let former = std::mem::replace(&mut record.n_endpoints, count);
        let counts = self.n_endpoints.iter_mut().zip(former.into_iter().zip(record.n_endpoints));
        counts.for_each(|(all, (was, is))| *all = *all + is - was);
        let mut is_new = false;
        for (family, all) in Family::BOTH.into_iter().zip(self.n_endpoints) {
            let most = if self.facts.has_many_endpoints(family) {
                FEWEST_UNCOMMENTED_ENDPOINTS - 1
            } else {
                MANY_ENDPOINTS
            };
            let are_many = all > most && settings.families.contains(&family);
            is_new |= self.facts.note_many_endpoints(family, are_many);
        }
        if is_new {
            self.dirty_all();
        }
    }

    fn drop_if_empty(&mut self, name: &ServiceName) {
        if self.records.get(name).is_some_and(|r| r.service.is_none() && r.slices.is_empty()) {
            self.records.remove(name);
        }
    }

    fn apply_node(&mut self, node: Node, settings: &Settings) {
        let former = self.facts.clone();
        let networks = self.networks_with_pods(settings);
        self.facts = std::mem::take(&mut self.facts).with_node(node, settings);
        if own_addresses(&self.facts) != own_addresses(&former) {
            self.dirty.extend(self.index.with_source_ranges().cloned());
        }
        let (old, new) = (&former.node().pod_cidrs, &self.facts.node().pod_cidrs);
        let is_in_one = |net: &&IpNet| old.contains(net) != new.contains(net);
        let changed = old.iter().chain(new).filter(is_in_one).copied().collect();
        self.dirty_near_pods(changed, &networks, settings);
        if self.facts.node().zone != former.node().zone {
            self.dirty_zones();
        }
        self.dirty_node_ports(&former, settings);
        self.dirty_pod_networks(&former, settings);
        self.dirty_relay_address(&former, settings);
    }

    fn dirty_pod_networks(&mut self, former: &NodeFacts, settings: &Settings) {
        for family in &settings.families {
            let network = |facts: &NodeFacts| facts.pod_network(settings, *family);
            if network(former) == network(&self.facts) {
                continue;
            }
            if settings.mode.leads_by_rules() {
                // Every Service's own rules have it.
                self.dirty_all();
            } else {
                self.note_other_rules(*family);
            }
        }
    }

    /// Has all Services planned again, in the order of their names.
    fn dirty_all(&mut self) {
        let there = self.records.iter().filter(|(_, record)| record.service.is_some());
        let services: BTreeSet<ServiceName> = there.map(|(name, _)| name.clone()).collect();
        self.dirty.extend(services);
    }

    fn apply_scheduler(&mut self, scheduler: &SchedulerName, is_missing: bool) {
        if self.facts.note_scheduler(scheduler, is_missing) {
            self.dirty.extend(self.index.with_scheduler(scheduler).cloned());
        }
    }

    fn apply_proxy_port(&mut self, id: ProxyPortId, state: ProxyPortState) {
        let service = id.service.clone();
        let of_service = self.proxy_ports.entry(service.clone()).or_default();
        let former = match state {
            ProxyPortState::Closed => of_service.remove(&id),
            ProxyPortState::Listening(_) | ProxyPortState::Failed => of_service.insert(id, state),
        };
        if of_service.is_empty() {
            self.proxy_ports.remove(&service);
        }
        let is_new = former.unwrap_or(ProxyPortState::Closed) != state;
        if is_new && self.records.get(&service).is_some_and(|record| record.service.is_some()) {
            self.dirty.push(service);
        }
    }

    /// Every Service's proxy ports are at the same address of the node.
    fn dirty_relay_address(&mut self, former: &NodeFacts, settings: &Settings) {
        let has_moved =
            |family: &Family| former.relay_address(*family) != self.facts.relay_address(*family);
        if settings.mode.relays() && settings.families.iter().any(has_moved) {
            self.dirty_all();
        }
    }

    /// Endpoints are chosen by hints of zones, and their shares are by zones.
    fn dirty_zones(&mut self) {
        self.dirty.extend(self.index.with_weights().cloned());
        let hinted = self.for_zones.iter().filter_map(|slice| self.service_of.get(slice));
        let is_there = |name: &&ServiceName| {
            self.records.get(*name).is_some_and(|record| record.service.is_some())
        };
        self.dirty.extend(hinted.filter(is_there).cloned());
    }

    /// The Services with node ports depend on the addresses that these are served on. In other modes
    /// than ipvs, only the rules that lead to all of them do.
    fn dirty_node_ports(&mut self, former: &NodeFacts, settings: &Settings) {
        let backend = backend::of(settings.mode);
        for family in &settings.families {
            let addresses = |facts| backend.node_port_addresses(*family, facts, settings);
            if addresses(former) != addresses(&self.facts) {
                self.note_other_rules(*family);
            }
            let same =
                former.node_port_addresses(*family).eq(self.facts.node_port_addresses(*family));
            if !same && (!settings.mode.leads_by_rules() || settings.localhost_node_ports) {
                self.dirty.extend(self.index.with_node_ports(*family).cloned());
            }
        }
    }

    /// The families whose constant rules have become different since this was last called, and
    /// since when.
    pub fn take_dirty_rules(&mut self) -> BTreeMap<Family, u64> {
        std::mem::take(&mut self.dirty_rules)
    }

    /// Has a family's constant rules written again.
    pub(crate) fn note_other_rules(&mut self, family: Family) {
        self.dirty_rules.entry(family).or_insert(self.dirty.now());
    }

    /// Has these Services compiled again.
    pub(crate) fn compile_again(&mut self, services: impl IntoIterator<Item = ServiceName>) {
        self.dirty.extend(services);
    }

    /// Counts the objects. Walks all of them.
    #[must_use]
    pub fn count(&self) -> InputCounts {
        let mut counts = InputCounts::default();
        for record in self.records.values() {
            counts.services += usize::from(record.service.is_some());
            counts.slices += record.slices.len();
            counts.endpoints += record.slices.iter().map(|it| it.endpoints.len()).sum::<usize>();
        }
        counts
    }

    /// The names of the Services that come after this one, or of all, in order.
    pub fn names(&self, after: Option<&ServiceName>) -> impl Iterator<Item = &ServiceName> {
        let start = after.map_or(Unbounded, Excluded);
        self.names.range::<ServiceName, _>((start, Unbounded))
    }

    /// Number of Services.
    #[must_use]
    pub fn n_services(&self) -> usize {
        self.names.len()
    }

    /// Number of Services with a cluster address of a family.
    #[must_use]
    pub fn n_services_of(&self, family: Family) -> usize {
        let counts = Family::BOTH.into_iter().zip(self.n_clustered);
        counts.filter(|(it, _)| *it == family).map(|(_, count)| count).sum()
    }

    /// True if a slice says that an address is of an endpoint on this node.
    pub(crate) fn has_endpoint_on(&self, node: &str, address: IpAddr) -> bool {
        let slices = self.records.values().flat_map(|record| &record.slices);
        slices
            .flat_map(|slice| &slice.endpoints)
            .any(|endpoint| endpoint.address == address && endpoint.node.as_deref() == Some(node))
    }

    /// True if a Service waits to be compiled again.
    #[must_use]
    pub fn waits(&self, service: &ServiceName) -> bool {
        self.dirty.contains(service)
    }

    /// Returns the Services with an endpoint that a drain by hand covers. Looks through all slices,
    /// unless the drain is for one Service: who drains by hand does so seldom, and an index of all
    /// endpoints would take its room all the time.
    #[must_use]
    pub fn with_endpoints_of(&self, drain: &HandDrain) -> BTreeSet<ServiceName> {
        let has_one = |record: &Record| {
            record.service.is_some() && record.slices.iter().any(|slice| drain.is_in(slice))
        };
        match &drain.service {
            Some(name) => {
                let record = self.records.get(name);
                record.filter(|record| has_one(record)).map(|_| name.clone()).into_iter().collect()
            }
            None => {
                let with_one = self.records.iter().filter(|(_, record)| has_one(record));
                with_one.map(|(name, _)| name.clone()).collect()
            }
        }
    }

    /// Has the Services planned again that a drain by hand is about, if it is new.
    fn apply_hand_drain(&mut self, drain: &HandDrain, is_drained: bool) {
        if self.facts.note_hand_drain(drain, is_drained) {
            self.dirty.extend(self.with_endpoints_of(drain));
        }
    }
}

impl Record {
    fn place(&self, name: &SliceName) -> Result<usize, usize> {
        self.slices.binary_search_by(|slice| slice.name.cmp(name))
    }

    fn slice(&self, name: &SliceName) -> Option<&EndpointSlice> {
        self.slices.get(self.place(name).ok()?)
    }

    fn count_endpoints(&self) -> [usize; 2] {
        let Some(service) = &self.service else { return [0; 2] };
        let slices: Vec<&EndpointSlice> = self.slices.iter().collect();
        Family::BOTH.map(|family| {
            let endpoints = EndpointsByPort::new(family, &slices);
            service.ports.iter().map(|port| endpoints.count(port)).sum()
        })
    }

    /// Takes the room of one more and no spare.
    fn put(&mut self, slice: EndpointSlice) {
        match self.place(&slice.name) {
            Ok(at) => {
                if let Some(there) = self.slices.get_mut(at) {
                    *there = slice;
                }
            }
            Err(at) => {
                self.slices.reserve_exact(1);
                self.slices.insert(at, slice);
            }
        }
    }

    fn remove(&mut self, name: &SliceName) {
        if let Ok(at) = self.place(name) {
            self.slices.remove(at);
        }
    }
}

/// Counts a Service by the families of its cluster addresses: as it was, and as it is.
fn count_families(counts: &mut [usize; 2], former: Option<&Service>, new: Option<&Service>) {
    let has = |service: Option<&Service>, family| {
        usize::from(service.is_some_and(|it| it.cluster_address(family).is_some()))
    };
    for (family, count) in Family::BOTH.into_iter().zip(counts) {
        *count = *count + has(new, family) - has(former, family);
    }
}

fn is_for_zones(slice: &EndpointSlice) -> bool {
    let mut hints = slice.endpoints.iter().filter_map(|endpoint| endpoint.hints.as_deref());
    hints.any(|hints| !hints.zones.is_empty())
}

fn own_addresses(facts: &NodeFacts) -> (Option<IpAddr>, Option<IpAddr>) {
    (facts.own_address(Family::V4), facts.own_address(Family::V6))
}
