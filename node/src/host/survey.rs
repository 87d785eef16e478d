//! Survey of the host for a preflight: the probes of a start, with all facts.

use std::path::Path;

use plan::hash::HashMap;
use plan::model::Family;
use plan::op::PartKind;

use super::conntrack;
use super::examination::Probed;
use crate::mode;
use config::Configuration;
use kernel::linux::Linux;
use kernel::probe::{Facts, ProbeError};
use kernel::rules::Rules;
use kernel::sysctl::{self, Sysctl};

/// The host as the probes of a start see it.
pub(crate) struct Surveyed {
    /// The configuration in the form of rules that the host would be given.
    pub(crate) configuration: Configuration,
    /// Facts about the host.
    pub(crate) facts: Facts,
    /// The programs of each family.
    pub(crate) rules: HashMap<Family, Result<Rules, ProbeError>>,
    /// Reasons for which families have no internal frontends, in words.
    pub(crate) without_internal_frontends: Vec<String>,
}

/// Probes the host for a configuration. Modules stay loaded; everything else that the probes make is
/// removed.
pub(crate) fn survey(configuration: &Configuration) -> Surveyed {
    let had_dummy = Linux::has_dummy();
    let Probed { configuration, rules, facts, .. } = super::probe(configuration);
    super::remove_dummy_unless(had_dummy);
    let networks = configuration.settings.internal_frontend_networks;
    let lack = |(family, rules): (&Family, &Result<Rules, ProbeError>)| {
        let error = rules.as_ref().ok()?.try_internal_frontends(networks.of(*family)?).err()?;
        Some(format!("{family} has none: {}", error.words))
    };
    let without_internal_frontends = rules.iter().filter_map(lack).collect();
    Surveyed { configuration, facts, rules, without_internal_frontends }
}

/// Returns the sysctls that a start would set, with the values that they have now.
pub fn sysctls_to_set(configuration: &Configuration) -> Vec<(Sysctl, Option<String>)> {
    let mut wanted = kept_sysctls(configuration);
    wanted.extend(conntrack::wanted(&conntrack::Root::default(), &configuration.conntrack));
    differing(&wanted)
}

/// Returns the sysctls that a running program keeps and that have another value, with that.
pub fn sysctls_not_kept(configuration: &Configuration) -> Vec<(Sysctl, Option<String>)> {
    let root = Path::new(sysctl::ROOT);
    differing(&sysctl::existing(root, kept_sysctls(configuration)))
}

/// Returns the sysctls that a start sets and keeps, but for those of connection tracking.
fn kept_sysctls(configuration: &Configuration) -> Vec<Sysctl> {
    (mode::of_settings(&configuration.settings).sysctls)(configuration).all()
}

fn differing(wanted: &[Sysctl]) -> Vec<(Sysctl, Option<String>)> {
    let root = Path::new(sysctl::ROOT);
    let with_value = |sysctl: Sysctl| {
        let value = std::fs::read_to_string(root.join(sysctl.path)).ok();
        (sysctl, value.map(|value| value.trim().to_owned()))
    };
    sysctl::differing(root, wanted).into_iter().map(with_value).collect()
}

/// Returns a warning if the table of connection tracking cannot be given the buckets that a start would
/// give it.
pub(crate) fn conntrack_buckets(configuration: &Configuration) -> Option<String> {
    conntrack::buckets_missing(&conntrack::Root::default(), &configuration.conntrack)
}

/// Returns a warning if IPVS may have fewer connections than are tracked, in a mode with IPVS.
pub(crate) fn ipvs_connections(configuration: &Configuration) -> Option<String> {
    let uses_ipvs = configuration.settings.mode.uses(PartKind::VirtualServers);
    uses_ipvs.then(|| conntrack::ipvs_limit(&conntrack::Root::default())).flatten()
}

/// Checks that programs of this node do not connect from a port that is a NodePort, where that matters to the mode.
pub(crate) fn local_ports(configuration: &Configuration) -> Option<Result<(), String>> {
    super::local_ports::check(mode::of_settings(&configuration.settings), Path::new(sysctl::ROOT))
}
