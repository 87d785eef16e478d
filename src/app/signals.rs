//! Signals that the program takes: those that end it, and those that order another mode
//! ([`signal_of`]).

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::select_all;
use plan::mode::Mode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use crate::switch::signal_of;

/// Signals that end the program.
#[derive(Debug)]
pub(super) struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

/// Signals that order a mode. An order that comes while no one waits is kept.
#[derive(Debug, Default)]
pub(super) struct Orders(Vec<(Mode, Signal)>);

// === impl Shutdown ===

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
        info!("{name} received; kube-ipvs ends");
    }
}

// === impl Orders ===

impl Orders {
    pub(super) fn handle() -> anyhow::Result<Self> {
        let handle = |mode| {
            let kind = SignalKind::from_raw(signal_of(mode).as_raw());
            Ok((mode, signal(kind).with_context(|| format!("handle the order of mode {mode}"))?))
        };
        Mode::ALL.into_iter().map(handle).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Ready with the next order. Without handlers there is none.
    pub(super) async fn next(&mut self) -> Mode {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let orders = self.0.iter_mut().map(|(mode, signal)| {
            let mode = *mode;
            async move {
                signal.recv().await;
                mode
            }
            .boxed()
        });
        select_all(orders).await.0
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn each_mode_has_a_signal_of_its_own_that_orders_it() {
        let mut orders = Orders::handle().unwrap();
        for mode in Mode::ALL {
            kill_process(getpid(), signal_of(mode)).unwrap();
            assert_eq!(orders.next().await, mode);
        }
    }
}
