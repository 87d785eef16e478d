//! Mode userspace on its host: iptables alone, whose rules lead to the relay.

use plan::mode::Mode;

use super::abilities;
use super::{HostMode, ModeSysctls, beside_ipvs, gather_rules, ip_forward};
use kernel::linux::Linux;

pub(super) static USERSPACE: HostMode = HostMode {
    service: "service proxying in user space",

    modules: &["xt_nat"],
    has_scheduler: false,

    sysctls: |_| ModeSysctls {
        needed: vec![ip_forward()],
        beside_ipvs: Linux::has_dummy().then(beside_ipvs).unwrap_or_default(),
        ..ModeSysctls::default()
    },

    gather: gather_rules,
    try_rules: |rules, _| rules.try_portals(),
    abilities: &[abilities::sctp_ports, abilities::syn_copies],
    foresee: |_, _| {},
    set_up: |_, _, _| Ok(()),

    takes_at_input: false,
    forwards_first_packets: false,
    idle_limit: |_| None,
    fate_of_ipvs_state: "Its connections have until the drain deadline to end; then it is removed",

    has_chain: |table, name| CHAINS.contains(&(table, name)),
    has_firewall: false,
    has_counters: false,
    itself: &[Mode::Userspace],
    // What IPVS mode and iptables mode have in common goes with all of both.
    kept_at_takeover: &Mode::ALL,
};

/// Chains: table and name. Those that refuse are those of iptables mode.
const CHAINS: [(&str, &str); 10] = [
    ("nat", "KUBE-PORTALS-CONTAINER"),
    ("nat", "KUBE-PORTALS-HOST"),
    ("nat", "KUBE-NODEPORT-CONTAINER"),
    ("nat", "KUBE-NODEPORT-HOST"),
    ("filter", "KUBE-NODEPORT-NON-LOCAL"),
    ("filter", "KUBE-FORWARD"),
    ("filter", "KUBE-SERVICES"),
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-NODEPORTS"),
    ("filter", "KUBE-PROXY-FIREWALL"),
];
