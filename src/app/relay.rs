//! The relay of mode userspace: starts it, tells it what to listen on, and the event loop what it
//! listens on.
//!
//! It outlives the time in which the node serves in that mode, so that its connections do.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::Mutex;
use plan::event::Event;
use plan::model::ServiceName;
use plan::userspace::{ProxyPortId, ProxyPortState, RelayPort};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};
use tokio::sync::mpsc;
use tracing::error;

use crate::events::{EventRecorder, NewEvent, Regarding};
use config::Configuration;
use forwarding::relay::{self, Meters, NoProxyPort, Relay, Reports, Settings};
use reconcile::Input;
use reconcile::observer::{Observer, Report, Round, RoundKind};
use serve::metrics::Metrics;
use serve::metrics::own::{RELAY_CONNECTIONS, RELAY_UDP_CLIENTS};

/// A relay that runs. Copies share it; it ends with the last one.
#[derive(Debug, Clone)]
pub(super) struct RunningRelay {
    relay: Arc<Relay>,
    reports: Arc<Reports>,
    metrics: RelayMetrics,
    /// Services that it listens for.
    services: Arc<Mutex<BTreeSet<ServiceName>>>,
    /// Ports that it listens on, as it said last.
    open: Arc<Mutex<BTreeMap<ProxyPortId, SocketAddr>>>,
}

/// The event loop's observer, which tells the relay what to listen on.
#[derive(Debug)]
pub(super) struct RelayObserver {
    relay: RunningRelay,
    /// Services of the loop before, which this one has not planned yet. Portals still lead to their ports.
    unseen: BTreeSet<ServiceName>,
    /// Ports that were planned and are not written yet.
    planned: BTreeMap<ServiceName, Vec<RelayPort>>,
}

/// Metrics of the relay.
#[derive(Debug, Clone)]
pub(super) struct RelayMetrics {
    connections: IntGauge,
    connections_total: IntCounterVec,
    endpoint_failures: IntCounter,
    udp_clients: IntGauge,
    udp_evicted: IntCounter,
    udp_dropped: IntCounter,
    listen_failures: IntGauge,
}

impl RunningRelay {
    /// Starts a relay that listens on nothing yet.
    pub(super) fn start(configuration: &Configuration) -> anyhow::Result<Self> {
        let metrics = RelayMetrics::new()?;
        let started = relay::start(&settings(configuration), metrics.meters());
        let (relay, reports) = started.context("start the relay of mode userspace")?;
        Ok(Self {
            relay: Arc::new(relay),
            reports: Arc::new(reports),
            metrics,
            services: Arc::default(),
            open: Arc::default(),
        })
    }

    /// Takes on another configuration.
    pub(super) fn reconfigure(&self, configuration: &Configuration) {
        self.relay.reconfigure(&settings(configuration));
    }

    /// Returns the observer of another event loop. Ports of the one before stay until the new one has
    /// planned everything.
    pub(super) fn observer(&self) -> RelayObserver {
        let unseen = self.services.lock().clone();
        RelayObserver { relay: self.clone(), unseen, planned: BTreeMap::new() }
    }

    /// Returns the events that tell another event loop of the ports that are listened on. They are to
    /// come before the loop takes the kernel over, so that portals which lead there stay.
    pub(super) fn known_ports(&self) -> Vec<Event> {
        let listening = |(id, socket): (&ProxyPortId, &SocketAddr)| {
            Event::ProxyPort(Box::new(id.clone()), ProxyPortState::Listening(*socket))
        };
        self.open.lock().iter().map(listening).collect()
    }

    /// Adds its metrics.
    pub(super) fn measured_by(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        self.metrics.add_to(metrics)
    }

    /// Returns the numbers of open TCP connections and of UDP clients.
    pub(super) fn relayed(&self) -> [u64; 2] {
        let RelayMetrics { connections, udp_clients, .. } = &self.metrics;
        [connections, udp_clients].map(|gauge| u64::try_from(gauge.get()).unwrap_or_default())
    }

    /// Stops listening. Connections have time to end. To be called when no rule leads to the relay.
    pub(super) fn stop_listening(&self) {
        self.open.lock().clear();
        let services = mem::take(&mut *self.services.lock());
        self.relay.set(services.into_iter().map(|service| (service, Vec::new())).collect());
    }

    /// Passes on what the relay says to the event loop, for as long as that takes input, and records
    /// an Event for each port that cannot be listened on.
    pub(super) async fn report(self, inputs: mpsc::Sender<Input>, recorder: EventRecorder) {
        loop {
            let reports = tokio::select! {
                biased;
                () = inputs.closed() => return,
                reports = self.reports.next() => reports,
            };
            let Some(reports) = reports else {
                error!(
                    "the relay of mode userspace has ended, which is a bug: new connections fail \
                     until kube-ipvs is restarted; please report the log above"
                );
                return;
            };
            for (id, report) in reports {
                if let relay::Report::Failed(failure) = &report {
                    recorder.record(listen_failure(&id, failure));
                }
                self.note(&id, report.state());
                let event = Event::ProxyPort(Box::new(id), report.state());
                if inputs.send(Input::Change(event)).await.is_err() {
                    return;
                }
            }
        }
    }

    fn note(&self, id: &ProxyPortId, state: ProxyPortState) {
        match state {
            ProxyPortState::Listening(socket) => self.open.lock().insert(id.clone(), socket),
            ProxyPortState::Failed | ProxyPortState::Closed => self.open.lock().remove(id),
        };
    }

    fn set(&self, ports: BTreeMap<ServiceName, Vec<RelayPort>>) {
        let mut services = self.services.lock();
        for (service, ports) in &ports {
            if ports.is_empty() {
                services.remove(service);
            } else {
                services.insert(service.clone());
            }
        }
        self.relay.set(ports);
    }
}

fn settings(configuration: &Configuration) -> Settings {
    Settings {
        ports: configuration.relayed.ports,
        udp_idle: configuration.relayed.udp_idle,
        drain: configuration.pace.drain_deadline,
        ..Settings::default()
    }
}

fn listen_failure(id: &ProxyPortId, failure: &NoProxyPort) -> NewEvent {
    NewEvent::warning(
        Regarding::Service(id.service.clone()),
        "FailedToListenOnProxyPort",
        "Listen",
        format!("Service port {id} is refused: {failure}; it is retried"),
    )
}

impl RelayObserver {
    fn round_ended(&mut self, round: &Round<'_>) {
        // After a retry or a drain check, ports planned meanwhile may still wait.
        if round.kind == RoundKind::Retry {
            return;
        }
        let mut ports = mem::take(&mut self.planned);
        self.unseen.retain(|service| !ports.contains_key(service));
        if round.backlog == 0 {
            let gone = mem::take(&mut self.unseen);
            ports.extend(gone.into_iter().map(|service| (service, Vec::new())));
        }
        if !ports.is_empty() {
            self.relay.set(ports);
        }
    }
}

impl Observer for RelayObserver {
    fn report(&mut self, report: &Report<'_>) {
        match report {
            Report::Planned { plan, .. } => self.planned.extend(plan.relay.iter().cloned()),
            Report::RoundEnded(round) => self.round_ended(round),
            _ => {}
        }
    }
}

impl RelayMetrics {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let counters = |name, help, label| IntCounterVec::new(Opts::new(name, help), &[label]);
        Ok(Self {
            connections: IntGauge::new(
                RELAY_CONNECTIONS,
                "Number of open TCP connections of clients that the relay serves.",
            )?,
            connections_total: counters(
                "kube_ipvs_relay_connections_total",
                "Number of TCP connections to the relay, by result: passed on, failed because no \
                 endpoint could be reached, refused because there are too many, cut because the time \
                 to drain was over.",
                "result",
            )?,
            endpoint_failures: IntCounter::new(
                "kube_ipvs_relay_endpoint_failures_total",
                "Number of times that an endpoint did not take a connection or refused a datagram of \
                 the relay, which then tries another endpoint.",
            )?,
            udp_clients: IntGauge::new(
                RELAY_UDP_CLIENTS,
                "Number of UDP clients that the relay serves.",
            )?,
            udp_evicted: IntCounter::new(
                "kube_ipvs_relay_udp_clients_evicted_total",
                "Number of UDP clients that the relay forgot because a new one came while it served as \
                 many as it may. Their next datagrams may reach another endpoint.",
            )?,
            udp_dropped: IntCounter::new(
                "kube_ipvs_relay_udp_datagrams_dropped_total",
                "Number of datagrams that the relay did not pass on.",
            )?,
            listen_failures: IntGauge::new(
                "kube_ipvs_relay_listen_failures",
                "Number of Service ports for which the relay cannot listen on a port.",
            )?,
        })
    }

    /// Adds all of them.
    pub(super) fn add_to(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        let Self { connections, endpoint_failures, udp_clients, listen_failures, .. } = self;
        metrics.add(connections.clone())?;
        metrics.add(self.connections_total.clone())?;
        metrics.add(endpoint_failures.clone())?;
        metrics.add(udp_clients.clone())?;
        metrics.add(self.udp_evicted.clone())?;
        metrics.add(self.udp_dropped.clone())?;
        metrics.add(listen_failures.clone())
    }

    /// Returns the parts that the relay counts with.
    pub(super) fn meters(&self) -> Meters {
        let connections = |result| self.connections_total.with_label_values(&[result]);
        Meters {
            open: self.connections.clone(),
            passed: connections("passed"),
            failed: connections("failed"),
            refused: connections("refused"),
            cut: connections("cut"),
            endpoint_failures: self.endpoint_failures.clone(),
            udp_clients: self.udp_clients.clone(),
            udp_evicted: self.udp_evicted.clone(),
            udp_lost: self.udp_dropped.clone(),
            listen_failures: self.listen_failures.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use plan::mode::Mode;
    use plan::model::Family;
    use plan::userspace::RelayProtocol;

    use super::*;

    fn mk_relay() -> RunningRelay {
        let metrics = RelayMetrics::new().unwrap();
        let (relay, reports) = relay::start(&Settings::default(), metrics.meters()).unwrap();
        RunningRelay {
            relay: Arc::new(relay),
            reports: Arc::new(reports),
            metrics,
            services: Arc::default(),
            open: Arc::default(),
        }
    }

    fn mk_ports() -> BTreeMap<ServiceName, Vec<RelayPort>> {
        let port = RelayPort {
            name: "http".into(),
            protocol: RelayProtocol::Tcp,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            endpoints: ["192.0.2.1:80".parse().unwrap()].into(),
            local_endpoints: None,
            affinity_seconds: None,
            drain_seconds: None,
        };
        [(ServiceName::new("ns", "web"), vec![port])].into()
    }

    async fn next(inputs: &mut mpsc::Receiver<Input>) -> ProxyPortState {
        let input = tokio::time::timeout(Duration::from_secs(10), inputs.recv()).await.unwrap();
        match input.unwrap() {
            Input::Change(Event::ProxyPort(id, state)) => {
                assert_eq!(id.service, ServiceName::new("ns", "web"));
                state
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_loop_hears_of_ports_and_the_relay_outlives_it() {
        let relay = mk_relay();
        let (recorder, _queue) = EventRecorder::new();
        let (inputs, mut outbox) = mpsc::channel(8);
        let reporting = tokio::spawn(relay.clone().report(inputs, recorder.clone()));
        relay.set(mk_ports());
        assert!(matches!(next(&mut outbox).await, ProxyPortState::Listening(_)));
        // Another loop hears of it before it plans anything.
        assert!(matches!(
            &relay.known_ports()[..],
            [Event::ProxyPort(_, ProxyPortState::Listening(_))]
        ));
        drop(outbox);
        tokio::time::timeout(Duration::from_secs(10), reporting).await.unwrap().unwrap();

        // In another mode nothing reports. Later on, the same relay goes on.
        relay.stop_listening();
        assert_eq!(relay.known_ports(), []);
        let (inputs, mut outbox) = mpsc::channel(8);
        tokio::spawn(relay.clone().report(inputs, recorder));
        assert_eq!(next(&mut outbox).await, ProxyPortState::Closed);
        relay.set(mk_ports());
        assert!(matches!(next(&mut outbox).await, ProxyPortState::Listening(_)));
        assert_eq!(relay.relay.ports_in_use(), 1);
    }

    #[tokio::test]
    async fn ports_stay_until_another_loop_has_planned_all_services() {
        let relay = mk_relay();
        let (inputs, mut outbox) = mpsc::channel(8);
        let (recorder, _queue) = EventRecorder::new();
        relay.set(mk_ports());
        tokio::spawn(relay.clone().report(inputs, recorder));
        assert!(matches!(next(&mut outbox).await, ProxyPortState::Listening(_)));
        let mut observer = relay.observer();
        let mut end_round = |backlog| {
            let retry_queue = reconcile::retry_queue::RetryQueue::default();
            observer.round_ended(&Round {
                families: &[],
                kind: RoundKind::Comparison,
                took: Duration::ZERO,
                triggers: &[],
                backlog,
                waiting: None,
                oldest: Duration::ZERO,
                pending: &retry_queue,
            });
        };
        end_round(1);
        assert_eq!((relay.relay.ports_in_use(), relay.known_ports().len()), (1, 1));
        // It has planned everything, and this Service was not there.
        end_round(0);
        assert_eq!(next(&mut outbox).await, ProxyPortState::Closed);
        assert_eq!((relay.relay.ports_in_use(), relay.known_ports()), (0, vec![]));
    }

    #[test]
    fn its_metrics_have_names_of_their_own_however_often_they_are_added() {
        let relay = RelayMetrics::new().unwrap();
        drop(relay.meters());
        for _ in 0..2 {
            let metrics = Metrics::new(Mode::Userspace, &Family::BOTH).unwrap();
            relay.add_to(&metrics).unwrap();
            assert!(metrics.text().unwrap().contains("kube_ipvs_relay_connections_total"));
        }
    }
}
