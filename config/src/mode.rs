//! The mode: what `mode` and the fields about falling back say, and which settings depend on it.

use std::time::Duration;

use plan::mode::Mode;
use plan::op::PartKind;
use serde_json::Value;

use super::arguments::Arguments;
use super::document::KubeProxyConfiguration;
use super::kube_ipvs::KubeIpvsConfiguration;
use super::reference::{self, FIELDS, OWN_FIELDS};
use super::setting::{self, Setting};
use super::words::{FallbackMode, OnReturn, ProxyMode};
use syntax::duration::GoDuration;

/// The mode to serve in, and what happens on a host that cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeChoice {
    /// Mode to serve in.
    pub preferred: Mode,
    /// Choice for a host that cannot do it; none: kube-ipvs exits there, and says why.
    pub fallback: Option<Fallback>,
}

/// Choice for a host that cannot do the preferred mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    /// Mode to serve in instead.
    pub mode: Mode,
    /// Pause between two probes of the preferred mode, while serving in the other one.
    pub retry: Duration,
    /// Reaction to a host that can do the preferred mode by now.
    pub on_return: OnReturn,
}

impl ModeChoice {
    /// Reads the choice from valid documents.
    pub(super) fn new(document: &KubeProxyConfiguration, own: &KubeIpvsConfiguration) -> Self {
        let (preferred, instead) = match document.mode.value() {
            ProxyMode::Of(mode) => (mode, own.fallback.valid().copied()),
            ProxyMode::Auto => (Mode::Ipvs, Some(FallbackMode::Iptables)),
        };
        let instead = instead.filter(|_| preferred == Mode::Ipvs);
        let fallback = instead.map(|FallbackMode::Iptables| Fallback {
            mode: Mode::Iptables,
            retry: own.fallback_retry.unwrap_or_default().to_std(),
            on_return: own.fallback_return.value(),
        });
        Self { preferred, fallback }
    }

    /// Returns the modes that the node may come to serve in.
    pub(super) fn modes(&self) -> impl Iterator<Item = Mode> {
        [self.preferred].into_iter().chain(self.fallback.map(|fallback| fallback.mode))
    }

    /// True if the node may come to serve in a mode of which this is true.
    pub(super) fn may(&self, is: fn(Mode) -> bool) -> bool {
        self.modes().any(is)
    }
}

/// Periods of a mode, from its section of the configuration.
pub(super) struct Periods {
    /// `minSyncPeriod`
    pub(super) least: GoDuration,
    /// `syncPeriod`
    pub(super) most: GoDuration,
    /// Paths of both.
    pub(super) fields: [&'static str; 2],
}

/// Returns the periods of a mode. kube-proxy has no section for userspace.
pub(super) fn periods(document: &KubeProxyConfiguration, mode: Mode) -> Periods {
    let (ipvs, iptables) = (&document.ipvs, &document.iptables);
    if mode.uses(PartKind::VirtualServers) {
        let fields = ["ipvs.minSyncPeriod", "ipvs.syncPeriod"];
        Periods { least: ipvs.min_sync_period, most: ipvs.sync_period, fields }
    } else {
        let fields = ["iptables.minSyncPeriod", "iptables.syncPeriod"];
        Periods { least: iptables.min_sync_period, most: iptables.sync_period, fields }
    }
}

/// Removes the periods of modes that the node cannot come to serve in: so kube-proxy writes its
/// configuration.
pub(super) fn keep_periods_of(choice: &ModeChoice, document: &mut KubeProxyConfiguration) {
    let (ipvs, iptables) = (&mut document.ipvs, &mut document.iptables);
    if !choice.may(Mode::has_virtual_servers) {
        (ipvs.min_sync_period, ipvs.sync_period) = (GoDuration::ZERO, GoDuration::ZERO);
    }
    if !choice.may(Mode::leads_by_rules) {
        (iptables.min_sync_period, iptables.sync_period) = (GoDuration::ZERO, GoDuration::ZERO);
    }
    let nftables = &mut document.nftables;
    (nftables.min_sync_period, nftables.sync_period) = (GoDuration::ZERO, GoDuration::ZERO);
    nftables.masquerade_all = false;
}

/// Returns notes on flags that were given, and fields that differ from their defaults, of modes
/// that the node cannot come to serve in.
pub(super) fn notes(
    arguments: &Arguments,
    document: &KubeProxyConfiguration,
    own: &KubeIpvsConfiguration,
) -> Vec<String> {
    let choice = ModeChoice::new(document, own);
    let other = |setting: &Setting| {
        let modes = setting.effect.modes();
        let is_other = !modes.is_empty() && !choice.modes().any(|mode| modes.contains(&mode));
        is_other.then(|| setting::in_words(modes))
    };
    let has_file = arguments.file().is_some();
    let given = arguments.given.iter().filter_map(|(name, _)| reference::of_flag(name));
    let given = given.filter(|(_, flag)| flag.with_config || !has_file);
    let given: Vec<(&Setting, &str)> = given.map(|(setting, flag)| (setting, flag.name)).collect();
    let of_flags = given.iter().filter_map(|(setting, name)| {
        let mode = other(setting)?;
        Some(format!("--{name} has no effect: it belongs to {mode}"))
    });
    let is_given = |setting: &Setting| given.iter().any(|(other, _)| other.path == setting.path);
    let (default, own_default) = (
        json(&KubeProxyConfiguration::default().with_defaults()),
        json(&KubeIpvsConfiguration::default().with_defaults()),
    );
    let (document, own) = (json(document), json(own));
    let of_kube_proxy = FIELDS.iter().filter(|_| has_file);
    let of_kube_proxy = of_kube_proxy.map(|setting| (setting, &document, &default));
    let of_ours = OWN_FIELDS.iter().map(|setting| (setting, &own, &own_default));
    let of_fields = of_kube_proxy.chain(of_ours).filter_map(|(setting, value, default)| {
        let mode = other(setting)?;
        let pointer = format!("/{}", setting.path.replace('.', "/"));
        let differs = value.pointer(&pointer) != default.pointer(&pointer);
        (differs && !is_given(setting))
            .then(|| format!("{} has no effect: it belongs to {mode}", setting.path))
    });
    of_flags.chain(of_fields).collect()
}

/// Returns a document as JSON. A document that cannot be written has no fields to speak of.
fn json(document: &impl serde::Serialize) -> Value {
    serde_json::to_value(document).unwrap_or_default()
}
