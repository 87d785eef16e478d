//! Announcements to the API server.

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
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};

use super::pace::{Pace, delay};
use super::{Announcement, Extent, Regarding, Severity};

/// How often one is tried, and how long each try may take.
const ATTEMPTS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(10);

/// Namespace of Events about what has none.
const DEFAULT_NAMESPACE: &str = "default";

/// HTTP 409: the Event is there already.
const CONFLICT: u16 = 409;

/// Who announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `reportingController`: kube-proxy's, which dashboards and alerts know.
    pub controller: &'static str,
    /// The Node that is announced about.
    pub node_name: String,
    /// The host's name, for `reportingInstance`.
    pub host_name: String,
}

/// Publishes what is announced, until no announcer is left.
pub async fn publish(client: Client, identity: Identity, outlet: mpsc::Receiver<Announcement>) {
    let mut outlet = outlet;
    let mut pace = Pace::new(Instant::now());
    let mut n_dropped = 0_u64;
    while let Some(announcement) = outlet.recv().await {
        if !pace.take(Instant::now()) {
            n_dropped += 1;
            if n_dropped.is_power_of_two() {
                info!(n_dropped, "too many Events at once; the log has all that was to be said");
            }
            continue;
        }
        let (client, identity) = (client.clone(), identity.clone());
        // One that waits for its time must not hold up the others; there are as many as the pace
        // lets through.
        tokio::spawn(async move {
            if announcement.extent == Extent::Cluster {
                let what = (&announcement.regarding, &announcement.note);
                sleep(delay(&identity.node_name, what)).await;
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
