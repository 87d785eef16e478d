//! Copies of the input of single Services, for a planner of their own.

use std::net::IpAddr;

use super::{Record, Store, is_for_zones};
use crate::event::Event;
use crate::model::{ServiceName, SliceName};
use crate::settings::Settings;
use crate::userspace::ProxyPorts;

/// Input of one Service: the object, its slices, and its proxy ports.
#[derive(Debug, Clone)]
pub struct ServiceInput {
    name: ServiceName,
    record: Record,
    proxy_ports: Option<ProxyPorts>,
}

impl ServiceInput {
    /// Returns the name of the Service.
    #[must_use]
    pub fn name(&self) -> &ServiceName {
        &self.name
    }
}

impl Store {
    /// Returns a store with the same facts about the node, and no Services. All Services and their
    /// endpoints still count, so that the rules have comments or not as here.
    pub(crate) fn without_services(&self) -> Self {
        Self {
            facts: self.facts.clone(),
            others: self.others.clone(),
            api_server: self.api_server.clone(),
            n_clustered: self.n_clustered,
            n_endpoints: self.n_endpoints,
            ..Self::default()
        }
    }

    /// Returns a copy of the input of a Service. None: nothing is known under its name.
    pub(crate) fn input(&self, name: &ServiceName) -> Option<ServiceInput> {
        let record = self.records.get(name)?.clone();
        let proxy_ports = self.proxy_ports.get(name).cloned();
        Some(ServiceInput { name: name.clone(), record, proxy_ports })
    }

    /// Takes the input of a Service that this store does not have. Its endpoints count already:
    /// see [`without_services`](Self::without_services).
    pub(crate) fn take_input(&mut self, input: ServiceInput, settings: &Settings) {
        let ServiceInput { name, record, proxy_ports } = input;
        if self.records.contains_key(&name) {
            return;
        }
        for slice in &record.slices {
            self.service_of.insert(slice.name.clone(), name.clone());
            if is_for_zones(slice) {
                self.for_zones.insert(slice.name.clone());
            }
        }
        if let Some(service) = &record.service {
            self.index.insert(service, &settings.short_circuit_networks);
            self.dirty.push(name.clone());
        }
        self.proxy_ports.extend(proxy_ports.map(|ports| (name.clone(), ports)));
        self.records.insert(name, record);
    }

    /// True if a slice says that an address is of an endpoint on this node.
    pub(crate) fn has_endpoint_on(&self, node: &str, address: IpAddr) -> bool {
        let slices = self.records.values().flat_map(|record| &record.slices);
        slices
            .flat_map(|slice| &slice.endpoints)
            .any(|endpoint| endpoint.address == address && endpoint.node.as_deref() == Some(node))
    }

    /// Returns the Services that an event of a Service or a slice is about, and those that depend on
    /// where the slice's endpoints are. None: it is an event of the node, and may be about all of them.
    pub(crate) fn concerned_by(
        &self,
        event: &Event,
        settings: &Settings,
    ) -> Option<Vec<ServiceName>> {
        let former = |name: &SliceName| {
            let service = self.service_of.get(name)?;
            Some((service, self.records.get(service)?.slice(name)))
        };
        let (name, new) = match event {
            Event::ServiceApplied(service) => return Some(vec![service.name.clone()]),
            Event::ServiceRemoved(name) => return Some(vec![name.clone()]),
            Event::SliceApplied(slice) => (&slice.name, Some(&**slice)),
            Event::SliceRemoved(name) => (name, None),
            _ => return None,
        };
        let mut services: Vec<ServiceName> = new.map(|it| it.service.clone()).into_iter().collect();
        services.extend(self.depending_on_slice(new, settings));
        if let Some((service, slice)) = former(name) {
            services.push(service.clone());
            services.extend(self.depending_on_slice(slice, settings));
        }
        Some(services)
    }
}
