//! Settings that a start would serve with, found out without setting anything: for the console, where
//! no program runs.

use plan::hash::HashMap;
use plan::model::Family;
use plan::settings::Settings;

use super::examination::try_tables;
use super::{open_rules, rule_form};
use crate::mode;
use crate::mode::abilities::AbilitySearch;
use config::Configuration;
use kernel::rules::Rules;

/// Returns the settings of a configuration with the families and abilities that this host has. The
/// probes of rules write a few that nothing leads to, and remove them, as at a start.
pub fn settings(configuration: &Configuration) -> Settings {
    let mut forms = rule_form::candidates(configuration).into_iter();
    let mut rules = HashMap::default();
    let mut settings = Settings {
        localhost_node_ports: configuration.localhost_node_ports,
        rule_form: forms.next().unwrap_or_default(),
        ..configuration.settings.clone()
    };
    if !settings.has_tables() {
        let opened = open_rules(configuration).into_iter();
        rules = opened.filter_map(|(family, rules)| Some((family, rules.ok()?))).collect();
        rules.retain(|family: &Family, _: &mut Rules| settings.families.contains(family));
        // Without a program, only the other form can be it.
        settings.rule_form = forms.next().filter(|_| rules.is_empty()).unwrap_or_default();
    }
    if settings.has_tables() {
        let families = std::mem::take(&mut settings.families).into_iter();
        settings.families = families.filter(|it| try_tables(*it, &settings).is_ok()).collect();
    } else {
        settings.families.retain(|family| rules.contains_key(family));
    }
    settings.random_fully = rules.values().all(Rules::random_fully);
    let mode = mode::of_settings(&settings);
    (mode.foresee)(configuration, &mut settings);
    mode.find_abilities(AbilitySearch {
        configuration,
        rules: &rules,
        settings: &mut settings,
        limits: &mut Vec::new(),
    });
    settings
}
