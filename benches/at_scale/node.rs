//! The node that is measured: the real loop on the real kernel, told what the API would say.

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use kernel::address_monitor;
use kernel::linux::Linux;
use kernel::modules;
use kernel::rules::Rules;
use kernel::worker::KernelHandle;
use plan::event::Event;
use plan::hash::HashMap;
use plan::model::Family;
use plan::planner::Planner;
use plan::scheduler::SchedulerName;
use plan::settings::Settings;
use reconcile::{Input, Pace, Reconciler};
use tokio::sync::{mpsc, oneshot};

use crate::cluster::{Change, Size};
use crate::held_up::Arrivals;
use crate::kind::Kind;
use crate::metered::{Listener, Meter, Metered, Seen, is_followed};

/// Number of inputs that can wait between the source and the loop, as in the program.
const QUEUE: usize = 1_024;
/// Number of events that are handed at once to the loop's thread, where the program has its source.
/// One turn between threads for each event would cost more than the event.
const AT_ONCE: usize = 256;
/// The largest cluster takes minutes on an emulated machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1_800);
/// File that gets the loop's log.
const LOG: &str = "/tmp/at-scale.log";
/// Number of lines of the log that are shown.
const LOG_LINES: usize = 40;

/// A loop that runs in a thread of its own.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) size: Size,
    pub(crate) meter: Meter,
    inputs: mpsc::Sender<Vec<Input>>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
    /// Number of events that were sent and that a round must follow.
    told: Cell<u64>,
}

impl Node {
    /// Starts the loop in the calling thread's network namespace.
    pub(crate) fn start(size: Size, sync_period: Duration, kind: Kind) -> Result<Self> {
        Self::start_with(size, sync_period, kind, SchedulerName::default(), None)
    }

    /// The same with a scheduler, and with something that is told what the kernel has.
    pub(crate) fn start_with(
        size: Size,
        sync_period: Duration,
        kind: Kind,
        scheduler: SchedulerName,
        arrivals: Option<Arrivals>,
    ) -> Result<Self> {
        let (planner, linux) = open_with(kind, scheduler)?;
        let meter = Meter::default();
        let kernel = KernelHandle::start(Metered::new(linux, meter.clone()), ())?;
        let pace = Pace { sync_period, ..Pace::default() };
        let reconciler = Reconciler::new(planner, kernel, pace)?
            .observed_by(vec![Box::new(Listener { meter: meter.clone(), arrivals })]);
        let addresses =
            address_monitor::start(kind.routes, false).map_err(|error| anyhow!("{error}"))?;
        let (inputs, mut inbox) = mpsc::channel::<Vec<Input>>(1);
        let (source, outbox) = mpsc::channel(QUEUE);
        let deliver = async move {
            while let Some(inputs) = inbox.recv().await {
                for input in inputs {
                    if source.send(input).await.is_err() {
                        return;
                    }
                }
            }
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("loop".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let shutdown = async {
                // Also ends when `stop` is dropped.
                let _ = stopped.await;
            };
            runtime.spawn(deliver);
            Ok(runtime.block_on(reconciler.run(outbox, Some(addresses), shutdown))?)
        })?;
        Ok(Self { size, meter, inputs, stop, thread, told: Cell::new(0) })
    }

    pub(crate) fn seen(&self) -> Seen {
        self.meter.seen()
    }

    /// Says everything that there is, and returns when it began to say so and when it had.
    pub(crate) fn tell_all(&self) -> Result<(Instant, Instant)> {
        let began = Instant::now();
        let mut events = self.size.events();
        loop {
            let some: Vec<Event> = events.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            self.tell(some)?;
        }
        self.input(vec![Input::Complete])?;
        Ok((began, Instant::now()))
    }

    /// Says that something happens.
    pub(crate) fn change(&self, change: &Change) -> Result<()> {
        self.tell(self.size.events_of(change))
    }

    /// Waits until the kernel is as it should be for the first time.
    pub(crate) fn wait_in_sync(&self) -> Result<Seen> {
        self.meter.wait("the first sync", PATIENCE, |seen| seen.is_in_sync)
    }

    /// Waits until the kernel has answered the last of what was said, and returns when it had.
    pub(crate) fn wait_written(&self) -> Result<Instant> {
        let told = self.told.get();
        let seen = self.meter.wait("a change", PATIENCE, |seen| seen.done >= told)?;
        seen.round_ended.context("a round that never ended")
    }

    /// Says that something happens, and waits until the kernel has answered the last of it.
    /// Returns how long that took.
    pub(crate) fn change_and_wait(&self, change: &Change) -> Result<Duration> {
        let events = self.size.events_of(change);
        let began = Instant::now();
        self.tell(events)?;
        Ok(self.wait_written()?.saturating_duration_since(began))
    }

    /// Ends the loop; the kernel's state stays.
    pub(crate) fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        self.thread.join().map_err(|_| anyhow!("the loop's thread panicked"))?
    }

    pub(crate) fn tell(&self, events: Vec<Event>) -> Result<()> {
        let followed = events.iter().filter(|event| is_followed(event)).count();
        self.told.set(self.told.get() + followed as u64);
        self.input(events.into_iter().map(Input::Change).collect())
    }

    fn input(&self, inputs: Vec<Input>) -> Result<()> {
        self.inputs.blocking_send(inputs).map_err(|_| anyhow!("the loop has ended"))
    }
}

/// A planner that knows nothing, and the kernel it plans for, in the calling thread's network
/// namespace.
pub(crate) fn open(kind: Kind) -> Result<(Planner, Linux)> {
    open_with(kind, SchedulerName::default())
}

/// The same beside the loop, which may own what is only read.
pub(crate) fn open_to_read(kind: Kind) -> Result<(Planner, Linux)> {
    if !kind.tables {
        return open(kind);
    }
    let (rule_form, fast_path) = (kind.rule_form(), kind.fast_path());
    let service_routes = kind.service_routes();
    let settings = Settings { rule_form, fast_path, service_routes, ..Settings::new("this-node") };
    Ok((Planner::new(settings), Linux::read_with_tables(Family::BOTH.to_vec())?))
}

fn open_with(kind: Kind, scheduler: SchedulerName) -> Result<(Planner, Linux)> {
    let mut rules = HashMap::default();
    for family in Family::BOTH.into_iter().filter(|_| !kind.tables) {
        rules.insert(family, Rules::open(family, kind.variant())?);
    }
    let kinds: Vec<_> = rules.values().map(Rules::backend).collect();
    let random_fully = rules.values().all(Rules::random_fully);
    let settings = Settings {
        random_fully,
        mode: kind.mode(),
        rule_form: kind.rule_form(),
        fast_path: kind.fast_path(),
        scheduler,
        service_routes: kind.service_routes(),
        ..Settings::new("this-node")
    };
    let needed = ::node::host::needed_modules(&settings, &kinds);
    if let Err(note) = modules::load(Path::new(modules::LOADED), &needed) {
        eprintln!("at_scale: {note}");
    }
    let linux = match kind.tables {
        true => Linux::open_with_tables(Family::BOTH.to_vec())?,
        false => Linux::open(rules, kind.mode())?,
    };
    Ok((Planner::new(settings), linux))
}

/// Does it while the loop says what it does to a file, as it says it to a journal in earnest. The
/// end of that is shown if it fails.
pub(crate) fn logged<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let log = File::create(LOG).with_context(|| format!("make {LOG}"))?;
    tracing_subscriber::fmt().with_ansi(false).with_writer(log).init();
    work().inspect_err(|_| {
        let log = std::fs::read_to_string(LOG).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        for line in lines.iter().skip(lines.len().saturating_sub(LOG_LINES)) {
            eprintln!("{line}");
        }
    })
}
