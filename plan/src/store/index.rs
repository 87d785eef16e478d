//! Index of the Services by the facts about the node that they depend on, so that a change of a
//! fact costs what depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::hash::HashMap;
use crate::model::{Family, Service, ServiceName};
use crate::scheduler::SchedulerName;
use crate::settings::Settings;

/// Services by what they depend on.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// External and load-balancer addresses: those that are the node's own are not bound. Addresses of
    /// internal frontends: those that are in use are no internal frontends.
    by_address: BTreeMap<IpAddr, BTreeSet<ServiceName>>,
    node_ports_v4: BTreeSet<ServiceName>,
    node_ports_v6: BTreeSet<ServiceName>,
    source_ranges: BTreeSet<ServiceName>,
    by_scheduler: HashMap<SchedulerName, BTreeSet<ServiceName>>,
    weights: BTreeSet<ServiceName>,
}

impl Index {
    pub(super) fn insert(&mut self, service: &Service, settings: &Settings) {
        for address in addresses(service, settings) {
            self.by_address.entry(address).or_default().insert(service.name.clone());
        }
        for family in node_port_families(service) {
            self.node_ports(family).insert(service.name.clone());
        }
        if !service.source_ranges.is_empty() {
            self.source_ranges.insert(service.name.clone());
        }
        if service.overrides.as_ref().is_some_and(|overrides| overrides.weights.is_some()) {
            self.weights.insert(service.name.clone());
        }
        if let Some(scheduler) = chosen_scheduler(service) {
            self.by_scheduler.entry(scheduler.clone()).or_default().insert(service.name.clone());
        }
    }

    /// Takes out what was put in for exactly this object.
    pub(super) fn remove(&mut self, service: &Service, settings: &Settings) {
        for address in addresses(service, settings) {
            if let Some(services) = self.by_address.get_mut(&address) {
                services.remove(&service.name);
                if services.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
        for family in node_port_families(service) {
            self.node_ports(family).remove(&service.name);
        }
        self.source_ranges.remove(&service.name);
        self.weights.remove(&service.name);
        if let Some(services) = chosen_scheduler(service).and_then(|s| self.by_scheduler.get_mut(s))
        {
            services.remove(&service.name);
        }
    }

    pub(super) fn with_address(&self, address: IpAddr) -> impl Iterator<Item = &ServiceName> {
        self.by_address.get(&address).into_iter().flatten()
    }

    /// Services with an external or a load balancer's address in one of these networks.
    pub(super) fn with_outer_addresses_in(&self, networks: &[IpNet]) -> BTreeSet<ServiceName> {
        let inside = networks.iter();
        let inside = inside.flat_map(|net| self.by_address.range(net.network()..=net.broadcast()));
        inside.flat_map(|(_, services)| services).cloned().collect()
    }

    pub(super) fn with_node_ports(&self, family: Family) -> impl Iterator<Item = &ServiceName> {
        match family {
            Family::V4 => self.node_ports_v4.iter(),
            Family::V6 => self.node_ports_v6.iter(),
        }
    }

    pub(super) fn with_source_ranges(&self) -> impl Iterator<Item = &ServiceName> {
        self.source_ranges.iter()
    }

    pub(super) fn with_weights(&self) -> impl Iterator<Item = &ServiceName> {
        self.weights.iter()
    }

    pub(super) fn with_scheduler(
        &self,
        scheduler: &SchedulerName,
    ) -> impl Iterator<Item = &ServiceName> {
        self.by_scheduler.get(scheduler).into_iter().flatten()
    }

    fn node_ports(&mut self, family: Family) -> &mut BTreeSet<ServiceName> {
        match family {
            Family::V4 => &mut self.node_ports_v4,
            Family::V6 => &mut self.node_ports_v6,
        }
    }
}

fn chosen_scheduler(service: &Service) -> Option<&SchedulerName> {
    service.overrides.as_ref()?.scheduler.as_ref()
}

/// Returns the addresses outside, and those of internal frontends. Only on the fast path, cluster addresses have some.
fn addresses(service: &Service, settings: &Settings) -> impl Iterator<Item = IpAddr> {
    let outer = service.external.iter().chain(&service.load_balancer).copied();
    let outer = outer.flat_map(|it| [it].into_iter().chain(settings.internal_frontends_of(it)));
    let cluster = Family::BOTH.into_iter().filter_map(|family| service.cluster_address(family));
    let cluster = cluster.filter(|_| settings.has_fast_path());
    outer.chain(cluster.filter_map(|it| settings.internal_frontend_networks.address_for(it)))
}

fn node_port_families(service: &Service) -> impl Iterator<Item = Family> {
    let any = service.ports.iter().any(|port| port.node_port.is_some());
    Family::BOTH.into_iter().filter(move |family| any && service.cluster_address(*family).is_some())
}
