//! `kube-ipvs service`: one Service as the kernel has it.

use std::net::SocketAddr;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::services::DEFAULT_NAMESPACE;
use super::{Session, completion, written};
use crate::answers::decision::{Hints, Use};
use crate::answers::mode;
use crate::answers::service::{EndpointState, FrontendKind, FrontendState, ServiceState, Traffic};
use crate::outcome::{Failure, Verdict};
use crate::output::{bad, duration, good, heading, notable, or_dash};
use crate::table::{Column, Facts, Table};
use syntax::counted::counted;

/// Shows a Service: its frontends with their endpoints in the kernel, and why an endpoint is not
/// used
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = "Example: kube-ipvs service shop/cart\n\n\
    Exit code: 1 if a frontend has no usable endpoint, belongs to another Service or is not in the \
    kernel, or if there are warnings.")]
pub struct Arguments {
    /// Service; without a namespace, in the namespace default
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
    let mut text = facts(state).text();
    for frontend in &state.frontends {
        text += &format!("\n{}\n{}", title(frontend), endpoints(frontend).text());
    }
    if let Some(more) = more_frontends(state) {
        text += &format!("\n{more}\n");
    }
    text
}

/// Returns the facts about a Service.
pub(crate) fn facts(state: &ServiceState) -> Facts {
    let mut facts = Facts::default();
    let ServiceState { namespace, name, service_type, mode, .. } = state;
    facts.add("Service", [format!("{namespace}/{name}, {service_type}, in {}", mode::title(mode))]);
    let (internal, external) = (&state.internal_traffic_policy, &state.external_traffic_policy);
    facts.add("Traffic policies", [format!("internal {internal}, external {external}")]);
    let affinity = state.affinity_seconds.map(|it| duration(f64::from(it)));
    facts.add("Affinity", affinity.map(|it| format!("a client stays with its endpoint for {it}")));
    facts.add("Source ranges", [state.source_ranges.join(", ")]);
    let check = state.health_check.as_ref().map(|check| {
        let endpoints = counted(check.local_endpoints, "ready endpoint");
        format!("port {}: {endpoints} on this node", check.port)
    });
    facts.add("Health check", check);
    facts.add("Pending", state.is_waiting.then(|| notable("a change of it is pending")));
    for warning in &state.warnings {
        facts.add("Warning", [bad(warning)]);
    }
    facts.add("Counters", state.uncounted.as_ref().map(notable));
    facts
}

/// Returns how many frontends are left out, in words.
pub(crate) fn more_frontends(state: &ServiceState) -> Option<String> {
    (state.more_frontends > 0)
        .then(|| format!("and {}", counted(state.more_frontends, "more frontend")))
}

/// Returns lines about a frontend, the first of which names it.
pub(crate) fn title(frontend: &FrontendState) -> String {
    let address = frontend.address.map_or_else(
        || format!("NodePort {} at every address that serves NodePorts", frontend.port),
        |address| SocketAddr::new(address, frontend.port).to_string(),
    );
    let kind = kind_text(frontend.kind, frontend.internal_frontend_of);
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
            text += &format!("\n{}", bad("not in the kernel: no virtual server"));
        }
        _ => {}
    }
    if let Some(traffic) = &frontend.traffic {
        text += &format!("\n{}", traffic_text(traffic));
    }
    text
}

/// Returns the kind of a frontend in words.
pub(super) fn kind_text(kind: FrontendKind, internal_frontend_of: Option<SocketAddr>) -> String {
    let text = match kind {
        FrontendKind::ClusterAddress => "cluster IP",
        FrontendKind::NodePort => "NodePort",
        FrontendKind::LoadBalancer => "load balancer IP",
        FrontendKind::External => "external address",
    };
    match internal_frontend_of {
        None => text.to_owned(),
        Some(of) => format!("internal frontend of {of} ({text})"),
    }
}

/// Returns how far hints choose, in words; none if there are none.
pub(super) const fn hints_text(hints: Hints) -> Option<&'static str> {
    match hints {
        Hints::None => None,
        Hints::Node => Some("topology hints select endpoints for this node"),
        Hints::Zone => Some("topology hints select endpoints for this zone"),
        Hints::NotFollowed => {
            Some("topology hints are ignored (one is missing, or none is for this zone)")
        }
    }
}

fn traffic_text(traffic: &Traffic) -> String {
    format!(
        "{} so far, {}/s; from clients {}, {}/s; to clients {}, {}/s",
        counted(traffic.connections, "connection"),
        traffic.connections_per_second,
        bytes(traffic.incoming_bytes),
        bytes(traffic.incoming_bytes_per_second),
        bytes(traffic.outgoing_bytes),
        bytes(traffic.outgoing_bytes_per_second),
    )
}

/// Returns a number of bytes as people write it.
pub(crate) fn bytes(number: u64) -> String {
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

pub(crate) fn endpoints(frontend: &FrontendState) -> Table {
    type Row<'a> = (&'a EndpointState, &'a FrontendState);
    let endpoint: [Column<Row<'_>>; 3] = [
        ("ENDPOINT", |(it, _)| it.endpoint.to_string()),
        ("NODE", |(it, _)| or_dash(it.node.as_ref())),
        ("ZONE", |(it, _)| or_dash(it.zone.as_ref())),
    ];
    let counters: [Column<Row<'_>>; 7] = [
        ("WEIGHT", |(it, _)| or_dash(it.weight)),
        ("ACTIVE", |(it, _)| or_dash(it.active)),
        ("INACTIVE", |(it, _)| or_dash(it.inactive)),
        ("CONNECTIONS", |(it, _)| or_dash(it.traffic.as_ref().map(|it| it.connections))),
        ("CONN/S", |(it, _)| or_dash(it.traffic.as_ref().map(|it| it.connections_per_second))),
        ("IN/S", |(it, _)| {
            or_dash(it.traffic.as_ref().map(|it| bytes(it.incoming_bytes_per_second)))
        }),
        ("OUT/S", |(it, _)| {
            or_dash(it.traffic.as_ref().map(|it| bytes(it.outgoing_bytes_per_second)))
        }),
    ];
    let state: [Column<Row<'_>>; 1] = [("STATE", |(it, frontend)| state_text(it, frontend))];
    let counters = if frontend.traffic.is_some() { &counters[..] } else { &[] };
    let columns = [&endpoint[..], counters, &state].concat();
    let more = frontend.more_endpoints;
    let more = (more > 0).then(|| format!("and {}", counted(more, "more endpoint")));
    if frontend.endpoints.is_empty() {
        return Table::default().with_more([bad("no endpoints")].into_iter().chain(more));
    }
    Table::of(&columns, frontend.endpoints.iter().map(|it| (it, frontend))).with_more(more)
}

fn state_text(endpoint: &EndpointState, frontend: &FrontendState) -> String {
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
