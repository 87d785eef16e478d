//! Preparation of the host: modules, the probe, sysctls, and the handles. What a mode adds to the steps that all
//! modes have is in its list (`node/src/mode/`).

mod conntrack;
mod examination;
mod fallback;
pub mod foresight;
mod local_ports;
mod oom;
mod rule_form;
pub mod survey;
pub mod sysctls;

use std::path::Path;

use anyhow::{Context as _, bail};
use plan::hash::HashMap;
use plan::model::Family;
use plan::settings::Settings;
use tracing::warn;

use crate::mode::abilities::AbilitySearch;
pub use crate::mode::abilities::{lack_of_localhost_node_ports, lacks_copies};
pub use crate::mode::ipvs::neighbours::without_neighbours;
pub use crate::mode::needed_modules;
use crate::mode::{self, ModeSysctls};
use config::{Action, Configuration};
use examination::{Examined, Probed, examine, open_rules, probe};
pub use fallback::FallenBack;
use kernel::input_rules;
use kernel::linux::Linux;
use kernel::rules::{Backend, Rules};
use kernel::sysctl;

/// A host that is ready.
pub struct Host {
    /// The configuration for the mode that the host can do, with the families and abilities that it
    /// has.
    pub configuration: Configuration,
    /// Reason for which the mode is not the preferred one; none: it is.
    pub fallen_back: Option<FallenBack>,
    /// Reasons for which families are not served that the kernel has, in words.
    pub dropped_families: Vec<String>,
    /// The kind of iptables that holds the rules of each of these families. Nothing says that it
    /// is the same one: what is installed and in use is found out for each.
    pub backends: HashMap<Family, Backend>,
    /// Its kernel.
    pub linux: Linux,
    /// Limits of the host that Services feel, in words. Each has been logged.
    pub limits: Vec<String>,
}

/// Prepares the host for planning, in the mode that it can do. An error names everything that is
/// missing, and the families of those `served` so far that would not be served any more.
pub fn prepare(configuration: &Configuration, served: &[Family]) -> anyhow::Result<Host> {
    oom::set_score(Path::new(oom::PATH), configuration.oom_score_adj);
    let examined = examine(configuration)?;
    examined.keeps(served)?;
    let Examined { configuration, fallen_back, dropped_families, rules, mut limits } = examined;
    let backends = rules.iter().map(|(family, rules)| (*family, rules.backend())).collect();
    let mode = mode::of_settings(&configuration.settings);
    let ModeSysctls { needed, beside_ipvs, chosen, behind_rules } = (mode.sysctls)(&configuration);
    let proc_sys = Path::new(sysctl::ROOT);
    let at_once = [needed, beside_ipvs].concat();
    let mut failed = sysctls::set(proc_sys, &at_once);
    let chosen = sysctls::set_chosen(proc_sys, chosen);
    // Before an ability is looked for: one of these sysctls decides about invalid packets.
    failed.extend(sysctls::track_connections(&configuration.conntrack, &mut limits));
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    let mut settings = Settings {
        random_fully: rules.values().all(Rules::random_fully),
        ..configuration.settings.clone()
    };
    mode.find_abilities(AbilitySearch {
        configuration: &configuration,
        rules: &rules,
        settings: &mut settings,
        limits: &mut limits,
    });
    if mode.takes_at_input {
        let obstacles = warn_of_obstacles(&settings, &rules);
        // In the other form rules of ours let Service traffic in, unless the operator chose otherwise.
        limits.extend(obstacles.into_iter().filter(|_| settings.has_tables()));
    }
    let is_to_serve = configuration.action != Action::InitOnly;
    let mut linux = match settings.has_tables() {
        true if is_to_serve => Linux::open_with_tables(settings.families.clone())?,
        // The process that this prepares for may have the tables already, or one before it.
        true => Linux::read_with_tables(settings.families.clone())?,
        false => Linux::open(rules, settings.mode)?,
    };
    if is_to_serve {
        rule_form::take_sets(&settings, &mut linux).context(
            "take over the sets of the other form: nothing was removed. To keep the form in use on \
             the node, set ruleBackend to it; kube-ipvs --cleanup removes both forms, and ends \
             connections",
        )?;
    }
    linux.keep_sysctls([sysctl::existing(proc_sys, at_once), chosen].concat());
    if configuration.action == Action::InitOnly {
        // The process that this prepares for may not be allowed to set it.
        let _not_required = sysctls::set(proc_sys, &behind_rules);
    } else {
        sysctls::record_before(proc_sys, &behind_rules);
        linux.keep_sysctls_behind_rules(behind_rules);
    }
    (mode.set_up)(&configuration, &mut settings, &mut linux)?;
    if let Some(warning) = survey::ipvs_connections(&configuration) {
        warn!("{warning}");
        limits.push(warning);
    }
    if let Some(Err(warning)) = local_ports::check(mode, proc_sys) {
        warn!("{warning}");
    }
    let configuration = Configuration { settings, ..configuration };
    Ok(Host { configuration, fallen_back, dropped_families, backends, linux, limits })
}

/// Checks that the host can be prepared for a configuration, while it serves with another one.
/// Removes what the check has made.
///
/// # Errors
/// With everything that is missing, and the families of those `served` now that would not be served
/// any more.
pub fn check(configuration: &Configuration, served: &[Family]) -> anyhow::Result<()> {
    let had_dummy = Linux::has_dummy();
    let examined = examine(configuration);
    remove_dummy_unless(had_dummy);
    examined?.keeps(served)
}

/// Looks again at whether this host can do the preferred mode, which it could not when the program
/// started, without losing a family that it serves now. Removes what the look has made.
pub fn look_again(configuration: &Configuration) -> Result<(), Vec<String>> {
    let served = &configuration.settings.families;
    let configuration = configuration.in_mode(configuration.modes.preferred);
    let had_dummy = Linux::has_dummy();
    let Probed { findings, .. } = probe(&configuration);
    remove_dummy_unless(had_dummy);
    if !findings.is_usable() {
        return Err(findings.fatal());
    }
    let keeps = served.iter().all(|family| findings.families.contains(family));
    if keeps { Ok(()) } else { Err(findings.dropped_families()) }
}

/// Removes the interface that a probe of mode ipvs has made, unless it was there before.
fn remove_dummy_unless(was_there: bool) {
    if !was_there && let Err(error) = Linux::remove_empty_dummy() {
        warn!("cannot remove the interface that the probe of IPVS mode created: {error}");
    }
}

/// Logs what of the host's own rules keeps Service traffic from where it is taken, and returns it in words.
fn warn_of_obstacles(settings: &Settings, rules: &HashMap<Family, Rules>) -> Vec<String> {
    let read = |(family, rules): (&Family, &Rules)| Some((*family, rules.saved().ok()?));
    let saved: Vec<(Family, String)> = match settings.lets_traffic_in() {
        true => Vec::new(),
        false => rules.iter().filter_map(read).collect(),
    };
    let saved = saved.iter().map(|(family, text)| (*family, text.as_str()));
    let in_input = input_rules::in_input(settings, saved);
    let obstacles = in_input.into_iter().chain(input_rules::in_routing(settings));
    let obstacles: Vec<String> = obstacles.map(|obstacle| obstacle.to_string()).collect();
    obstacles.iter().for_each(|obstacle| warn!("{obstacle}"));
    obstacles
}
