//! The composition root: builds every part and connects them. Nothing else knows all of them.
//!
//! ```text
//!   source ──▶ input ──▶ reconcile ◀──▶ kernel worker
//!                │           │ observer
//!                ▼           ▼
//!              events ◀─ observers ─▶ serve
//! ```

mod actions;
mod counters;
mod estimators;
mod input;
mod localhost;
pub mod logging;
mod mode;
mod observers;
mod serving;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use plan::mode::Mode;
use plan::model::Family;
use plan::planner::Planner;
use plan::settings::Settings;
use prometheus::IntGauge;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tracing::{info, warn};

use crate::cleanup;
use crate::config::gates::FeatureGates;
use crate::config::watch::{Check, SPREAD};
use crate::config::{Action, Configuration, ConfigurationFile};
use crate::events::{
    EventRecorder, EventReporter, Extent, NewEvent, Publisher, Regarding, Severity,
};
use crate::host::{self, FallenBack, Host};
use crate::kernel::Kernel;
use crate::kernel::address_monitor;
use crate::kernel::estimators::Run;
use crate::kernel::rules::Backend;
use crate::kernel::worker::KernelHandle;
use crate::reconcile::observer::Observer;
use crate::reconcile::{Reconciler, Status};
use crate::serve::Servers;
use crate::serve::health::SharedHealth;
use crate::serve::listen::{self, ListenError};
use crate::serve::metrics::own;
use crate::serve::pages::{Following, SetVerbosity};
use crate::serve::service_health::ListenFailure;
use crate::source::kubernetes::{self, ClientOptions, Clients, Kubernetes};
use crate::source::manifests::Manifests;
use crate::source::{self, SourceEvent};
use counters::PacketCounters;
use estimators::EstimatorObserver;
use input::{InputPump, Unchecked};
use logging::Verbosity;
use observers::{EventObserver, Observers};
use threads::TaskThread;

/// Capacity of each channel between the source and the event loop. A full one makes the source
/// wait.
const QUEUE: usize = 1_024;

/// Longest time that background tasks get to end when the program ends.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(100);

/// `reportingController` of Events, and the beginning of the user agent: what dashboards, alerts
/// and audit logs know.
const CONTROLLER: &str = "kube-proxy";

/// Origin of Services: a folder of manifests, or the Kubernetes API.
enum Source {
    Manifests(Manifests),
    Kubernetes(Clients, Kubernetes),
}

/// Threads that run beside the event loop, however busy the loop is.
struct Threads {
    /// Health, metrics and health checks of Services.
    serving: TaskThread,
    /// The client of the API server, decoding and conversion, Events.
    source: TaskThread,
}

/// Parts of the program, once the source is open and the host is ready.
struct Parts<K> {
    configuration: Configuration,
    check: Check,
    /// Settings with the families and abilities that the host has.
    settings: Settings,
    /// Reason for which the mode is not the preferred one; none: it is.
    fallen_back: Option<FallenBack>,
    source: Source,
    kernel: K,
    /// Programs that remove the rules of kube-proxy's other modes. None: these rules stay.
    backends: Option<HashMap<Family, Backend>>,
    /// Observers of the event loop beside health, metrics and Events.
    observers: Vec<Box<dyn Observer>>,
    set_verbosity: SetVerbosity,
}

/// Checks that the files can be read that a loaded configuration names for the API server.
///
/// # Errors
/// When one cannot be used.
pub fn check(configuration: &Configuration) -> anyhow::Result<()> {
    if configuration.manifests.is_none() {
        kubernetes::check(&client_options(configuration))?;
    }
    Ok(())
}

/// Runs the configuration's action: usually, balances until SIGTERM or SIGINT. The kernel's state
/// stays then, and traffic goes on. It also ends when the configuration file has changed and
/// `check` accepts it.
///
/// # Errors
/// When the host lacks something, the source cannot be reached at all, or something ends that must
/// not: in words, with what to do.
pub fn run(configuration: Configuration, check: Check, verbosity: Verbosity) -> anyhow::Result<()> {
    for note in &configuration.notes {
        warn!("{note}");
    }
    match &configuration.action {
        Action::Run => {}
        Action::InitOnly => return actions::init_only(&configuration),
        Action::Cleanup => return actions::clean_up(&configuration),
        Action::WriteConfig(path) => return actions::write_configuration(&configuration, path),
    }
    info!(version = configuration.reported_version, "kube-ipvs starts");
    let threads = Threads::start().context("start the threads beside the event loop")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the event loop")?;
    let ended = runtime.block_on(balance(configuration, check, verbosity, &threads));
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    ended
}

async fn balance(
    configuration: Configuration,
    check: Check,
    verbosity: Verbosity,
    threads: &Threads,
) -> anyhow::Result<()> {
    let mut shutdown = std::pin::pin!(shutdown()?);
    let (source, host) = tokio::select! {
        biased;
        () = &mut shutdown => return Ok(()),
        ready = get_ready(configuration.clone(), threads) => ready?,
    };
    let Host { configuration, fallen_back, backends, linux } = host;
    let settings = Settings {
        localhost_node_ports: configuration.localhost_node_ports,
        ..configuration.settings.clone()
    };
    let mut observers: Vec<Box<dyn Observer>> = Vec::new();
    if settings.mode == Mode::Ipvs && configuration.estimators.run == Run::Auto {
        observers.push(Box::new(EstimatorObserver::new()));
    }
    let backends = configuration.cleanup_other_modes.then_some(backends);
    let set_verbosity = verbosity.into_setter();
    let parts = Parts {
        configuration,
        check,
        settings,
        fallen_back,
        source,
        kernel: linux,
        backends,
        observers,
        set_verbosity,
    };
    parts.run(threads, shutdown).await
}

/// Opens the source and prepares the host. Both run programs, so a thread of the pool does it, and
/// a signal is handled meanwhile.
async fn get_ready(
    configuration: Configuration,
    threads: &Threads,
) -> anyhow::Result<(Source, Host)> {
    // The client starts tasks where it is made.
    let source_thread = threads.source.handle().clone();
    let ready = tokio::task::spawn_blocking(move || {
        let source = source_thread.block_on(Source::open(&configuration))?;
        Ok((source, host::prepare(&configuration)?))
    });
    ready.await.context("open the source and prepare the host")?
}

// === impl Parts ===

impl<K: Kernel + 'static> Parts<K> {
    /// Connects the parts and balances until `shutdown` is ready. The event loop runs on the
    /// caller's thread; what must answer meanwhile runs on `threads`.
    async fn run(
        self,
        threads: &Threads,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let Self { configuration, check, settings, source, kernel, backends, observers, .. } = self;
        let unchecked =
            Unchecked { configuration: configuration.clone(), families: settings.families.clone() };
        let (failures, failed) = mpsc::channel(QUEUE);
        let options =
            serving::options(&configuration, &settings, source.following(), self.set_verbosity)?;
        let servers = Servers::new(options, failures)?;
        let recorder = source.event_recorder(&settings.node_name, &threads.source);
        let mut all = Observers::new(vec![
            Box::new(servers.observer()),
            Box::new(EventObserver::new(recorder.clone())),
        ]);
        observers.into_iter().for_each(|observer| all.add(observer));
        if settings.localhost_node_ports {
            all.add(Box::new(localhost::start(&servers.metrics().own, recorder.clone())?));
        }
        let health = servers.health();
        source.mark_not_leaving(&health);
        let measured = servers.metrics();
        let gates = configuration.gates.iter();
        let gates = gates.map(|(name, open)| (name, FeatureGates::stage(name), open));
        measured.add_features(gates)?;
        if let Source::Kubernetes(clients, _) = &source {
            measured.add(clients.metrics.clone())?;
        }
        let kernel = KernelHandle::start(kernel, measured.own.stages.clone())
            .context("start the kernel worker")?;
        if settings.nfacct {
            measured.add(PacketCounters::new()?)?;
        }
        let routes = !settings.service_routes.is_empty();
        let chosen = settings.clone();
        let planner = Planner::new(settings);
        let reconciler =
            Reconciler::new(planner, kernel, configuration.pace)?.observed_by(Box::new(all));
        let status = reconciler.status();
        let (events, inbox) = mpsc::channel(QUEUE);
        let (inputs, outbox) = mpsc::channel(QUEUE);
        measured.own.queues.watch(own::SOURCE, length(&events));
        measured.own.queues.watch(own::LOOP, length(&inputs));
        let input_pump = InputPump::new(inputs, recorder.clone(), health, unchecked);

        let rejected = measured.own.configuration_rejected.clone();
        let returned = mode::returned(&configuration, self.fallen_back, recorder.clone());
        let changed = changed(configuration.file, check, rejected);
        recorder.record(starting());
        if let Some(backends) = backends {
            tokio::spawn(remove_other_modes(chosen, status, backends));
        }
        tokio::spawn(report_failures(failed, recorder.clone()));
        threads.source.spawn(source.run(events));
        tokio::select! {
            biased;
            ended = reconciler.run(outbox, watch_addresses(routes), shutdown) => {
                ended?;
                info!("kube-ipvs ends; the kernel's state stays, and traffic goes on");
                Ok(())
            }
            ended = threads.source.spawn(input_pump.run(inbox)) => {
                ended.context("run the input pump")??;
                bail!("the source of Services has ended, which is a bug; please report the log above")
            }
            ended = threads.serving.spawn(servers.run()) => {
                give_up(ended.context("serve health and metrics")?, &recorder).await
            }
            reason = changed => bail!("{reason}"),
            reason = returned => bail!("{reason}"),
        }
    }
}

// === impl Threads ===

impl Threads {
    fn start() -> std::io::Result<Self> {
        Ok(Self { serving: TaskThread::start("serving")?, source: TaskThread::start("source")? })
    }
}

// === impl Source ===

impl Source {
    async fn open(configuration: &Configuration) -> anyhow::Result<Self> {
        let options = source::Options {
            node_name: Arc::clone(&configuration.settings.node_name),
            scheduler: configuration.settings.scheduler.clone(),
            follow_nodes: configuration.follow_nodes,
        };
        if let Some(folder) = &configuration.manifests {
            return Ok(Self::Manifests(Manifests::new(folder, &options)?));
        }
        let clients = kubernetes::clients(&client_options(configuration)).await?;
        let source = Kubernetes::new(&clients, options);
        Ok(Self::Kubernetes(clients, source))
    }

    /// Reports that this node is not leaving, if there is no cluster that it could leave.
    fn mark_not_leaving(&self, health: &SharedHealth) {
        if let Self::Manifests(_) = self {
            health.node_leaving(false);
        }
    }

    /// Returns the content of `/following`, where there is an API server to follow.
    fn following(&self) -> Option<Following> {
        match self {
            Self::Manifests(_) => None,
            Self::Kubernetes(clients, _) => {
                let metrics = clients.metrics.clone();
                Some(Box::new(move || metrics.page()))
            }
        }
    }

    /// Returns the recorder of Events, which is disabled without an API server.
    fn event_recorder(&self, node_name: &str, thread: &TaskThread) -> EventRecorder {
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

    async fn run(self, events: mpsc::Sender<SourceEvent>) {
        match self {
            Self::Manifests(manifests) => manifests.run(events).await,
            Self::Kubernetes(_, kubernetes) => kubernetes.run(events).await,
        }
    }
}

fn client_options(configuration: &Configuration) -> ClientOptions {
    let server = &configuration.api_server;
    ClientOptions {
        kubeconfig: server.kubeconfig.clone(),
        master: server.url.clone(),
        qps: server.qps,
        burst: i32::try_from(server.burst).unwrap_or(i32::MAX),
        user_agent: format!("{CONTROLLER}/{}", configuration.reported_version),
    }
}

/// Returns a function that counts the messages in a channel. It does not keep the channel open.
fn length<T: Send + 'static>(sender: &mpsc::Sender<T>) -> own::queues::Length {
    let sender = sender.downgrade();
    Box::new(move || sender.upgrade().map_or(0, |sender| sender.max_capacity() - sender.capacity()))
}

/// Ends the program with an Event, since an address that must be listened on cannot be.
async fn give_up(
    ended: Result<Infallible, ListenError>,
    recorder: &EventRecorder,
) -> anyhow::Result<()> {
    let Err(error) = ended;
    recorder.record(NewEvent {
        regarding: Regarding::Node,
        severity: Severity::Warning,
        reason: match error.server {
            listen::Server::Health => "FailedToStartProxierHealthcheck",
            listen::Server::Metrics => "FailedToStartMetricServer",
        },
        action: "StartKubeProxy",
        note: error.to_string(),
        extent: Extent::ThisNode,
    });
    // The program ends with this; the Event gets a second to be published.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Err(error.into())
}

async fn report_failures(mut failures: mpsc::Receiver<ListenFailure>, recorder: EventRecorder) {
    while let Some(failure) = failures.recv().await {
        recorder.record(NewEvent {
            regarding: Regarding::Service(failure.service.clone()),
            severity: Severity::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note: failure.to_string(),
            extent: Extent::ThisNode,
        });
    }
}

fn starting() -> NewEvent {
    NewEvent {
        regarding: Regarding::Node,
        severity: Severity::Normal,
        reason: "Starting",
        action: "StartKubeProxy",
        note: String::new(),
        extent: Extent::ThisNode,
    }
}

// === the rest of a start ===

/// Removes the state of kube-proxy's other modes, once our own state carries the traffic.
async fn remove_other_modes(
    settings: Settings,
    mut status: watch::Receiver<Status>,
    backends: HashMap<Family, Backend>,
) {
    // A single Service that the kernel refuses must not keep another mode's stale rules in force.
    let is_carried = |status: &Status| status.in_sync_once && !status.has_pending_prerequisite;
    if status.wait_for(is_carried).await.is_err() {
        return;
    }
    let (mode, in_use) = (settings.mode, backends.clone());
    // It runs programs, which takes its time.
    let removing = tokio::task::spawn_blocking(move || cleanup::other_modes(mode, &in_use).log());
    report_removal(removing.await);
    if mode == Mode::Ipvs || status.wait_for(|it| it.n_left_by_ipvs == Some(0)).await.is_err() {
        return;
    }
    let removing =
        tokio::task::spawn_blocking(move || cleanup::ipvs_mode(&settings, &backends).log());
    report_removal(removing.await);
}

fn report_removal(removal: Result<(), JoinError>) {
    if let Err(error) = removal {
        warn!("removing the state of other modes failed: {error}; the next start tries it again");
    }
}

fn watch_addresses(routes: bool) -> Option<address_monitor::AddressChanges> {
    address_monitor::start(routes)
        .inspect_err(|error| {
            warn!(
                "cannot watch the node's addresses by netlink: {error}; changes are seen when they are \
                 read periodically"
            );
        })
        .ok()
}

/// Ready when the configuration file has changed; a supervisor starts the program anew.
async fn changed(
    file: Option<ConfigurationFile>,
    check: Check,
    rejected: IntGauge,
) -> &'static str {
    match file {
        Some(file) => {
            file.changed(check, SPREAD, |is_rejected| rejected.set(is_rejected.into())).await
        }
        None => std::future::pending().await,
    }
}

/// Ready at the first SIGTERM or SIGINT.
fn shutdown() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handle SIGINT")?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        info!("{name} received; kube-ipvs ends");
    })
}
