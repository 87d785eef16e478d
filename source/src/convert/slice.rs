//! EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, Hints, ServiceName, SliceName, SlicePort,
};

use super::{Interner, ObjectWarnings, address, port, port_name, protocol};
use crate::object::{self, LONGEST_LABEL, LONGEST_NAME};
use syntax::quoted::Quoted;

/// Stands for a hint of a zone or a node with too long a name: no Node's zone or name has this character.
/// The endpoint stays hinted: without a hint, those of the Service's other endpoints would not count.
const TOO_LONG: &str = "…";

/// The slice as it is to be planned with, or nothing if it is not to be.
pub(super) fn convert(
    object: &object::EndpointSlice,
    name: SliceName,
    interner: &mut Interner,
    warnings: &mut ObjectWarnings,
) -> Option<EndpointSlice> {
    let labels = &object.metadata.labels;
    if labels.headless {
        return None;
    }
    // The label is not required: a slice may be of something that is no Service.
    let service = labels.service_name.as_deref();
    let service = service.filter(|name| (1..=LONGEST_LABEL).contains(&name.len()))?;
    let family = match object.address_type.as_deref() {
        Some("IPv4") => Family::V4,
        Some("IPv6") => Family::V6,
        // DNS names: of no use to a proxy, and valid.
        Some("FQDN") => return None,
        other => {
            let other = other.unwrap_or_default();
            warnings.add("addressType", format_args!("{} is neither IPv4 nor IPv6", Quoted(other)));
            return None;
        }
    };
    let service = ServiceName::new(Arc::clone(&name.namespace), service);
    let service = interner.intern_service(service);
    let ports = ports(&object.ports, interner, warnings);
    let mut endpoints: Vec<Endpoint> = Vec::with_capacity(object.endpoints.len());
    for (index, endpoint) in object.endpoints.iter().enumerate() {
        let path = format_args!("endpoints[{index}].addresses");
        let Some(address) = warnings.ok_or_warn(path, first_address(endpoint, family)) else {
            continue;
        };
        endpoints.push(Endpoint {
            address,
            conditions: conditions(&endpoint.conditions),
            node: node(endpoint).map(|node| interner.intern_node(node)),
            zone: zone(endpoint).map(|zone| interner.intern(zone)),
            hints: hints(&endpoint.hints, &endpoints, interner),
        });
    }
    endpoints.shrink_to_fit();
    Some(EndpointSlice { name, service, family, ports, endpoints })
}

/// A slice's port without a number means "all ports", which no proxy implements: it is skipped,
/// as is 0.
fn ports(
    ports: &[object::SlicePort],
    interner: &mut Interner,
    warnings: &mut ObjectWarnings,
) -> Vec<SlicePort> {
    let mut converted = Vec::with_capacity(ports.len());
    for (index, slice_port) in ports.iter().enumerate() {
        let path = format_args!("ports[{index}].port");
        let Some(Some(number)) = warnings.ok_or_warn(path, port(slice_port.port)) else { continue };
        let path = format_args!("ports[{index}].protocol");
        let Some(protocol) = warnings.ok_or_warn(path, protocol(slice_port.protocol.as_deref()))
        else {
            continue;
        };
        let path = format_args!("ports[{index}].name");
        let name = port_name(slice_port.name.as_deref());
        let Some(name) = warnings.ok_or_warn(path, name) else { continue };
        converted.push(SlicePort { name: interner.intern(name), protocol, port: number });
    }
    converted
}

/// Consumers use the first address only; the API says that the others mean the same endpoint.
fn first_address(endpoint: &object::Endpoint, family: Family) -> Result<IpAddr, String> {
    let text = endpoint.addresses.first().ok_or("there is none")?;
    let address = address::parse(text)?;
    if Family::of(address) == family {
        Ok(address)
    } else {
        Err(format!("{} is not an {family} address, as addressType says", Quoted(text)))
    }
}

/// A node's name, unless no Node can have it.
fn node(endpoint: &object::Endpoint) -> Option<&str> {
    endpoint.node_name.as_deref().filter(|name| name.len() <= LONGEST_NAME)
}

/// The zone, unless no Node can be in it. The API server takes any text of any length there
/// (`validateEndpoints` in pkg/apis/discovery/validation/validation.go).
fn zone(endpoint: &object::Endpoint) -> Option<&str> {
    endpoint.zone.as_deref().filter(|zone| (1..=LONGEST_LABEL).contains(&zone.len()))
}

fn conditions(written: &object::Conditions) -> Conditions {
    Conditions {
        ready: written.ready.unwrap_or(true),
        serving: written.serving.unwrap_or(true),
        terminating: written.terminating.unwrap_or(false),
    }
}

/// Returns the hints, if there are any. They are shared with one of the 8 endpoints before that has
/// the same.
fn hints(
    written: &object::Hints,
    before: &[Endpoint],
    interner: &mut Interner,
) -> Option<Arc<Hints>> {
    if written.for_zones.is_empty() && written.for_nodes.is_empty() {
        return None;
    }
    let mut names = |named: &[object::Named], longest| -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = Vec::with_capacity(named.len());
        for object::Named { name } in named {
            let name = if name.len() <= longest { name } else { TOO_LONG };
            if !names.iter().any(|known| **known == *name) {
                names.push(interner.intern(name));
            }
        }
        names
    };
    let new = Hints {
        zones: names(&written.for_zones, LONGEST_LABEL),
        nodes: names(&written.for_nodes, LONGEST_NAME),
    };
    // A few zones in turn: nothing is gained by looking further.
    let mut others = before.iter().rev().take(8).filter_map(|endpoint| endpoint.hints.as_ref());
    let known = others.find(|known| ***known == new);
    Some(known.map_or_else(|| Arc::new(new), Arc::clone))
}
