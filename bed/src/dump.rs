//! State of a node, as text, for the message of a test that failed.

use std::fmt::Write as _;

use crate::namespace::Namespace;

/// Commands to run. A program that is not installed, or has nothing to say, says so.
const COMMANDS: [&str; 8] = [
    "ipvsadm -Ln",
    "ipvsadm -Lnc",
    "ipset list",
    "iptables-save",
    "ip6tables-save",
    "ip addr show",
    "ip route show table all",
    "conntrack -L",
];

/// Everything about one namespace: IPVS, sets, rules, addresses, routes, connections.
///
/// Never fails: what could not be found out is told in its place.
#[must_use]
pub fn dump(namespace: &Namespace) -> String {
    let mut text = format!("===== {} =====\n", namespace.name());
    for line in COMMANDS {
        let mut words = line.split(' ');
        let program = words.next().unwrap_or_default();
        let arguments: Vec<&str> = words.collect();
        let said =
            namespace.command(program, &arguments).unwrap_or_else(|error| format!("({error:#})"));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "--- {line}\n{}", said.trim_end());
    }
    text
}
