//! The source of Services: a folder of manifests, or the Kubernetes API.

use std::sync::Arc;

use ipnet::IpNet;
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::threads::TaskThread;
use crate::events::{EventRecorder, EventReporter, Publisher};
use config::{CONTROLLER, Configuration};
use console::pods::PodFinder;
use serve::health::SharedHealth;
use serve::metrics::Metrics;
use serve::pages::Following;
use source::kubernetes::{self, ClientMetrics, Clients, Kubernetes};
use source::manifests::Manifests;
use source::{self, SourceEvent};

/// Origin of Services: a folder of manifests, or the Kubernetes API.
pub(super) enum Source {
    Manifests(Manifests),
    Kubernetes(Clients, Kubernetes),
}

/// Checks that the files can be read that a loaded configuration names for the API server.
pub fn check(configuration: &Configuration) -> anyhow::Result<()> {
    if configuration.manifests.is_none() {
        kubernetes::check(&configuration.client_options())?;
    }
    Ok(())
}

/// Questions about the whole cluster, to the API server.
#[derive(Clone)]
pub(super) struct ClusterQuestions {
    client: Client,
    /// Runtime that the client's connections are of.
    runtime: Handle,
}

impl ClusterQuestions {
    /// Returns the number of all Services.
    pub(super) async fn count_services(&self) -> Result<usize, String> {
        let client = self.client.clone();
        let asking = async move { kubernetes::count_services(&client).await };
        self.runtime.spawn(asking).await.map_err(|error| error.to_string())?
    }

    /// Returns the networks of service addresses.
    pub(super) async fn service_networks(&self) -> Result<Vec<IpNet>, String> {
        let client = self.client.clone();
        let asking = async move { kubernetes::service_networks(&client).await };
        self.runtime.spawn(asking).await.map_err(|error| error.to_string())?
    }
}

impl Source {
    pub(super) async fn open(configuration: &Configuration) -> anyhow::Result<Self> {
        let options = source::Options {
            node_name: Arc::clone(&configuration.settings.node_name),
            scheduler: configuration.settings.scheduler.clone(),
            follow_nodes: configuration.follow_nodes,
        };
        if let Some(folder) = &configuration.manifests {
            return Ok(Self::Manifests(Manifests::new(folder, &options)?));
        }
        let clients = kubernetes::clients(&configuration.client_options()).await?;
        let source = Kubernetes::new(&clients, options);
        Ok(Self::Kubernetes(clients, source))
    }

    /// Reports that this node is not leaving, if there is no cluster that it could leave.
    pub(super) fn mark_not_leaving(&self, health: &SharedHealth) {
        if let Self::Manifests(_) = self {
            health.node_leaving(false);
        }
    }

    /// Adds the measurements of the API client, if there is one, to the metrics.
    pub(super) fn measured_by(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        match self {
            Self::Manifests(_) => Ok(()),
            Self::Kubernetes(clients, _) => metrics.add(clients.metrics.clone()),
        }
    }

    /// Returns the measurements of the API client, if there is one.
    pub(super) fn client_metrics(&self) -> Option<ClientMetrics> {
        match self {
            Self::Manifests(_) => None,
            Self::Kubernetes(clients, _) => Some(clients.metrics.clone()),
        }
    }

    /// Returns the way to find Pods by name, by this thread if it is the API server that knows them.
    pub(super) fn pod_finder(
        &self,
        configuration: &Configuration,
        thread: &TaskThread,
    ) -> PodFinder {
        match self {
            Self::Manifests(_) => {
                PodFinder::Manifests(configuration.manifests.clone().unwrap_or_default())
            }
            Self::Kubernetes(clients, _) => {
                PodFinder::Kubernetes(clients.questions.clone(), thread.handle().clone())
            }
        }
    }

    /// Returns the way to ask about the cluster, if there is an API server.
    pub(super) fn cluster_questions(&self, runtime: &Handle) -> Option<ClusterQuestions> {
        match self {
            Self::Manifests(_) => None,
            Self::Kubernetes(clients, _) => {
                let client = clients.questions.clone();
                Some(ClusterQuestions { client, runtime: runtime.clone() })
            }
        }
    }

    /// Returns the content of `/following`, where there is an API server to follow.
    pub(super) fn following(&self) -> Option<Following> {
        match self {
            Self::Manifests(_) => None,
            Self::Kubernetes(clients, _) => {
                let metrics = clients.metrics.clone();
                Some(Box::new(move || metrics.page()))
            }
        }
    }

    /// Returns the recorder of Events, which is disabled without an API server.
    pub(super) fn event_recorder(&self, node_name: &str, thread: &TaskThread) -> EventRecorder {
        match self {
            Self::Manifests(_) => EventRecorder::disabled(),
            Self::Kubernetes(clients, _) => {
                let (recorder, queue) = EventRecorder::new();
                let reporter = EventReporter {
                    controller: CONTROLLER,
                    node_name: node_name.to_owned(),
                    host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                };
                let publisher = Publisher {
                    client: clients.events.clone(),
                    reporter,
                    n_nodes: Arc::clone(&clients.n_nodes),
                };
                thread.spawn(publisher.publish(queue));
                recorder
            }
        }
    }

    pub(super) async fn run(self, events: mpsc::Sender<SourceEvent>) {
        match self {
            Self::Manifests(manifests) => manifests.run(events).await,
            Self::Kubernetes(_, kubernetes) => kubernetes.run(events).await,
        }
    }
}
