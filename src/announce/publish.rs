//! Announcements to the API server.

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

use super::pace::{Pace, Turn};
use super::{Announcement, Extent, Outlet, Regarding, Severity};
use crate::spread::random_up_to;

/// Number of attempts for each Event, and longest time of each attempt.
const ATTEMPTS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(10);

/// Least time after which is said again what is still wrong, and what is added to it at random. Events are
/// kept for an hour (`--event-ttl` of the API server).
const REPEAT: Duration = Duration::from_secs(3_700);
const REPEAT_SPREAD: Duration = Duration::from_secs(600);

/// Namespace of Events about what has none.
const DEFAULT_NAMESPACE: &str = "default";

/// HTTP 409: the Event is there already.
const CONFLICT: u16 = 409;

/// Identity under which Events are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `reportingController`: kube-proxy's, which dashboards and alerts know.
    pub controller: &'static str,
    /// The Node that is announced about.
    pub node_name: String,
    /// The host's name, for `reportingInstance`.
    pub host_name: String,
}

/// Publishes what is announced.
pub struct Publisher {
    /// For the API server.
    pub client: Client,
    /// Identity to publish under.
    pub identity: Identity,
    /// Number of nodes of the cluster, as far as it is known.
    pub n_nodes: Arc<AtomicUsize>,
}

// === impl Publisher ===

impl Publisher {
    /// Publishes until no announcer is left. What every node sees and is still wrong when Events have expired
    /// is published again.
    pub async fn publish(self, mut outlet: Outlet) {
        let mut pace = Pace::new(Instant::now());
        let mut n_dropped = 0_u64;
        let (mut time, mut repeat_at) = (0, repeat_at());
        loop {
            let announcements = tokio::select! {
                announcement = outlet.queue.recv() => match announcement {
                    Some(announcement) => vec![announcement],
                    None => return,
                },
                () = sleep_until(repeat_at) => {
                    (time, repeat_at) = (time + 1, self::repeat_at());
                    outlet.standing()
                }
            };
            for announcement in announcements {
                let what = (&announcement.regarding, &announcement.note);
                let turn = (announcement.extent == Extent::Cluster)
                    .then(|| Turn::of(&self.identity.node_name, what, time));
                if turn.is_some_and(|turn| !self.tries(turn)) {
                    continue;
                }
                if pace.take(Instant::now()) {
                    self.send(announcement, turn);
                    continue;
                }
                n_dropped += 1;
                if n_dropped.is_power_of_two() {
                    info!(
                        n_dropped,
                        "too many Events at once; the log has all that was to be said"
                    );
                }
            }
        }
    }

    fn tries(&self, turn: Turn) -> bool {
        turn.tries(self.n_nodes.load(Ordering::Relaxed))
    }

    /// Sends an announcement by and by. One that waits for its time does not hold up the others; there are
    /// as many as the pace lets through.
    fn send(&self, announcement: Announcement, turn: Option<Turn>) {
        let (client, identity) = (self.client.clone(), self.identity.clone());
        let n_nodes = Arc::clone(&self.n_nodes);
        tokio::spawn(async move {
            if let Some(turn) = turn {
                sleep(turn.delay()).await;
                // How many nodes there are may not have been known before.
                if !turn.tries(n_nodes.load(Ordering::Relaxed)) {
                    return;
                }
            }
            if let Err(error) = insist(&client, &identity, &announcement).await {
                debug!(
                    "no Event {} about {:?}: {error:#}",
                    announcement.reason, announcement.regarding
                );
            }
        });
    }
}

fn repeat_at() -> Instant {
    Instant::now() + REPEAT + random_up_to(REPEAT_SPREAD)
}

async fn insist(client: &Client, identity: &Identity, announcement: &Announcement) -> Result<()> {
    let mut pause = Duration::from_secs(1);
    for _ in 1..ATTEMPTS {
        match attempt(client, identity, announcement).await {
            Ok(()) => return Ok(()),
            Err(error) => debug!("an Event is tried again in {pause:?}: {error:#}"),
        }
        sleep(pause).await;
        pause *= 4;
    }
    attempt(client, identity, announcement).await
}

async fn attempt(client: &Client, identity: &Identity, announcement: &Announcement) -> Result<()> {
    timeout(PATIENCE, create(client, identity, announcement)).await.context("no answer in time")?
}

async fn create(client: &Client, identity: &Identity, announcement: &Announcement) -> Result<()> {
    let regarding = match &announcement.regarding {
        Regarding::Node => ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(identity.node_name.clone()),
            ..ObjectReference::default()
        },
        Regarding::Service(name) => reference::<Service>(client, name).await?,
        Regarding::EndpointSlice(name) => reference::<EndpointSlice>(client, name).await?,
    };
    let event = event(identity, announcement, regarding, Timestamp::now());
    let namespace = event.metadata.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    match events.create(&PostParams::default(), &event).await {
        Ok(_) => Ok(()),
        // Another node was first.
        Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(()),
        Err(error) => Err(error).context("create the Event"),
    }
}

/// `kubectl describe` finds Events by the object's uid. It is asked for here rather than kept for
/// every object; by a list, because that is what kube-proxy's role allows.
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

/// events.k8s.io/v1 Event, with every field that the API wants of a new one.
pub(super) fn event(
    identity: &Identity,
    announcement: &Announcement,
    regarding: ObjectReference,
    now: Timestamp,
) -> Event {
    let object = regarding.name.as_deref().unwrap_or_default();
    let uid = regarding.uid.as_deref().unwrap_or_default();
    let unique = u64::try_from(now.as_nanosecond()).unwrap_or_default();
    let name = announcement.event_name(object, uid, unique);
    let namespace = regarding.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.into());
    let kind = match announcement.severity {
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
        reason: Some(announcement.reason.into()),
        action: Some(announcement.action.into()),
        note: Some(announcement.short_note().to_owned()),
        regarding: Some(regarding),
        reporting_controller: Some(identity.controller.into()),
        reporting_instance: Some(format!("{}-{}", identity.controller, identity.host_name)),
        ..Event::default()
    }
}
