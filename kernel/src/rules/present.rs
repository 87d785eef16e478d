//! Chains and rules that there are, as the kernel says without a program.

use std::fs;
use std::io::{self, ErrorKind};

use plan::model::Family;
use plan::rule_set::Table;

use super::Backend;
use super::fingerprint::{legacy, nft};

/// Returns the chains of a kind of iptables in the tables that we write, those of other programs
/// included; none if the kernel does not say.
#[must_use]
pub fn chain_names(family: Family, backend: Backend) -> Option<Vec<(Table, String)>> {
    match backend {
        Backend::Nft => nft::chain_names(family).ok(),
        Backend::Legacy => legacy::chain_names(family, &legacy_tables(family).ok()?).ok(),
    }
}

/// True if a chain is known to have a rule.
pub(super) fn has_rules(family: Family, backend: Backend, table: Table, chain: &str) -> bool {
    let has_rules = match backend {
        Backend::Nft => nft::has_rules(family, table, chain),
        Backend::Legacy => {
            let is_there = legacy_tables(family).is_ok_and(|tables| tables.contains(&table));
            if is_there { legacy::has_rules(family, table, chain) } else { Ok(false) }
        }
    };
    has_rules.unwrap_or(false)
}

/// Returns the tables of x_tables that are there. Their names are in a file of the network namespace
/// (`xt_proto_init` in net/netfilter/x_tables.c), which is not there without the module.
fn legacy_tables(family: Family) -> io::Result<Vec<Table>> {
    let names = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    let names = match fs::read_to_string(format!("/proc/thread-self/net/{names}")) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let is_there = |table: &Table| names.lines().any(|name| name == table.name());
    Ok(Table::ALL.into_iter().filter(is_there).collect())
}
