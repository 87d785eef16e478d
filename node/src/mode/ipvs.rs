//! Mode ipvs on its host: IPVS, sets, the interface `kube-ipvs0` or local routes, and iptables.

pub(crate) mod fast_path;
pub(crate) mod neighbours;
mod probe;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use plan::mode::Mode;
use plan::model::Family;
use plan::rule_set::RuleSet;
use plan::settings::Settings;
use tracing::warn;

use super::{HostMode, ModeSysctls, abilities, ip_forward};
use config::{Configuration, IpvsTimeouts};
use kernel::estimators::Run;
use kernel::input_rules;
use kernel::linux::{Linux, LocalServiceAddresses};
use kernel::modules;
use kernel::sysctl::{self, KernelVersion, ServiceAddressesArp, Sysctl};

/// The mode whose state drains when a node has left it.
pub(crate) const ITSELF: Mode = Mode::Ipvs;

pub(super) static IPVS: HostMode = WITH_IPTABLES;

/// The same with its sets and rules in tables of nf_tables, which leave nothing of iptables and no ipset in use. The kernel
/// loads the modules when they are first used.
pub(super) static IPVS_IN_NFTABLES: HostMode = HostMode {
    modules: &["ip_vs"],
    gather: probe::gather_with_tables,
    abilities: &[fast_path::find],
    has_chain: |_, _| false,
    itself: &[],
    kept_at_takeover: &[],
    ..WITH_IPTABLES
};

const WITH_IPTABLES: HostMode = HostMode {
    service: "IPVS service proxying",

    // IPVS, the interface, the sets, matches and targets.
    modules: &[
        "ip_vs",
        "dummy",
        "ip_set",
        "ip_set_hash_ip",
        "ip_set_hash_ipport",
        "ip_set_hash_ipportip",
        "ip_set_hash_ipportnet",
        "ip_set_bitmap_port",
        "xt_set",
        "xt_physdev",
        "xt_NETMAP",
    ],
    has_scheduler: true,

    sysctls: |configuration| {
        let proc_sys = Path::new(sysctl::ROOT);
        let has_ipv6 = configuration.settings.families.contains(&Family::V6);
        let mut needed =
            needed(configuration.service_addresses_arp, sysctl::kernel_version(proc_sys));
        needed.extend(has_ipv6.then(sysctl::ipv6_of_link));
        needed.extend(configuration.settings.has_fast_path().then(fast_path::sysctl));
        ModeSysctls {
            needed,
            chosen: of_estimators(proc_sys, configuration.estimators),
            ..ModeSysctls::default()
        }
    },

    gather: probe::gather,
    try_rules: |rules, settings| {
        Ok(rules.probe(settings.internal_frontend_networks.of(rules.family()))?)
    },
    abilities: &[abilities::internal_frontends, fast_path::find],
    foresee,
    set_up,

    takes_at_input: true,
    forwards_first_packets: false,
    idle_limit,
    fate_of_ipvs_state: "kube-ipvs takes it over: it writes only differences, and connections \
                         continue",

    has_chain: |table, name| {
        RuleSet::chain_names().any(|(of, chain)| (of.name(), chain) == (table, name))
    },
    has_firewall: false,
    has_counters: false,
    itself: &[ITSELF],
    kept_at_takeover: &[ITSELF],
};

/// Returns the sysctls that every host needs.
pub(super) fn needed(arp: ServiceAddressesArp, kernel: Option<KernelVersion>) -> Vec<Sysctl> {
    let mut needed = vec![
        Sysctl::new(
            "net/ipv4/vs/conntrack",
            1,
            true,
            "conntrack masquerades and filters IPVS connections",
        ),
        ip_forward(),
        Sysctl::new(
            "net/ipv4/vs/expire_nodest_conn",
            1,
            false,
            "connections to a removed endpoint are reset at once instead of hanging",
        ),
        Sysctl::new(
            "net/ipv4/vs/expire_quiescent_template",
            1,
            false,
            "session affinity does not keep clients on an endpoint that gets no new connections",
        ),
    ];
    // With 1, the default, a client that reuses a source port waits a second; with 0 it may be sent
    // to an endpoint that is going away. Linux 5.9 made 1 do the right thing ("ipvs: allow
    // connection reuse for unconfirmed conntrack"), and 4.1 was the first to have the sysctl.
    if kernel.is_some_and(|kernel| (KernelVersion(4, 1)..KernelVersion(5, 9)).contains(&kernel)) {
        let why = "a client that reuses a source port is not delayed by a second";
        needed.push(Sysctl::new("net/ipv4/vs/conn_reuse_mode", 0, false, why));
    }
    // `arp_ignore` in net/ipv4/arp.c: with 1, an address is answered for on the interface that has
    // it; with 3, on any interface, unless it has scope host (`AddressBatch` gives it that).
    let arp_ignore = match arp {
        ServiceAddressesArp::Answered => return needed,
        ServiceAddressesArp::Strict => 1,
        ServiceAddressesArp::Quiet => 3,
    };
    let why = "only one node answers ARP requests for a load balancer IP";
    needed.push(Sysctl::new("net/ipv4/conf/all/arp_ignore", arp_ignore, false, why));
    needed.push(Sysctl::new("net/ipv4/conf/all/arp_announce", 2, false, why));
    needed
}

/// Returns the sysctl of the estimators, if an operator chose one and this kernel has it. It exists once the probe
/// has loaded IPVS.
fn of_estimators(proc_sys: &Path, chosen: Run) -> Vec<Sysctl> {
    sysctl::existing(proc_sys, chosen.sysctl().into_iter().collect())
}

/// A start reads the protocols with its probe, and makes its choice of routes before; it keeps the routes that
/// there are, and asks the API server where there are none.
fn foresee(configuration: &Configuration, settings: &mut Settings) {
    settings.unbalanced = modules::unbalanced_protocols(Path::new(modules::SYMBOLS));
    if configuration.service_routes.chosen.is_none() {
        let found =
            LocalServiceAddresses::read(&settings.internal_frontend_networks).unwrap_or_default();
        let kept = configuration.service_routes.kept(&found.routes);
        (settings.service_routes, _) = configuration.routable(&kept);
    }
}

/// Sets the timeouts, makes the interface, and leaves out routes that would cut neighbours off.
fn set_up(
    configuration: &Configuration,
    settings: &mut Settings,
    linux: &mut Linux,
) -> anyhow::Result<()> {
    let proc_sys = Path::new(sysctl::ROOT);
    let arp = configuration.service_addresses_arp;
    if configuration.estimators == Run::Off
        && of_estimators(proc_sys, configuration.estimators).is_empty()
    {
        warn!(
            "estimators.run: off has no effect: this kernel has no sysctl \
             net.ipv4.vs.run_estimation (Linux 5.16 and later)"
        );
    }
    linux.keep_timeouts(timeouts(configuration.ipvs_timeouts)?).context("set the IPVS timeouts")?;
    linux.bind_for(arp, |address| settings.excludes(address))?;
    let neighbourhoods = linux.neighbourhoods()?;
    if configuration.service_routes.is_automatic {
        let routes = std::mem::take(&mut settings.service_routes);
        settings.service_routes = neighbours::left(routes, settings, &neighbourhoods);
    }
    neighbours::spare(settings, &neighbourhoods)?;
    for obstacle in input_rules::in_exclusions(&settings.exclude, &neighbourhoods) {
        warn!("{obstacle}");
    }
    warn_of_local_networks(proc_sys, arp);
    Ok(())
}

fn timeouts(wanted: IpvsTimeouts) -> anyhow::Result<ipvs::Timeouts> {
    let seconds = |duration: Duration| {
        u32::try_from(duration.as_secs()).context("an IPVS timeout exceeds the kernel's limit")
    };
    Ok(ipvs::Timeouts::default()
        .with_tcp(seconds(wanted.tcp)?)
        .with_tcp_fin(seconds(wanted.tcp_fin)?)
        .with_udp(seconds(wanted.udp)?))
}

/// With `route_localnet`, the kernel answers ARP requests for addresses of scope host as well
/// (`confirm_addr_indev` in net/ipv4/devinet.c). kube-proxy's mode iptables sets it.
fn warn_of_local_networks(proc_sys: &Path, arp: ServiceAddressesArp) {
    if arp == ServiceAddressesArp::Quiet && sysctl::routes_local_networks(proc_sys) {
        warn!(
            "this node answers ARP requests for Service addresses despite serviceAddressesArp: \
             quiet, because net.ipv4.conf.all.route_localnet is 1. kube-proxy's iptables mode sets \
             it. If nothing else needs it: sysctl -w net.ipv4.conf.all.route_localnet=0"
        );
    }
}

fn idle_limit(configuration: &Configuration) -> Option<u64> {
    let configured = configuration.ipvs_timeouts.tcp.as_secs();
    if configured > 0 {
        return Some(configured);
    }
    let timeouts = ipvs::Client::open().and_then(|mut client| client.timeouts());
    timeouts.ok().map(|timeouts| timeouts.tcp.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::ServiceAddressesArp::{Answered, Quiet, Strict};
    use super::*;

    #[test]
    fn what_is_needed_depends_on_the_kernel_and_strict_arp() {
        let paths = |needed: &[Sysctl]| -> Vec<(&'static str, u32)> {
            needed.iter().map(|sysctl| (sysctl.path, sysctl.value.parse().unwrap())).collect()
        };
        let always = [
            ("net/ipv4/vs/conntrack", 1),
            ("net/ipv4/ip_forward", 1),
            ("net/ipv4/vs/expire_nodest_conn", 1),
            ("net/ipv4/vs/expire_quiescent_template", 1),
        ];
        let reuse = ("net/ipv4/vs/conn_reuse_mode", 0);
        for (kernel, with_reuse) in [
            (None, false),
            (Some(KernelVersion(3, 10)), false),
            (Some(KernelVersion(4, 0)), false),
            (Some(KernelVersion(4, 1)), true),
            (Some(KernelVersion(5, 8)), true),
            (Some(KernelVersion(5, 9)), false),
            (Some(KernelVersion(6, 1)), false),
        ] {
            let mut expected = always.to_vec();
            expected.extend(with_reuse.then_some(reuse));
            assert_eq!(paths(&needed(Answered, kernel)), expected, "{kernel:?}");
        }
        for (arp, arp_ignore) in [(Strict, 1), (Quiet, 3)] {
            let mut expected = always.to_vec();
            expected.push(("net/ipv4/conf/all/arp_ignore", arp_ignore));
            expected.push(("net/ipv4/conf/all/arp_announce", 2));
            assert_eq!(paths(&needed(arp, None)), expected);
        }
        let mut required = needed(Strict, Some(KernelVersion(4, 19)));
        required.retain(|sysctl| sysctl.required);
        assert_eq!(paths(&required), always[..2]);
    }

    #[test]
    fn estimators_are_left_alone_unless_chosen_and_on_a_kernel_without_the_sysctl() {
        let folder = tempfile::tempdir().unwrap();
        let proc_sys = folder.path();
        let wanted = |chosen| -> Vec<String> {
            of_estimators(proc_sys, chosen).iter().map(ToString::to_string).collect()
        };
        assert_eq!(wanted(Run::Off), [""; 0]);
        fs::create_dir_all(proc_sys.join("net/ipv4/vs")).unwrap();
        fs::write(proc_sys.join("net/ipv4/vs/run_estimation"), "1\n").unwrap();
        assert_eq!(wanted(Run::Auto), [""; 0]);
        assert_eq!(wanted(Run::Off), ["net.ipv4.vs.run_estimation=0"]);
        assert_eq!(wanted(Run::On), ["net.ipv4.vs.run_estimation=1"]);
        assert!(of_estimators(proc_sys, Run::Off).iter().all(|sysctl| !sysctl.required));
    }
}
