//! The relay of mode userspace: starts it, tells it what to listen on, and the event loop what it
//! listens on.
//!
//! It outlives the time in which the node serves in that mode, so that its connections do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use parking_lot::Mutex;
use plan::event::Event;
use plan::userspace::{ProxyPortId, ProxyPortState, RelayPort};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};
use tokio::sync::mpsc;
use tracing::error;

use crate::events::{EventRecorder, NewEvent, Reason, Regarding};
use config::Configuration;
use forwarding::planned::{PlannedPorts, PortsByService, ServicesWithPorts};
use forwarding::relay::{self, Meters, NoProxyPort, Relay, Reports, Settings};
use reconcile::Input;
use reconcile::observer::{Observer, Report};
use serve::metrics::Metrics;
use serve::metrics::own::{RELAY_CONNECTIONS, RELAY_UDP_CLIENTS};

/// A relay that runs. Copies share it; it ends with the last one.
#[derive(Debug, Clone)]
pub(super) struct RunningRelay {
    relay: Arc<Relay>,
    reports: Arc<Reports>,
    metrics: RelayMetrics,
    /// Services that it listens for.
    services: Arc<ServicesWithPorts>,
    /// Ports that it listens on, as it said last.
    open: Arc<Mutex<BTreeMap<ProxyPortId, SocketAddr>>>,
}

/// The event loop's observer, which tells the relay what to listen on.
#[derive(Debug)]
pub(super) struct RelayObserver {
    relay: RunningRelay,
    /// Portals still lead to the ports of the loop before.
    planned: PlannedPorts<RelayPort>,
}

#[derive(Debug, Clone)]
pub(super) struct RelayMetrics {
    meters: Meters,
    /// Connections by result, of which the meters have each.
    connections_total: IntCounterVec,
}

impl RunningRelay {
    /// Starts a relay that listens on nothing yet.
    pub(super) fn start(configuration: &Configuration) -> anyhow::Result<Self> {
        let metrics = RelayMetrics::new()?;
        let started = relay::start(&settings(configuration), metrics.meters.clone());
        let (relay, reports) = started.context("start the relay of userspace mode")?;
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
        RelayObserver { relay: self.clone(), planned: self.services.planned() }
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
        let Meters { open, udp_clients, .. } = &self.metrics.meters;
        [open, udp_clients].map(|gauge| u64::try_from(gauge.get()).unwrap_or_default())
    }

    /// Stops listening. Connections have time to end. To be called when no rule leads to the relay.
    pub(super) fn stop_listening(&self) {
        self.open.lock().clear();
        self.relay.set(self.services.take_all());
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
                    "the relay of userspace mode has ended; this is a bug: new connections fail \
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

    fn set(&self, ports: PortsByService<RelayPort>) {
        self.services.put(ports, |ports| self.relay.set(ports));
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
        Reason::FailedToListenOnProxyPort,
        "Listen",
        format!("Service port {id} is not served: {failure}; kube-ipvs retries"),
    )
}

impl Observer for RelayObserver {
    fn report(&mut self, report: &Report<'_>) {
        match report {
            Report::Planned { plan, .. } => self.planned.extend(plan.relay.iter().cloned()),
            Report::RoundEnded(round) => self.relay.set(self.planned.written(round)),
            _ => {}
        }
    }
}

impl RelayMetrics {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let connections_total = IntCounterVec::new(
            Opts::new(
                "kube_ipvs_relay_connections_total",
                "Number of TCP connections to the relay, by result: passed on, failed because no \
                 endpoint could be reached, refused because the limit was reached, cut after the \
                 drain deadline.",
            ),
            &["result"],
        )?;
        let connections = |result| connections_total.with_label_values(&[result]);
        let meters = Meters {
            open: IntGauge::new(
                RELAY_CONNECTIONS,
                "Number of open TCP connections of clients that the relay serves.",
            )?,
            passed: connections("passed"),
            failed: connections("failed"),
            refused: connections("refused"),
            cut: connections("cut"),
            endpoint_failures: IntCounter::new(
                "kube_ipvs_relay_endpoint_failures_total",
                "Number of times an endpoint did not accept a connection or a datagram of the \
                 relay, which then tries another endpoint.",
            )?,
            udp_clients: IntGauge::new(
                RELAY_UDP_CLIENTS,
                "Number of UDP clients that the relay serves.",
            )?,
            udp_evicted: IntCounter::new(
                "kube_ipvs_relay_udp_clients_evicted_total",
                "Number of UDP clients that the relay dropped for a new client because its limit \
                 was reached. Their next datagrams may reach another endpoint.",
            )?,
            udp_lost: IntCounter::new(
                "kube_ipvs_relay_udp_datagrams_dropped_total",
                "Number of datagrams that the relay dropped.",
            )?,
            listen_failures: IntGauge::new(
                "kube_ipvs_relay_listen_failures",
                "Number of Service ports for which the relay cannot listen on a proxy port.",
            )?,
        };
        Ok(Self { meters, connections_total })
    }

    pub(super) fn add_to(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        let Meters { open, endpoint_failures, udp_clients, udp_evicted, udp_lost, .. } =
            &self.meters;
        metrics.add(open.clone())?;
        metrics.add(self.connections_total.clone())?;
        metrics.add(endpoint_failures.clone())?;
        metrics.add(udp_clients.clone())?;
        metrics.add(udp_evicted.clone())?;
        metrics.add(udp_lost.clone())?;
        metrics.add(self.meters.listen_failures.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use plan::mode::Mode;
    use plan::model::{Family, ServiceName};
    use plan::userspace::RelayProtocol;
    use reconcile::observer::{Round, RoundKind};

    use super::*;

    fn mk_relay() -> RunningRelay {
        let metrics = RelayMetrics::new().unwrap();
        let (relay, reports) = relay::start(&Settings::default(), metrics.meters.clone()).unwrap();
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
            observer.report(&Report::RoundEnded(Round {
                families: &[],
                kind: RoundKind::Comparison,
                took: Duration::ZERO,
                triggers: &[],
                backlog,
                waiting: None,
                oldest: Duration::ZERO,
                pending: &retry_queue,
            }));
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
        for _ in 0..2 {
            let metrics = Metrics::new(Mode::Userspace, &Family::BOTH).unwrap();
            relay.add_to(&metrics).unwrap();
            assert!(metrics.text().unwrap().contains("kube_ipvs_relay_connections_total"));
        }
    }
}
