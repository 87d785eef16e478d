//! The Kubernetes API as the source.
//!
//! ```text
//!   Services ──────┐ steps            events
//!   EndpointSlices ┼───────▶ inventory ─────▶ gate ──▶ SourceEvent channel ──▶ the reconciler
//!   this Node ─────┤                           ▲
//!   other Nodes ───┘ (if they matter) ─────────┘
//! ```
//!
//! - `client`: address of the API server, and our credentials;
//! - `transport`: the connections to it; `turns`: one for all; `proxy`: what they go through;
//!   `renew`: credentials that are replaced; `exec_plugin`: those that a program prints;
//! - `follow`: listing and watching a kind of object, for ever;
//! - `answer`, `body`, `decode`: what it sends;
//! - `inventory`: what has been delivered, and what follows from what is seen;
//! - `warnings`: warnings that were reported about objects;
//! - `node_poller`: listing the other Nodes every quarter of an hour; `others`: their addresses,
//!   and the Services that wait for these;
//! - `outage`, `backoff`, `failure`, `error_text`: when it is away;
//! - `pods`: a Pod's addresses, on demand;
//! - `services`: the number of Services and the networks of their addresses, on demand;
//! - `server_addresses`: the addresses by which it is reached, which no Service may have;
//! - `measured`: metrics of all that.
//!
//! No object is kept: each is converted as it comes, and dropped. Of every Service and slice that
//! is in force the name is kept, so that a new list shows which are gone. Of every object with a
//! warning, the fact that it was reported is kept.

mod answer;
mod backoff;
mod body;
mod client;
mod clients;
mod decode;
mod error_text;
mod exec_plugin;
mod failure;
mod follow;
mod inventory;
mod kind;
mod measured;
mod node_poller;
mod others;
mod outage;
mod pods;
mod proxy;
mod renew;
mod server_addresses;
mod services;
mod transport;
mod turns;
mod warnings;

pub use client::{ClientError, ClientOptions, check};
pub use clients::{Clients, clients};
pub use measured::{ClientMetrics, FollowedKind};
pub use pods::look_for_pod;
pub use services::{count_services, service_networks};

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::time::sleep_until;
use tracing::{info, warn};

use super::object::Node;
use super::{FollowNodes, Options, SourceEvent};
use answer::Objects;
use backoff::Backoff;
use decode::Item;
use follow::{FollowReport, Follower};
use inventory::{Inventory, WatchStep};
use kind::ResourceKind;
use node_poller::{NodePoller, Wanted};
use others::{Gate, depends_on_pod_networks};
use outage::Outage;
use server_addresses::{Destination, ServerAddresses};

/// Capacity of the channel from the followers to the inventory. The followers wait while it is
/// full.
const QUEUE: usize = 64;

/// Least time after which warnings that still hold are repeated, and the longest random addition.
/// Events are kept for an hour (`--event-ttl` of the API server).
const REPEAT: Duration = Duration::from_secs(3_700);
const REPEAT_SPREAD: Duration = Duration::from_secs(600);

/// A cluster, not yet listed.
pub struct Kubernetes {
    objects: Objects,
    n_nodes: Arc<AtomicUsize>,
    options: Options,
    metrics: ClientMetrics,
    destinations: Vec<Destination>,
}

/// Turns what the followers say into events.
struct Delivery<'a> {
    inventory: Inventory,
    gate: Gate,
    follow_nodes: FollowNodes,
    /// Extent to which the other Nodes are to be known.
    wanted: watch::Sender<Wanted>,
    outage: Outage,
    n_nodes: &'a AtomicUsize,
    sink: &'a Sender<SourceEvent>,
}

/// The receiver of the events is gone.
#[derive(Debug)]
struct Unwanted;

impl Kubernetes {
    /// Nothing is asked for before it runs.
    #[must_use]
    pub fn new(clients: &Clients, options: Options) -> Self {
        Self {
            objects: Objects::new(clients.objects.clone(), clients.only_json),
            n_nodes: Arc::clone(&clients.n_nodes),
            options,
            metrics: clients.metrics.clone(),
            destinations: clients.destinations.clone(),
        }
    }

    /// Delivers what there is, and every change, until the receiver is dropped. An API server that
    /// is away is tried again for ever, every minute at the latest; nothing is removed because of
    /// it. Needs a runtime with time and I/O.
    ///
    /// After each list everything is delivered again, changed or not: objects are not kept to be
    /// compared. The receiver finds out which objects are equal to those it has.
    ///
    /// The other Nodes are listed if they are to be. Nothing depends on them but the first
    /// Services that have an external or a load balancer's address: these, and what comes after
    /// them, wait for the first list of the Nodes, five seconds at most.
    pub async fn run(self, sink: Sender<SourceEvent>) {
        let mut server_addresses = ServerAddresses::new(self.destinations.clone());
        server_addresses.begin(&sink).await;
        let (reports, inbox) = channel(QUEUE);
        let backoff = Backoff::default();
        let follow = |kind| {
            let (objects, node_name) = (self.objects.clone(), self.options.node_name.to_string());
            let (backoff, metrics) = (backoff.of_another_kind(), self.metrics.clone());
            Follower::new(objects, kind, node_name, backoff, reports.clone(), metrics).run()
        };
        let addresses = self.options.follow_nodes == FollowNodes::Always;
        let (wanted, others_wanted) = watch::channel(Wanted { addresses, ..Wanted::default() });
        let survey = NodePoller {
            objects: self.objects.clone(),
            node_name: self.options.node_name.to_string(),
            wanted: others_wanted,
            backoff: backoff.of_another_kind(),
            reports: reports.clone(),
            metrics: self.metrics.clone(),
            has_warned: false,
            has_listed: false,
            read_whole: HashSet::new(),
            without_networks: HashSet::new(),
        };
        let followers = async {
            let [services, slices, node] = ResourceKind::ALL.map(follow);
            tokio::join!(services, slices, node, survey.run())
        };
        let delivery = Delivery {
            inventory: Inventory::new(&self.options, SystemTime::now()),
            gate: Gate::new(self.options.follow_nodes),
            follow_nodes: self.options.follow_nodes,
            wanted,
            outage: Outage::default(),
            n_nodes: &self.n_nodes,
            sink: &sink,
        };
        tokio::select! {
            _ = followers => {}
            () = server_addresses.follow(&sink) => {}
            Err(Unwanted) = delivery.run(inbox) => {}
            () = sink.closed() => {}
        }
    }
}

impl Delivery<'_> {
    /// Ends when the receiver of the events is dropped.
    async fn run(
        mut self,
        mut inbox: Receiver<(ResourceKind, FollowReport)>,
    ) -> Result<Infallible, Unwanted> {
        let mut repeat_at = repeat_at();
        loop {
            let patience = async {
                match self.gate.until() {
                    Some(until) => sleep_until(until.into()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                report = inbox.recv() => {
                    let (kind, report) = report.ok_or(Unwanted)?;
                    self.take(kind, report).await?;
                }
                () = sleep_until(repeat_at) => {
                    repeat_at = self::repeat_at();
                    for event in self.inventory.repeated_warnings() {
                        self.send(event).await?;
                    }
                }
                () = patience => {
                    warn!(
                        "no list of the cluster's other Nodes within {:?}; Services are programmed \
                         without it, and one with another node's address in spec.externalIPs \
                         makes that node unreachable from this one",
                        others::PATIENCE
                    );
                    self.open().await?;
                }
            }
        }
    }

    async fn take(&mut self, kind: ResourceKind, report: FollowReport) -> Result<(), Unwanted> {
        match report {
            FollowReport::Step(step) => self.step(kind, step).await,
            FollowReport::Failed { cause, refused } if kind == ResourceKind::OtherNode => {
                if self.gate.failed(&cause) {
                    warn!(
                        "cannot list the cluster's other Nodes: {cause}; without them, a Service \
                         with another node's address in spec.externalIPs makes that node \
                         unreachable from this one. kube-ipvs retries; to turn this off, set \
                         followNodes: never"
                    );
                }
                if refused { self.open().await } else { Ok(()) }
            }
            FollowReport::Failed { cause, .. } => {
                if self.outage.failed(kind, &cause, Instant::now()) {
                    warn!(
                        kind = kind.name(),
                        "cannot follow the API server: {cause}; traffic continues without new \
                         changes, and kube-ipvs retries"
                    );
                }
                Ok(())
            }
            FollowReport::Works if kind == ResourceKind::OtherNode => {
                if self.gate.works() {
                    info!("listing the cluster's other Nodes works again");
                }
                Ok(())
            }
            FollowReport::Works => {
                if let Some(duration) = self.outage.works(kind, Instant::now()) {
                    info!("API server followed again after {} s", duration.as_secs());
                }
                Ok(())
            }
        }
    }

    async fn step(&mut self, kind: ResourceKind, step: WatchStep) -> Result<(), Unwanted> {
        let are_others_listed = kind == ResourceKind::OtherNode && step == WatchStep::ListEnds;
        if let WatchStep::Listed(Item::Node(node)) | WatchStep::Applied(Item::Node(node)) = &step {
            self.notice_addresses(node);
        }
        for event in self.inventory.take(kind, step, SystemTime::now()) {
            if self.follow_nodes != FollowNodes::Never && depends_on_pod_networks(&event) {
                self.wanted.send_if_modified(|it| !std::mem::replace(&mut it.pod_networks, true));
            }
            let (event, has_closed) = self.gate.pass(event, Instant::now());
            if has_closed {
                self.wanted.send_modify(|wanted| wanted.addresses = true);
            }
            if let Some(event) = event {
                self.send(event).await?;
            }
        }
        self.n_nodes.store(self.inventory.n_nodes(), Ordering::Relaxed);
        if are_others_listed { self.open().await } else { Ok(()) }
    }

    /// Asks for all addresses of the other Nodes if this one has several of a type.
    fn notice_addresses(&self, node: &Node) {
        if !self.inventory.is_this_node(node) {
            return;
        }
        let several = node.status.has_several_of_a_type();
        self.wanted.send_if_modified(|wanted| {
            std::mem::replace(&mut wanted.all_addresses, several) != several
        });
    }

    async fn open(&mut self) -> Result<(), Unwanted> {
        for event in self.gate.open() {
            self.send(event).await?;
        }
        Ok(())
    }

    async fn send(&self, event: SourceEvent) -> Result<(), Unwanted> {
        self.sink.send(event).await.map_err(|_| Unwanted)
    }
}

fn repeat_at() -> tokio::time::Instant {
    tokio::time::Instant::now() + REPEAT + REPEAT_SPREAD.mul_f64(fastrand::f64())
}
