//! Publishes Events to the API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Resource};
use plan::model::ServiceName;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info};

use super::throttle::{Sampling, TokenBucket};
use super::{EventQueue, Extent, NewEvent, Regarding, Severity};

/// Number of attempts for each Event, and longest time of each attempt.
const ATTEMPTS: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Least time after which the Event of a problem that lasts is published again, and the longest
/// random addition to it. Events are kept for an hour (`--event-ttl` of the API server).
const REPEAT: Duration = Duration::from_secs(3_700);
const REPEAT_SPREAD: Duration = Duration::from_secs(600);

/// Namespace of Events about objects without a namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// HTTP 409: the Event is there already.
const CONFLICT: u16 = 409;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventReporter {
    /// `reportingController`: kube-proxy's, which dashboards and alerts know.
    pub controller: &'static str,
    /// This node's name, which Events about the Node have.
    pub node_name: String,
    /// The host's name, for `reportingInstance`.
    pub host_name: String,
}

/// Publishes recorded Events.
pub struct Publisher {
    /// Client of the API server.
    pub client: Client,
    pub reporter: EventReporter,
    /// Number of nodes of the cluster, as far as it is known.
    pub n_nodes: Arc<AtomicUsize>,
}

impl Publisher {
    /// Publishes until no recorder is left. When Events have expired, those of problems that last
    /// and that every node sees are published again.
    pub async fn publish(self, mut queue: EventQueue) {
        let mut tokens = TokenBucket::new(Instant::now());
        let mut n_dropped = 0_u64;
        let (mut time, mut repeat_at) = (0, repeat_at());
        loop {
            let events = tokio::select! {
                event = queue.recorded.recv() => match event {
                    Some(event) => vec![event],
                    None => return,
                },
                () = sleep_until(repeat_at) => {
                    (time, repeat_at) = (time + 1, self::repeat_at());
                    queue.current()
                }
            };
            for event in events {
                let what = (&event.regarding, &event.note);
                let sampling = (event.extent == Extent::Cluster)
                    .then(|| Sampling::of(&self.reporter.node_name, what, time));
                if sampling.is_some_and(|sampling| !self.is_selected(sampling)) {
                    continue;
                }
                if tokens.take(Instant::now()) {
                    self.send(event, sampling);
                    continue;
                }
                n_dropped += 1;
                if n_dropped.is_power_of_two() {
                    info!(
                        n_dropped,
                        "Kubernetes Events were dropped, because there were too many at once; the \
                         log has each problem"
                    );
                }
            }
        }
    }

    fn is_selected(&self, sampling: Sampling) -> bool {
        sampling.selects(self.n_nodes.load(Ordering::Relaxed))
    }

    /// Publishes an Event in a task of its own, so that one that is delayed does not hold up the
    /// others. The token bucket limits the number of these tasks.
    fn send(&self, event: NewEvent, sampling: Option<Sampling>) {
        let (client, reporter) = (self.client.clone(), self.reporter.clone());
        let n_nodes = Arc::clone(&self.n_nodes);
        tokio::spawn(async move {
            if let Some(sampling) = sampling {
                sleep(sampling.delay()).await;
                // The number of nodes may not have been known before.
                if !sampling.selects(n_nodes.load(Ordering::Relaxed)) {
                    return;
                }
            }
            if let Err(error) = publish_with_retries(&client, &reporter, &event).await {
                debug!(
                    "Event {} about {} not published after {ATTEMPTS} attempts: {error:#}",
                    event.reason, event.regarding
                );
            }
        });
    }
}

fn repeat_at() -> Instant {
    Instant::now() + REPEAT + REPEAT_SPREAD.mul_f64(fastrand::f64())
}

async fn publish_with_retries(
    client: &Client,
    reporter: &EventReporter,
    event: &NewEvent,
) -> Result<()> {
    let mut pause = Duration::from_secs(1);
    for _ in 1..ATTEMPTS {
        match attempt(client, reporter, event).await {
            Ok(()) => return Ok(()),
            Err(error) => debug!(
                "Event {} about {} not published, next attempt in {pause:?}: {error:#}",
                event.reason, event.regarding
            ),
        }
        sleep(pause).await;
        pause *= 4;
    }
    attempt(client, reporter, event).await
}

async fn attempt(client: &Client, reporter: &EventReporter, event: &NewEvent) -> Result<()> {
    let created = timeout(TIMEOUT, create(client, reporter, event)).await;
    created.with_context(|| format!("no answer of the API server within {TIMEOUT:?}"))?
}

async fn create(client: &Client, reporter: &EventReporter, event: &NewEvent) -> Result<()> {
    let regarding = match &event.regarding {
        Regarding::Node => ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(reporter.node_name.clone()),
            ..ObjectReference::default()
        },
        Regarding::Service(name) => reference::<Service>(client, name).await?,
        Regarding::EndpointSlice(name) => reference::<EndpointSlice>(client, name).await?,
    };
    let event = to_api(reporter, event, regarding, Timestamp::now());
    let namespace = event.metadata.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    match events.create(&PostParams::default(), &event).await {
        Ok(_) => Ok(()),
        // Another node was first.
        Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(()),
        Err(error) => Err(error).context("create the Event"),
    }
}

/// Looks up the object's uid, by which `kubectl describe` finds Events. It is looked up here rather
/// than kept for every object; by a list, because that is what kube-proxy's role allows.
async fn reference<K>(client: &Client, name: &ServiceName) -> Result<ObjectReference>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let objects: Api<K> = Api::namespaced(client.clone(), &name.namespace);
    let wanted = ListParams::default().fields(&format!("metadata.name={}", name.name)).limit(1);
    let found = objects.list_metadata(&wanted).await.context("look up the object's uid")?;
    let uid = found.items.into_iter().next().and_then(|object| object.metadata.uid);
    Ok(ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: Some(name.namespace.to_string()),
        name: Some(name.name.to_string()),
        uid,
        ..ObjectReference::default()
    })
}

/// Returns the events.k8s.io/v1 Event, with every field that the API wants of a new one.
pub(super) fn to_api(
    reporter: &EventReporter,
    new: &NewEvent,
    regarding: ObjectReference,
    now: Timestamp,
) -> Event {
    let object = regarding.name.as_deref().unwrap_or_default();
    let uid = regarding.uid.as_deref().unwrap_or_default();
    let unique = u64::try_from(now.as_nanosecond()).unwrap_or_default();
    let name = new.event_name(object, uid, unique);
    let namespace = regarding.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.into());
    let kind = match new.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(kind.into()),
        reason: Some(new.reason.name().to_owned()),
        action: Some(new.action.into()),
        note: Some(new.short_note().to_owned()),
        regarding: Some(regarding),
        reporting_controller: Some(reporter.controller.into()),
        reporting_instance: Some(format!("{}-{}", reporter.controller, reporter.host_name)),
        ..Event::default()
    }
}
