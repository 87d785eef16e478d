//! The Kubernetes API as the source.
//!
//! ```text
//!   Services ──────┐ steps            events
//!   EndpointSlices ┼───────▶ inventory ─────▶ SourceEvent channel ──▶ the reconciler
//!   this Node ─────┘
//! ```
//!
//! - `client`: who the API server is, and who we are;
//! - `transport`: the connections to it;
//! - `follow`: listing and watching a kind of object, for ever;
//! - `decode`, `body`: what it sends;
//! - `inventory`: what has been delivered, and what follows from what is seen;
//! - `complaints`: what has been said about objects that are not as they should be;
//! - `outage`, `pause`, `failure`: when it is away.
//!
//! No object is kept: each is converted as it comes, and dropped. Of every Service and slice that
//! is in force the name is kept, so that a new list shows which are gone; of every object that was
//! complained about, that it was.

mod body;
mod client;
mod complaints;
mod decode;
mod failure;
mod follow;
mod inventory;
mod kind;
mod outage;
mod pause;
mod transport;

pub use client::{ClientError, ClientOptions, client};

use std::time::{Instant, SystemTime};

use kube::Client;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::{info, warn};

use super::{Options, SourceEvent};
use follow::{Follower, Report};
use inventory::Inventory;
use kind::Kind;
use outage::Outage;

/// What waits between those who watch and the inventory. More than that, and they wait.
const QUEUE: usize = 64;

/// A cluster, not yet listed.
pub struct Kubernetes {
    client: Client,
    options: Options,
}

// === impl Kubernetes ===

impl Kubernetes {
    /// Nothing is asked for before it runs.
    #[must_use]
    pub fn new(client: Client, options: Options) -> Self {
        Self { client, options }
    }

    /// Delivers what there is, and every change, until the receiver is dropped. An API server that
    /// is away is tried again for ever, every ten seconds at the latest; nothing is removed because
    /// of it. Needs a runtime with time and I/O.
    ///
    /// After each list everything is delivered again, changed or not: objects are not kept to be
    /// compared. Whoever receives it sees what is equal to what it has.
    pub async fn run(self, sink: Sender<SourceEvent>) {
        let (reports, inbox) = channel(QUEUE);
        let follow = |kind| {
            let client = self.client.clone();
            Follower::new(client, kind, self.options.node_name.to_string(), reports.clone()).run()
        };
        let followers = async {
            let [services, slices, node] = Kind::ALL.map(follow);
            tokio::join!(services, slices, node)
        };
        let inventory = Inventory::new(&self.options, SystemTime::now());
        tokio::select! {
            _ = followers => {}
            () = deliver(inbox, inventory, &sink) => {}
            () = sink.closed() => {}
        }
    }
}

/// Ends when the receiver of the events is dropped.
async fn deliver(
    mut inbox: Receiver<(Kind, Report)>,
    mut inventory: Inventory,
    sink: &Sender<SourceEvent>,
) {
    let mut outage = Outage::default();
    while let Some((kind, report)) = inbox.recv().await {
        let step = match report {
            Report::Step(step) => step,
            Report::Failed(cause) => {
                if outage.failed(kind, &cause, Instant::now()) {
                    warn!(
                        kind = kind.name(),
                        "cannot follow the API server: {cause}; \
                         traffic goes on as it is, and it is tried again"
                    );
                }
                continue;
            }
            Report::Works => {
                if let Some(duration) = outage.works(kind, Instant::now()) {
                    info!("the API server is followed again, after {} s", duration.as_secs());
                }
                continue;
            }
        };
        for event in inventory.take(kind, step, SystemTime::now()) {
            if sink.send(event).await.is_err() {
                return;
            }
        }
    }
}
