//! Signals that end the program.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

/// Signals that end the program.
#[derive(Debug)]
pub(super) struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    pub(super) fn handle() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("handle SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("handle SIGINT")?,
        })
    }

    /// Ready at the first of them.
    pub(super) async fn requested(&mut self) {
        let name = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        info!("{name} received; kube-ipvs exits");
    }
}
