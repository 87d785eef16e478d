//! Settings that a start would serve with, found out without setting anything: for the console, where
//! no program runs.

use std::path::Path;

use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family;
use plan::settings::Settings;

use super::{
    can_count, open_rules, possible_short_circuit_networks, possible_syn_copies,
    unmatched_protocols,
};
use config::Configuration;
use kernel::linux::{Linux, LocalServiceAddresses};
use kernel::rules::Rules;
use kernel::{modules, sysctl};

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
    match settings.mode {
        Mode::Ipvs => {
            settings.short_circuit_networks = possible_short_circuit_networks(
                settings.short_circuit_networks,
                &rules,
                &mut Vec::new(),
            );
            settings.unbalanced = modules::unbalanced_protocols(Path::new(modules::SYMBOLS));
            if configuration.service_routes.chosen.is_none() {
                // A start keeps what there is. It asks the API server where there is nothing.
                let found = LocalServiceAddresses::read().unwrap_or_default();
                let kept = configuration.service_routes.kept(&found.routes);
                (settings.service_routes, _) = configuration.routable(&kept);
            }
        }
        Mode::Iptables => {
            // A start sets the sysctl, if that is wanted, before it reads it.
            settings.drop_invalid = !configuration.conntrack.tcp_be_liberal
                && !sysctl::is_tcp_liberal(Path::new(sysctl::ROOT));
            settings.nfacct = can_count(&rules);
        }
        Mode::Userspace => {}
    }
    if settings.mode.leads_by_rules() {
        settings.unbalanced = unmatched_protocols(&rules, &mut Vec::new());
        if Linux::has_dummy() {
            settings.syn_copies = possible_syn_copies(&rules);
        }
    }
    settings
}
