//! Services that claim the same frontends, found before any of them is planned.

use std::net::IpAddr;

use crate::hash::{HashMap, HashSet};
use crate::kernel_objects::Frontend;
use crate::model::{Family, Protocol, Service, ServiceName};
use crate::settings::Settings;

/// The Services that may claim what another one of these claims too, and perhaps some more. Walks
/// all of them.
pub(super) fn contending<'a>(
    services: impl Iterator<Item = &'a Service> + Clone,
    settings: &Settings,
) -> HashSet<&'a ServiceName> {
    let mut contending = HashSet::default();
    let mut claimed: HashMap<Frontend, &ServiceName> = HashMap::default();
    // At whatever address of the node.
    let mut node_ports: HashMap<(Protocol, u16), &ServiceName> = HashMap::default();
    for service in services.clone() {
        let name = &service.name;
        // What is behind the limit is not claimed.
        for frontend in frontends(service, settings).take(settings.limits.frontends) {
            let first = *claimed.entry(frontend).or_insert(name);
            if first != name {
                contending.extend([first, name]);
            }
        }
        for port in &service.ports {
            let Some(number) = port.node_port else { continue };
            let first = *node_ports.entry((port.protocol, number.get())).or_insert(name);
            if first != name {
                contending.extend([first, name]);
            }
        }
    }
    for service in services.filter(|it| outer_addresses(it).next().is_some()) {
        let owners = service.ports.iter().filter_map(|port| {
            let owner = *node_ports.get(&(port.protocol, port.port.get()))?;
            (*owner != service.name).then_some(owner)
        });
        for owner in owners {
            contending.extend([owner, &service.name]);
        }
    }
    contending
}

fn outer_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    service.external.iter().chain(&service.load_balancer).copied()
}

/// All but node ports, with internal frontends.
fn frontends(service: &Service, settings: &Settings) -> impl Iterator<Item = Frontend> {
    let has_fast_path = settings.has_fast_path();
    let has_internal_frontends = has_fast_path || service.is_external_policy_local();
    let cluster = Family::BOTH.into_iter().filter_map(|family| service.cluster_address(family));
    let cluster = cluster.map(move |address| (address, has_fast_path));
    let outer = outer_addresses(service).map(move |address| (address, has_internal_frontends));
    let addresses = cluster.chain(outer).flat_map(|(address, has_internal_frontends)| {
        let internal_frontends =
            settings.internal_frontends_of(address).filter(move |_| has_internal_frontends);
        [address].into_iter().chain(internal_frontends)
    });
    addresses.flat_map(|address| {
        service.ports.iter().map(move |port| Frontend {
            address,
            protocol: port.protocol,
            port: port.port.get(),
        })
    })
}
