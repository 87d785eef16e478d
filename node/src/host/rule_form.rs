//! Choice of the form of rules and sets in mode ipvs, and the change from one to the other.
//!
//! The form that a node has stays: a module that cannot be loaded for a moment must not change what carries traffic at a
//! restart.

use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family;
use plan::settings::{RuleForm, Settings};
use tracing::info;

use config::Configuration;
use config::words::RuleBackend;
use kernel::ReadError;
use kernel::linux::Linux;
use kernel::nftables::own_chains_lead;

/// Returns the forms that a start tries in this order: the first that works is taken.
pub(super) fn candidates(configuration: &Configuration) -> Vec<RuleForm> {
    let settings = &configuration.settings;
    match configuration.rule_backend {
        RuleBackend::Only(form) => vec![form],
        RuleBackend::Auto if !settings.mode.has_virtual_servers() => vec![RuleForm::Iptables],
        RuleBackend::Auto => match found(settings) {
            Some(form) => vec![form],
            None => vec![RuleForm::Iptables, RuleForm::Nftables],
        },
    }
}

/// Returns the form that the node has; none: neither. A form that cannot be read counts as absent.
fn found(settings: &Settings) -> Option<RuleForm> {
    if settings.families.iter().any(|family| own_chains_lead(*family).unwrap_or(false)) {
        return Some(RuleForm::Nftables);
    }
    Linux::has_ipsets().then_some(RuleForm::Iptables)
}

/// Returns a configuration in a form.
pub(super) fn in_form(configuration: &Configuration, form: RuleForm) -> Configuration {
    let settings = Settings { rule_form: form, ..configuration.settings.clone() };
    Configuration { settings, ..configuration.clone() }
}

/// Copies the other form's entries into sets of a form that does not lead yet: they are the ownership markers of virtual
/// servers.
///
/// # Errors
/// When a set cannot be read or written.
pub(super) fn take_sets(settings: &Settings, linux: &mut Linux) -> Result<(), ReadError> {
    let lead = |family: &&Family| own_chains_lead(**family).unwrap_or(false);
    let has_tables = settings.has_tables();
    let families: Vec<Family> =
        settings.families.iter().filter(|family| lead(family) != has_tables).copied().collect();
    if families.is_empty() || has_tables && !Linux::has_ipsets() {
        return Ok(());
    }
    let n_taken = if has_tables {
        let mut ipsets = Linux::open_to_read(HashMap::default(), Mode::Ipvs)?;
        linux.copy_sets(&mut ipsets, &families)?
    } else {
        // In a mode without sets, they say what mode ipvs has left.
        let mut tables = Linux::read_with_tables(families.clone())?;
        Linux::open(HashMap::default(), Mode::Ipvs)?.copy_sets(&mut tables, &families)?
    };
    let to = if has_tables { "nf_tables" } else { "ipset" };
    info!("moved {n_taken} entries of sets in the other form to {to}");
    Ok(())
}
