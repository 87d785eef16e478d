//! The composition root: builds every part and connects them. Nothing else knows all of them.

use std::future::Future;
use std::io::IsTerminal as _;

use anyhow::Context as _;
use plan::planner::Planner;
use plan::settings::Settings;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::config::Configuration;
use crate::host::{self, Host};
use crate::kernel::address_monitor;
use crate::kernel::worker::KernelHandle;
use crate::reconcile::{Input, Reconciler};
use crate::source::SourceEvent;
use crate::source::manifests::Manifests;

/// What waits between the source and the event loop. More than that and the source waits.
const QUEUE: usize = 1_024;

/// Sends log lines to standard error. `RUST_LOG` decides, if it is set.
pub fn start_logging(verbosity: u32) {
    let level = match verbosity {
        0..=3 => "info",
        4..=6 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Runs until SIGTERM or SIGINT. The kernel's state stays: traffic goes on without us.
///
/// # Errors
/// When the host lacks something, or the folder of manifests
/// cannot be read: in words, with what to do.
pub fn run(configuration: Configuration) -> anyhow::Result<()> {
    info!(version = configuration.reported_version, "kube-ipvs starts");
    for note in &configuration.notes {
        warn!("{note}");
    }
    let manifests = configuration.manifests.as_deref();
    let manifests = manifests.context("--manifests: a folder of manifests is the only source")?;
    let manifests = Manifests::new(manifests, configuration.settings.node_name.as_ref())?;
    let Host { families, random_fully, linux } = host::prepare(&configuration)?;
    let settings = Settings { families, random_fully, ..configuration.settings };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the event loop")?;
    runtime.block_on(async {
        let shutdown = shutdown()?;
        let addresses = match address_monitor::start() {
            Ok(changes) => Some(changes),
            Err(error) => {
                warn!("cannot watch the node's addresses: {error}; they are read periodically");
                None
            }
        };
        let kernel = KernelHandle::start(linux).context("start the kernel worker")?;
        let (events, inbox) = mpsc::channel(QUEUE);
        let (inputs, outbox) = mpsc::channel(QUEUE);
        tokio::spawn(manifests.run(events));
        tokio::spawn(forward(inbox, inputs));
        let reconciler = Reconciler::new(Planner::new(settings), kernel, configuration.pace)?;
        reconciler.run(outbox, addresses, shutdown).await?;
        info!("kube-ipvs ends; the kernel's state stays as it is");
        Ok(())
    })
}

/// From the source's words to the event loop's. What is wrong with the input is said here.
async fn forward(mut events: mpsc::Receiver<SourceEvent>, inputs: mpsc::Sender<Input>) {
    while let Some(event) = events.recv().await {
        let input = match event {
            SourceEvent::Change(event) => Input::Change(event),
            SourceEvent::Triggered(family, at) => Input::Triggered(family, at),
            SourceEvent::NodeLeaving(_) => continue,
            SourceEvent::Complete => Input::Complete,
            SourceEvent::Complaint(complaint) => {
                warn!("{complaint}");
                continue;
            }
        };
        if inputs.send(input).await.is_err() {
            return;
        }
    }
    error!("the source has ended");
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
        info!("{name} received");
    })
}
