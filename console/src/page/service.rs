//! Page of one Service: its picture, and what the picture is of.

use std::net::SocketAddr;

use super::markup::Markup;
use super::{link, picture};
use crate::answers::service::{EndpointState, FrontendState, ServiceState};
use crate::output::duration;
use syntax::counted::counted;

/// Writes the page.
pub(super) fn write(main: &mut Markup, state: &ServiceState) {
    main.labelled(
        "p",
        &[("class", "soft")],
        format!(
            "{}, mode {}, traffic policies: internal {}, external {}",
            state.service_type,
            state.mode,
            state.internal_traffic_policy,
            state.external_traffic_policy
        ),
    );
    for warning in &state.warnings {
        main.note("bad", Some(warning));
    }
    if state.is_waiting {
        main.note("notable", Some("A change of it is not written yet."));
    }
    main.note("notable", state.uncounted.as_deref());
    picture::write(main, state);
    more(main, state);
    for frontend in &state.frontends {
        write_frontend(main, frontend);
        write_more(main, frontend);
    }
    if state.more_frontends > 0 {
        main.labelled("p", &[], format!("and {} more frontends", state.more_frontends));
    }
}

fn more(main: &mut Markup, state: &ServiceState) {
    let affinity = state.affinity_seconds.map(|seconds| {
        format!("a client stays with its endpoint for {}", duration(f64::from(seconds)))
    });
    let check = state.health_check.as_ref().map(|check| {
        let ready = counted(check.local_endpoints, "ready endpoint");
        format!("port {}: {ready} on this node", check.port)
    });
    let ranges = Some(state.source_ranges.join(", ")).filter(|ranges| !ranges.is_empty());
    let terms = [("affinity", affinity), ("source ranges", ranges), ("health check", check)];
    if terms.iter().all(|(_, value)| value.is_none()) {
        return;
    }
    main.element("dl", &[], |list| {
        for (term, value) in terms {
            if let Some(value) = value {
                list.term(term, value);
            }
        }
    });
}

fn write_frontend(main: &mut Markup, frontend: &FrontendState) {
    main.labelled("h2", &[], picture::frontend_title(frontend));
    let mut facts = vec![format!("policy {}", frontend.traffic_policy)];
    facts.extend(frontend.scheduler.as_ref().map(|scheduler| format!("scheduler {scheduler}")));
    facts.extend(frontend.traffic.as_ref().map(picture::rates));
    main.labelled("p", &[("class", "soft")], facts.join(", "));
    if let Some(other) = &frontend.taken_by {
        main.labelled("p", &[("class", "bad")], format!("Service {other} has it."));
    } else if frontend.is_in_kernel == Some(false) && uses_any(frontend) {
        main.labelled("p", &[("class", "bad")], "The kernel has no virtual server for it.");
    }
    if let Some(address) = frontend.address {
        let destination = SocketAddr::new(address, frontend.port).to_string();
        let protocol = frontend.protocol.to_ascii_lowercase();
        let asked =
            [("source", "outside"), ("destination", &*destination), ("protocol", &*protocol)];
        let target = link("/console/trace", &asked);
        main.element("p", &[], |line| {
            line.labelled("a", &[("href", target.as_str())], "Trace a packet to it");
        });
    }
    main.element("div", &[("class", "wide")], |wide| {
        wide.element("table", &[], |table| {
            table.headings(&[
                "Endpoint", "Node", "Use", "Weight", "Active", "Inactive", "Traffic", "Drains",
            ]);
            table.element("tbody", &[], |body| {
                for endpoint in &frontend.endpoints {
                    body.element("tr", &[], |row| write_endpoint(row, endpoint));
                }
            });
        });
    });
}

fn write_more(main: &mut Markup, frontend: &FrontendState) {
    if frontend.more_endpoints > 0 {
        main.labelled("p", &[], format!("and {} more endpoints", frontend.more_endpoints));
    }
}

fn write_endpoint(row: &mut Markup, endpoint: &EndpointState) {
    let count = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let draining = endpoint.draining_seconds.map(duration).unwrap_or_default();
    let class = if endpoint.used.is_used() { "good" } else { "soft" };
    row.labelled("td", &[("class", "address")], endpoint.endpoint)
        .labelled("td", &[("class", "name")], endpoint.node.as_deref().unwrap_or_default())
        .labelled("td", &[("class", class)], endpoint.used)
        .labelled("td", &[("class", "number")], count(endpoint.weight))
        .labelled("td", &[("class", "number")], count(endpoint.active))
        .labelled("td", &[("class", "number")], count(endpoint.inactive))
        .labelled("td", &[], endpoint.traffic.as_ref().map(picture::rates).unwrap_or_default())
        .labelled("td", &[("class", "notable")], draining);
}

/// True if any of the frontend's endpoints gets new connections.
fn uses_any(frontend: &FrontendState) -> bool {
    frontend.endpoints.iter().any(|endpoint| endpoint.used.is_used())
}
