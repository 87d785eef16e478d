//! Addresses by which this node reaches the API server.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::Store;
use crate::model::{Family, ServiceName};

/// The two that say where the API server is.
#[derive(Debug, Default)]
pub(super) struct ApiServer {
    /// The configuration of this node: a kubeconfig, or the pod's environment.
    configured: Vec<SocketAddr>,
    /// Endpoints of `default/kubernetes`, by which pods reach it.
    endpoints: Vec<SocketAddr>,
}

impl Store {
    pub(super) fn apply_api_server(&mut self, addresses: Vec<SocketAddr>) {
        self.api_server.configured = addresses;
        self.note_api_server();
    }

    /// Looks at the endpoints of a Service, if it is the API server's own.
    pub(super) fn note_api_server_endpoints(&mut self, service: &ServiceName) {
        if !service.is_api_server() {
            return;
        }
        let slices = self.records.get(service).into_iter().flat_map(|record| &record.slices);
        let endpoints = slices.flat_map(|slice| {
            slice.ports.iter().flat_map(|port| {
                let addresses = slice.endpoints.iter().map(|endpoint| endpoint.address);
                addresses.map(|address| SocketAddr::new(address, port.port.get()))
            })
        });
        self.api_server.endpoints = endpoints.collect();
        self.note_api_server();
    }

    fn note_api_server(&mut self) {
        let ApiServer { configured, endpoints } = &self.api_server;
        let all: BTreeSet<SocketAddr> = configured.iter().chain(endpoints).copied().collect();
        for address in self.facts.note_api_server(all) {
            self.dirty.extend(self.index.with_address(address).cloned());
            if self.facts.local_addresses().contains(&address) {
                self.dirty_ports_of_node();
            }
        }
    }

    /// Looks at an address that this node has now, or no longer: NodePorts may be ports of an API server
    /// on this node.
    pub(super) fn note_own_api_server(&mut self, address: IpAddr) {
        if self.facts.has_api_server(address) {
            self.dirty_ports_of_node();
        }
    }

    /// Has the Services planned again that have ports at this node's own addresses.
    fn dirty_ports_of_node(&mut self) {
        for family in Family::BOTH {
            self.dirty.extend(self.index.with_node_ports(family).cloned());
        }
        let own: BTreeSet<IpAddr> = self.facts.local_addresses().iter().copied().collect();
        for address in own {
            self.dirty.extend(self.index.with_address(address).cloned());
        }
    }
}
