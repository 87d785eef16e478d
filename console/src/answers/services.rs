//! `/v1/services`: Services in a few numbers, some at a time.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{ServiceKind, ServiceName, ServicePort};
use plan::op::PartKind;
use plan::planner::{ServiceSummary, Summaries};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::question::Parameters;
use super::tracked::Tracked;
use super::{Answer, Content, FailureAnswer, Reason, nearest};
use crate::Desk;
use kernel::ReadError;
use kernel::counters::{ConnectionCount, Counters};
use reconcile::inquiry::CHUNK;

/// Most Services in one answer.
const MOST: usize = 1_024;

/// Most ports of a Service that are named, and most external addresses: there can be thousands, and an answer
/// is about many Services.
const MOST_OF_ONE: usize = 64;

/// Services in a few numbers, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Services {
    pub services: Vec<ServiceRow>,
    /// Name to ask for more after; absent: there are no more.
    pub next: Option<String>,
    /// Reason for which connections are not counted.
    pub uncounted: Option<String>,
}

/// A Service in a few numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    pub namespace: String,
    pub name: String,
    /// `spec.type`.
    #[serde(rename = "type")]
    pub kind: String,
    pub cluster_addresses: Vec<IpAddr>,
    /// External and load-balancer addresses.
    pub external_addresses: Vec<IpAddr>,
    /// Number of further ones.
    #[serde(default)]
    pub more_addresses: usize,
    pub ports: Vec<PortRow>,
    /// Number of further ports.
    #[serde(default)]
    pub more_ports: usize,
    /// Number of endpoints, ready or not. Of several ports or families, of that with the most.
    pub endpoints: usize,
    /// Number of ready ones.
    pub ready: usize,
    /// Number of those that this node uses for any client.
    pub used: usize,
    /// Number of warnings.
    pub warnings: usize,
    /// Connections of its virtual servers; absent: they are not counted.
    pub connections: Option<Connections>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortRow {
    /// Its name; empty if it has none.
    pub name: String,
    pub protocol: String,
    pub port: u16,
    pub node_port: Option<u16>,
}

/// Number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// Established ones.
    pub active: u64,
    /// Those that begin or end, and all of UDP.
    pub inactive: u64,
}

/// Request for some Services.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Only those of this namespace.
    namespace: Option<String>,
    /// Only those after this name.
    after: Option<String>,
    /// At most this many.
    limit: Option<usize>,
}

impl Content for Services {
    const KIND: &'static str = "Services";
}

pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Answer<Services>, FailureAnswer> {
    services(&desk, asked).await.map(Answer::new)
}

async fn services(desk: &Desk, asked: Asked) -> Result<Services, FailureAnswer> {
    let mut after = asked.after.as_deref().map(name).transpose()?;
    let mut found: Vec<ServiceSummary> = Vec::new();
    let most = asked.limit.unwrap_or(MOST).clamp(1, MOST);
    let mut is_last = false;
    while !is_last && found.len() < most {
        let some = CHUNK.min(most - found.len());
        let (from, namespace) = (after.clone(), asked.namespace.clone());
        let chunk: Summaries = desk
            .inquiries
            .ask(move |view| {
                view.planner.summarize_services(from.as_ref(), namespace.as_deref(), some)
            })
            .await?;
        is_last = chunk.is_last;
        found.extend(chunk.services);
        after = found.last().map(|summary| summary.name.clone()).or(after);
    }
    let frontends = found.iter().map(|summary| summary.frontends.clone()).collect();
    let (counts, uncounted) = match count(desk, frontends).await {
        Ok(counts) => (counts, None),
        Err(reason) => (vec![None; found.len()], Some(reason)),
    };
    let rows = found.iter().zip(counts).map(|(summary, count)| ServiceRow::of(summary, count));
    Ok(Services {
        services: rows.collect(),
        next: after.filter(|_| !is_last).map(|name| name.to_string()),
        uncounted,
    })
}

/// Counts the connections of each Service's virtual servers: those that IPVS carries, and those that conntrack does.
async fn count(
    desk: &Desk,
    frontends: Vec<Vec<Frontend>>,
) -> Result<Vec<Option<ConnectionCount>>, String> {
    let mode = desk.settings.mode;
    if !mode.uses(PartKind::VirtualServers) {
        return Err(no_counters(mode));
    }
    let tracked = Tracked::read(desk, &frontends.concat()).await;
    let tracked = tracked.map_err(|failure| failure.message)?.unwrap_or_default();
    let counting = spawn_blocking(move || {
        let mut counters = Counters::open()?;
        let by_frontend = tracked.by_frontend();
        let count = |of: &Vec<Frontend>| {
            let by_ipvs: Vec<Frontend> =
                of.iter().filter(|it| !tracked.is_led_to(it)).copied().collect();
            let asked = tracked.all_asked(of);
            let of_asked = asked.iter().filter_map(|it| by_frontend.get(it)).copied();
            let by_ipvs = counters.connections(&by_ipvs)?;
            Ok(Some(of_asked.fold(by_ipvs, ConnectionCount::plus)))
        };
        frontends.iter().map(count).collect::<Result<Vec<_>, ReadError>>()
    });
    let counted = counting.await.map_err(|error| error.to_string())?;
    counted.map_err(|error| error.to_string())
}

/// Returns the reason for which a mode has no counters, in words.
pub(super) fn no_counters(mode: Mode) -> String {
    format!("{} counts no connections of Services: only IPVS does", mode.title())
}

/// Reads a Service's name as it is asked for: `NAMESPACE/NAME`.
pub fn name(text: &str) -> Result<ServiceName, FailureAnswer> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ServiceName::new(namespace, name))
        }
        _ => {
            let message = format!("{text:?} is not a Service name: write NAMESPACE/NAME");
            Err(FailureAnswer::new(Reason::BadRequest, message))
        }
    }
}

/// Returns the answer about a Service that is not there, with the nearest names.
pub async fn unknown(desk: &Desk, wanted: &ServiceName) -> FailureAnswer {
    let mut names: Vec<String> = Vec::new();
    let mut last: Option<ServiceName> = None;
    loop {
        let after = last.take();
        let asked =
            desk.inquiries.ask(move |view| view.planner.service_names(after.as_ref(), CHUNK));
        match asked.await {
            Ok(chunk) => {
                names.extend(chunk.iter().map(ToString::to_string));
                last = chunk.into_iter().next_back();
            }
            Err(gone) => return gone.into(),
        }
        if last.is_none() {
            return no_such_service(&wanted.to_string(), &names);
        }
    }
}

/// Returns the answer about a Service that is not among these names.
pub fn no_such_service(wanted: &str, names: &[String]) -> FailureAnswer {
    let near = nearest(wanted, names.iter().map(String::as_str));
    let (_, bare) = wanted.split_once('/').unwrap_or(("", wanted));
    let same = names.iter().map(String::as_str);
    let same = same.filter(|it| it.rsplit('/').next() == Some(bare)).take(3);
    let mut offered: Vec<&str> = same.collect();
    offered.extend(near.into_iter().filter(|it| !offered.contains(it)).collect::<Vec<_>>());
    offered.truncate(3);
    let advice = if offered.is_empty() {
        format!(
            "this node has {} Services (without headless ones and those of other proxies): \
             kube-ipvs services -A lists them",
            names.len()
        )
    } else {
        format!("nearest: {}", offered.join(", "))
    };
    FailureAnswer::new(Reason::NotFound, format!("no Service {wanted}; {advice}"))
}

impl ServiceRow {
    fn of(summary: &ServiceSummary, count: Option<ConnectionCount>) -> Self {
        let n_more = |all: usize| all.saturating_sub(MOST_OF_ONE);
        Self {
            namespace: summary.name.namespace.to_string(),
            name: summary.name.name.to_string(),
            kind: kind_text(summary.kind).to_owned(),
            cluster_addresses: summary.cluster.clone(),
            external_addresses: summary.outer.iter().take(MOST_OF_ONE).copied().collect(),
            more_addresses: n_more(summary.outer.len()),
            ports: summary.ports.iter().take(MOST_OF_ONE).map(PortRow::of).collect(),
            more_ports: n_more(summary.ports.len()),
            endpoints: summary.endpoints,
            ready: summary.ready,
            used: summary.used,
            warnings: summary.problems,
            connections: count.map(|it| Connections { active: it.active, inactive: it.inactive }),
        }
    }
}

/// Returns `spec.type` as the API has it.
pub(super) const fn kind_text(kind: ServiceKind) -> &'static str {
    match kind {
        ServiceKind::ClusterIp => "ClusterIP",
        ServiceKind::NodePort => "NodePort",
        ServiceKind::LoadBalancer => "LoadBalancer",
    }
}

impl PortRow {
    pub(super) fn of(port: &ServicePort) -> Self {
        Self {
            name: port.name.to_string(),
            protocol: port.protocol.to_string(),
            port: port.port.get(),
            node_port: port.node_port.map(Into::into),
        }
    }
}

impl fmt::Display for PortRow {
    /// As kubectl writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node_port {
            Some(node_port) => write!(f, "{}:{node_port}/{}", self.port, self.protocol),
            None => write!(f, "{}/{}", self.port, self.protocol),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_of_thousands_of_ports_is_a_short_row_that_says_so() {
        let port = |number: u16| ServicePort {
            name: "".into(),
            protocol: plan::model::Protocol::Tcp,
            port: number.try_into().unwrap(),
            node_port: None,
        };
        let address = |number: u16| IpAddr::from(u128::from(number).to_be_bytes());
        let summary = ServiceSummary {
            name: ServiceName::new("shop", "media"),
            kind: ServiceKind::LoadBalancer,
            cluster: vec![address(1)],
            outer: (1..=70).map(address).collect(),
            ports: (1..=15_000).map(port).collect(),
            endpoints: 1,
            ready: 1,
            used: 1,
            problems: 0,
            frontends: Vec::new(),
        };
        let row = ServiceRow::of(&summary, None);
        assert_eq!((row.ports.len(), row.more_ports), (MOST_OF_ONE, 15_000 - MOST_OF_ONE));
        assert_eq!((row.external_addresses.len(), row.more_addresses), (MOST_OF_ONE, 6));
    }

    fn names() -> Vec<String> {
        ["default/web", "shop/cart", "shop/card", "team/web"].map(str::to_owned).to_vec()
    }

    #[test]
    fn an_unknown_service_is_answered_with_the_same_name_elsewhere_and_the_nearest() {
        let said = no_such_service("shop/web", &names()).message;
        assert!(said.starts_with("no Service shop/web; nearest: default/web"), "{said}");
        let said = no_such_service("shop/crat", &names()).message;
        assert!(said.ends_with("nearest: shop/cart, shop/card"), "{said}");
        let said = no_such_service("x/zzzzzzzzzzzzzzzzzz", &names()).message;
        assert!(said.contains("has 4 Services"), "{said}");
    }

    #[test]
    fn names_have_a_namespace_and_a_name() {
        assert_eq!(name("shop/cart").unwrap(), ServiceName::new("shop", "cart"));
        for wrong in ["cart", "/cart", "shop/", ""] {
            assert_eq!(name(wrong).unwrap_err().reason, Reason::BadRequest, "{wrong}");
        }
    }
}
