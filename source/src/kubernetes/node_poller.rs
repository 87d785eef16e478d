//! The cluster's other nodes, listed now and then.
//!
//! They are not watched: every kubelet reports its Node's status at least every five minutes, and
//! each report would be sent to every node of the cluster, while the addresses hardly ever change.
//!
//! A list is a Table of the server's cache, as `kubectl get nodes` shows it: some 200 bytes for a
//! node, where a Node has 10,000 and more. Of a node it has the first InternalIP and the first
//! ExternalIP. Nodes of two families have two InternalIPs, and some of one family have several;
//! where this node is one of those, all others are listed whole as long as they are few. So are they,
//! once for each new name, where it matters which networks their pods have: these never change.

use std::collections::HashSet;
use std::time::Duration;

use http::HeaderValue;
use http::header::ACCEPT;
use http::uri::InvalidUri;
use kube::api::{ListParams, Request};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use super::answer::Objects;
use super::backoff::Backoff;
use super::decode::{Item, ListReader, Table};
use super::error_text::chain;
use super::failure::Failure;
use super::follow::{FollowReport, not_a_list, without_version};
use super::inventory::WatchStep;
use super::kind::ResourceKind;
use super::measured::{ClientMetrics, ListReason};

/// Least time between two lists, and what is added to it at random: a quarter of an hour on
/// average.
const PERIOD: Duration = Duration::from_secs(720);
const PERIOD_SPREAD: Duration = Duration::from_secs(360);

/// Time over which the nodes of a cluster spread their first lists when the Service that asks for
/// them is created: all of them learn of it at once. At the start of a node nothing is spread.
const FIRST_SPREAD: Duration = Duration::from_secs(3);

/// Time over which they spread their first lists of whole Nodes then: 500 of them get 50 MB a second.
const WHOLE_SPREAD: Duration = Duration::from_secs(60);

/// Time after the start from which on a Service that appears is taken for one that was created.
const START: Duration = Duration::from_secs(60);

/// Number of other nodes up to which whole Nodes are listed. Where nodes have several addresses of a
/// type, each of 500 nodes lists some 6 MB every quarter of an hour: the server sends 3 MB a
/// second.
const MOST_WHOLE: usize = 500;

/// Longest silence while a list is being sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most bytes of a Table, which is read whole: 80,000 nodes.
const LONGEST_TABLE: u64 = 16 << 20;

/// Most bytes of a list of whole Nodes: 256 KiB for each of [`MOST_WHOLE`], of which all are decoded before one
/// is reported.
const LONGEST_WHOLE: u64 = 125 << 20;

/// Once Nodes may not be listed, it is tried again after this time at most, and after the usual
/// pauses before that: one refusal may be of a server that is only starting.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(300);
const FORBIDDEN_ATTEMPTS: u32 = 5;

/// The representation that is asked for: a Table, or a refusal (406).
const TABLE: HeaderValue = HeaderValue::from_static("application/json;as=Table;v=v1;g=meta.k8s.io");

/// Extent to which the other nodes are to be known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// True from the moment on in which their addresses matter.
    pub(super) addresses: bool,
    /// True if this node has several addresses of a type, and so others may have.
    pub(super) all_addresses: bool,
    /// True from the moment on in which the networks of their pods matter.
    pub(super) pod_networks: bool,
}

/// Lists the other nodes.
pub(super) struct NodePoller {
    pub(super) objects: Objects,
    pub(super) node_name: String,
    pub(super) wanted: watch::Receiver<Wanted>,
    pub(super) backoff: Backoff,
    pub(super) reports: Sender<(ResourceKind, FollowReport)>,
    pub(super) metrics: ClientMetrics,
    /// True once the log has the warning that second addresses are not known.
    pub(super) has_warned: bool,
    /// True once there was a list.
    pub(super) has_listed: bool,
    /// Names of those on the last list of whole Nodes.
    pub(super) read_whole: HashSet<String>,
    /// Names of those that had no networks of pods then, for the first time.
    pub(super) without_networks: HashSet<String>,
}

impl Wanted {
    /// True if anything is to be known of them.
    fn anything(self) -> bool {
        self.addresses || self.pod_networks
    }
}

impl NodePoller {
    /// Lists them as soon as they are wanted, then every quarter of an hour, and when more of them
    /// is wanted. Ends when the receiver of the reports is dropped.
    pub(super) async fn run(mut self) {
        let started = Instant::now();
        if self.wanted.wait_for(|wanted| wanted.anything()).await.is_err() {
            return;
        }
        self.metrics.begin(ResourceKind::OtherNode);
        if started.elapsed() > START {
            sleep(FIRST_SPREAD.mul_f64(fastrand::f64())).await;
        }
        let mut networks_at = None;
        loop {
            let reason = if self.has_listed { ListReason::Period } else { ListReason::Start };
            self.metrics.listing(ResourceKind::OtherNode, reason);
            let mut wanted = *self.wanted.borrow_and_update();
            if wanted.pod_networks {
                let at = *networks_at.get_or_insert_with(|| first_whole(started));
                wanted.pod_networks = at <= Instant::now();
            }
            let next = match self.list(wanted).await {
                Ok(()) => self.rest().await,
                Err(failure) => self.failed(&failure).await,
            };
            let Ok(mut next) = next else { return };
            if let Some(at) = networks_at.filter(|_| !wanted.pod_networks) {
                next = next.min(at);
            }
            tokio::select! {
                () = sleep_until(next) => {}
                changed = self.wanted.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Time of the next list after a good one.
    async fn rest(&mut self) -> Result<Instant, Failure> {
        self.backoff.reset();
        self.metrics.following(ResourceKind::OtherNode, true);
        self.report(FollowReport::Works).await?;
        Ok(Instant::now() + PERIOD + PERIOD_SPREAD.mul_f64(fastrand::f64()))
    }

    /// Time of the next attempt after one that failed. Everything else goes on without the other
    /// Nodes.
    async fn failed(&mut self, failure: &Failure) -> Result<Instant, Failure> {
        let (cause, refused) = (failure.cause(), failure.is_forbidden());
        debug!("list of the cluster's other Nodes failed: {cause}");
        self.metrics.following(ResourceKind::OtherNode, false);
        self.report(FollowReport::Failed { cause, refused }).await?;
        let is_refused_for_good = refused && self.backoff.failures() >= FORBIDDEN_ATTEMPTS;
        let next = self.backoff.next(failure, Instant::now());
        if is_refused_for_good {
            return Ok(Instant::now()
                + FORBIDDEN_PAUSE / 2
                + (FORBIDDEN_PAUSE / 2).mul_f64(fastrand::f64()));
        }
        Ok(next)
    }

    /// Lists and reports them.
    async fn list(&mut self, wanted: Wanted) -> Result<(), Failure> {
        let nodes = self.table().await?;
        // One that comes back under its name may have other networks.
        let present: HashSet<&str> = nodes.iter().filter_map(name).collect();
        self.read_whole.retain(|name| present.contains(name.as_str()));
        let is_new = |node: &Item| !name(node).is_some_and(|name| self.read_whole.contains(name));
        let lacks_networks = wanted.pod_networks && nodes.iter().any(is_new);
        if !wanted.all_addresses && !lacks_networks {
            return self.listed(nodes).await;
        }
        if nodes.len() > MOST_WHOLE {
            if wanted.all_addresses && !std::mem::replace(&mut self.has_warned, true) {
                warn!(
                    "only the first InternalIP and the first ExternalIP are known of each of the cluster's {} other \
                     nodes: whole Nodes are listed up to {MOST_WHOLE} nodes. A Service with another \
                     node's second address in spec.externalIPs makes that node unreachable from this one",
                    nodes.len()
                );
            }
            return self.listed(nodes).await;
        }
        self.has_warned = false;
        match self.whole().await {
            Ok(nodes) => {
                // A Node that has just joined has its networks a moment later, and others never have any.
                let was_without = |name: &str| self.without_networks.contains(name);
                let (read, without): (Vec<&Item>, Vec<&Item>) = nodes
                    .iter()
                    .partition(|node| has_networks(node) || name(node).is_some_and(was_without));
                (self.read_whole, self.without_networks) = (names(&read), names(&without));
                self.listed(nodes).await
            }
            Err(failure) => {
                // Better than nothing, but not than all addresses as they were.
                if !self.has_listed {
                    self.listed(nodes).await?;
                }
                Err(failure)
            }
        }
    }

    async fn listed(&mut self, nodes: Vec<Item>) -> Result<(), Failure> {
        self.report(FollowReport::Step(WatchStep::ListBegins)).await?;
        for node in nodes {
            self.report(FollowReport::Step(WatchStep::Listed(node))).await?;
        }
        self.has_listed = true;
        self.report(FollowReport::Step(WatchStep::ListEnds)).await
    }

    /// Every other node, with the first of each type of its addresses.
    async fn table(&self) -> Result<Vec<Item>, Failure> {
        let mut request = self.request()?;
        request.headers_mut().insert(ACCEPT, TABLE);
        // Without this each row would have the Node's whole metadata.
        let uri = format!("{}&includeObject=None", request.uri());
        *request.uri_mut() =
            uri.parse().map_err(|error: InvalidUri| Failure::Garbage(chain(&error)))?;
        let table = Table::decode(&self.fetch(request).await?);
        let table = table.map_err(|error| Failure::garbage("not a Table", &error))?;
        Ok(table.nodes)
    }

    /// Every other node, with all that it says.
    async fn whole(&self) -> Result<Vec<Item>, Failure> {
        let mut body = self.objects.list(self.request()?).await?;
        let encoding = body.encoding(PATIENCE).await?;
        let mut reader = ListReader::new(ResourceKind::OtherNode, encoding);
        let mut nodes = Vec::new();
        while let Some(chunk) = body.chunk(LONGEST_WHOLE, PATIENCE).await? {
            nodes.extend(reader.read(&chunk).map_err(|error| not_a_list(&error))?);
            // Some may have joined since the Table.
            if nodes.len() > 2 * MOST_WHOLE {
                let problem =
                    format!("more than {} Nodes, of which a Table had fewer", 2 * MOST_WHOLE);
                return Err(Failure::Garbage(problem));
            }
        }
        let end = reader.end().map_err(|error| not_a_list(&error))?;
        if end.next.is_some() {
            return Err(Failure::Garbage("a part of a list, where all was asked for".to_owned()));
        }
        if end.resource_version.is_none() {
            return Err(without_version());
        }
        nodes.extend(end.items);
        Ok(nodes)
    }

    /// A request for what the server's cache has, in one piece.
    fn request(&self) -> Result<http::Request<Vec<u8>>, Failure> {
        let parameters = ListParams {
            field_selector: ResourceKind::OtherNode.fields(&self.node_name),
            ..ListParams::default()
        };
        let request = Request::new(ResourceKind::OtherNode.path()).list(&parameters.at("0"));
        request.map_err(|error| Failure::Garbage(chain(&error)))
    }

    async fn fetch(&self, request: http::Request<Vec<u8>>) -> Result<Vec<u8>, Failure> {
        let body = self.objects.table(request).await?.all(LONGEST_TABLE, PATIENCE).await?;
        self.metrics.heard(ResourceKind::OtherNode);
        Ok(body)
    }

    async fn report(&self, report: FollowReport) -> Result<(), Failure> {
        self.reports.send((ResourceKind::OtherNode, report)).await.map_err(|_| Failure::Unwanted)
    }
}

/// Time of the first list of whole Nodes for the networks of their pods: at once at the start of a node. Later,
/// the Service that asks for it was created, and asks all nodes of the cluster.
fn first_whole(started: Instant) -> Instant {
    let now = Instant::now();
    if now - started > START { now + WHOLE_SPREAD.mul_f64(fastrand::f64()) } else { now }
}

fn name(node: &Item) -> Option<&str> {
    let metadata = match node {
        Item::OtherNode(node) => &node.metadata,
        Item::Undecodable(node) => &node.metadata,
        Item::Service(_) | Item::EndpointSlice(_) | Item::Node(_) => return None,
    };
    metadata.name.as_deref()
}

fn names(nodes: &[&Item]) -> HashSet<String> {
    nodes.iter().filter_map(|node| name(node)).map(str::to_owned).collect()
}

/// True if a Node says in which networks its pods are. One that cannot be decoded will not.
fn has_networks(node: &Item) -> bool {
    match node {
        Item::OtherNode(node) => !node.spec.pod_cidrs.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nodes_spread_the_whole_lists_that_one_service_asks_all_of_them_for() {
        let started = Instant::now();
        assert_eq!(first_whole(started), started, "a node's own start is spread by itself");
        advance(2 * START).await;
        let now = Instant::now();
        let delays: Vec<Duration> = (0..100).map(|_| first_whole(started) - now).collect();
        assert!(delays.iter().all(|delay| *delay <= WHOLE_SPREAD), "{delays:?}");
        let late = delays.iter().filter(|delay| **delay > WHOLE_SPREAD / 2).count();
        assert!((10..90).contains(&late), "{delays:?}");
    }
}
