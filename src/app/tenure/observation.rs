//! Observers of a tenure's event loop, and its metrics.

use plan::mode::Mode;
use plan::model::Family;
use plan::settings::Settings;
use tokio::sync::mpsc;

use super::events::record_limits;
use crate::app::counters::PacketCounters;
use crate::app::held_up::Lack;
use crate::app::localhost::NodePortsOnLocalhost;
use crate::app::node_port_servers::NodePortObserver;
use crate::app::observers::EventObserver;
use crate::app::relay::RunningRelay;
use crate::app::source::Source;
use crate::events::EventRecorder;
use config::Configuration;
use reconcile::Input;
use reconcile::observer::Observer;
use serve::Servers;
use serve::metrics::{Metrics, own};

/// Returns the observers that only one mode has.
pub(super) fn observers_of_mode(
    mode: Mode,
    relay: Option<&RunningRelay>,
) -> Vec<Box<dyn Observer>> {
    let relay = relay.filter(|_| mode.relays());
    relay.into_iter().map(|relay| Box::new(relay.observer()) as Box<dyn Observer>).collect()
}

/// Has the event loop's reports go to all that needs them. Returns what it says that the mode lacks, as well.
pub(super) fn observe(
    observers: Vec<Box<dyn Observer>>,
    servers: &Servers,
    recorder: &EventRecorder,
    settings: &Settings,
    localhost: &NodePortsOnLocalhost,
) -> anyhow::Result<(Vec<Box<dyn Observer>>, Lack)> {
    let lack = Lack::default();
    let mut all: Vec<Box<dyn Observer>> = vec![
        Box::new(servers.observer()),
        Box::new(EventObserver::new(recorder.clone())),
        Box::new(NodePortObserver::new(recorder.clone())),
        Box::new(lack.clone()),
    ];
    all.extend(observers);
    localhost.measured_by(&servers.metrics())?;
    // Where they are not wanted, they go on until the node is carried by its mode (`FormerMode`).
    if settings.localhost_node_ports {
        all.push(Box::new(localhost.observer(recorder)?));
    }
    Ok((all, lack))
}

/// Has the metrics show what is known from the start, and what measures itself.
pub(super) fn measure(
    measured: &Metrics,
    configuration: &Configuration,
    settings: &Settings,
    source: &Source,
    relay: Option<&RunningRelay>,
) -> anyhow::Result<()> {
    measured.add_features(configuration.gates.iter())?;
    source.measured_by(measured)?;
    if let Some(relay) = relay {
        relay.measured_by(measured)?;
    }
    if settings.nfacct {
        measured.add(PacketCounters::new()?)?;
    }
    Ok(())
}

/// Says which families this host serves, and what else it lacks.
pub(super) fn report_host(
    measured: &Metrics,
    families: &[Family],
    limits: Vec<String>,
    recorder: &EventRecorder,
) {
    let host = &measured.own.host;
    host.set_families(families);
    host.limits.set(i64::try_from(limits.len()).unwrap_or(i64::MAX));
    record_limits(recorder, limits);
}

/// Tells the loop the proxy ports that the relay has, and those that come and go.
pub(super) fn report_ports(
    relay: RunningRelay,
    inputs: &mpsc::Sender<Input>,
    recorder: &EventRecorder,
) {
    for event in relay.known_ports() {
        // The loop runs soon, and takes it; the queue is longer than a node has ports as a rule.
        if inputs.try_send(Input::Change(event)).is_err() {
            break;
        }
    }
    tokio::spawn(relay.report(inputs.clone(), recorder.clone()));
}

/// Returns a function that counts the messages in a channel. It does not keep the channel open.
pub(super) fn length<T: Send + 'static>(sender: &mpsc::Sender<T>) -> own::queues::Length {
    let sender = sender.downgrade();
    Box::new(move || sender.upgrade().map_or(0, |sender| sender.max_capacity() - sender.capacity()))
}
