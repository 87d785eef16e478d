//! Page of all Services, some at a time.

use super::markup::Markup;
use super::{Parameters, link};
use crate::answers::services::{ServiceRow, Services};

/// Writes the page.
pub(super) fn write(main: &mut Markup, found: &Services, asked: &Parameters) {
    filter(main, asked.get("namespace"));
    main.note("notable", found.uncounted.as_deref());
    if found.services.is_empty() {
        main.labelled("p", &[("class", "soft")], "There is no Service here.");
        return;
    }
    main.element("div", &[("class", "wide")], |wide| {
        wide.element("table", &[], |table| {
            table.headings(&[
                "Service",
                "Type",
                "Addresses",
                "Ports",
                "Endpoints",
                "Active",
                "Inactive",
                "Warnings",
            ]);
            table.element("tbody", &[], |body| {
                for service in &found.services {
                    body.element("tr", &[], |row| write_row(row, service));
                }
            });
        });
    });
    if let Some(next) = &found.next {
        let parameters = [("namespace", asked.get("namespace")), ("after", next.as_str())];
        let parameters: Vec<_> = parameters.into_iter().filter(|(_, it)| !it.is_empty()).collect();
        let target = link("/console/services", &parameters);
        main.element("p", &[], |line| {
            line.labelled("a", &[("href", target.as_str())], "More Services");
        });
    }
}

fn filter(main: &mut Markup, namespace: &str) {
    main.element("form", &[("action", "/console/services"), ("method", "get")], |form| {
        form.element("label", &[], |label| {
            label.text("Namespace");
            label.void("input", &[("name", "namespace"), ("value", namespace)]);
        });
        form.labelled("button", &[("type", "submit")], "Show");
    });
}

fn write_row(row: &mut Markup, service: &ServiceRow) {
    let name = format!("{}/{}", service.namespace, service.name);
    let target = link("/console/service", &[("name", name.as_str())]);
    row.element("td", &[], |cell| {
        cell.labelled("a", &[("href", target.as_str())], &name);
    });
    let addresses = service.cluster_addresses.iter().chain(&service.external_addresses);
    let addresses = listed(addresses.map(ToString::to_string), service.more_addresses);
    let ports = listed(service.ports.iter().map(ToString::to_string), service.more_ports);
    row.labelled("td", &[], &service.kind)
        .labelled("td", &[("class", "address")], addresses)
        .labelled("td", &[("class", "address")], ports);
    let class = if service.used == 0 { "notable" } else { "" };
    let endpoints =
        format!("{} used, {} of {} ready", service.used, service.ready, service.endpoints);
    row.labelled("td", &[("class", class)], endpoints);
    let count = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let connections = service.connections;
    row.labelled("td", &[("class", "number")], count(connections.map(|it| it.active))).labelled(
        "td",
        &[("class", "number")],
        count(connections.map(|it| it.inactive)),
    );
    let class = if service.warnings == 0 { "number soft" } else { "number bad" };
    row.labelled("td", &[("class", class)], service.warnings);
}

/// Returns a list, and the number of those that it has not.
fn listed(listed: impl Iterator<Item = String>, n_more: usize) -> String {
    let more = (n_more > 0).then(|| format!("and {n_more} more"));
    listed.chain(more).collect::<Vec<_>>().join(", ")
}
