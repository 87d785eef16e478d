//! Picture of a Service: clients, frontends, endpoints, and what goes from one to the other.

use std::net::SocketAddr;

use super::markup::Markup;
use crate::answers::service::{EndpointState, FrontendKind, FrontendState, ServiceState, Traffic};
use crate::commands::service::bytes;
use syntax::counted::counted;

/// Most frontends and endpoints of a picture. The tables below it have all.
const MOST_FRONTENDS: usize = 16;
const MOST_ENDPOINTS: usize = 24;

/// Horizontal places of the three columns, and the widths of their boxes.
const CLIENTS: (usize, usize) = (4, 130);
const FRONTENDS: (usize, usize) = (220, 450);
const ENDPOINTS: (usize, usize) = (760, 390);
const WIDTH: usize = 1_154;

/// Space between a box and its texts, to the left and to the right.
const MARGIN: usize = 10;

/// Widths of a character in tenths of a unit, on average and with DejaVu, which is wide: of the first
/// line of a box, and of the second.
const FIRST_LINE: usize = 75;
const SECOND_LINE: usize = 60;

/// Height of a box, and from one box to the next.
const BOX: usize = 40;
const STEP: usize = 50;
const TOP: usize = 30;

/// Clients of a Service, by what they ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// Pods and nodes of the cluster.
    InCluster,
    /// The others.
    Outside,
}

impl Clients {
    const BOTH: [Self; 2] = [Self::InCluster, Self::Outside];

    const fn name(self) -> &'static str {
        match self {
            Self::InCluster => "in the cluster",
            Self::Outside => "outside",
        }
    }

    /// The clients that a frontend is for. An internal frontend with another policy than its frontend is what the cluster's own
    /// clients are led to.
    fn of(frontend: &FrontendState, all: &[FrontendState]) -> Self {
        let leads_here = |it: &&FrontendState| {
            it.protocol == frontend.protocol
                && it.address.map(|address| SocketAddr::new(address, it.port))
                    == frontend.internal_frontend_of
        };
        let led = frontend.internal_frontend_of.and_then(|_| all.iter().find(leads_here));
        let is_for_others = led.is_some_and(|it| it.traffic_policy != frontend.traffic_policy);
        match frontend.kind {
            FrontendKind::ClusterAddress => Self::InCluster,
            _ if is_for_others => Self::InCluster,
            FrontendKind::NodePort | FrontendKind::LoadBalancer | FrontendKind::External => {
                Self::Outside
            }
        }
    }
}

/// Writes the picture, with a caption if it does not show everything.
pub(super) fn write(main: &mut Markup, state: &ServiceState) {
    let frontends: Vec<&FrontendState> = state.frontends.iter().take(MOST_FRONTENDS).collect();
    let all = endpoints(&state.frontends);
    let shown = all.get(..all.len().min(MOST_ENDPOINTS)).unwrap_or_default();
    if frontends.is_empty() {
        return;
    }
    let clients: Vec<Clients> = Clients::BOTH
        .into_iter()
        .filter(|it| {
            frontends.iter().any(|frontend| Clients::of(frontend, &state.frontends) == *it)
        })
        .collect();
    let rows = frontends.len().max(shown.len()).max(clients.len());
    let (width, height) = (WIDTH.to_string(), (TOP + rows * STEP).to_string());
    let view = format!("0 0 {width} {height}");
    let title = format!("Clients, frontends and endpoints of {}/{}", state.namespace, state.name);
    let attributes =
        [("viewBox", &*view), ("width", &*width), ("height", &*height), ("role", "img")];
    main.element("svg", &attributes, |svg| {
        svg.labelled("title", &[], title);
        for (text, (x, _)) in
            [("Clients", CLIENTS), ("Frontends", FRONTENDS), ("Endpoints", ENDPOINTS)]
        {
            label(svg, "small", x, 16, text);
        }
        for (index, frontend) in frontends.iter().enumerate() {
            let of = clients
                .iter()
                .position(|it| *it == Clients::of(frontend, &state.frontends))
                .unwrap_or_default();
            let from = right(CLIENTS, middle(of, clients.len(), rows));
            let to = (FRONTENDS.0, middle(index, frontends.len(), rows));
            let rate = frontend.traffic.as_ref().map_or(0, |it| it.connections_per_second);
            line(svg, from, to, rate, false);
            for endpoint in &frontend.endpoints {
                let at = shown.iter().position(|it| it.endpoint == endpoint.endpoint);
                let Some(at) = at.filter(|_| endpoint.weight.is_some()) else { continue };
                let from = right(FRONTENDS, middle(index, frontends.len(), rows));
                let to = (ENDPOINTS.0, middle(at, shown.len(), rows));
                let rate = endpoint.traffic.as_ref().map_or(0, |it| it.connections_per_second);
                line(svg, from, to, rate, endpoint.draining_seconds.is_some());
            }
        }
        for (index, it) in clients.iter().enumerate() {
            shape(svg, CLIENTS, middle(index, clients.len(), rows), "", [it.name(), ""]);
        }
        for (index, frontend) in frontends.iter().enumerate() {
            let rates = frontend.traffic.as_ref().map(rates);
            let of_it = [Some(kind(frontend).to_owned()), rates].into_iter().flatten();
            let class = if frontend.taken_by.is_some() { "bad" } else { "" };
            let texts = [&*socket(frontend), &*of_it.collect::<Vec<_>>().join(", ")];
            shape(svg, FRONTENDS, middle(index, frontends.len(), rows), class, texts);
        }
        for (index, endpoint) in shown.iter().enumerate() {
            let text = endpoint_text(endpoint);
            let at = middle(index, shown.len(), rows);
            shape(svg, ENDPOINTS, at, class(endpoint), [&endpoint.endpoint.to_string(), &text]);
        }
    });
    let more =
        (state.frontends.len() + state.more_frontends - frontends.len(), all.len() - shown.len());
    if more != (0, 0) {
        let text = format!("Not in the picture: {} frontends, {} endpoints.", more.0, more.1);
        main.note("soft", Some(&text));
    }
}

/// Returns the endpoints of all frontends, each once: used ones first, as the frontend has it that
/// uses it.
fn endpoints(frontends: &[FrontendState]) -> Vec<EndpointState> {
    let mut all: Vec<EndpointState> = Vec::new();
    for endpoint in frontends.iter().flat_map(|frontend| &frontend.endpoints) {
        match all.iter_mut().find(|known| known.endpoint == endpoint.endpoint) {
            Some(known) => add(known, endpoint),
            None => all.push(endpoint.clone()),
        }
    }
    all.sort_by_key(|endpoint| (!endpoint.used.is_used(), endpoint.endpoint));
    all
}

/// Adds to an endpoint what another frontend has of it.
fn add(known: &mut EndpointState, other: &EndpointState) {
    let sum = |one: Option<u32>, other: Option<u32>| match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    if !known.used.is_used() {
        known.used = other.used;
    }
    known.weight = known.weight.max(other.weight);
    known.active = sum(known.active, other.active);
    known.inactive = sum(known.inactive, other.inactive);
    known.draining_seconds = known.draining_seconds.or(other.draining_seconds);
    if let Some(more) = &other.traffic {
        let traffic = known.traffic.get_or_insert_with(Traffic::default);
        traffic.connections_per_second += more.connections_per_second;
        traffic.incoming_bytes_per_second += more.incoming_bytes_per_second;
        traffic.outgoing_bytes_per_second += more.outgoing_bytes_per_second;
    }
}

/// `TCP 10.96.0.1:443`.
fn socket(frontend: &FrontendState) -> String {
    let socket = frontend.address.map_or_else(
        || format!("port {} of the node", frontend.port),
        |address| SocketAddr::new(address, frontend.port).to_string(),
    );
    format!("{} {socket}", frontend.protocol)
}

const fn kind(frontend: &FrontendState) -> &'static str {
    match (frontend.internal_frontend_of, frontend.kind) {
        (Some(_), _) => "internal frontend",
        (None, FrontendKind::ClusterAddress) => "cluster IP",
        (None, FrontendKind::NodePort) => "NodePort",
        (None, FrontendKind::LoadBalancer) => "load balancer",
        (None, FrontendKind::External) => "external",
    }
}

fn endpoint_text(endpoint: &EndpointState) -> String {
    match (endpoint.active, endpoint.used.is_used()) {
        (Some(active), true) => {
            let rates = endpoint.traffic.as_ref().map(rates).unwrap_or_default();
            format!("{active} open, {rates}").trim_end_matches(", ").to_owned()
        }
        (Some(active), false) => format!("{active} open, {}", endpoint.used),
        (None, _) => endpoint.used.to_string(),
    }
}

fn class(endpoint: &EndpointState) -> &'static str {
    match (endpoint.draining_seconds, endpoint.used.is_used()) {
        (Some(_), _) => "draining",
        (None, true) => "",
        (None, false) => "unused",
    }
}

/// Rates of traffic: `3 connections/s, 1.2 KiB/s in, 40.0 KiB/s out`.
fn rates(traffic: &Traffic) -> String {
    format!(
        "{}/s, {}/s in, {}/s out",
        counted(traffic.connections_per_second, "connection"),
        bytes(traffic.incoming_bytes_per_second),
        bytes(traffic.outgoing_bytes_per_second)
    )
}

/// Vertical middle of a box among others of its column, which is centred.
const fn middle(index: usize, count: usize, rows: usize) -> usize {
    TOP + (rows - count) * STEP / 2 + index * STEP + BOX / 2
}

const fn right((x, width): (usize, usize), y: usize) -> (usize, usize) {
    (x + width, y)
}

fn label(svg: &mut Markup, class: &'static str, x: usize, y: usize, text: &str) {
    let (x, y) = (x.to_string(), y.to_string());
    svg.labelled("text", &[("class", class), ("x", &x), ("y", &y)], text);
}

/// Draws a box with one or two lines of text. What does not fit is cut, and shown in full by a pointer
/// above the box.
fn shape(
    svg: &mut Markup,
    (x, width): (usize, usize),
    middle: usize,
    class: &'static str,
    [first, second]: [&str; 2],
) {
    let places = [x, middle - BOX / 2, width, BOX].map(|place| place.to_string());
    let [left, top, across, down] = &places;
    let attributes = [
        ("class", class),
        ("x", left),
        ("y", top),
        ("width", across),
        ("height", down),
        ("rx", "5"),
    ];
    svg.element("g", &[], |group| {
        let fitted = [fitted(first, width, FIRST_LINE), fitted(second, width, SECOND_LINE)];
        if fitted != [first, second] {
            group.labelled("title", &[], format!("{first}\n{second}").trim_end());
        }
        group.element("rect", &attributes, |_| {});
        let [first, second] = &fitted;
        if second.is_empty() {
            label(group, "", x + MARGIN, middle + 4, first);
        } else {
            label(group, "", x + MARGIN, middle - 4, first);
            label(group, "small", x + MARGIN, middle + 12, second);
        }
    });
}

/// Returns a text as far as it fits into a box of this width, in characters of so many tenths.
fn fitted(text: &str, width: usize, of_character: usize) -> String {
    let most = (width - 2 * MARGIN) * 10 / of_character;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Draws a line from one box to another. More connections a second make it wider.
fn line(
    svg: &mut Markup,
    (x, y): (usize, usize),
    (to_x, to_y): (usize, usize),
    rate: u64,
    is_draining: bool,
) {
    let bend = usize::midpoint(x, to_x);
    let path = format!("M{x} {y} C{bend} {y} {bend} {to_y} {to_x} {to_y}");
    let width = (1 + u64::BITS - rate.leading_zeros()).min(8).to_string();
    let class = match (is_draining, rate) {
        (true, _) => "draining",
        (false, 0) => "",
        (false, _) => "busy",
    };
    svg.element("path", &[("class", class), ("d", &path), ("stroke-width", &width)], |_| {});
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_does_not_fit_is_cut() {
        let longest = "TCP [2001:db8:1111:2222:3333:4444:5555:6666]:65535";
        assert_eq!(fitted(longest, FRONTENDS.1, FIRST_LINE), longest);
        let reason = "12 open, not used: terminating, and no longer serving";
        assert_eq!(fitted(reason, ENDPOINTS.1, SECOND_LINE), reason);
        let cut = fitted(&"w".repeat(400), ENDPOINTS.1, SECOND_LINE);
        assert!(cut.ends_with("w…") && cut.chars().count() == 61, "{cut}");
        let mut markup = Markup::default();
        shape(&mut markup, CLIENTS, 40, "", ["clients in the cluster and outside", ""]);
        let drawn = markup.into_document();
        assert!(drawn.contains("<title>clients in the cluster and outside</title>"), "{drawn}");
        assert!(drawn.contains(">clients in th…</text>"), "{drawn}");
    }

    #[test]
    fn a_column_is_in_the_middle_of_the_picture() {
        assert_eq!(middle(0, 3, 3), TOP + BOX / 2);
        assert_eq!(middle(0, 1, 3), middle(1, 3, 3));
        assert_eq!(middle(1, 2, 4), middle(2, 4, 4));
    }
}
