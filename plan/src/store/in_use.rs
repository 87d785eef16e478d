//! Addresses that this node, other nodes and endpoints have: no Service is served there, or has an internal
//! frontend there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::Store;
use crate::hash::HashSet;
use crate::ipvs::desired::only_in_second;
use crate::model::{EndpointSlice, Family, OtherNode, ServiceName};
use crate::settings::Settings;

impl Store {
    pub(super) fn apply_local_addresses(&mut self, addresses: Vec<IpAddr>, settings: &Settings) {
        let addresses: HashSet<IpAddr> = addresses.into_iter().collect();
        if addresses == *self.facts.local_addresses() {
            return;
        }
        let former = self.facts.clone();
        self.facts = std::mem::take(&mut self.facts).with_local_addresses(addresses, settings);
        let changed = former.local_addresses().symmetric_difference(self.facts.local_addresses());
        // In the same order every time, and so the rounds in which they are planned.
        for address in changed.copied().collect::<BTreeSet<_>>() {
            self.note_own_api_server(address);
            self.dirty_address(address, settings);
            // The rules of ipvs mode spare the node's own addresses.
            if !settings.mode.leads_by_rules()
                && settings.is_routed(address)
                && settings.families.contains(&Family::of(address))
            {
                let now = self.dirty.now();
                self.dirty_rules.entry(Family::of(address)).or_insert(now);
            }
        }
        self.dirty_node_ports(&former, settings);
        self.dirty_pod_networks(&former, settings);
        self.dirty_relay_address(&former, settings);
    }

    pub(super) fn apply_other_node(
        &mut self,
        name: &Arc<str>,
        mut node: OtherNode,
        settings: &Settings,
    ) {
        node.addresses.sort_unstable();
        node.addresses.dedup();
        node.pod_cidrs.sort_unstable();
        node.pod_cidrs.dedup();
        let former = self.others.remove(name).unwrap_or_default();
        let networks = self.networks_with_pods(settings);
        for address in only_in_second(&node.addresses, &former.addresses) {
            if self.facts.remove_other_node(*address, name) {
                self.dirty_address(*address, settings);
            }
        }
        for address in only_in_second(&former.addresses, &node.addresses) {
            if self.facts.add_other_node(*address, name) {
                self.dirty_address(*address, settings);
            }
        }
        let gone = only_in_second(&node.pod_cidrs, &former.pod_cidrs);
        let gone = gone.filter(|network| self.facts.remove_other_pods(**network));
        let mut changed: Vec<IpNet> = gone.copied().collect();
        let added = only_in_second(&former.pod_cidrs, &node.pod_cidrs);
        changed.extend(added.filter(|network| self.facts.add_other_pods(**network)));
        self.dirty_near_pods(changed, &networks, settings);
        if !node.is_empty() {
            self.others.insert(Arc::clone(name), node);
        }
    }

    /// Notes the endpoints that a slice had inside the networks of internal frontends, and has now.
    pub(super) fn note_inside(&mut self, former: &[IpAddr], now: &[IpAddr], settings: &Settings) {
        // What is in both stays in use all the time.
        let added = now.iter().filter(|address| self.facts.add_endpoint_inside(**address));
        let mut changed: Vec<IpAddr> = added.copied().collect();
        let gone = former.iter().filter(|address| self.facts.remove_endpoint_inside(**address));
        changed.extend(gone);
        for address in changed {
            self.dirty_address(address, settings);
        }
    }

    /// The networks of internal frontends that are known to have pods inside.
    pub(super) fn networks_with_pods(&self, settings: &Settings) -> Vec<IpNet> {
        let networks = Family::BOTH.into_iter();
        let networks = networks.filter_map(|family| settings.internal_frontend_networks.of(family));
        networks.filter(|network| self.facts.has_pods_inside(network)).collect()
    }

    /// Has the Services planned again that depend on these networks of pods, which have come or gone: none
    /// has an external address inside of them, or an internal frontend near them. So far these networks of internal
    /// frontends had pods inside.
    pub(super) fn dirty_near_pods(
        &mut self,
        mut changed: Vec<IpNet>,
        former: &[IpNet],
        settings: &Settings,
    ) {
        let now = self.networks_with_pods(settings);
        let is_in_one = |network: &&IpNet| former.contains(network) != now.contains(network);
        let switched: Vec<IpNet> = former.iter().chain(&now).filter(is_in_one).copied().collect();
        for network in &switched {
            let family = Family::of_net(network);
            self.dirty.extend(self.index.with_node_ports(family).cloned());
        }
        changed.extend(switched);
        self.dirty.extend(self.index.with_outer_addresses_in(&changed));
    }

    /// Has the Services planned again that have an address, or would have an internal frontend there.
    pub(super) fn dirty_address(&mut self, address: IpAddr, settings: &Settings) {
        let services = self.depending_on(address, settings);
        self.dirty.extend(services);
    }

    /// True if a Service has an address.
    pub(crate) fn has_service_at(&self, address: IpAddr) -> bool {
        self.index.with_address(address).next().is_some()
    }

    /// Returns the Services that have an address, or would have an internal frontend there.
    fn depending_on(&self, address: IpAddr, settings: &Settings) -> Vec<ServiceName> {
        let mut services: Vec<ServiceName> = self.index.with_address(address).cloned().collect();
        let family = Family::of(address);
        let mut node_ports = self.facts.node_port_addresses(family);
        if settings.internal_frontend_networks.around(address).is_some()
            && node_ports.any(|own| settings.internal_frontends_of(own).any(|it| it == address))
        {
            services.extend(self.index.with_node_ports(family).cloned());
        }
        services
    }
}

/// Returns the endpoints of a slice inside the networks of internal frontends. Most clusters have none.
pub(super) fn inside(slice: Option<&EndpointSlice>, settings: &Settings) -> Vec<IpAddr> {
    let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
    let addresses = endpoints.map(|endpoint| endpoint.address);
    addresses.filter(|it| settings.internal_frontend_networks.around(*it).is_some()).collect()
}
