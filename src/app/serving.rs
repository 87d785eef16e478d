//! Choice of what is served, from the configuration.

use anyhow::Context as _;
use axum::Router;
use plan::settings::Settings;

use crate::config::{Configuration, gates};
use crate::serve;
use crate::serve::pages::{Following, Pages, ServedMode, SetVerbosity};

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
