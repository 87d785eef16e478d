//! Page of a packet's way: the form to ask, and the answer.

use super::Parameters;
use super::markup::Markup;
use crate::answers::trace::{End, Trace, TracedStep, TracedWay};

/// Most endpoints of a way that are listed.
const MOST_ENDPOINTS: usize = 100;

const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Writes the form, filled in with what was asked.
pub(super) fn write_form(main: &mut Markup, asked: &Parameters) {
    main.labelled(
        "p",
        &[("class", "soft")],
        "The way of the first packet of a connection through this node, by the rules and virtual servers \
         that kube-ipvs writes. No packet is sent.",
    );
    main.element("form", &[("action", "/console/trace"), ("method", "get")], |form| {
        let source = match asked.get("source") {
            "" => "outside",
            source => source,
        };
        form.element("label", &[], |label| {
            label.text("From: an address, node, localhost or outside");
            label.void("input", &[("name", "source"), ("value", source), ("required", "")]);
        });
        form.element("label", &[], |label| {
            label.text("To: address and port");
            let value = ("value", asked.get("destination"));
            let example = ("placeholder", "10.96.0.10:53");
            label.void("input", &[("name", "destination"), value, example, ("required", "")]);
        });
        form.element("label", &[], |label| {
            label.text("Protocol");
            label.element("select", &[("name", "protocol")], |select| {
                for protocol in PROTOCOLS {
                    let attributes = [("value", protocol), ("selected", "")];
                    let is_chosen = protocol == asked.get("protocol");
                    let attributes = if is_chosen { &attributes[..] } else { &attributes[..1] };
                    select.labelled("option", attributes, protocol);
                }
            });
        });
        form.labelled("button", &[("type", "submit")], "Trace");
    });
}

/// Writes the answer.
pub(super) fn write(main: &mut Markup, trace: &Trace) {
    let packet = &trace.packet;
    let service = match &trace.service {
        Some(service) => format!("Service {service}"),
        None => "no Service of this node".to_owned(),
    };
    let comes = match packet.interface.as_deref() {
        None => "sent by this node".to_owned(),
        Some("") => "comes by an unknown interface".to_owned(),
        Some(name) => format!("comes by {name}"),
    };
    main.labelled(
        "p",
        &[],
        format!(
            "{} from {} to {}: {service}; {comes}, mode {}",
            packet.protocol.to_ascii_uppercase(),
            packet.source,
            packet.destination,
            trace.mode
        ),
    );
    for note in &trace.notes {
        main.note("notable", Some(note));
    }
    for (number, way) in (1..).zip(&trace.ways) {
        write_way(main, way, number, trace.ways.len());
    }
}

fn write_way(main: &mut Markup, way: &TracedWay, number: usize, of: usize) {
    let title = match (of, way.share) {
        (1, _) => "Its way".to_owned(),
        (_, Some(share)) => {
            format!("Way {number} of {of}, {} of new connections", percent(share))
        }
        (_, None) => format!("Way {number} of {of}"),
    };
    main.labelled("h2", &[], title);
    main.element("ol", &[("class", "way")], |list| {
        for step in &way.steps {
            list.element("li", &[], |item| write_step(item, step));
        }
        let (class, text) = end(way);
        list.labelled("li", &[("class", class)], text);
    });
    if !way.endpoints.is_empty() {
        write_endpoints(main, way);
    }
}

fn write_step(item: &mut Markup, step: &TracedStep) {
    match step {
        TracedStep::Rule { hook, table, number, rule, entries, is_of_endpoint, chain } => {
            item.text(format!("{hook}, table {table}, chain {chain}, rule {number}: "));
            item.labelled("code", &[], rule);
            if *is_of_endpoint {
                item.text(" (of the first endpoint; each has one)");
            }
            for entry in entries {
                item.text("; found in ").labelled("code", &[], entry);
            }
        }
        TracedStep::Mark { mark } => {
            item.text(format!("its mark is {mark} now"));
        }
        TracedStep::Translation { is_of_endpoint: true, .. } => {
            item.text("its destination is the endpoint now");
        }
        TracedStep::Translation { to, .. } => {
            item.text(format!("its destination is {to} now"));
        }
        TracedStep::Routing { is_local } => {
            let place = if *is_local { "this node" } else { "another host" };
            item.text(format!("routing: for {place}"));
        }
        TracedStep::VirtualServer { address, scheduler, persistence } => {
            item.text(format!("IPVS: virtual server {address}, scheduler {scheduler}"));
            if let Some(seconds) = persistence {
                item.text(format!("; a client comes back to its endpoint for {seconds} s"));
            }
        }
        TracedStep::Relay { proxy_port } => {
            item.text(format!("the relay, at proxy port {proxy_port}, connects by itself"));
        }
    }
}

/// Returns the end of a way in words, with the class that colours it.
fn end(way: &TracedWay) -> (&'static str, String) {
    match way.end {
        End::Endpoint => ("good", "an endpoint gets it".to_owned()),
        End::Unanswered => (
            "bad",
            "an endpoint gets it, and answers past this node: the client hears nothing".to_owned(),
        ),
        End::Delivered => ("", "this node's own processes get it".to_owned()),
        End::PassedOn => ("", "it is routed on as it is".to_owned()),
        End::Dropped => ("bad", "dropped: the client hears nothing".to_owned()),
        End::Refused => {
            ("bad", format!("refused: {}", way.refused_by.as_deref().unwrap_or_default()))
        }
    }
}

fn write_endpoints(main: &mut Markup, way: &TracedWay) {
    main.element("table", &[], |table| {
        table.headings(&["Endpoint", "Weight", "Share", "Sees as source"]);
        table.element("tbody", &[], |body| {
            for choice in way.endpoints.iter().take(MOST_ENDPOINTS) {
                let weight = choice.weight.map_or_else(|| "-".to_owned(), |it| it.to_string());
                let share = choice.share.map_or_else(|| "-".to_owned(), percent);
                let source = match (choice.sees, choice.is_masqueraded) {
                    (Some(address), false) => address.to_string(),
                    (Some(address), true) => format!("{address}, masqueraded"),
                    (None, _) => "an address of this node, masqueraded".to_owned(),
                };
                body.element("tr", &[], |row| {
                    row.labelled("td", &[("class", "address")], choice.endpoint)
                        .labelled("td", &[("class", "number")], weight)
                        .labelled("td", &[("class", "number")], share)
                        .labelled("td", &[("class", "address")], source);
                });
            }
        });
    });
    let more = way.endpoints.len().saturating_sub(MOST_ENDPOINTS) + way.more_endpoints;
    if more > 0 {
        main.labelled("p", &[("class", "soft")], format!("and {more} more endpoints"));
    }
}

/// Returns a share as people write it: `50 %`, `33.3 %`.
fn percent(share: f64) -> String {
    let text = format!("{:.1}", share * 100.0);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}
