//! Mode iptables on its host: iptables alone, whose rules choose the endpoints.

use std::path::Path;

use plan::iptables::constant::COUNTERS;
use plan::mode::Mode;
use tracing::info;

use super::abilities::{self, PROBE_PAUSE, lack_of_localhost_node_ports, patiently};
use super::{HostMode, ModeSysctls, beside_ipvs, gather_rules, ip_forward};
use config::Configuration;
use kernel::linux::Linux;
use kernel::nfacct::NfacctClient;
use kernel::sysctl;

pub(super) static IPTABLES: HostMode = HostMode {
    service: "service proxying by iptables",

    // Without the last two, rules count no packets by name.
    modules: &["xt_nat", "xt_statistic", "xt_recent", "nfnetlink_acct", "xt_nfacct"],
    has_scheduler: false,

    sysctls: |configuration| ModeSysctls {
        needed: vec![ip_forward()],
        beside_ipvs: Linux::has_dummy().then(beside_ipvs).unwrap_or_default(),
        behind_rules: Vec::from_iter(
            leads_localhost_node_ports(configuration).then(sysctl::local_networks_routed),
        ),
        ..ModeSysctls::default()
    },

    gather: gather_rules,
    try_rules: |rules, _| rules.try_chains(),
    abilities: &[
        abilities::sctp_ports,
        abilities::syn_copies,
        abilities::dropping_invalid,
        abilities::counters,
        abilities::localhost_node_ports,
    ],
    foresee: |_, _| {},
    set_up: |_, settings, _| {
        settings.nfacct = settings.nfacct && make_counters();
        Ok(())
    },

    takes_at_input: false,
    forwards_first_packets: true,
    idle_limit: |_| None,
    fate_of_ipvs_state: "Its connections have until the drain deadline to end; then it is removed",

    has_chain: |table, name| {
        CHAINS.contains(&(table, name))
            || table == "nat" && CHAINS_OF_SERVICES.iter().any(|prefix| name.starts_with(prefix))
    },
    has_firewall: true,
    has_counters: true,
    itself: &[Mode::Iptables],
    kept_at_takeover: &[Mode::Ipvs, Mode::Iptables],
};

/// Chains, but for those of Services: table and name. It shares some with IPVS mode.
const CHAINS: [(&str, &str); 12] = [
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-POSTROUTING"),
    ("nat", "KUBE-MARK-MASQ"),
    ("filter", "KUBE-FORWARD"),
    ("filter", "KUBE-PROXY-FIREWALL"),
    ("nat", "KUBE-NODEPORTS"),
    ("nat", "KUBE-PROXY-CANARY"),
    ("filter", "KUBE-SERVICES"),
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-NODEPORTS"),
    ("filter", "KUBE-PROXY-CANARY"),
    ("mangle", "KUBE-PROXY-CANARY"),
];

/// Prefixes of the chains of `nat` for each Service and endpoint. `KUBE-XLB-` is from before Kubernetes 1.24.
const CHAINS_OF_SERVICES: [&str; 6] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-SEP-"];

fn leads_localhost_node_ports(configuration: &Configuration) -> bool {
    configuration.settings.iptables_localhost_node_ports
        && lack_of_localhost_node_ports(configuration, Path::new(sysctl::ROOT)).is_none()
}

/// Makes the counters that rules name: without one, the kernel refuses the rule. Returns false if
/// they cannot be made.
fn make_counters() -> bool {
    let made = patiently(PROBE_PAUSE, || {
        let mut client = NfacctClient::open()?;
        Ok(COUNTERS.into_iter().try_for_each(|name| client.ensure(name))?)
    });
    if let Err(error) = &made {
        let names = COUNTERS.join(" and ");
        info!(
            "cannot create the packet counters {names}: {}; rules do not count packets",
            error.words
        );
    }
    made.is_ok()
}
