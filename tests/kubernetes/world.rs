//! A server, the source that follows it, and what the source has said.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use apiserver::{Credentials, LoggedRequest, Options, Release, Resource, Server, Verb};
use ipnet::IpNet;
use plan::event::Event;
use prometheus::core::Collector as _;
use prometheus::proto::MetricType;
use serde_json::{Value, json};
use source::SourceEvent;
use source::kubernetes::{ClientMetrics, ClientOptions, Clients, Kubernetes, clients};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything takes that goes well, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(45);

/// Runs a test as against a server of each release, all at the same time: what takes time is waiting.
pub(crate) fn on_each_release(test: impl AsyncFn(Release) + Sync) {
    on_releases(&Release::ALL, test);
}

/// Runs a test as against a server of each of these releases.
pub(crate) fn on_releases(releases: &[Release], test: impl AsyncFn(Release) + Sync) {
    let run = |release| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(release));
    };
    std::thread::scope(|scope| {
        for release in releases.iter().copied() {
            let thread = std::thread::Builder::new().name(format!("{release:?}"));
            thread
                .spawn_scoped(scope, {
                    let run = &run;
                    move || run(release)
                })
                .unwrap();
        }
    });
}

/// Options of a server of this release.
pub(crate) fn as_of(release: Release) -> Options {
    Options { release, ..Options::default() }
}

pub(crate) const NODE: &str = "node-1";
pub(crate) const TOKEN: &str = "good";

/// The header `Accept` of lists and of watches.
pub(crate) const LIST: &str = "application/vnd.kubernetes.protobuf, application/json";
pub(crate) const WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch, application/json";

/// The header `Accept` of questions, and of all requests once a server has refused Protobuf.
pub(crate) const JSON: &str = "application/json;drop=metadata.managedFields, application/json";

/// Events that the source has sent so far.
#[derive(Default)]
pub(crate) struct Said {
    /// Objects in force, as "Service default/a", and the number of times that each was applied.
    pub(crate) applied: BTreeMap<String, usize>,
    /// The other nodes that are there, with their addresses.
    pub(crate) others: BTreeMap<String, Vec<IpAddr>>,
    /// The networks of their pods, as far as they are known.
    pub(crate) other_pods: BTreeMap<String, Vec<IpNet>>,
    /// The names of Services and other nodes that were applied, in order.
    pub(crate) order: Vec<String>,
    /// Objects that were removed, in order.
    pub(crate) removed: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) still_wrong: Vec<String>,
    pub(crate) leaving: Vec<bool>,
    pub(crate) triggered: usize,
    pub(crate) complete: usize,
    /// Addresses of the API server.
    pub(crate) api_server: Vec<SocketAddr>,
    /// The last Service that was applied: its ports.
    pub(crate) ports: Vec<u16>,
}

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) said: Said,
    /// Options of the source.
    pub(crate) options: source::Options,
    /// True if its clients ask for JSON alone.
    pub(crate) only_json: bool,
    /// Metrics of the last client.
    metrics: Option<ClientMetrics>,
    directory: tempfile::TempDir,
    source: Option<(Receiver<SourceEvent>, JoinHandle<()>)>,
}

impl World {
    /// A server that no source follows yet.
    pub(crate) fn new(mut options: Options) -> Self {
        options.tokens = vec![TOKEN.to_owned()];
        let server = Server::start(options).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = source::Options::new(NODE);
        let (said, only_json) = (Said::default(), false);
        Self { server, said, options, only_json, metrics: None, directory, source: None }
    }

    /// Follows the server with a token.
    pub(crate) async fn follow(&mut self) {
        self.follow_with(&Credentials::Token(TOKEN.to_owned())).await;
    }

    pub(crate) async fn follow_with(&mut self, credentials: &Credentials) {
        let kubeconfig = self.server.kubeconfig(credentials);
        self.follow_by(&kubeconfig).await;
    }

    /// Follows the server that this kubeconfig names.
    pub(crate) async fn follow_by(&mut self, kubeconfig: &str) {
        let kubeconfig = self.file("kubeconfig", kubeconfig);
        let options = ClientOptions {
            kubeconfig: Some(kubeconfig),
            master: None,
            qps: -1.0,
            burst: 0,
            user_agent: "kube-ipvs/test".to_owned(),
            only_json: self.only_json,
        };
        let clients = clients(&options).await.unwrap();
        self.metrics = Some(clients.metrics.clone());
        let (sink, events) = channel(16);
        let source = tokio::spawn(Kubernetes::new(&clients, self.options.clone()).run(sink));
        self.source = Some((events, source));
    }

    /// The page for people about what is followed.
    pub(crate) fn following_page(&self) -> String {
        self.metrics.as_ref().unwrap().page()
    }

    /// Value of a metric with these label values, in the order of the labels' names.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let families = self.metrics.as_ref().unwrap().collect();
        let family = families.iter().find(|family| family.name() == name)?;
        let has_labels = |metric: &&prometheus::proto::Metric| {
            metric.get_label().iter().map(|label| label.value()).eq(labels.iter().copied())
        };
        let metric = family.get_metric().iter().find(has_labels)?;
        Some(match family.get_field_type() {
            MetricType::COUNTER => metric.get_counter().get_value(),
            MetricType::GAUGE => metric.get_gauge().get_value(),
            _ => f64::from(u32::try_from(metric.get_histogram().get_sample_count()).unwrap()),
        })
    }

    /// Listens until the metrics say whether a kind of object is followed.
    pub(crate) async fn until_following(&mut self, kind: &str, is: bool) {
        let expected = Some(f64::from(u8::from(is)));
        let waiting = Instant::now();
        while self.metric("kube_ipvs_api_following", &[kind]) != expected {
            assert!(waiting.elapsed() < PATIENCE, "{kind} followed: not {is}");
            self.listen(Duration::from_millis(20)).await;
        }
    }

    /// Drops the receiver of events. The source has ended when this returns.
    pub(crate) async fn stop(&mut self) {
        let (events, source) = self.source.take().unwrap();
        drop(events);
        timeout(PATIENCE, source).await.expect("the source does not end").unwrap();
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Listens until something is so.
    pub(crate) async fn until(&mut self, what: &str, wanted: impl Fn(&Said, &Server) -> bool) {
        let (events, _) = self.source.as_mut().unwrap();
        let heard = timeout(PATIENCE, async {
            while !wanted(&self.said, &self.server) {
                // What the server counts changes without a word from the source.
                if let Ok(event) = timeout(Duration::from_millis(20), events.recv()).await {
                    self.said.hear(event.expect("the source has ended"));
                }
            }
        });
        let Err(_) = heard.await else { return };
        let said = &self.said;
        panic!(
            "not within {PATIENCE:?}: {what}; in force {:?}, removed {:?}, warnings {:?}, {} \
             requests, the last {:?}",
            said.applied.keys().take(20).collect::<Vec<_>>(),
            said.removed.iter().take(20).collect::<Vec<_>>(),
            said.warnings,
            self.server.requests().len(),
            self.server.requests().last(),
        );
    }

    pub(crate) async fn until_complete(&mut self) {
        self.until("everything is listed", |said, _| said.complete > 0).await;
    }

    /// Listens until this is in force.
    pub(crate) async fn until_applied(&mut self, name: &str) {
        self.until(name, |said, _| said.applied.contains_key(name)).await;
    }

    /// Lets this time pass here, but not on the server.
    pub(crate) async fn pass(&self, time: Duration) {
        tokio::time::pause();
        tokio::time::advance(time).await;
        tokio::time::resume();
    }

    /// Lets time pass here in steps, with time to react after each, until something is so.
    pub(crate) async fn pass_until(
        &mut self,
        step: Duration,
        what: &str,
        wanted: impl Fn(&Said, &Server) -> bool,
    ) {
        for _ in 0..40 {
            self.listen(Duration::from_millis(100)).await;
            if wanted(&self.said, &self.server) {
                return;
            }
            self.pass(step).await;
        }
        panic!("not within 40 times {step:?}: {what}; requests {:?}", self.server.requests());
    }

    /// Listens for this time.
    pub(crate) async fn listen(&mut self, time: Duration) {
        let (events, _) = self.source.as_mut().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < time {
            if let Ok(event) = timeout(Duration::from_millis(20), events.recv()).await {
                self.said.hear(event.expect("the source has ended"));
            }
        }
    }

    /// Listens until everything that has happened so far to Services has been heard.
    pub(crate) async fn catch_up(&mut self) {
        static MARKS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let mark = MARKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.server.apply(service(&format!("mark-{mark}"))).unwrap();
        self.until_applied(&format!("Service default/mark-{mark}")).await;
    }

    /// Deletes a Service.
    pub(crate) fn delete(&self, name: &str) {
        assert!(self.server.delete(Resource::Services, "default", name), "{name}");
    }

    /// The requests for Services.
    pub(crate) fn requests(&self, verb: Verb) -> Vec<LoggedRequest> {
        let mut requests = self.server.requests();
        requests
            .retain(|request| request.resource == Some(Resource::Services) && request.verb == verb);
        requests
    }
}

impl Said {
    fn hear(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Change(Event::ServiceApplied(service)) => {
                self.order.push(service.name.to_string());
                self.ports = service.ports.iter().map(|port| port.port.get()).collect();
                *self.applied.entry(format!("Service {}", service.name)).or_default() += 1;
            }
            SourceEvent::Change(Event::SliceApplied(slice)) => {
                *self.applied.entry(format!("EndpointSlice {}", slice.name)).or_default() += 1;
            }
            SourceEvent::Change(Event::NodeApplied(_)) => {
                *self.applied.entry("Node".to_owned()).or_default() += 1;
            }
            SourceEvent::Change(Event::ServiceRemoved(name)) => {
                self.remove(format!("Service {name}"));
            }
            SourceEvent::Change(Event::SliceRemoved(name)) => {
                self.remove(format!("EndpointSlice {name}"));
            }
            SourceEvent::Change(Event::OtherNodeApplied(name, node)) => {
                *self.applied.entry(format!("other node {name}")).or_default() += 1;
                self.order.push(name.to_string());
                self.others.insert(name.to_string(), node.addresses);
                self.other_pods.insert(name.to_string(), node.pod_cidrs);
            }
            SourceEvent::Change(Event::OtherNodeRemoved(name)) => {
                self.remove(format!("other node {name}"));
                self.others.remove(&*name);
            }
            SourceEvent::Change(Event::ApiServerAddresses(addresses)) => {
                self.api_server = addresses;
            }
            SourceEvent::Change(
                Event::LocalAddresses(_)
                | Event::SchedulerMissing(_)
                | Event::SchedulerLoaded(_)
                | Event::ProxyPort(..)
                | Event::HandDrainBegan(_)
                | Event::HandDrainEnded(_),
            ) => panic!("not a source's to say"),
            SourceEvent::Triggered(..) => self.triggered += 1,
            SourceEvent::NodeLeaving(leaving) => self.leaving.push(leaving),
            SourceEvent::Complete => self.complete += 1,
            SourceEvent::Warning(warning) => self.warnings.push(warning.to_string()),
            SourceEvent::RepeatedWarning(warning) => self.still_wrong.push(warning.to_string()),
        }
    }

    fn remove(&mut self, name: String) {
        assert!(self.applied.remove(&name).is_some(), "{name} was not in force");
        self.removed.push(name);
    }
}

/// Clients of a server, without limits of their rate.
pub(crate) async fn clients_of(server: &Server) -> Clients {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let credentials = Credentials::Token(TOKEN.to_owned());
    std::fs::write(&path, server.kubeconfig(&credentials)).unwrap();
    let options = ClientOptions {
        kubeconfig: Some(path),
        master: None,
        qps: -1.0,
        burst: 0,
        user_agent: "kube-ipvs/test".to_owned(),
        only_json: false,
    };
    clients(&options).await.unwrap()
}

pub(crate) fn service(name: &str) -> Value {
    service_at(name, 80)
}

pub(crate) fn service_at(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "type": "ClusterIP",
            "ports": [{"port": port, "protocol": "TCP"}],
        },
    })
}

pub(crate) fn slice(name: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"kubernetes.io/service-name": "a"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
    })
}

pub(crate) fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    })
}
