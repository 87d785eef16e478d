//! Examination of the host: the mode and the families that it can serve.

use std::path::Path;

use anyhow::bail;
use plan::facts::NodeFacts;
use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family;
use plan::rule_set::{RuleSet, RuleSetSettings};
use plan::settings::{FastPath, Settings};
use tracing::{info, warn};

use super::rule_form;
use super::{FallenBack, fallback, remove_dummy_unless};
use crate::cleanup;
use crate::mode::abilities::{PROBE_PAUSE, patiently};
use crate::mode::{self, ModeSysctls};
use config::Configuration;
use kernel::linux::Linux;
use kernel::modules;
use kernel::nftables::OwnTables;
use kernel::probe::{self, Facts, Findings, ProbeError};
use kernel::rules::{Backend, Rules};

/// Host whose abilities are known. Nothing was changed but what a probe makes.
pub(super) struct Examined {
    /// The configuration for the mode that the host can do.
    pub(super) configuration: Configuration,
    /// Reason for which the mode is not the preferred one; none: it is.
    pub(super) fallen_back: Option<FallenBack>,
    /// Reasons for which families are not served that the kernel has, in words.
    pub(super) dropped_families: Vec<String>,
    /// The families that it can do, with their programs.
    pub(super) rules: HashMap<Family, Rules>,
    /// See [`Host::limits`].
    pub(super) limits: Vec<String>,
}

impl Examined {
    /// Checks that the families that are served now can be served.
    pub(super) fn keeps(&self, served: &[Family]) -> anyhow::Result<()> {
        let Settings { families, mode, .. } = &self.configuration.settings;
        keep_families(families, served, *mode, &self.dropped_families)
    }
}

fn keep_families(
    possible: &[Family],
    served: &[Family],
    mode: Mode,
    dropped: &[String],
) -> anyhow::Result<()> {
    let lost = served.iter().filter(|family| !possible.contains(family));
    let lost: Vec<String> = lost.map(ToString::to_string).collect();
    if !lost.is_empty() {
        bail!(
            "the node serves {} now, and could not serve it in {}:\n- {}",
            lost.join(" and "),
            mode.title(),
            dropped.join("\n- ")
        );
    }
    Ok(())
}

/// Finds out in which mode the host can serve. In its configuration are the families that it can do.
pub(super) fn examine(configuration: &Configuration) -> anyhow::Result<Examined> {
    let had_dummy = Linux::has_dummy();
    let Probed { mut configuration, mut rules, mut findings, .. } = probe(configuration);
    let mut fallen_back = None;
    // A lock that is held for a moment is no reason for another mode.
    let missing = if findings.are_momentary() { Vec::new() } else { findings.fatal() };
    if let Some(because) = fallback::decide(&configuration.modes, &missing, || {
        cleanup::ipvs_state(&configuration.settings).map_err(|error| error.to_string())
    })? {
        remove_dummy_unless(had_dummy);
        Probed { configuration, rules, findings, .. } = probe(&configuration.in_mode(because.mode));
        fallen_back = Some(because);
    }
    if let Err(error) = report(configuration.settings.mode, &findings) {
        let Some(because) = fallen_back else { return Err(error) };
        bail!("{because}\nand {error}");
    }
    rules.retain(|family, _| findings.families.contains(family));
    let rules = rules.into_iter().filter_map(|(family, rules)| Some((family, rules.ok()?)));
    let rules = rules.collect();
    let (dropped_families, limits) = (findings.dropped_families(), findings.limits());
    configuration.settings.families = findings.families;
    configuration.settings.unbalanced = findings.unbalanced;
    Ok(Examined { configuration, fallen_back, dropped_families, rules, limits })
}

/// Finds the programs of each family; none where the rules are in tables of nf_tables.
fn rules_of(configuration: &Configuration) -> HashMap<Family, Result<Rules, ProbeError>> {
    if configuration.settings.has_tables() {
        return HashMap::default();
    }
    open_rules(configuration)
}

/// Finds the programs of each family.
pub(super) fn open_rules(
    configuration: &Configuration,
) -> HashMap<Family, Result<Rules, ProbeError>> {
    // Without nf_tables iptables-nft does not even say its version, and would count as not installed.
    // A host that lacks modules says so below, if it needs them.
    let needed = mode::needed_modules(&configuration.settings, &[]);
    let _ = modules::load(Path::new(modules::LOADED), &needed);
    let open = |family| {
        let open = || Ok(Rules::open(family, configuration.variant)?);
        (family, patiently(PROBE_PAUSE, open))
    };
    Family::BOTH.into_iter().map(open).collect()
}

/// A host that was asked about what a mode needs.
pub(super) struct Probed {
    /// The configuration in the form that the host can do; in the first that it may have, if it can do none.
    pub(super) configuration: Configuration,
    /// The programs of each family; none where the rules are in tables of nf_tables.
    pub(super) rules: HashMap<Family, Result<Rules, ProbeError>>,
    pub(super) facts: Facts,
    pub(super) findings: Findings,
}

/// Loads the modules of the configuration's mode, and finds out if the host can do it, and in which form.
pub(super) fn probe(configuration: &Configuration) -> Probed {
    let mut forms = rule_form::candidates(configuration).into_iter();
    let first = forms.next().unwrap_or_default();
    let mut first = probe_form(rule_form::in_form(configuration, first));
    if first.findings.is_usable() || first.findings.are_momentary() {
        return first;
    }
    for form in forms {
        let other = probe_form(rule_form::in_form(configuration, form));
        if other.findings.is_usable() {
            return other;
        }
        first.findings.add_of_other_form(other.findings, form.name());
    }
    first
}

fn probe_form(configuration: Configuration) -> Probed {
    let rules = rules_of(&configuration);
    let facts = gather(&configuration, &rules);
    let findings = probe::judge(&facts);
    Probed { configuration, rules, facts, findings }
}

/// Loads the modules of the configuration's mode, and asks the host about all that the mode needs.
fn gather(
    configuration: &Configuration,
    rules: &HashMap<Family, Result<Rules, ProbeError>>,
) -> Facts {
    let settings = &configuration.settings;
    let mode = mode::of_settings(settings);
    let kinds: Vec<Backend> = rules.values().flatten().map(Rules::backend).collect();
    let needed = mode::needed_modules(settings, &kinds);
    if let Err(not_loaded) = modules::load(Path::new(modules::LOADED), &needed) {
        info!("{not_loaded}");
    }
    let mut try_rules = |family| match rules.get(&family) {
        None if settings.has_tables() => try_tables(family, settings),
        Some(Ok(rules)) => patiently(PROBE_PAUSE, || (mode.try_rules)(rules, settings)),
        Some(Err(error)) => Err(error.clone()),
        None => Err("not checked".to_owned().into()),
    };
    let ModeSysctls { needed, .. } = (mode.sysctls)(configuration);
    (mode.gather)(settings, &needed, &mut try_rules)
}

/// Checks that the kernel takes a family's table with its rules, but for what makes established connections faster. Nothing
/// is made.
pub(super) fn try_tables(family: Family, settings: &Settings) -> Result<(), ProbeError> {
    let cannot = |error: &dyn std::fmt::Display| ProbeError::from(error.to_string());
    let rules = RuleSetSettings::resolve(settings, family, &NodeFacts::default());
    let rules = rules.map_err(|error| cannot(&error))?.with_fast_path(FastPath::Off);
    OwnTables::try_rules(RuleSet::new(family, &rules)).map_err(|error| cannot(&error))
}

/// Logs what was found.
///
/// # Errors
/// With all fatal findings, when there is one.
fn report(mode: Mode, findings: &Findings) -> anyhow::Result<()> {
    for finding in findings.problems.iter().filter(|finding| !finding.fatal) {
        warn!("{finding}");
    }
    let what = mode::of(mode).service;
    if !findings.is_usable() {
        bail!("this host does not support {what}:\n- {}", findings.fatal().join("\n- "));
    }
    let families: Vec<String> = findings.families.iter().map(ToString::to_string).collect();
    info!(families = families.join(" and "), "host checked: it supports {what}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_is_served_is_not_given_up_by_a_switch() {
        let dropped = ["ip6tables does not work".to_owned()];
        let keep = |possible: &[Family], served: &[Family]| {
            keep_families(possible, served, Mode::Iptables, &dropped).map_err(|it| it.to_string())
        };
        let lost = keep(&[Family::V4], &Family::BOTH).unwrap_err();
        assert!(lost.contains("serves IPv6 now") && lost.contains("ip6tables does not"), "{lost}");
        keep(&Family::BOTH, &[Family::V6]).unwrap();
        keep(&[Family::V4], &[]).unwrap();
    }
}
