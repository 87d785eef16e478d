//! Settings that a start would serve with, found out without setting anything: for the console, where
//! no program runs.

use plan::hash::HashMap;
use plan::model::Family;
use plan::settings::Settings;

use super::open_rules;
use crate::mode;
use crate::mode::abilities::AbilitySearch;
use config::Configuration;
use kernel::rules::Rules;

/// Returns the settings of a configuration with the families and abilities that this host has. The
/// probes of rules write a few that nothing leads to, and remove them, as at a start.
pub fn settings(configuration: &Configuration) -> Settings {
    let mut settings = Settings {
        localhost_node_ports: configuration.localhost_node_ports,
        ..configuration.settings.clone()
    };
    let opened = open_rules(configuration).into_iter();
    let mut rules: HashMap<Family, Rules> =
        opened.filter_map(|(family, rules)| Some((family, rules.ok()?))).collect();
    rules.retain(|family, _| settings.families.contains(family));
    settings.families.retain(|family| rules.contains_key(family));
    settings.random_fully = rules.values().all(Rules::random_fully);
    let mode = mode::of(settings.mode);
    (mode.foresee)(configuration, &mut settings);
    mode.find_abilities(AbilitySearch {
        configuration,
        rules: &rules,
        settings: &mut settings,
        limits: &mut Vec::new(),
    });
    settings
}
