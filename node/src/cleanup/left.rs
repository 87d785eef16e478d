//! State that other modes have left on the node, counted: nothing is changed.

use std::collections::BTreeSet;
use std::fmt;

use plan::kernel_objects::LINK;
use plan::mode::Mode;
use plan::model::Family;
use plan::settings::Settings;

use super::{rules, scope, state};
use crate::mode;
use kernel::ReadError;
use kernel::leftovers::{Connections, Leftovers};
use kernel::nftables;
use kernel::rules::{Backend, Rules, Variant};

/// State of mode ipvs, of ours or of kube-proxy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftByIpvs {
    /// Number of virtual servers with an ownership marker.
    pub virtual_servers: usize,
    pub connections: Connections,
    /// True if there is the interface, and not only for addresses in excluded networks.
    pub interface: bool,
    /// Number of sets.
    pub sets: usize,
}

impl LeftByIpvs {
    /// The mode that it is of.
    pub const MODE: Mode = mode::ipvs::ITSELF;
}

/// Rules that other modes have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftRules {
    /// Number of chains.
    pub chains: usize,
    /// Number of rules in chains that this mode has as well.
    pub rules: usize,
}

/// Counts the state of mode ipvs.
pub fn by_ipvs(chosen: &Settings) -> Result<LeftByIpvs, ReadError> {
    let mut leftovers = Leftovers::open()?;
    let found = leftovers.read()?;
    let removal = state::removal(&found, chosen);
    Ok(LeftByIpvs {
        virtual_servers: removal.virtual_servers.len(),
        connections: leftovers.connections(&removal.virtual_servers)?,
        interface: removal.link.is_left(),
        sets: removal.sets.len(),
    })
}

/// Counts the rules of other modes than the chosen one. Reading them takes up to seconds on a large node.
pub fn rules_beside(chosen: &Settings, variant: Variant) -> Result<LeftRules, ReadError> {
    let mut left = LeftRules::default();
    for (backend, in_use, saved) in saved(variant)? {
        let scope = scope(mode::of_settings(chosen).itself, in_use.as_ref(), backend);
        for removal in rules::removals(&saved, scope) {
            left.chains += removal.n_chains;
            left.rules += removal.n_rules;
        }
    }
    Ok(left)
}

/// Counts the chains of mode iptables that remember clients for session affinity.
pub fn chains_with_affinity(variant: Variant) -> Result<usize, ReadError> {
    let saved = saved(variant)?;
    let lines = saved.iter().flat_map(|(_, _, text)| text.lines());
    let of_services = lines.filter(|line| line.contains("--rcheck"));
    let chains = of_services.filter_map(|line| line.split_whitespace().nth(1));
    Ok(chains.collect::<BTreeSet<_>>().len())
}

/// Counts the virtual servers without an ownership marker. A kernel without IPVS has none.
pub fn of_other_programs(chosen: &Settings) -> Result<usize, ReadError> {
    let found = Leftovers::open()?.read()?;
    let ours = state::removal(&found, chosen).virtual_servers.len();
    Ok(found.actual.virtual_servers.len() - ours)
}

/// Returns the families that have a table of kube-proxy's mode nftables.
pub fn nftables_families() -> Result<Vec<Family>, ReadError> {
    nftables::families_with(nftables::KUBE_PROXY)
        .map_err(|error| ReadError::new("nftables tables", error))
}

/// Sorts the chains of saved rules whose names begin with `KUBE-`. Returns the number of those that a
/// proxy has made, ours or kube-proxy's in any mode, and those of other programs. The kubelet's are
/// among neither.
#[must_use]
pub fn sort_chains(saved: &str) -> (usize, BTreeSet<&str>) {
    rules::sort_chains(saved)
}

/// The tables that saved rules leave out, because iptables cannot show them and they could not be read
/// in another way.
#[must_use]
pub fn unreadable(saved: &str) -> Vec<&str> {
    rules::unreadable(saved)
}

/// Reads the rules of each kind of iptables. Beside them is the kind that the family's rules are in.
fn saved(variant: Variant) -> Result<Vec<(Backend, Option<Backend>, String)>, ReadError> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        let in_use = Rules::open(family, variant).ok().map(|rules| rules.backend());
        for rules in Rules::installed(family) {
            let saved = rules.saved().map_err(|error| ReadError::new("rules", error))?;
            require_all(family, &saved)?;
            all.push((rules.backend(), in_use, saved));
        }
    }
    Ok(all)
}

/// Refuses to count in a survey that had to leave a table out: nothing there would look as if nothing were left.
fn require_all(family: Family, saved: &str) -> Result<(), ReadError> {
    let tables = rules::unreadable(saved);
    if tables.is_empty() {
        return Ok(());
    }
    let reason = "it has rules of other programs that iptables cannot show";
    Err(ReadError::new(format!("the {family} table {}", tables.join(" and ")), reason))
}

impl LeftByIpvs {
    /// True if there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for LeftByIpvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connections { real_servers, active, inactive, .. } = self.connections;
        write!(
            f,
            "{} virtual servers with {real_servers} real servers, {active} active and {inactive} \
             inactive TCP connections, {} sets",
            self.virtual_servers, self.sets
        )?;
        if self.interface { write!(f, ", the interface {LINK}") } else { Ok(()) }
    }
}

impl LeftRules {
    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for LeftRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} chains and {} rules of other modes", self.chains, self.rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::rules::UNREAD;

    #[test]
    fn a_table_that_could_not_be_read_is_not_one_without_rules() {
        assert!(require_all(Family::V4, "*filter\nCOMMIT\n").is_ok());
        let error = require_all(Family::V4, &format!("{UNREAD}nat\n*filter\nCOMMIT\n"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("IPv4 table nat") && error.contains("cannot show"), "{error}");
    }
}
