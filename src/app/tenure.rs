//! A tenure: the time that the program serves in one mode, with one configuration.
//!
//! All that serves is made for a tenure and ends with it: threads, the source, the planner, the
//! kernel's worker, the metrics. So a switch is a restart, but for the process and its listeners.
//! [`Program`] is what stays.

mod events;
mod observation;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use axum::Router;
use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family;
use plan::planner::Planner;
use plan::settings::Settings;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::changes::{Changes, Consequence, Surroundings, Switch};
use super::former_mode::{Former, FormerMode};
use super::input::{InputPump, Unchecked};
use super::localhost::NodePortsOnLocalhost;
use super::logging::Log;
use super::orders::Orders;
use super::relay::RunningRelay;
use super::service_routes::{self, LastChanges, RouteWatch};
use super::service_traffic::ServiceTrafficCycle;
use super::serving::ServingThread;
use super::signals::Shutdown;
use super::source::Source;
use super::threads::{QUEUE, TaskThread};
use super::{held_up, mode, serving};
use crate::events::EventRecorder;
use config::warnings::Mismatch;
use config::watch::Rejected;
use config::{Arguments, Configuration};
use console::answers::top::Readings;
use console::journal::{Happened, Journal, noted};
use console::lately::Repairs;
use console::{Desk, RelayedNow, page, server, socket_path};
use events::{give_up, record_start, report_failures};
use kernel::rules::Backend;
use kernel::worker::KernelHandle;
use kernel::{Kernel, address_monitor};
use node::host::{self, FallenBack, Host};
use observation::{length, measure, observe, observers_of_mode, report_host, report_ports};
use reconcile::Reconciler;
use reconcile::inquiry::{self, Inquiries, Inquiry};
use reconcile::observer::Observer;
use serve::Servers;
use serve::listen::ListenError;
use serve::metrics::own;
use serve::pages::SetVerbosity;

/// State that outlives a tenure.
pub(super) struct Program {
    pub(super) arguments: Arguments,
    /// Configuration of the file or the flags, whatever mode was ordered since.
    pub(super) configured: Configuration,
    /// Content of the file that could not be served with, the last time that it was tried.
    pub(super) rejected: Option<Rejected>,
    /// The log, and the journal, which goes on through all tenures.
    pub(super) log: Log,
    pub(super) shutdown: Shutdown,
    /// The families that were served last.
    pub(super) families: Vec<Family>,
    /// The relay of mode userspace, once that has been served in: its connections outlive the mode.
    pub(super) relay: Option<RunningRelay>,
    pub(super) localhost: NodePortsOnLocalhost,
    /// Health, metrics and health checks of Services.
    pub(super) serving: Arc<ServingThread>,
    pub(super) orders: Orders,
    /// Times at which `serviceRoutes: auto` chose otherwise.
    pub(super) last_route_changes: LastChanges,
}

/// Longest time for which the end of the program waits for the end of its threads.
const LONGEST_END: Duration = Duration::from_secs(1);

/// End of a tenure, but for an error.
#[derive(Debug)]
pub(super) enum Ended {
    /// The program ends.
    Shutdown,
    /// It has not come to carry the traffic, for this reason. The former mode still does.
    HeldUp(anyhow::Error),
    /// Another tenure follows.
    Switch {
        /// Mode that the node served in.
        from: Mode,
        to: Box<Switch>,
    },
}

/// Error that a tenure ended with.
#[derive(Debug)]
pub(super) enum TenureError {
    /// It has not begun: nothing of Services was changed.
    NotReady(anyhow::Error),
    /// It ended.
    Failed(anyhow::Error),
}

/// Threads that run beside the event loop, however busy the loop is.
pub(super) struct Threads {
    /// Health, metrics and health checks of Services, for all tenures.
    serving: Arc<ServingThread>,
    /// The client of the API server, decoding and conversion, Events.
    source: TaskThread,
    /// The operator's console.
    console: TaskThread,
}

/// Parts of the program, once the source is open and the host is ready.
pub(super) struct Parts<K> {
    /// Configuration for the mode that the host can do.
    pub(super) configuration: Configuration,
    /// Settings with the families and abilities that the host has.
    pub(super) settings: Settings,
    /// The former mode, in this process.
    pub(super) former: Option<Former>,
    /// The relay of mode userspace, which serves in that mode, and drains in another.
    pub(super) relay: Option<RunningRelay>,
    /// Node ports on localhost, whether they are wanted or not.
    pub(super) localhost: NodePortsOnLocalhost,
    /// Reason for which the mode is not the preferred one; none: it is.
    pub(super) fallen_back: Option<FallenBack>,
    /// Reasons for which families are not served that the kernel has, in words.
    pub(super) dropped_families: Vec<String>,
    /// Limits of the host that Services feel, in words.
    pub(super) limits: Vec<String>,
    pub(super) source: Source,
    /// Pages of the operator's console, for the metrics server.
    pub(super) pages: Router,
    /// The way for questions to reach the event loop.
    pub(super) inquiries: Inquiries,
    /// Looks at whether service addresses should be local in another way.
    pub(super) route_watch: RouteWatch,
    /// Questions to the event loop.
    pub(super) questions: mpsc::Receiver<Inquiry>,
    pub(super) kernel: K,
    /// Programs that remove the rules of kube-proxy's other modes. None: these rules stay.
    pub(super) backends: Option<HashMap<Family, Backend>>,
    /// Observers of the event loop beside health, metrics and Events.
    pub(super) observers: Vec<Box<dyn Observer>>,
    pub(super) set_verbosity: SetVerbosity,
}

/// Serves with a configuration. When another tenure follows, nothing of this one is at work any more.
pub(super) async fn serve(
    configuration: Configuration,
    former: Option<Former>,
    program: &mut Program,
) -> Result<Ended, TenureError> {
    // A task ends when it is dropped. A thread in a call to the kernel, or one that waits for a program, does
    // not: each of them holds a token for as long as it works.
    let at_work = TaskTracker::new();
    let ended = serve_at_work(configuration, former, program, &at_work).await;
    at_work.close();
    match ended {
        Ok(Ended::Switch { .. } | Ended::HeldUp(_)) | Err(TenureError::NotReady(_)) => {
            if program.until_idle(&at_work).await { ended } else { Ok(Ended::Shutdown) }
        }
        Ok(Ended::Shutdown) => {
            // Threads remove what is on the host: the console's socket. No long write is waited for.
            let _in_time = timeout(LONGEST_END, at_work.wait()).await;
            ended
        }
        Err(_) => ended,
    }
}

async fn serve_at_work(
    configuration: Configuration,
    former: Option<Former>,
    program: &mut Program,
    at_work: &TaskTracker,
) -> Result<Ended, TenureError> {
    let threads = Threads::start(at_work, Arc::clone(&program.serving))
        .context("start the threads other than the event loop")
        .map_err(TenureError::NotReady)?;
    let Program { arguments, configured, log, shutdown, families, relay, localhost, .. } = program;
    let served = to_keep(former.as_ref(), families);
    let (source, host) = tokio::select! {
        biased;
        () = shutdown.requested() => return Ok(Ended::Shutdown),
        ready = get_ready(configuration, served, &threads, at_work) => ready.map_err(TenureError::NotReady)?,
    };
    let Host { configuration, fallen_back, dropped_families, backends, mut linux, limits } = host;
    families.clone_from(&configuration.settings.families);
    let settings = Settings {
        localhost_node_ports: configuration.localhost_node_ports,
        ..configuration.settings.clone()
    };
    localhost.set_drain(configuration.pace.drain_deadline);
    if let Some(relay) = relay {
        relay.reconfigure(&configuration);
    } else if settings.mode.relays() {
        *relay = Some(RunningRelay::start(&configuration).map_err(TenureError::NotReady)?);
    }
    let mut observers = observers_of_mode(settings.mode, relay.as_ref());
    let (inquiries, questions) = inquiry::inquiries();
    observers.push(Box::new(log.journal.observer()));
    let (repairs, is_rejected) = (Repairs::default(), Arc::<AtomicBool>::default());
    observers.push(Box::new(repairs.observer()));
    note_beginning(&log.journal, settings.mode, former.as_ref());
    let desk = Desk {
        configuration_rejected: Arc::clone(&is_rejected),
        inquiries: inquiries.clone(),
        journal: log.journal.clone(),
        log: log.lines.clone(),
        draining: tokio::sync::Mutex::default(),
        orders: program.orders.sender(),
        relayed: relay.clone().map(relayed_now),
        readings: Readings::default(),
        configuration: configuration.clone(),
        settings: settings.clone(),
        fallen_back: fallen_back.as_ref().map(ToString::to_string),
        limits: limits.clone(),
        api: source.client_metrics(),
        pods: source.pod_finder(&configuration, &threads.source),
        repairs,
        versions: linux.versions(),
        since: (Instant::now(), SystemTime::now()),
    };
    let pages = start_console(desk, &threads.console);
    let route_watch = RouteWatch {
        configuration: configuration.clone(),
        settings: settings.clone(),
        cluster: source.cluster_questions(threads.source.handle()),
        inquiries: inquiries.clone(),
        last_changes: program.last_route_changes.clone(),
    };
    let parts = Parts {
        route_watch,
        // Rules of iptables beside tables of ours are of the former form, and out of date at the next change.
        backends: (configuration.cleanup_other_modes || settings.has_tables()).then_some(backends),
        configuration,
        settings,
        former,
        relay: relay.clone(),
        localhost: localhost.clone(),
        fallen_back,
        dropped_families,
        limits,
        source,
        pages,
        inquiries,
        questions,
        kernel: linux,
        observers,
        set_verbosity: log.verbosity.clone().into_setter(),
    };
    let (rejected, orders) = (program.rejected.clone(), &mut program.orders);
    let changes = Changes { arguments, configured, rejected, is_rejected, orders };
    let ended = parts.run(&threads, at_work, shutdown.requested(), changes).await;
    ended.map_err(TenureError::Failed)
}

/// Starts the console on its thread, and returns its pages for the metrics server.
fn start_console(desk: Desk, thread: &TaskThread) -> Router {
    let desk = Arc::new(desk);
    let pages = match desk.configuration.served.console_page {
        Some(readers) => page::router(Arc::clone(&desk), readers, thread.handle()),
        None => Router::new(),
    };
    if let Some(path) = socket_path(&desk.configuration.console_socket) {
        thread.spawn(async move { server::serve(&path, desk).await });
    }
    pages
}

/// Opens the source, makes the choices that the configuration leaves open, and prepares the host. It
/// runs programs, so a thread of the pool does it, and a signal is handled meanwhile.
async fn get_ready(
    configuration: Configuration,
    served: Vec<Family>,
    threads: &Threads,
    at_work: &TaskTracker,
) -> anyhow::Result<(Source, Host)> {
    // The client starts tasks where it is made.
    let source_thread = threads.source.handle().clone();
    let ready = at_work.spawn_blocking(move || {
        let source = source_thread.block_on(Source::open(&configuration))?;
        let cluster = source.cluster_questions(&source_thread);
        let chosen = service_routes::at_start(configuration, cluster.as_ref());
        let chosen = source_thread.block_on(chosen);
        Ok((source, host::prepare(&chosen, &served)?))
    });
    ready.await.context("open the source and prepare the host")?
}

impl Program {
    /// Waits for the end of what a tenure has at work. Returns false if the program is to end first.
    async fn until_idle(&mut self, at_work: &TaskTracker) -> bool {
        tokio::select! {
            biased;
            () = self.shutdown.requested() => false,
            () = at_work.wait() => true,
        }
    }
}

impl<K: Kernel + 'static> Parts<K> {
    /// Connects the parts and balances until `shutdown` is ready, or a change ends it. The event loop
    /// runs on the caller's thread; what must answer meanwhile runs on `threads`.
    pub(super) async fn run(
        self,
        threads: &Threads,
        at_work: &TaskTracker,
        shutdown: impl Future<Output = ()>,
        changes: Changes<'_>,
    ) -> anyhow::Result<Ended> {
        let Self { configuration, settings, former, relay, source, kernel, backends, .. } = self;
        let (from, wants_localhost) = (settings.mode, settings.localhost_node_ports);
        let unchecked =
            Unchecked { configuration: configuration.clone(), families: settings.families.clone() };
        let (failures, failed) = mpsc::channel(QUEUE);
        let following = source.following();
        let options =
            serving::options(&configuration, &settings, following, self.set_verbosity, self.pages)?;
        let serving = &threads.serving;
        let servers = Servers::new(options, failures, Arc::clone(&serving.listeners))?;
        let recorder = source.event_recorder(&settings.node_name, &threads.source);
        let serving_relay = relay.clone().filter(|_| from.relays());
        let (all, lack) = observe(self.observers, &servers, &recorder, &settings, &self.localhost)?;
        let health = servers.health();
        source.mark_not_leaving(&health);
        threads.source.spawn(serving::report_followed(source.client_metrics(), health.clone()));
        let measured = servers.metrics();
        measure(&measured, &configuration, &settings, &source, relay.as_ref())?;
        let (inquiries, stages) = (self.inquiries, measured.own.stages.clone());
        let cycle = ServiceTrafficCycle::new(&configuration, from, &measured, inquiries, at_work)?;
        threads.console.spawn(cycle.run());
        let kernel = KernelHandle::start_holding(kernel, stages, at_work.token())
            .context("start the kernel worker")?;
        let routes = service_routes::may_be(&configuration, &settings);
        let link_local = settings.node_port_addresses.may_be_link_local();
        let (chosen, families) = (settings.clone(), settings.families.clone());
        let reconciler = Reconciler::new(Planner::new(settings), kernel, configuration.pace)?;
        let reconciler = reconciler.observed_by(all).answering(self.questions);
        let route_watch = self.route_watch.run(reconciler.status());
        let can_go_back = former.as_ref().is_some_and(|former| !former.has_failed);
        let held_up = held_up::for_too_long(reconciler.status(), lack, can_go_back);
        record_start(&recorder, former.as_ref());
        mode::report_dropped(&self.dropped_families, &recorder);
        report_host(&measured, &families, self.limits, &recorder);
        let former_mode = FormerMode {
            settings: chosen,
            former,
            relay: relay.filter(|_| !from.relays()),
            localhost: (!wants_localhost).then(|| self.localhost.clone()),
            backends,
            status: reconciler.status(),
            recorder: recorder.clone(),
            left: measured.own.left_by_former_mode.clone(),
            at_work: at_work.clone(),
            drain_deadline: configuration.pace.drain_deadline,
        };
        let (events, inbox) = mpsc::channel(QUEUE);
        let (inputs, outbox) = mpsc::channel(QUEUE);
        measured.own.queues.watch(own::SOURCE, length(&events));
        measured.own.queues.watch(own::LOOP, length(&inputs));
        if let Some(relay) = serving_relay {
            report_ports(relay, &inputs, &recorder);
        }
        let input_pump = InputPump::new(inputs, recorder.clone(), health, unchecked);

        let returned = mode::returned(&configuration, self.fallen_back, &recorder, at_work);
        let configured = changes.configured.clone();
        let (noted, at_work) = (recorder.clone(), at_work.clone());
        let cx = Surroundings { mode: from, families, recorder: noted, at_work };
        let changed = changes.next(cx, measured.own.configuration_rejected.clone());
        // It ends with the tenure; the listeners do not.
        let mut served = JoinSet::new();
        served.spawn_on(servers.run(), serving.thread.handle());
        tokio::spawn(former_mode.run());
        tokio::spawn(report_failures(failed, recorder.clone()));
        threads.source.spawn(source.run(events));
        let consequence = tokio::select! {
            biased;
            ended = reconciler.run(outbox, address_monitor::watch(routes, link_local), shutdown) => {
                return ended.map(shut_down).map_err(Into::into);
            }
            failed = failure(threads.source.spawn(input_pump.run(inbox)), served, &recorder) => {
                return failed;
            }
            problem = held_up => return Ok(Ended::HeldUp(problem)),
            consequence = changed => consequence,
            consequence = returned => consequence.of(configured),
            never = route_watch => match never {},
        };
        after(consequence, from)
    }
}

impl Threads {
    pub(super) fn start(
        at_work: &TaskTracker,
        serving: Arc<ServingThread>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            serving,
            source: TaskThread::start("source", at_work.token())?,
            console: TaskThread::start("console", at_work.token())?,
        })
    }
}

/// Returns the families that the next mode must serve. One that is rolled back to serves what it can.
fn to_keep(former: Option<&Former>, served: &[Family]) -> Vec<Family> {
    let is_new = former.is_some_and(|former| !former.has_failed);
    if is_new { served.to_vec() } else { Vec::new() }
}

/// Returns when a part has ended that goes on for as long as the tenure.
async fn failure(
    input_pump: JoinHandle<Result<(), Mismatch>>,
    mut served: JoinSet<Result<Infallible, ListenError>>,
    recorder: &EventRecorder,
) -> anyhow::Result<Ended> {
    tokio::select! {
        biased;
        ended = input_pump => {
            ended.context("run the input pump")??;
            bail!("the source of Services has ended; this is a bug; please report the log above")
        }
        Some(ended) = served.join_next() => {
            give_up(ended.context("serve health and metrics")?, recorder).await
        }
    }
}

fn shut_down((): ()) -> Ended {
    info!("kube-ipvs exits; kernel state stays, and traffic continues");
    Ended::Shutdown
}

/// Returns what a tenure in `mode` ends with for `consequence`.
fn after(consequence: Consequence, mode: Mode) -> anyhow::Result<Ended> {
    match consequence {
        Consequence::Restart(reason) => bail!("{reason}"),
        Consequence::Switch(to) => Ok(Ended::Switch { from: mode, to }),
    }
}

fn note_beginning(journal: &Journal, mode: Mode, former: Option<&Former>) {
    let reason = former.map(|former| noted(&former.reason));
    journal.note(Happened::TenureBegan { mode, reason });
}

fn relayed_now(relay: RunningRelay) -> RelayedNow {
    Box::new(move || relay.relayed())
}
