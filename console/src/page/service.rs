//! Page of one Service: its picture, and what the picture is of.

use std::net::SocketAddr;

use super::markup::Markup;
use super::{link, picture};
use crate::answers::service::{FrontendState, ServiceState};
use crate::commands::service::{endpoints, facts, more_frontends, title};

/// Writes the page.
pub(super) fn write(main: &mut Markup, state: &ServiceState) {
    main.facts(&facts(state));
    picture::write(main, state);
    for frontend in &state.frontends {
        write_frontend(main, frontend);
    }
    main.note("soft", more_frontends(state).as_deref());
}

fn write_frontend(main: &mut Markup, frontend: &FrontendState) {
    let title = title(frontend);
    let mut lines = title.lines();
    main.element("h2", &[], |heading| {
        heading.styled(lines.next().unwrap_or_default());
    });
    for line in lines {
        main.line(line);
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
    main.table(&endpoints(frontend), |_, _| None);
}
