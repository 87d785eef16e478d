//! `kube-ipvs service`: one Service as the kernel has it.

use std::net::SocketAddr;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::services::DEFAULT_NAMESPACE;
use super::{Session, completion, counted_many, written};
use crate::answers::decision::{Hints, Use};
use crate::answers::service::{EndpointState, FrontendKind, FrontendState, ServiceState, Traffic};
use crate::outcome::{Failure, Verdict};
use crate::output::{aligned, bad, duration, good, heading, notable, table};
use syntax::counted::counted;

/// Shows one Service: each frontend with its endpoints as the kernel has them, and why an endpoint
/// is not used
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs service shop/cart\n\n\
    The exit code is 1 if a frontend has no endpoint that is used, belongs to another Service or is not \
    in the kernel, or if there are warnings.")]
pub struct Arguments {
    /// The Service; without a namespace, in the namespace default
    #[arg(value_name = "NAMESPACE/NAME", add = ArgValueCompleter::new(completion::services))]
    service: String,
}

pub(super) fn run(arguments: &Arguments, session: &mut Session) -> Result<Verdict, Failure> {
    let name = full_name(&arguments.service);
    let state: ServiceState = session.client()?.get("/v1/service", &[("name", &name)])?;
    let verdict = Verdict::from(is_whole(&state));
    written(session.output.show(state, text))?;
    Ok(verdict)
}

/// Returns the name with its namespace.
pub(super) fn full_name(name: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("{DEFAULT_NAMESPACE}/{name}") }
}

fn is_whole(state: &ServiceState) -> bool {
    let is_served = |it: &FrontendState| {
        it.taken_by.is_none()
            && it.is_in_kernel != Some(false)
            && it.endpoints.iter().any(|it| it.used.is_used())
    };
    state.warnings.is_empty() && state.frontends.iter().all(is_served)
}

fn text(state: &ServiceState) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            lines += &format!("{}\t{value}\n", heading(name));
        }
    };
    let ServiceState { namespace, name, service_type, mode, .. } = state;
    line("Service", format!("{namespace}/{name}, {service_type}, in mode {mode}"));
    line(
        "Traffic policies",
        format!(
            "internal {}, external {}",
            state.internal_traffic_policy, state.external_traffic_policy
        ),
    );
    let affinity = state.affinity_seconds.map(|it| duration(f64::from(it)));
    let affinity = affinity.map(|it| format!("a client stays with its endpoint for {it}"));
    line("Affinity", affinity.unwrap_or_default());
    line("Source ranges", state.source_ranges.join(", "));
    let check = state.health_check.as_ref().map(|check| {
        let endpoints = counted(check.local_endpoints, "ready endpoint");
        format!("port {}: {endpoints} on this node", check.port)
    });
    line("Health check", check.unwrap_or_default());
    if state.is_waiting {
        line("Waiting", notable("a change of it is not written yet"));
    }
    for warning in &state.warnings {
        line("Warning", bad(warning));
    }
    line("Counters", state.uncounted.as_ref().map(notable).unwrap_or_default());
    let mut text = aligned(&lines);
    for frontend in &state.frontends {
        text += &format!("\n{}\n{}", title(frontend), endpoints(frontend));
        if frontend.more_endpoints > 0 {
            text += &format!("and {}\n", counted(frontend.more_endpoints, "more endpoint"));
        }
    }
    if state.more_frontends > 0 {
        text += &format!("\nand {}\n", counted(state.more_frontends, "more frontend"));
    }
    text
}

fn title(frontend: &FrontendState) -> String {
    let address = frontend.address.map_or_else(
        || format!("node port {} at every address that serves node ports", frontend.port),
        |address| SocketAddr::new(address, frontend.port).to_string(),
    );
    let kind = kind_text(frontend.kind, frontend.short_circuit_of);
    let mut text = heading(format!("{} {address}", frontend.protocol));
    text += &format!(": {kind}");
    if !frontend.port_name.is_empty() {
        text += &format!(", port {}", frontend.port_name);
    }
    text += &format!(", policy {}", frontend.traffic_policy);
    if let Some(scheduler) = &frontend.scheduler {
        text += &format!(", scheduler {scheduler}");
    }
    if let Some(seconds) = frontend.persistence_seconds {
        text += &format!(", persistent for {}", duration(f64::from(seconds)));
    }
    if let Some(hints) = hints_text(frontend.hints) {
        text += &format!(", {hints}");
    }
    match (&frontend.taken_by, frontend.is_in_kernel) {
        (Some(other), _) => text += &format!("\n{}", bad(format!("Service {other} has it"))),
        (None, Some(false)) if frontend.endpoints.iter().any(|it| it.used.is_used()) => {
            text += &format!("\n{}", bad("the kernel has no virtual server for it"));
        }
        _ => {}
    }
    if let Some(traffic) = &frontend.traffic {
        text += &format!("\n{}", traffic_text(traffic));
    }
    text
}

/// Returns the kind of a frontend in words.
pub(super) fn kind_text(kind: FrontendKind, short_circuit_of: Option<SocketAddr>) -> String {
    let text = match kind {
        FrontendKind::ClusterAddress => "cluster address",
        FrontendKind::NodePort => "node port",
        FrontendKind::LoadBalancer => "load balancer's address",
        FrontendKind::External => "external address",
    };
    match short_circuit_of {
        None => text.to_owned(),
        Some(of) => format!("short circuit of {of} ({text}), for clients in the cluster"),
    }
}

/// Returns how far hints choose, in words; none if there are none.
pub(super) const fn hints_text(hints: Hints) -> Option<&'static str> {
    match hints {
        Hints::None => None,
        Hints::Node => Some("hints choose endpoints for this node"),
        Hints::Zone => Some("hints choose endpoints for this zone"),
        Hints::NotFollowed => {
            Some("hints are not followed (one is missing, or none is for this zone)")
        }
    }
}

fn traffic_text(traffic: &Traffic) -> String {
    format!(
        "{} so far, {}/s; from clients {}, {}/s; to clients {}, {}/s",
        counted_many(traffic.connections, "connection"),
        traffic.connections_per_second,
        bytes(traffic.incoming_bytes),
        bytes(traffic.incoming_bytes_per_second),
        bytes(traffic.outgoing_bytes),
        bytes(traffic.outgoing_bytes_per_second),
    )
}

/// Returns a number of bytes as people write it.
fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = number as f64;
    let mut units = UNITS.into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{number} B") } else { format!("{scaled:.1} {unit}") }
}

fn endpoints(frontend: &FrontendState) -> String {
    if frontend.endpoints.is_empty() {
        return format!("{}\n", bad("no endpoints"));
    }
    let is_counted = frontend.traffic.is_some();
    let mut headings = vec!["ENDPOINT", "NODE", "ZONE"];
    if is_counted {
        headings.extend(["WEIGHT", "ACTIVE", "INACTIVE", "CONNECTIONS", "CONN/S", "IN/S", "OUT/S"]);
    }
    headings.push("STATE");
    let rows = frontend.endpoints.iter().map(|it| {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let mut row = vec![it.endpoint.to_string(), or_dash(&it.node), or_dash(&it.zone)];
        if is_counted {
            row.extend(counters(it));
        }
        row.push(state(it, frontend));
        row
    });
    table(&headings, rows)
}

fn counters(endpoint: &EndpointState) -> [String; 7] {
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let traffic =
        |of: fn(&Traffic) -> String| endpoint.traffic.as_ref().map_or_else(|| "-".to_owned(), of);
    [
        number(endpoint.weight),
        number(endpoint.active),
        number(endpoint.inactive),
        traffic(|it| it.connections.to_string()),
        traffic(|it| it.connections_per_second.to_string()),
        traffic(|it| bytes(it.incoming_bytes_per_second)),
        traffic(|it| bytes(it.outgoing_bytes_per_second)),
    ]
}

fn state(endpoint: &EndpointState, frontend: &FrontendState) -> String {
    let used = endpoint.used;
    let mut text = match used {
        Use::Used => good(used.to_string()),
        Use::LastResort => notable(used.to_string()),
        _ => used.to_string(),
    };
    if let Some(hints) = endpoint.hints.as_ref().filter(|_| is_by_hints(used)) {
        text += &format!(" ({hints})");
    }
    if let Some(seconds) = endpoint.draining_seconds {
        text += &notable(format!("; drains, {} left", duration(seconds)));
    }
    if used.is_used() && endpoint.weight.is_none() && frontend.is_in_kernel == Some(true) {
        text += &bad("; not in the kernel yet");
    }
    text
}

/// True if hints are the reason.
pub(super) const fn is_by_hints(used: Use) -> bool {
    matches!(used, Use::ForOtherNodes | Use::ForOtherZones)
}

#[cfg(test)]
mod tests;
