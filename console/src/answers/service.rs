//! `/v1/service`: one Service, with its frontends and endpoints as the kernel has them.

mod led;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use plan::claimants::Origin;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{ServiceName, TrafficPolicy};
use plan::op::PartKind;
use plan::planner::{ExplainedEndpoint, ExplainedFrontend, ExplainedService};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::decision::{Hints, Use, hints_text};
use super::question::Parameters;
use super::services::{kind_text, name, no_counters, unknown};
use super::tracked::Tracked;
use super::{Answer, Content, FailureAnswer};
use crate::Desk;
use kernel::counters::{CountedRealServer, CountedVirtualServer, Counters};
use kernel::{ReadError, estimators, sysctl};
use reconcile::inquiry::View;

/// Most endpoints that are shown, each as often as it is one of a frontend: some 10 MB of an answer.
const MOST_ENDPOINTS: usize = 20_000;

/// Most frontends of a Service that are shown.
pub(super) const MOST_FRONTENDS: usize = 128;

/// A Service on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceState {
    pub namespace: String,
    pub name: String,
    /// `spec.type`.
    #[serde(rename = "type")]
    pub service_type: String,
    /// Mode of the node.
    pub mode: String,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: String,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: String,
    /// Number of seconds for which a client's address stays with its endpoint.
    pub affinity_seconds: Option<u32>,
    /// Networks whose clients may use the load balancer IPs; empty: all.
    pub source_ranges: Vec<String>,
    /// Answer to a load balancer's health checks.
    pub health_check: Option<HealthCheckState>,
    /// True if a change of it waits to be written.
    pub is_waiting: bool,
    /// Warnings, each a sentence for its author.
    pub warnings: Vec<String>,
    pub frontends: Vec<FrontendState>,
    /// Number of frontends that are not shown.
    pub more_frontends: usize,
    /// Reason for which the kernel's counters are missing, or stand still.
    pub uncounted: Option<String>,
}

/// Answer to a load balancer's health checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckState {
    /// Port that the load balancer asks.
    pub port: u16,
    /// Number of ready endpoints on this node, by address: IPv4 and IPv6.
    pub local_endpoints: usize,
}

/// A frontend of a Service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendState {
    pub protocol: String,
    /// Address; absent: every address of the node that serves node ports.
    pub address: Option<IpAddr>,
    pub port: u16,
    /// Name of the Service's port.
    pub port_name: String,
    pub kind: FrontendKind,
    /// Traffic policy by which its endpoints are chosen.
    pub traffic_policy: String,
    /// Extent to which hints choose its endpoints.
    pub hints: Hints,
    /// Frontend whose internal frontend it is: if it has another traffic policy, for clients in the cluster alone.
    pub internal_frontend_of: Option<SocketAddr>,
    /// Another Service that has it.
    pub taken_by: Option<String>,
    pub scheduler: Option<String>,
    /// Number of seconds that IPVS remembers a client for.
    pub persistence_seconds: Option<u32>,
    /// True if the kernel has a virtual server for it; absent: not known.
    pub is_in_kernel: Option<bool>,
    /// Traffic through it.
    pub traffic: Option<Traffic>,
    /// Its endpoints, used or not.
    pub endpoints: Vec<EndpointState>,
    /// Number of endpoints that are not shown.
    #[serde(default)]
    pub more_endpoints: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FrontendKind {
    ClusterAddress,
    NodePort,
    /// Address of a load balancer.
    LoadBalancer,
    /// One of `spec.externalIPs`.
    External,
}

/// An endpoint of a frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointState {
    /// Address and port.
    pub endpoint: SocketAddr,
    pub node: Option<String>,
    pub zone: Option<String>,
    pub hints: Option<String>,
    /// Its use, or the reason for which it is not used.
    #[serde(rename = "use")]
    pub used: Use,
    /// Its share in the kernel; absent: the kernel does not have it.
    pub weight: Option<u32>,
    /// Established connections.
    pub active: Option<u32>,
    /// Connections that begin or end, and all of UDP.
    pub inactive: Option<u32>,
    /// Seconds that its connections still have, if it drains.
    pub draining_seconds: Option<f64>,
    /// Traffic to and from it.
    pub traffic: Option<Traffic>,
}

/// Traffic since it was added, and by the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    pub connections: u64,
    /// Packets from clients.
    pub incoming_packets: u64,
    /// Packets to clients.
    pub outgoing_packets: u64,
    /// Bytes from clients.
    pub incoming_bytes: u64,
    /// Bytes to clients.
    pub outgoing_bytes: u64,
    pub connections_per_second: u64,
    /// Packets from clients a second.
    pub incoming_packets_per_second: u64,
    /// Packets to clients a second.
    pub outgoing_packets_per_second: u64,
    /// Bytes from clients a second.
    pub incoming_bytes_per_second: u64,
    /// Bytes to clients a second.
    pub outgoing_bytes_per_second: u64,
}

/// Request for a Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// The Service, as `NAMESPACE/NAME`.
    name: String,
}

/// Time that the connections of draining real servers still have, by frontend and real server.
type Draining = BTreeMap<(Frontend, SocketAddr), Duration>;

/// Virtual servers that were read; none: it is not there.
type Counted = BTreeMap<Frontend, Option<CountedVirtualServer>>;

impl Content for ServiceState {
    const KIND: &'static str = "Service";
}

pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Answer<ServiceState>, FailureAnswer> {
    service(&desk, &name(&asked.name)?).await.map(Answer::new)
}

pub async fn service(desk: &Desk, name: &ServiceName) -> Result<ServiceState, FailureAnswer> {
    let wanted = name.clone();
    let known = desk.inquiries.ask(move |view| ask(view, &wanted)).await?;
    let Some((explained, draining)) = known else { return Err(unknown(desk, name).await) };
    let mode = desk.settings.mode;
    let shown = explained.frontends.iter().take(MOST_FRONTENDS);
    let frontends: Vec<Frontend> = shown.map(|it| it.frontend).collect();
    let tracked = Tracked::read(desk, &frontends).await;
    let (tracked, counted) = match tracked {
        Ok(tracked) => (tracked, count(mode, frontends).await),
        Err(failure) => (None, Err(failure.message)),
    };
    let (counted, uncounted) = match counted {
        Ok(counted) if !estimators::are_running(Path::new(sysctl::ROOT)) => {
            (Some(counted), Some(STAND_STILL.to_owned()))
        }
        Ok(counted) => (Some(counted), None),
        Err(reason) => (None, Some(reason)),
    };
    let state = ServiceState::of(&explained, mode, &draining, counted.as_ref(), tracked.as_ref());
    Ok(ServiceState { uncounted, ..state })
}

/// Reason for which rates and totals do not change.
const STAND_STILL: &str = "rates and totals of connections, packets and bytes do not advance, \
                           because IPVS estimators are off (net.ipv4.vs.run_estimation); the \
                           numbers of active and inactive connections are correct";

fn ask(view: &View<'_>, name: &ServiceName) -> Option<(ExplainedService, Draining)> {
    let explained = view.planner.explain_service(name)?;
    let mut draining = Draining::new();
    for frontend in explained.frontends.iter().take(MOST_FRONTENDS).map(|it| it.frontend) {
        let times = view.draining(&frontend);
        draining.extend(times.map(|(socket, time)| ((frontend, socket), time)));
    }
    Some((explained, draining))
}

/// Reads virtual servers, on the runtime's pool.
async fn count(mode: Mode, frontends: Vec<Frontend>) -> Result<Counted, String> {
    if !mode.uses(PartKind::VirtualServers) {
        return Err(no_counters(mode));
    }
    let counting = spawn_blocking(move || {
        let mut counters = Counters::open()?;
        let each = frontends.into_iter();
        each.map(|frontend| Ok((frontend, counters.read(&frontend)?)))
            .collect::<Result<Counted, ReadError>>()
    });
    let counted = counting.await.map_err(|error| error.to_string())?;
    counted.map_err(|error| error.to_string())
}

impl ServiceState {
    fn of(
        explained: &ExplainedService,
        mode: Mode,
        draining: &Draining,
        counted: Option<&Counted>,
        tracked: Option<&Tracked>,
    ) -> Self {
        let service = &explained.service;
        let shown = explained.frontends.get(..MOST_FRONTENDS).unwrap_or(&explained.frontends);
        let most = MOST_ENDPOINTS / shown.len().max(1);
        let state = |it| FrontendState::of(explained, it, draining, counted);
        let mut frontends: Vec<FrontendState> = shown.iter().map(state).collect();
        if let Some(tracked) = tracked {
            led::add_tracked(shown, &mut frontends, tracked);
        }
        for state in &mut frontends {
            state.more_endpoints += state.endpoints.len().saturating_sub(most);
            state.endpoints.truncate(most);
        }
        Self {
            namespace: service.name.namespace.to_string(),
            name: service.name.name.to_string(),
            service_type: kind_text(service.kind).to_owned(),
            mode: mode.to_string(),
            internal_traffic_policy: policy_text(service.internal_policy).to_owned(),
            external_traffic_policy: policy_text(service.external_policy).to_owned(),
            affinity_seconds: service.affinity,
            source_ranges: service.source_ranges.iter().map(ToString::to_string).collect(),
            health_check: explained.health_check.map(|check| HealthCheckState {
                port: check.port.get(),
                local_endpoints: check.local_v4.unwrap_or_default()
                    + check.local_v6.unwrap_or_default(),
            }),
            is_waiting: explained.is_waiting,
            warnings: explained.problems.iter().map(ToString::to_string).collect(),
            frontends,
            more_frontends: explained.frontends.len().saturating_sub(MOST_FRONTENDS),
            uncounted: None,
        }
    }
}

/// Returns a traffic policy as the API has it.
pub(super) const fn policy_text(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

impl FrontendState {
    fn of(
        explained: &ExplainedService,
        frontend: &ExplainedFrontend,
        draining: &Draining,
        counted: Option<&Counted>,
    ) -> Self {
        let ExplainedFrontend { frontend: id, origin, policy, .. } = frontend;
        let port = explained.port_of(frontend);
        let is_own = frontend.owner.as_ref() == Some(&explained.service.name);
        // That of another Service says nothing about this one.
        let found = counted.filter(|_| is_own).map(|counted| counted.get(id).cloned().flatten());
        let there = found.as_ref().and_then(Option::as_ref);
        let candidates = port.map(|it| it.endpoints.as_slice()).unwrap_or_default();
        let mut endpoints: Vec<EndpointState> = candidates
            .iter()
            .map(|it| EndpointState::of(it, it.decision(*policy).into(), there))
            .collect();
        endpoints.extend(there.into_iter().flat_map(|it| gone(it, candidates)));
        for endpoint in &mut endpoints {
            let time = draining.get(&(*id, endpoint.endpoint));
            endpoint.draining_seconds = time.map(Duration::as_secs_f64);
        }
        let desired = frontend.server.as_ref();
        Self {
            protocol: id.protocol.to_string(),
            address: (!frontend.is_anywhere_on_node()).then_some(id.address),
            port: id.port,
            port_name: port.map(|it| it.port.name.to_string()).unwrap_or_default(),
            kind: (*origin).into(),
            traffic_policy: policy_text(*policy).to_owned(),
            hints: port.map_or(Hints::None, |it| {
                Hints::of(it.topology, *policy, it.endpoints.iter().map(|it| &it.endpoint))
            }),
            internal_frontend_of: frontend
                .internal_frontend_of
                .map(|of| SocketAddr::new(of.address, of.port)),
            taken_by: frontend.owner.as_ref().filter(|_| !is_own).map(ToString::to_string),
            scheduler: there
                .map(|it| it.scheduler.clone())
                .or_else(|| desired.map(|it| it.scheduler.to_string())),
            persistence_seconds: there
                .map_or_else(|| desired.and_then(|it| it.persistence), |it| it.persistence),
            is_in_kernel: found.as_ref().map(Option::is_some),
            traffic: there.map(|it| Traffic::from(&it.traffic)),
            endpoints,
            more_endpoints: port.map_or(0, |it| it.more_endpoints),
        }
    }
}

impl From<Origin> for FrontendKind {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::ClusterAddress => Self::ClusterAddress,
            Origin::NodePort => Self::NodePort,
            Origin::LoadBalancer => Self::LoadBalancer,
            Origin::External => Self::External,
        }
    }
}

/// Returns the real servers of a virtual server that are no endpoints any more.
fn gone(
    there: &CountedVirtualServer,
    candidates: &[ExplainedEndpoint],
) -> impl Iterator<Item = EndpointState> {
    let known: BTreeSet<SocketAddr> = candidates.iter().map(|it| it.socket).collect();
    let gone = there.real_servers.iter().filter(move |it| !known.contains(&it.socket));
    gone.map(|real| EndpointState::new(real.socket, Use::Gone, Some(real)))
}

impl EndpointState {
    fn new(endpoint: SocketAddr, used: Use, real: Option<&CountedRealServer>) -> Self {
        Self {
            endpoint,
            node: None,
            zone: None,
            hints: None,
            used,
            weight: real.map(|it| it.weight),
            active: real.map(|it| it.active),
            inactive: real.map(|it| it.inactive),
            draining_seconds: None,
            traffic: real.map(|it| Traffic::from(&it.traffic)),
        }
    }

    fn of(explained: &ExplainedEndpoint, used: Use, there: Option<&CountedVirtualServer>) -> Self {
        let ExplainedEndpoint { socket, endpoint, .. } = explained;
        let real = there.and_then(|there| {
            let at = there.real_servers.binary_search_by_key(socket, |real| real.socket).ok()?;
            there.real_servers.get(at)
        });
        Self {
            node: endpoint.node.as_ref().map(ToString::to_string),
            zone: endpoint.zone.as_ref().map(ToString::to_string),
            hints: hints_text(endpoint),
            ..Self::new(*socket, used, real)
        }
    }
}

impl From<&ipvs::Statistics> for Traffic {
    fn from(counted: &ipvs::Statistics) -> Self {
        Self {
            connections: counted.connections,
            incoming_packets: counted.incoming_packets,
            outgoing_packets: counted.outgoing_packets,
            incoming_bytes: counted.incoming_bytes,
            outgoing_bytes: counted.outgoing_bytes,
            connections_per_second: counted.connection_rate,
            incoming_packets_per_second: counted.incoming_packet_rate,
            outgoing_packets_per_second: counted.outgoing_packet_rate,
            incoming_bytes_per_second: counted.incoming_byte_rate,
            outgoing_bytes_per_second: counted.outgoing_byte_rate,
        }
    }
}

#[cfg(test)]
mod tests;
