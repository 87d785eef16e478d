//! Page of a packet's way: the form to ask, and the answer.

use super::Parameters;
use super::markup::Markup;
use crate::answers::trace::Trace;
use crate::commands::trace::{head, ways};

const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

/// Writes the form, filled in with what was asked.
pub(super) fn write_form(main: &mut Markup, asked: &Parameters) {
    main.labelled(
        "p",
        &[("class", "soft")],
        "Traces the first packet of a connection through this node, by the rules and virtual \
         servers of kube-ipvs. No packet is sent.",
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
    for line in head(trace) {
        main.line(&line);
    }
    for way in ways(trace) {
        main.labelled("h2", &[], way.title);
        main.table(&way.steps, |_, _| None);
        main.table(&way.endpoints, |_, _| None);
    }
}
