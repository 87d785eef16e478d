//! Chains that there are, as far as they can be told without running a program.

use std::fs;
use std::io::ErrorKind;

use plan::model::Family;
use plan::rule_set::Table;

use super::Backend;
use super::fingerprint::nft;

/// Returns the chains of a kind of iptables in the tables that we write, those of other programs
/// included; none if it takes a program to know them.
#[must_use]
pub fn chain_names(family: Family, backend: Backend) -> Option<Vec<(Table, String)>> {
    match backend {
        Backend::Nft => nft::chain_names(family).ok(),
        Backend::Legacy => has_no_tables(family).then(Vec::new),
    }
}

/// True if a chain is known to have a rule.
pub(super) fn has_rules(family: Family, backend: Backend, table: Table, chain: &str) -> bool {
    backend == Backend::Nft && nft::has_rules(family, table, chain).unwrap_or(false)
}

/// True if the kernel has no table of x_tables: their names are in a file of the network namespace
/// (`xt_proto_init` in net/netfilter/x_tables.c), which is not there without the module.
fn has_no_tables(family: Family) -> bool {
    let names = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    match fs::read_to_string(format!("/proc/thread-self/net/{names}")) {
        Ok(names) => names.trim().is_empty(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}
