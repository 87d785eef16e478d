//! Services.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;
use plan::model::{Family, Service, ServiceKind, ServiceName, ServicePort, TrafficPolicy};

use super::{Interner, ObjectWarnings, address, port, port_name, protocol};
use crate::object::{self, ServiceSpec};
use syntax::quoted::Quoted;

/// `spec.clusterIP` of a headless Service.
const HEADLESS: &str = "None";

/// The API's default of `sessionAffinityConfig.clientIP.timeoutSeconds`: three hours.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// The longest client affinity that the API allows: a day.
const LONGEST_AFFINITY_SECONDS: u32 = 86_400;

/// The Service as it is to be planned with, or nothing if it is not to be.
pub(super) fn convert(
    object: &object::Service,
    name: ServiceName,
    interner: &mut Interner,
    warnings: &mut ObjectWarnings,
) -> Option<Service> {
    let spec = &object.spec;
    if object.metadata.labels.service_proxy_name || spec.kind.as_deref() == Some("ExternalName") {
        return None;
    }
    let (cluster_v4, cluster_v6) = cluster_addresses(spec, warnings)?;
    let kind = kind(spec.kind.as_deref(), warnings);
    let external_policy = external_policy(spec, kind, warnings);
    Some(Service {
        name,
        created: created(object.metadata.creation_timestamp.as_deref(), warnings),
        kind,
        cluster_v4,
        cluster_v6,
        external: addresses("spec.externalIPs", &spec.external_ips, warnings),
        load_balancer: load_balancer(&object.status, warnings),
        source_ranges: source_ranges(&spec.load_balancer_source_ranges, warnings),
        affinity: affinity(spec, warnings),
        external_policy,
        internal_policy: policy(
            "spec.internalTrafficPolicy",
            spec.internal_traffic_policy.as_deref(),
            warnings,
        ),
        health_check_node_port: health_check_node_port(spec, kind, external_policy, warnings),
        ports: ports(&spec.ports, interner, warnings),
        overrides: None,
    })
}

/// The cluster address of each family; nothing if there is none at all.
///
/// `clusterIPs[i]` belongs to `ipFamilies[i]`. The API server fills both in. Without `ipFamilies`,
/// the family follows from the address.
fn cluster_addresses(
    spec: &ServiceSpec,
    warnings: &mut ObjectWarnings,
) -> Option<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let texts = match (&spec.cluster_ip, spec.cluster_ips.as_slice()) {
        (Some(primary), []) => std::slice::from_ref(primary),
        (_, several) => several,
    };
    let primary = spec.cluster_ip.as_deref().filter(|text| !text.is_empty());
    let primary = primary.or(texts.first().map(String::as_str)).unwrap_or_default();
    if primary.is_empty() || primary == HEADLESS {
        return None;
    }
    let (mut v4, mut v6) = (None, None);
    for (index, text) in texts.iter().enumerate() {
        let path = format_args!("spec.clusterIPs[{index}]");
        let family = spec.ip_families.get(index);
        if family.is_none() && !spec.ip_families.is_empty() {
            break;
        }
        let Some(address) = warnings.ok_or_warn(path, address::parse(text)) else { continue };
        if let Some(family) = family.filter(|name| **name != Family::of(address).to_string()) {
            let problem = format_args!(
                "{} is not of spec.ipFamilies[{index}] ({})",
                Quoted(text),
                Quoted(family)
            );
            warnings.add(path, problem);
            continue;
        }
        match address {
            IpAddr::V4(address) => _ = v4.get_or_insert(address),
            IpAddr::V6(address) => _ = v6.get_or_insert(address),
        }
    }
    (v4.is_some() || v6.is_some()).then_some((v4, v6))
}

fn kind(name: Option<&str>, warnings: &mut ObjectWarnings) -> ServiceKind {
    match name {
        None | Some("" | "ClusterIP") => ServiceKind::ClusterIp,
        Some("NodePort") => ServiceKind::NodePort,
        Some("LoadBalancer") => ServiceKind::LoadBalancer,
        Some(other) => {
            let problem = format_args!("{} is not known, taken as ClusterIP", Quoted(other));
            warnings.add("spec.type", problem);
            ServiceKind::ClusterIp
        }
    }
}

/// Seconds since 1970, 0 if unknown.
fn created(timestamp: Option<&str>, warnings: &mut ObjectWarnings) -> i64 {
    let Some(text) = timestamp else { return 0 };
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => time.as_second(),
        Err(_) => {
            let problem = format_args!("{} is not a time, taken as unknown", Quoted(text));
            warnings.add("metadata.creationTimestamp", problem);
            0
        }
    }
}

fn addresses(path: &str, texts: &[String], warnings: &mut ObjectWarnings) -> Vec<IpAddr> {
    let mut addresses = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let path = format_args!("{path}[{index}]");
        addresses.extend(warnings.ok_or_warn(path, address::parse(text)));
    }
    keep_first(&mut addresses);
    addresses
}

/// `ipMode: Proxy` means that the load balancer wants to be passed through, not to be bypassed.
fn load_balancer(status: &object::ServiceStatus, warnings: &mut ObjectWarnings) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (index, ingress) in status.load_balancer.ingress.iter().enumerate() {
        let Some(text) = ingress.ip.as_deref().filter(|text| !text.is_empty()) else { continue };
        if !matches!(ingress.ip_mode.as_deref(), None | Some("VIP")) {
            continue;
        }
        let path = format_args!("status.loadBalancer.ingress[{index}].ip");
        addresses.extend(warnings.ok_or_warn(path, address::parse(text)));
    }
    keep_first(&mut addresses);
    addresses
}

/// The source ranges of both families. One that is everyone leaves no restriction for its family.
fn source_ranges(texts: &[String], warnings: &mut ObjectWarnings) -> Vec<IpNet> {
    let mut ranges: Vec<IpNet> = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let path = format_args!("spec.loadBalancerSourceRanges[{index}]");
        ranges.extend(warnings.ok_or_warn(path, address::parse_network(text)));
    }
    keep_first(&mut ranges);
    if ranges.is_empty() && !texts.is_empty() {
        let problem = "none of them can be used, so every client is let in";
        warnings.add("spec.loadBalancerSourceRanges", problem);
    }
    for family in Family::BOTH {
        let of_family = |range: &IpNet| Family::of_net(range) == family;
        if ranges.iter().any(|range| of_family(range) && range.prefix_len() == 0) {
            ranges.retain(|range| !of_family(range));
        }
    }
    ranges
}

fn affinity(spec: &ServiceSpec, warnings: &mut ObjectWarnings) -> Option<u32> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            let problem =
                format_args!("{} is neither None nor ClientIP, taken as None", Quoted(other));
            warnings.add("spec.sessionAffinity", problem);
            return None;
        }
    }
    let Some(written) = spec.session_affinity_config.client_ip.timeout_seconds else {
        return Some(DEFAULT_AFFINITY_SECONDS);
    };
    let allowed = 1..=LONGEST_AFFINITY_SECONDS;
    let seconds = u32::try_from(written).ok().filter(|seconds| allowed.contains(seconds));
    if seconds.is_none() {
        warnings.add(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format_args!(
                "{written} is not within 1 to {LONGEST_AFFINITY_SECONDS}, \
                 taken as {DEFAULT_AFFINITY_SECONDS}"
            ),
        );
    }
    seconds.or(Some(DEFAULT_AFFINITY_SECONDS))
}

fn policy(path: &str, name: Option<&str>, warnings: &mut ObjectWarnings) -> TrafficPolicy {
    match name {
        None | Some("" | "Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(other) => {
            let problem =
                format_args!("{} is neither Cluster nor Local, taken as Cluster", Quoted(other));
            warnings.add(path, problem);
            TrafficPolicy::Cluster
        }
    }
}

/// The policy means something only to a Service that is reached from outside by its kind, or by
/// external addresses of any family.
fn external_policy(
    spec: &ServiceSpec,
    kind: ServiceKind,
    warnings: &mut ObjectWarnings,
) -> TrafficPolicy {
    let name = spec.external_traffic_policy.as_deref();
    let policy = policy("spec.externalTrafficPolicy", name, warnings);
    match kind {
        ServiceKind::ClusterIp if spec.external_ips.is_empty() => TrafficPolicy::Cluster,
        ServiceKind::ClusterIp | ServiceKind::NodePort | ServiceKind::LoadBalancer => policy,
    }
}

fn health_check_node_port(
    spec: &ServiceSpec,
    kind: ServiceKind,
    external_policy: TrafficPolicy,
    warnings: &mut ObjectWarnings,
) -> Option<NonZeroU16> {
    if kind != ServiceKind::LoadBalancer || external_policy != TrafficPolicy::Local {
        return None;
    }
    let path = "spec.healthCheckNodePort";
    let number = warnings.ok_or_warn(path, port(spec.health_check_node_port))?;
    if number.is_none() {
        let problem = "none, so the load balancer cannot ask which nodes have endpoints";
        warnings.add(path, problem);
    }
    number
}

/// A Service's ports are told apart by name and protocol, and by number and protocol: a second
/// one with the same is left out.
fn ports(
    ports: &[object::ServicePort],
    interner: &mut Interner,
    warnings: &mut ObjectWarnings,
) -> Vec<ServicePort> {
    let mut converted: Vec<ServicePort> = Vec::with_capacity(ports.len());
    let (mut names, mut numbers) = (HashMap::new(), HashMap::new());
    for (index, written) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let Some(new) = service_port(&path, written, interner, warnings) else { continue };
        let name = (new.protocol, Arc::clone(&new.name));
        let number = (new.protocol, new.port);
        let others = names.get(&name).into_iter().chain(numbers.get(&number));
        match others.min().and_then(|other: &usize| converted.get(*other)) {
            Some(other) => {
                let problem = format_args!(
                    "has the name or the number of another port ({} {} {}); left out",
                    other.protocol,
                    other.port,
                    Quoted(&other.name)
                );
                warnings.add(path, problem);
            }
            None => {
                names.insert(name, converted.len());
                numbers.insert(number, converted.len());
                converted.push(new);
            }
        }
    }
    converted
}

/// Removes repetitions.
fn keep_first<T: Copy + Eq + Hash>(items: &mut Vec<T>) {
    if items.len() > 1 {
        let mut known = HashSet::with_capacity(items.len());
        items.retain(|item| known.insert(*item));
    }
}

fn service_port(
    path: &str,
    written: &object::ServicePort,
    interner: &mut Interner,
    warnings: &mut ObjectWarnings,
) -> Option<ServicePort> {
    let number = port(written.port).and_then(|number| number.ok_or("there is none".to_owned()));
    Some(ServicePort {
        port: warnings.ok_or_warn(format_args!("{path}.port"), number)?,
        protocol: warnings
            .ok_or_warn(format_args!("{path}.protocol"), protocol(written.protocol.as_deref()))?,
        node_port: warnings
            .ok_or_warn(format_args!("{path}.nodePort"), port(written.node_port))
            .flatten(),
        name: interner.intern(
            warnings.ok_or_warn(format_args!("{path}.name"), port_name(written.name.as_deref()))?,
        ),
    })
}
