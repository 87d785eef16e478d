//! The Kubernetes API as the source.
//!
//! ```text
//!   Services ──────┐ steps            events
//!   EndpointSlices ┼───────▶ inventory ─────▶ gate ──▶ SourceEvent channel ──▶ the reconciler
//!   this Node ─────┤                           ▲
//!   other Nodes ───┘ (if they matter) ─────────┘
//! ```
//!
//! - `client`: who the API server is, and who we are;
//! - `transport`: the connections to it; `proxy`: what they go through; `renew`: credentials that are
//!   replaced;
//! - `follow`: listing and watching a kind of object, for ever;
//! - `answer`, `body`, `decode`: what it sends;
//! - `inventory`: what has been delivered, and what follows from what is seen;
//! - `complaints`: what has been said about objects that are not as they should be;
//! - `others`: the other Nodes, and the Services that wait for them;
//! - `outage`, `pause`, `failure`: when it is away;
//! - `measured`: metrics of all that.
//!
//! No object is kept: each is converted as it comes, and dropped. Of every Service and slice that
//! is in force the name is kept, so that a new list shows which are gone; of every object that was
//! complained about, that it was.

mod answer;
mod body;
mod client;
mod complaints;
mod decode;
mod failure;
mod follow;
mod inventory;
mod kind;
mod measured;
mod others;
mod outage;
mod pause;
mod proxy;
mod renew;
mod transport;

pub use client::{ClientError, ClientOptions, Clients, clients};
pub use measured::ClientMetrics;

use std::convert::Infallible;
use std::future::pending;
use std::time::{Instant, SystemTime};

use kube::Client;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep_until;
use tracing::{info, warn};

use super::{FollowNodes, Options, SourceEvent};
use follow::{Follower, Report};
use inventory::{Inventory, Step};
use kind::Kind;
use others::Gate;
use outage::Outage;
use pause::Pause;

/// What waits between those who watch and the inventory. More than that, and they wait.
const QUEUE: usize = 64;

/// A cluster, not yet listed.
pub struct Kubernetes {
    client: Client,
    options: Options,
    metrics: ClientMetrics,
}

/// Turns what the followers say into events.
struct Delivery<'a> {
    inventory: Inventory,
    gate: Gate,
    /// Told when the other Nodes are to be followed.
    others_wanted: &'a Notify,
    outage: Outage,
    sink: &'a Sender<SourceEvent>,
}

/// Nobody receives the events any more.
#[derive(Debug)]
struct Unwanted;

// === impl Kubernetes ===

impl Kubernetes {
    /// Nothing is asked for before it runs.
    #[must_use]
    pub fn new(clients: &Clients, options: Options) -> Self {
        Self { client: clients.objects.clone(), options, metrics: clients.metrics.clone() }
    }

    /// Delivers what there is, and every change, until the receiver is dropped. An API server that
    /// is away is tried again for ever, every minute at the latest; nothing is removed because of it.
    /// Needs a runtime with time and I/O.
    ///
    /// After each list everything is delivered again, changed or not: objects are not kept to be
    /// compared. Whoever receives it sees what is equal to what it has.
    ///
    /// The other Nodes are followed if they are to be. Nothing depends on them but the first
    /// Services that have an external or a load balancer's address: these, and what comes after
    /// them, wait for the first list of the Nodes, five seconds at most.
    pub async fn run(self, sink: Sender<SourceEvent>) {
        let (reports, inbox) = channel(QUEUE);
        let pause = Pause::default();
        let follow = |kind| {
            let (client, node_name) = (self.client.clone(), self.options.node_name.to_string());
            let (pause, metrics) = (pause.of_another_kind(), self.metrics.clone());
            Follower::new(client, kind, node_name, pause, reports.clone(), metrics).run()
        };
        let others_wanted = Notify::new();
        let others = async {
            match self.options.follow_nodes {
                FollowNodes::Auto => others_wanted.notified().await,
                FollowNodes::Always => {}
                FollowNodes::Never => return,
            }
            follow(Kind::OtherNode).await;
        };
        let followers = async {
            let [services, slices, node] = Kind::ALL.map(follow);
            tokio::join!(services, slices, node, others)
        };
        let delivery = Delivery {
            inventory: Inventory::new(&self.options, SystemTime::now()),
            gate: Gate::new(self.options.follow_nodes),
            others_wanted: &others_wanted,
            outage: Outage::default(),
            sink: &sink,
        };
        tokio::select! {
            _ = followers => {}
            Err(Unwanted) = delivery.run(inbox) => {}
            () = sink.closed() => {}
        }
    }
}

// === impl Delivery ===

impl Delivery<'_> {
    /// Ends when the receiver of the events is dropped.
    async fn run(mut self, mut inbox: Receiver<(Kind, Report)>) -> Result<Infallible, Unwanted> {
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
                () = patience => {
                    warn!(
                        "the addresses of the cluster's other nodes are not there yet; Services \
                         are served without knowing them, also where they name such an address"
                    );
                    self.open().await?;
                }
            }
        }
    }

    async fn take(&mut self, kind: Kind, report: Report) -> Result<(), Unwanted> {
        match report {
            Report::Step(step) => self.step(kind, step).await,
            Report::Failed { cause, refused } if kind == Kind::OtherNode => {
                if self.gate.failed(&cause) {
                    warn!(
                        "cannot follow the cluster's other Nodes: {cause}; without them, a Service \
                         with another node's address in spec.externalIPs takes that node away \
                         from this one. It is tried again now and then; if it is not to be, say \
                         followNodes: never"
                    );
                }
                if refused { self.open().await } else { Ok(()) }
            }
            Report::Failed { cause, .. } => {
                if self.outage.failed(kind, &cause, Instant::now()) {
                    warn!(
                        kind = kind.name(),
                        "cannot follow the API server: {cause}; \
                         traffic goes on as it is, and it is tried again"
                    );
                }
                Ok(())
            }
            Report::Works if kind == Kind::OtherNode => {
                if self.gate.works() {
                    info!("the cluster's other Nodes are followed");
                }
                Ok(())
            }
            Report::Works => {
                if let Some(duration) = self.outage.works(kind, Instant::now()) {
                    info!("the API server is followed again, after {} s", duration.as_secs());
                }
                Ok(())
            }
        }
    }

    async fn step(&mut self, kind: Kind, step: Step) -> Result<(), Unwanted> {
        let are_others_listed = kind == Kind::OtherNode && step == Step::ListEnds;
        for event in self.inventory.take(kind, step, SystemTime::now()) {
            let (event, has_closed) = self.gate.pass(event, Instant::now());
            if has_closed {
                self.others_wanted.notify_one();
            }
            if let Some(event) = event {
                self.send(event).await?;
            }
        }
        if are_others_listed { self.open().await } else { Ok(()) }
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
