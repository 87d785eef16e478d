//! The cost of a cluster's nodes to its API server: `cargo xtask bench --what herd [-- FOLLOWERS]`, and with `--json`
//! after it, to one that has no Protobuf.
//!
//! Many real sources in one process follow the test API server over TLS, each through a client of its
//! own; every tenth has a planner and a kernel in memory behind it, which are compared at the end with what should
//! be there. Counted are requests, bytes (TLS included), and the processor time of the server's thread.
//! The server is the tests': its processor time is good for comparing rows, not for sizing a real one,
//! which encodes a change once for all who watch.
//!
//! kube-proxy's figures are computed, not measured: bytes from the same object as Protobuf
//! (`apiserver::protobuf`), requests from client-go's source (`PROXY_KINDS`).

mod decoding;
mod follower;
mod objects;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use apiserver::{Credentials, Options, Resource, Server, Usage, Verb, protobuf};
use http::header::{ACCEPT, ACCEPT_ENCODING};
use prometheus::core::Collector as _;
use serde_json::{Value, json};
use source::kubernetes::{ClientOptions, clients};

use follower::{Follower, Heard};

/// Number of followers, unless the first argument says otherwise.
const FOLLOWERS: usize = 200;

/// Argument by which the server has JSON only.
const JSON: &str = "--json";

/// Number of nodes of the cluster that is projected to.
const CLUSTER: u32 = 5_000;

/// Number of Services, each with one slice.
const SERVICES: u32 = 200;

/// Endpoints of each slice but one, and of that one.
const ENDPOINTS: u32 = 10;
const MOST_ENDPOINTS: u32 = 100;

/// Number of changes of a slice that are averaged over.
const CHANGES: u32 = 20;

/// Time for which the server is away when it restarts.
const AWAY: Duration = Duration::from_secs(5);

/// Kinds that kube-proxy 1.36 watches: Services, EndpointSlices, its Node, ServiceCIDRs.
const PROXY_KINDS: usize = 4;

/// Longer than anything here takes that goes well.
const PATIENCE: Duration = Duration::from_secs(180);

/// Time between two lists of the other nodes, on average (source/src/kubernetes/node_poller.rs).
const SURVEY_PERIOD: f64 = 900.0;

/// Followers, and the server that they follow.
struct Herd {
    server: Server,
    followers: Vec<Follower>,
    heard: Arc<Heard>,
    /// The last follower's.
    client: Option<kube::Client>,
}

/// Use of the server, and number of requests, between two moments.
struct Spent {
    usage: Usage,
    lists: usize,
    watches: usize,
    took: Duration,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.context("no runtime").and_then(|runtime| runtime.block_on(measure()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("herd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure() -> Result<()> {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let number = number.unwrap_or(FOLLOWERS);
    let has_protobuf = !std::env::args().any(|argument| argument == JSON);
    let mut herd = Herd::new(has_protobuf)?;
    println!(
        "{number} followers, {SERVICES} Services of {ENDPOINTS} endpoints (one of {MOST_ENDPOINTS})\n\n\
         of each follower           lists  watches  connections  bytes received  server ms  seconds"
    );
    let started = herd.spend(async |herd| herd.start(number).await).await?;
    started.print("start", number, 1);
    for n_endpoints in [ENDPOINTS, MOST_ENDPOINTS] {
        herd.change(n_endpoints).await?;
    }
    herd.restart("restart", false).await?;
    herd.restart("restart, nothing remembered", true).await?;
    herd.survey().await?;
    herd.end().await
}

impl Herd {
    fn new(protobuf: bool) -> Result<Self> {
        let options =
            Options { anonymous: true, managed_fields: true, protobuf, ..Options::default() };
        let server = Server::start(options)?;
        for number in 0..SERVICES {
            server.apply(objects::service(number))?;
            server.apply(objects::slice(number, n_endpoints(number), 0))?;
        }
        for node in 0..CLUSTER {
            server.apply(objects::node(node))?;
        }
        Ok(Self { server, followers: Vec::new(), heard: Arc::default(), client: None })
    }

    /// Measures the server until this is done.
    async fn spend(&mut self, work: impl AsyncFnOnce(&mut Self) -> Result<()>) -> Result<Spent> {
        self.server.clear_requests();
        let (before, begun) = (self.server.usage()?, Instant::now());
        work(self).await?;
        let (after, took) = (self.server.usage()?, begun.elapsed());
        let requests = self.server.requests();
        let count = |verb| requests.iter().filter(|request| request.verb == verb).count();
        let usage = Usage {
            connections: after.connections - before.connections,
            received: after.received - before.received,
            sent: after.sent - before.sent,
            processor: after.processor.saturating_sub(before.processor),
        };
        Ok(Spent { usage, lists: count(Verb::List), watches: count(Verb::Watch), took })
    }

    async fn start(&mut self, number: usize) -> Result<()> {
        let kubeconfig = tempfile::NamedTempFile::new()?;
        std::fs::write(kubeconfig.path(), self.server.kubeconfig(&Credentials::Anonymous))?;
        for follower in 0..number {
            let options = ClientOptions {
                kubeconfig: Some(kubeconfig.path().to_owned()),
                master: None,
                qps: 5.0,
                burst: 10,
                user_agent: "kube-ipvs/herd".to_owned(),
                only_json: false,
            };
            let clients = clients(&options).await?;
            self.client = Some(clients.objects.clone());
            let (name, heard) = (format!("follower-{follower}"), Arc::clone(&self.heard));
            let plans = follower.is_multiple_of(10);
            self.followers.push(Follower::start(&clients, &name, plans, heard));
        }
        let complete = || self.heard.complete.load(Ordering::Relaxed) == number;
        until("all are complete", complete).await
    }

    /// Changes one endpoint of a slice with so many, several times.
    async fn change(&mut self, n_endpoints: u32) -> Result<()> {
        let number = self.followers.len();
        let service = if n_endpoints == MOST_ENDPOINTS { 0 } else { 1 };
        let spent = self
            .spend(async |herd| {
                for change in 0..CHANGES {
                    let heard = herd.heard.slices.load(Ordering::Relaxed) + number as u64;
                    herd.server.apply(objects::slice(service, n_endpoints, (change + 1) % 2))?;
                    let all = || herd.heard.slices.load(Ordering::Relaxed) >= heard;
                    until("all have heard of the change", all).await?;
                }
                Ok(())
            })
            .await?;
        let title = format!("a change, {n_endpoints} endpoints");
        let each = spent.print(&title, number, CHANGES);
        let slices = self.server.list(Resource::EndpointSlices);
        let name = format!("service-{service}-x7k2p");
        let slice =
            slices.iter().find(|slice| slice.pointer("/metadata/name") == Some(&json!(name)));
        let slice = slice.context("the slice is gone")?;
        let json = json!({"type": "MODIFIED", "object": slice}).to_string().len() + 1;
        let protobuf = protobuf::event("MODIFIED", slice).context("a slice has Protobuf")?.len();
        println!(
            "    the event as JSON {json}, as Protobuf {protobuf}: {:.2} times; to {CLUSTER} nodes {:.1} MB",
            json as f64 / protobuf as f64,
            each * f64::from(CLUSTER) / 1e6,
        );
        println!("    bytes sent for each that kube-proxy gets: {:.2}", each / protobuf as f64);
        decoding::compare(slice)?;
        Ok(())
    }

    /// The server goes away for a while, and comes back with or without what it remembered of changes.
    async fn restart(&mut self, title: &str, forgets: bool) -> Result<()> {
        let number = self.followers.len();
        self.server.close();
        tokio::time::sleep(AWAY).await;
        if forgets {
            // A change that no follower has heard of, so that their versions are too old.
            self.server.apply(objects::slice(2, ENDPOINTS, 1))?;
            self.server.compact();
        }
        let spent = self
            .spend(async |herd| {
                herd.server.reopen()?;
                let follow = || {
                    herd.server.watches(Resource::Services) >= number
                        && herd.server.watches(Resource::EndpointSlices) >= number
                        && herd.server.watches(Resource::Nodes) >= number
                        && herd.followers.iter().all(|follower| is_following(&follower.metrics))
                };
                until("all follow again", follow).await
            })
            .await?;
        spent.print(title, number, 1);
        // A watch of each kind; where it is refused, a list as a stream.
        let of_proxy = PROXY_KINDS * if forgets { 2 } else { 1 };
        let ours = (spent.lists + spent.watches) as f64 / number as f64;
        println!(
            "    requests {ours:.2}, kube-proxy's {of_proxy} (computed); of {CLUSTER} nodes {:.0}",
            ours * f64::from(CLUSTER)
        );
        Ok(())
    }

    /// The first Service with an external address, in a cluster of many nodes.
    async fn survey(&mut self) -> Result<()> {
        let number = self.followers.len();
        let whole: usize =
            self.server.list(Resource::Nodes).iter().map(|node| node.to_string().len()).sum();
        let mut service = objects::service(SERVICES);
        set(&mut service, "/spec/externalIPs", json!(["198.51.100.1"]));
        let spent = self
            .spend(async |herd| {
                herd.server.apply(service)?;
                let expected = u64::try_from(number)? * u64::from(CLUSTER);
                let all = || herd.heard.others.load(Ordering::Relaxed) >= expected;
                until("all know the other nodes", all).await
            })
            .await?;
        let each = spent.print(&format!("{CLUSTER} other nodes"), number, 1);
        let by_all = |bytes: f64| bytes * f64::from(CLUSTER) / SURVEY_PERIOD / 1e6;
        let table = self.table().await?;
        println!(
            "    MB a second by all of {CLUSTER} nodes every quarter of an hour: {:.2}; without gzip {:.1} \
             ({table} bytes); whole Nodes {:.0} ({whole} bytes)",
            by_all(each),
            by_all(table as f64),
            by_all(whole as f64),
        );
        Ok(())
    }

    /// Bytes of a Table of all Nodes without compression.
    async fn table(&self) -> Result<usize> {
        let request = http::Request::get("/api/v1/nodes?resourceVersion=0&includeObject=None")
            .header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
            .header(ACCEPT_ENCODING, "identity")
            .body(Vec::new())?;
        let client = self.client.as_ref().context("nobody has been started")?;
        Ok(client.request_text(request).await?.len())
    }

    /// Compares what is in the kernels in memory.
    async fn end(self) -> Result<()> {
        ensure!(self.server.delete(Resource::Services, "shop", &format!("service-{SERVICES}")));
        let mut expected = HashMap::new();
        for service in 0..SERVICES {
            *expected.entry(n_endpoints(service)).or_default() += 1;
        }
        let number = self.followers.len();
        for follower in self.followers {
            follower.end(&expected).await?;
        }
        println!("\n{} kernels in memory have what they should", number.div_ceil(10));
        Ok(())
    }
}

impl Spent {
    /// Prints what each follower needed for each of so many events. Returns the bytes.
    fn print(&self, title: &str, followers: usize, times: u32) -> f64 {
        let each = |total: f64| total / followers as f64 / f64::from(times);
        let bytes = each(self.usage.sent as f64);
        println!(
            "{title:<27}{:>5.2}  {:>7.2}  {:>11.2}  {bytes:>15.0}  {:>9.3}  {:>7.2}",
            each(self.lists as f64),
            each(self.watches as f64),
            each(self.usage.connections as f64),
            each(self.usage.processor.as_secs_f64() * 1e3),
            self.took.as_secs_f64() / f64::from(times),
        );
        bytes
    }
}

fn n_endpoints(service: u32) -> u32 {
    if service == 0 { MOST_ENDPOINTS } else { ENDPOINTS }
}

fn is_following(metrics: &source::kubernetes::ClientMetrics) -> bool {
    let families = metrics.collect();
    let following = families.iter().filter(|family| family.name() == "kube_ipvs_api_following");
    following
        .flat_map(|family| family.get_metric())
        .all(|metric| metric.get_gauge().get_value() > 0.0)
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    let Some((parent, field)) = pointer.rsplit_once('/') else { return };
    if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        fields.insert(field.to_owned(), value);
    }
}

async fn until(what: &str, wanted: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !wanted() {
        ensure!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
