//! Reasons for which a tenure ends, or the program: a configuration file that has changed, an order
//! by a signal, a host that can do the preferred mode again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use plan::mode::Mode;
use plan::model::Family;
use prometheus::IntGauge;
use tokio_util::task::TaskTracker;
use tracing::{error, info};

use super::orders::Orders;
use super::source::check;
use crate::events::{EventRecorder, NewEvent, Reason, Regarding};
use config::watch::{self, Check, Refusal, Rejected, SPREAD};
use config::{Arguments, Configuration};
use node::host;

/// Another configuration to serve with, in the same process.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Switch {
    pub(super) configuration: Configuration,
    /// True if the configuration is what the file says, and not an order besides.
    pub(super) is_configured: bool,
    /// Reason for the switch, in words.
    pub(super) reason: String,
}

/// Consequence of a change.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Consequence {
    /// The program ends with this reason, and its supervisor starts it anew.
    Restart(String),
    /// It goes on with another configuration.
    Switch(Box<Switch>),
}

/// Sources of changes.
pub(super) struct Changes<'a> {
    pub(super) arguments: &'a Arguments,
    /// Configuration of the file or the flags, without an order.
    pub(super) configured: &'a Configuration,
    /// Content of the file that could not be served with, if there is one.
    pub(super) rejected: Option<Rejected>,
    /// True while the file has something that cannot be used, for the console.
    pub(super) is_rejected: Arc<AtomicBool>,
    pub(super) orders: &'a mut Orders,
}

/// Surroundings that changes are checked in and reported to.
#[derive(Clone)]
pub(super) struct Surroundings {
    /// Mode that the node serves in.
    pub(super) mode: Mode,
    /// Families that it serves.
    pub(super) families: Vec<Family>,
    pub(super) recorder: EventRecorder,
    pub(super) at_work: TaskTracker,
}

impl Changes<'_> {
    /// Ready with the first change that can be followed. One that cannot is reported: the node goes
    /// on serving as it does. `gauge` is 1 as long as the file has one.
    pub(super) async fn next(self, cx: Surroundings, gauge: IntGauge) -> Consequence {
        let Self { arguments, configured, rejected, is_rejected, orders } = self;
        let note = move |cannot_be_used: bool| {
            gauge.set(cannot_be_used.into());
            is_rejected.store(cannot_be_used, Ordering::Relaxed);
        };
        let in_file = file_changed(arguments, configured, rejected, cx.clone(), note);
        tokio::select! {
            consequence = in_file => consequence,
            switch = ordered(arguments, configured, orders, cx) => Consequence::Switch(switch),
        }
    }
}

/// Ready when the configuration file has changed into one that can be used.
async fn file_changed(
    arguments: &Arguments,
    configured: &Configuration,
    rejected: Option<Rejected>,
    cx: Surroundings,
    note_rejected: impl Fn(bool),
) -> Consequence {
    let Some(file) = configured.file.clone() else { return std::future::pending().await };
    let reason = format!("the configuration file {} has changed", file.path.display());
    let (arguments, configured) = (arguments.clone(), configured.clone());
    let (at_work, families) = (cx.at_work.token(), cx.families.clone());
    let check: Check = Arc::new(move || {
        // It tries out what the host can do. The next tenure must not do the same meanwhile.
        let _held = &at_work;
        let new = Configuration::load(&arguments)?;
        check(&new)?;
        if !configured.can_become(&new) {
            return Ok(watch::Change::Restart);
        }
        let mode = new.modes.preferred;
        host::check(&new, &families).map_err(|problem| Refusal { lacking: Some(mode), problem })?;
        Ok(watch::Change::TakeOn(Box::new(new)))
    });
    let report = |cannot_be_used: bool, news: Option<&Refusal>| {
        note_rejected(cannot_be_used);
        if let Some(Refusal { lacking: Some(mode), problem }) = news {
            cx.report_failure(*mode, problem);
        }
    };
    match file.changed(check, rejected, SPREAD, report).await {
        watch::Change::Restart => Consequence::Restart(watch::UPDATED.to_owned()),
        watch::Change::TakeOn(new) => Consequence::Switch(Box::new(Switch {
            configuration: *new,
            is_configured: true,
            reason,
        })),
    }
}

/// Ready when another mode is ordered, and the host can do it.
async fn ordered(
    arguments: &Arguments,
    configured: &Configuration,
    orders: &mut Orders,
    cx: Surroundings,
) -> Box<Switch> {
    loop {
        let mode = orders.next().await;
        if mode == cx.mode {
            info!("kube-ipvs switch: the node already serves in {}", mode.title());
            continue;
        }
        info!("kube-ipvs switch: switching from {} to {}", cx.mode.title(), mode.title());
        match for_order(arguments, configured, mode, &cx).await {
            Ok(configuration) => {
                let reason = "requested by kube-ipvs switch".to_owned();
                return Box::new(Switch { configuration, is_configured: false, reason });
            }
            Err(error) => cx.report_failure(mode, &error),
        }
    }
}

/// Returns the configuration for an ordered mode, which the host can do.
async fn for_order(
    arguments: &Arguments,
    configured: &Configuration,
    mode: Mode,
    cx: &Surroundings,
) -> anyhow::Result<Configuration> {
    let configuration = configured.for_mode(arguments, mode)?;
    let families = cx.families.clone();
    let checked = cx
        .at_work
        .spawn_blocking(move || host::check(&configuration, &families).map(|()| configuration));
    checked.await.context("check the host's prerequisites")?
}

impl Surroundings {
    /// Reports that the node cannot switch to a mode, and goes on in its own.
    fn report_failure(&self, wanted: Mode, error: &anyhow::Error) {
        let mode = self.mode;
        let note = format!(
            "this node stays in {} instead of switching to {}: {error:#}",
            mode.title(),
            wanted.title()
        );
        error!("{note}");
        self.recorder.record(NewEvent::warning(
            Regarding::Node,
            Reason::ModeSwitchFailed,
            "SwitchMode",
            note,
        ));
    }
}
