//! `/v1/drains`: endpoints that an operator takes out on this node, by hand.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use plan::hand_drain::{HandDrain, HandDrainEffect};
use plan::model::{ObjectName, ServiceName};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::question::JsonBody;
use super::{Answer, Content, FailureAnswer, Reason};
use crate::Desk;
use reconcile::Input;
use reconcile::hand_drains::{LONGEST_HAND_DRAIN, MOST_HAND_DRAINS};
use reconcile::inquiry::View;

/// Most Services whose plans are compared in one question: each is planned twice.
const CHUNK: usize = 64;

/// Endpoints, as they are named to drain them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Port that it listens on; none: all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub port: Option<NonZeroU16>,
    /// Service, as `namespace/name`, whose clients are kept away; none: every Service.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainRequest {
    /// Endpoints to drain.
    pub target: Target,
    /// Time after which they come back.
    pub seconds: u64,
    /// True to drain even what leaves clients without an endpoint.
    pub force: bool,
}

/// Request to end drains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UndrainRequest {
    /// Endpoints whose drains end; none: all.
    pub target: Option<Target>,
}

/// Result of a request to drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drained {
    /// True if they are drained; otherwise nothing has changed.
    pub is_drained: bool,
    /// The endpoints, in words.
    pub endpoints: String,
    /// Time after which they come back.
    pub seconds: u64,
    /// Consequence for each Service that has one of them.
    pub services: Vec<DrainedService>,
}

/// A Service with drained endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainedService {
    /// The Service, as `namespace/name`.
    pub service: String,
    /// Endpoints that this node would use otherwise. None: it uses others.
    pub endpoints: Vec<String>,
    /// Its ports whose clients get no endpoint any more.
    pub left_without: Vec<String>,
}

/// Drains by hand that are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drains {
    /// The drains, in the order of addresses.
    pub drains: Vec<DrainInForce>,
}

/// A drain by hand that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainInForce {
    /// The endpoints.
    pub target: Target,
    /// The same in words.
    pub endpoints: String,
    /// Time after which they come back.
    pub seconds_left: u64,
}

/// Drains that an operator has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undrained {
    /// The endpoints of each, in words.
    pub ended: Vec<String>,
}

pub(super) async fn answer(State(desk): State<Arc<Desk>>) -> Result<Answer<Drains>, FailureAnswer> {
    Ok(Answer::new(Drains { drains: desk.inquiries.ask(in_force).await? }))
}

/// Drains endpoints, unless that leaves clients without any.
pub(super) async fn begin(
    State(desk): State<Arc<Desk>>,
    JsonBody(DrainRequest { target, seconds, force }): JsonBody<DrainRequest>,
) -> Result<Answer<Drained>, FailureAnswer> {
    let drain = HandDrain { is_forced: force, ..target.drain()? };
    // Each checks that the Service keeps another endpoint, which the other one may drain.
    let _turn = desk.draining.lock().await;
    let time = Duration::from_secs(seconds);
    if time.is_zero() || time > LONGEST_HAND_DRAIN {
        return Err(bad_request(format!(
            "a drain lasts from one second to {} hours",
            LONGEST_HAND_DRAIN.as_secs() / 3_600
        )));
    }
    let of = drain.clone();
    let (services, has_room) = desk
        .inquiries
        .ask(move |view| {
            let services: Vec<ServiceName> =
                view.planner.with_endpoints_of(&of).into_iter().collect();
            let is_known = view.hand_drains.end(&of).is_some();
            (services, is_known || view.hand_drains.len() < MOST_HAND_DRAINS)
        })
        .await?;
    if services.is_empty() {
        return Err(not_found(&desk, &drain).await?);
    }
    if !has_room {
        let most = format!(
            "the limit of {MOST_HAND_DRAINS} manual drains is reached; end some of \
                            them"
        );
        return Err(FailureAnswer::new(Reason::Unavailable, most));
    }
    let mut effects = Vec::with_capacity(services.len());
    for chunk in services.chunks(CHUNK) {
        let (of, chunk) = (drain.clone(), chunk.to_vec());
        effects.extend(desk.inquiries.ask(move |view| view.planner.effects_of(&of, &chunk)).await?);
    }
    let is_drained = force || effects.iter().all(|effect| effect.left_without.is_empty());
    if is_drained {
        // The same with or without force is another drain of the same endpoints.
        let of = drain.clone();
        let former = desk.inquiries.ask(move |view| {
            let drains = view.hand_drains.iter().map(|(drain, _)| drain.clone());
            let is_same = |it: &HandDrain| *it != of && it.includes(&of) && of.includes(it);
            drains.filter(is_same).collect::<Vec<_>>()
        });
        let former = former.await?;
        desk.inquiries.order(Input::Drain(Box::new(drain.clone()), time)).await?;
        for former in former {
            desk.inquiries.order(Input::Undrain(Box::new(former))).await?;
        }
    }
    Ok(Answer::new(Drained {
        is_drained,
        endpoints: drain.to_string(),
        seconds,
        services: effects.iter().map(DrainedService::of).collect(),
    }))
}

/// Ends drains.
pub(super) async fn end(
    State(desk): State<Arc<Desk>>,
    JsonBody(UndrainRequest { target }): JsonBody<UndrainRequest>,
) -> Result<Answer<Undrained>, FailureAnswer> {
    let all = target.as_ref().map(Target::drain).transpose()?;
    let of = all.clone();
    let (ended, others) = desk
        .inquiries
        .ask(move |view| {
            let drains = view.hand_drains.iter().map(|(drain, _)| drain.clone());
            drains.partition::<Vec<HandDrain>, _>(|drain| {
                of.as_ref().is_none_or(|of| of.includes(drain))
            })
        })
        .await?;
    if let Some(all) = all.filter(|_| ended.is_empty()) {
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        let there = match others.is_empty() {
            true => "nothing is drained manually".to_owned(),
            false => format!("drained manually: {}", others.join(", ")),
        };
        let message = format!("{all} is not drained manually on this node; {there}");
        return Err(FailureAnswer::new(Reason::NotFound, message));
    }
    for drain in &ended {
        desk.inquiries.order(Input::Undrain(Box::new(drain.clone()))).await?;
    }
    Ok(Answer::new(Undrained { ended: ended.iter().map(ToString::to_string).collect() }))
}

pub(super) fn in_force(view: &View<'_>) -> Vec<DrainInForce> {
    let now = Instant::now();
    let drain = |(drain, end): (&HandDrain, Instant)| DrainInForce {
        target: Target::of(drain),
        endpoints: drain.to_string(),
        seconds_left: end.saturating_duration_since(now).as_secs(),
    };
    view.hand_drains.iter().map(drain).collect()
}

/// Says why no Service has such an endpoint, and which there are at its address.
async fn not_found(desk: &Desk, drain: &HandDrain) -> Result<FailureAnswer, FailureAnswer> {
    let anywhere = HandDrain { port: None, service: None, ..drain.clone() };
    let there: Vec<String> = desk
        .inquiries
        .ask(move |view| {
            let services = view.planner.with_endpoints_of(&anywhere).into_iter().take(CHUNK);
            let endpoints = services.flat_map(|service| {
                let endpoints = view.planner.endpoints_at(&service, anywhere.address).into_iter();
                endpoints.map(move |(protocol, socket)| format!("{protocol} {socket} of {service}"))
            });
            endpoints.take(CHUNK).collect()
        })
        .await?;
    let advice = match there.is_empty() {
        true => "no Service has an endpoint at this address; `kube-ipvs service NS/NAME` lists a \
                 Service's endpoints"
            .to_owned(),
        false => format!("at this address: {}", there.join(", ")),
    };
    Ok(FailureAnswer::new(Reason::NotFound, format!("{drain} is not an endpoint; {advice}")))
}

fn bad_request(message: String) -> FailureAnswer {
    FailureAnswer::new(Reason::BadRequest, message)
}

impl Target {
    fn of(drain: &HandDrain) -> Self {
        let HandDrain { address, port, service, is_forced: _ } = drain;
        Self { address: *address, port: *port, service: service.as_ref().map(ToString::to_string) }
    }

    fn drain(&self) -> Result<HandDrain, FailureAnswer> {
        let name = |text: &String| match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(ObjectName::new(namespace, name))
            }
            _ => Err(bad_request(format!("{text} is not a Service name: write NAMESPACE/NAME"))),
        };
        let service = self.service.as_ref().map(name).transpose()?;
        let address = self.address.to_canonical();
        Ok(HandDrain { address, port: self.port, service, is_forced: false })
    }
}

impl DrainedService {
    fn of(effect: &HandDrainEffect) -> Self {
        let HandDrainEffect { service, endpoints, left_without } = effect;
        Self {
            service: service.to_string(),
            endpoints: endpoints.iter().map(|(protocol, at)| format!("{protocol} {at}")).collect(),
            left_without: left_without.iter().map(|(of, port)| format!("{of} {port}")).collect(),
        }
    }
}

impl Content for Drains {
    const KIND: &'static str = "Drains";
}

impl Content for Drained {
    const KIND: &'static str = "Drained";
}

impl Content for Undrained {
    const KIND: &'static str = "Undrained";
}
