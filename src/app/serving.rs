//! Health and metrics: the thread that answers, and the choice of what is served, from the
//! configuration.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use plan::settings::Settings;
use tokio::time::sleep;

use super::threads::TaskThread;
use config::{Configuration, gates};
use serve::health::SharedHealth;
use serve::listeners::Listeners;
use serve::metrics::ServedMode;
use serve::pages::{Following, Pages, SetVerbosity};
use source::kubernetes::ClientMetrics;

/// Time between two looks at whether changes arrive.
const LOOK: Duration = Duration::from_millis(500);

/// Listeners, and the thread that answers. They outlive a tenure, so that no check of a load balancer
/// fails at a switch.
#[derive(Debug)]
pub(super) struct ServingThread {
    pub(super) thread: TaskThread,
    pub(super) listeners: Arc<Listeners>,
}

impl ServingThread {
    /// Starts the thread, which does not listen yet.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let thread = TaskThread::start("serving", ())?;
        Ok(Arc::new(Self { thread, listeners: Listeners::new() }))
    }
}

/// Reports to health that changes of Services and EndpointSlices arrive, once they do. A folder is
/// followed from the first list on.
pub(super) async fn report_followed(client: Option<ClientMetrics>, health: SharedHealth) {
    while client.as_ref().is_some_and(|client| !client.follows_services()) {
        sleep(LOOK).await;
    }
    health.followed();
}

/// Returns what is served, and where.
///
/// # Errors
/// When the configuration cannot be written as JSON.
pub(super) fn options(
    configuration: &Configuration,
    settings: &Settings,
    following: Option<Following>,
    set_verbosity: SetVerbosity,
    more: Router,
) -> anyhow::Result<serve::Options> {
    let flags = configuration.flags.iter();
    let served = configuration.served;
    Ok(serve::Options {
        families: settings.families.clone(),
        sync_period: configuration.pace.sync_period,
        health_address: served.healthz,
        metrics_address: Some(served.metrics),
        hard_fail: served.hard_fail,
        node_port_addresses: settings.node_port_addresses.clone(),
        pages: Pages {
            mode: ServedMode {
                configured: configuration.configured_mode.clone(),
                effective: settings.mode,
            },
            configz: configuration.to_configz().context("write the configuration as JSON")?,
            flags: flags.map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            profiling: served.profiling.then_some(set_verbosity),
            flagz: configuration.gates.is_enabled(gates::FLAGZ),
            statusz: configuration.gates.is_enabled(gates::STATUSZ),
            following,
            more,
        },
    })
}
