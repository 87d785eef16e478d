//! Page of all Services, some at a time.

use super::markup::Markup;
use super::{Parameters, link};
use crate::answers::services::{ServiceRow, Services};
use crate::commands::services::{NAME, table};

/// Writes the page.
pub(super) fn write(main: &mut Markup, found: &Services, asked: &Parameters) {
    filter(main, asked.get("namespace"));
    main.note("notable", found.uncounted.as_deref());
    if found.services.is_empty() {
        main.labelled("p", &[("class", "soft")], "This node has no Services.");
        return;
    }
    main.table(&table(&found.services, true), |row, heading| {
        let ServiceRow { namespace, name, .. } =
            found.services.get(row).filter(|_| heading == NAME)?;
        Some(link("/console/service", &[("name", &*format!("{namespace}/{name}"))]))
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
