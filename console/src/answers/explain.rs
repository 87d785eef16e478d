//! `/v1/explain`: who gets which endpoints of a Service, and why.
//!
//! There is no model of the rules here. Each sentence is about a trace of a client's packet
//! (`plan::trace`), or about the decision on an endpoint by the code that chooses.

mod outcome;
mod question;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::State;
use plan::planner::{ExplainedEndpoint, ExplainedService};
use plan::trace::Client;
use serde::{Deserialize, Serialize};

use super::decision::{Hints, Use};
use super::question::Parameters;
use super::service::{FrontendKind, policy_text};
use super::services::{kind_text, name, unknown};
use super::{Answer, Content, FailureAnswer, Reason};
use crate::Desk;
use outcome::follow;
use question::{Chosen, Question, Target};
use source::pods::FoundPod;

pub use outcome::{Outcome, Reached, Rule, Seen, SetEntry};

/// Most endpoints that one client may get which are named, and most that are not used.
const MOST_ENDPOINTS: usize = 500;

/// Explanation of a Service: its clients' endpoints, and the reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub namespace: String,
    pub name: String,
    /// `spec.type`.
    #[serde(rename = "type")]
    pub service_type: String,
    /// Mode of the node.
    pub mode: String,
    /// The node's name.
    pub node: String,
    /// True if a change of it waits to be written.
    pub is_waiting: bool,
    pub frontends: Vec<FrontendExplanation>,
    /// Number of frontends that are not explained.
    pub more_frontends: usize,
    /// Warnings, each a sentence for its author.
    pub warnings: Vec<String>,
    /// The pod that was asked for by its name.
    #[serde(default)]
    pub pod: Option<AskingPod>,
}

/// A pod that was asked for by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskingPod {
    pub namespace: String,
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub node: Option<String>,
    /// True if that is this node.
    pub is_here: bool,
}

/// Clients of a frontend, and what becomes of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendExplanation {
    pub protocol: String,
    pub address: IpAddr,
    pub port: u16,
    /// Name of the Service's port.
    pub port_name: String,
    pub kind: FrontendKind,
    /// Number of other addresses of the node where the same node port is served.
    pub more_addresses: usize,
    /// Another Service that has it.
    pub taken_by: Option<String>,
    /// Traffic policy by which endpoints are chosen for clients outside of the cluster, or for all
    /// clients of a cluster address.
    pub traffic_policy: String,
    /// Extent to which hints choose endpoints.
    pub hints: Hints,
    /// Number of seconds for which a client's address stays with its endpoint.
    pub affinity_seconds: Option<u32>,
    /// Scheduler; absent in modes whose rules choose.
    pub scheduler: Option<String>,
    /// Networks whose clients may use it; empty: all.
    pub source_ranges: Vec<String>,
    pub clients: Vec<ClientExplanation>,
    /// Endpoints that no client gets under the traffic policy, with the reason.
    pub unused: Vec<Unused>,
    /// Number of further ones.
    #[serde(default)]
    pub more_unused: usize,
    /// Number of endpoints that are not looked at, used or not: there are too many.
    #[serde(default)]
    pub more_endpoints: usize,
}

/// A client, and what becomes of its connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientExplanation {
    pub client: ClientPlace,
    /// Its address; absent: none is known.
    pub address: Option<IpAddr>,
    /// True if it is an example, which was not asked for by its address or by name.
    pub is_example: bool,
    /// True if its address is in a source range; absent where there are none, and of this node, whose
    /// own address counts.
    pub is_in_source_range: Option<bool>,
    /// Outcomes. Connections have one of them.
    pub outcomes: Vec<Outcome>,
    /// Reason for which they are not known.
    pub unknown: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientPlace {
    /// A pod of this node.
    Pod,
    Node,
    /// Another node, a pod there, or a host outside of the cluster.
    Outside,
}

/// An endpoint that is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unused {
    /// Address and port.
    pub endpoint: SocketAddr,
    pub node: Option<String>,
    pub hints: Option<String>,
    pub reason: Use,
}

/// Request for an explanation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// The Service, as `NAMESPACE/NAME`.
    pub name: String,
    /// A port by its number or name.
    pub port: Option<String>,
    /// A client: `pod`, `node`, `outside` or an address.
    pub from: Option<String>,
    /// With `pod`: a certain one, as `NAMESPACE/NAME`.
    pub pod: Option<String>,
}

impl Content for Explanation {
    const KIND: &'static str = "Explanation";
}

pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Answer<Explanation>, FailureAnswer> {
    explain(&desk, &asked).await.map(Answer::new)
}

async fn explain(desk: &Desk, asked: &Asked) -> Result<Explanation, FailureAnswer> {
    let wanted = name(&asked.name)?;
    let pod = match asked.pod_named()? {
        Some((namespace, name)) => Some(desk.pods.find(namespace, name).await?),
        None => None,
    };
    let mut question = Question::read(asked, pod)?;
    if let Some(address) = question.address() {
        question = question.by(super::trace::origin_of(address).await?);
    }
    let begin = move |name, question: Question| {
        desk.inquiries.ask(move |view| {
            let explained = view.planner.explain_service(&name)?;
            Some(Chosen::new(view.planner, explained, &question))
        })
    };
    let Some(chosen) = begin(wanted.clone(), question).await? else {
        return Err(unknown(desk, &wanted).await);
    };
    let mut chosen = chosen?;
    for target in &mut chosen.targets {
        let destination = target.destination();
        for client in &mut target.clients {
            let Some(from) = client.client else { continue };
            let (protocol, origin) = (target.frontend.frontend.protocol, client.origin.clone());
            // One packet at a time: a change of a Service does not wait for all of them.
            let followed = desk
                .inquiries
                .ask(move |view| follow(view.planner, from, origin, protocol, destination))
                .await?;
            client.outcomes = Some(correct_by_routes(client.address(), followed).await?);
        }
    }
    Ok(chosen.finish())
}

/// Corrects the plan's outcomes by the node's routes: an answer is not lost if this node is between
/// the client and the endpoint.
async fn correct_by_routes(
    client: Option<IpAddr>,
    followed: outcome::Followed,
) -> Result<outcome::Followed, FailureAnswer> {
    let (Some(client), Ok(outcomes)) = (client, &followed) else { return Ok(followed) };
    let unanswered = outcomes.iter().filter(|it| it.reached == Reached::Unanswered);
    let endpoints: Vec<SocketAddr> = unanswered.flat_map(|it| it.endpoints.clone()).collect();
    if endpoints.is_empty() {
        return Ok(followed);
    }
    let answered = super::trace::answered_through(client, endpoints).await?;
    Ok(followed.map(|outcomes| outcome::corrected(outcomes, &answered)))
}

/// Explains a Service by a planner of the caller's own.
pub fn explain_with(
    planner: &plan::planner::Planner,
    asked: &Asked,
    find_pod: impl FnOnce(&str, &str) -> Result<FoundPod, FailureAnswer>,
) -> Result<Explanation, FailureAnswer> {
    let wanted = name(&asked.name)?;
    let pod = asked.pod_named()?.map(|(namespace, name)| find_pod(namespace, name)).transpose()?;
    let question = Question::read(asked, pod)?;
    let Some(explained) = planner.explain_service(&wanted) else {
        let names = planner.service_names(None, usize::MAX);
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        return Err(super::services::no_such_service(&asked.name, &names));
    };
    let mut chosen = Chosen::new(planner, explained, &question)?;
    for target in &mut chosen.targets {
        let destination = target.destination();
        let protocol = target.frontend.frontend.protocol;
        for client in &mut target.clients {
            client.outcomes =
                client.client.map(|it| follow(planner, it, None, protocol, destination));
        }
    }
    Ok(chosen.finish())
}

impl Asked {
    /// Namespace and name of the pod that is asked for.
    fn pod_named(&self) -> Result<Option<(&str, &str)>, FailureAnswer> {
        let Some(pod) = self.pod.as_deref() else { return Ok(None) };
        let parts = pod.split_once('/').filter(|(namespace, name)| {
            let is_label = |part: &str| {
                let is_allowed = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit();
                !part.is_empty() && part.chars().all(|it| is_allowed(it) || "-.".contains(it))
            };
            is_label(namespace) && is_label(name)
        });
        let wrong = || {
            let text = format!("{pod:?} is not a pod name: write NAMESPACE/NAME");
            FailureAnswer::new(Reason::BadRequest, text)
        };
        parts.map(Some).ok_or_else(wrong)
    }
}

impl Chosen {
    fn finish(self) -> Explanation {
        let Self { explained, mode, node, targets, more, pod } = self;
        let service = &explained.service;
        let frontends = targets.into_iter().map(|target| target.finish(&explained));
        Explanation {
            namespace: service.name.namespace.to_string(),
            name: service.name.name.to_string(),
            service_type: kind_text(service.kind).to_owned(),
            mode: mode.to_string(),
            node: node.to_string(),
            is_waiting: explained.is_waiting,
            frontends: frontends.collect(),
            more_frontends: more,
            warnings: explained.problems.iter().map(ToString::to_string).collect(),
            pod: pod.map(|pod| AskingPod {
                is_here: pod.node.as_deref() == Some(&*node),
                namespace: pod.namespace,
                name: pod.name,
                addresses: pod.addresses,
                node: pod.node,
            }),
        }
    }
}

impl Target {
    fn finish(self, explained: &ExplainedService) -> FrontendExplanation {
        let destination = self.destination();
        let Self { frontend, more_addresses, source_ranges, clients, .. } = self;
        let port = explained.port_of(&frontend);
        let policy = frontend.policy;
        let endpoints = port.map(|it| it.endpoints.as_slice()).unwrap_or_default();
        let is_unused = |it: &&ExplainedEndpoint| !it.decision(policy).is_used();
        let n_unused = endpoints.iter().filter(is_unused).count();
        let unused = endpoints.iter().filter(is_unused).take(MOST_ENDPOINTS);
        let owner = frontend.owner.filter(|owner| *owner != explained.service.name);
        FrontendExplanation {
            protocol: frontend.frontend.protocol.to_string(),
            address: destination.ip(),
            port: destination.port(),
            port_name: port.map(|it| it.port.name.to_string()).unwrap_or_default(),
            kind: frontend.origin.into(),
            more_addresses,
            taken_by: owner.map(|owner| owner.to_string()),
            traffic_policy: policy_text(policy).to_owned(),
            hints: port.map_or(Hints::None, |it| {
                Hints::of(it.topology, policy, it.endpoints.iter().map(|it| &it.endpoint))
            }),
            affinity_seconds: explained.service.affinity,
            scheduler: frontend.server.map(|it| it.scheduler.to_string()),
            source_ranges: source_ranges.iter().map(ToString::to_string).collect(),
            clients: clients.into_iter().map(|client| client.finish(&source_ranges)).collect(),
            unused: unused
                .map(|it| Unused {
                    endpoint: it.socket,
                    node: it.endpoint.node.as_ref().map(ToString::to_string),
                    hints: super::decision::hints_text(&it.endpoint),
                    reason: it.decision(policy).into(),
                })
                .collect(),
            more_unused: n_unused.saturating_sub(MOST_ENDPOINTS),
            more_endpoints: port.map_or(0, |it| it.more_endpoints),
        }
    }
}

impl From<Client> for ClientPlace {
    fn from(client: Client) -> Self {
        match client {
            Client::Pod(_) => Self::Pod,
            Client::Node => Self::Node,
            Client::Elsewhere(_) => Self::Outside,
        }
    }
}
