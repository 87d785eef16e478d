//! Modes of the proxy, as a host meets them: one file a mode, with the list of all that a start in it does to the
//! host.
//!
//! The start ([`host`](crate::host)), the preflight, `kube-ipvs diff`, the cleanup and a test of
//! `docs/internals/kernel-use.md` read these lists. None of them asks which mode it is.

pub(crate) mod abilities;
mod iptables;
pub(crate) mod ipvs;
mod userspace;

#[cfg(test)]
mod tests;

use plan::mode::Mode;
use plan::model::Family;
use plan::settings::Settings;

use abilities::{Ability, AbilitySearch};
use config::Configuration;
use kernel::linux::Linux;
use kernel::modules;
use kernel::probe::{self, Attempts, Facts, ProbeError, ProcRoot};
use kernel::rules::{Backend, Rules};
use kernel::sysctl::Sysctl;

/// All that a mode does to its host.
pub(crate) struct HostMode {
    /// Service that a host may not be able to do, in words.
    pub(crate) service: &'static str,

    /// Modules that it loads beside those of every mode, which are in [`modules`].
    modules: &'static [&'static str],
    /// True if it loads the module of the configured scheduler.
    has_scheduler: bool,

    /// Sysctls that it sets and keeps, beside those of connection tracking (`conntrack`), which every mode sets.
    pub(crate) sysctls: fn(&Configuration) -> ModeSysctls,

    /// Gathers the facts by which it is judged if the host can do the mode; `sysctls` are those that it needs.
    pub(crate) gather: fn(&Settings, sysctls: &[Sysctl], try_rules: &mut TryRules<'_>) -> Facts,
    /// Checks that a family's rules can be what the mode makes of them.
    pub(crate) try_rules: fn(&Rules, &Settings) -> Result<(), ProbeError>,
    /// Abilities that it uses where a host has them. The probe of each removes what it has made.
    abilities: &'static [Ability],
    /// Adds to the settings what a start finds out before it comes to the abilities.
    pub(crate) foresee: fn(&Configuration, &mut Settings),
    /// Makes what rules and virtual servers stand on, and gives the kernel what it is to keep.
    pub(crate) set_up: fn(&Configuration, &mut Settings, &mut Linux) -> anyhow::Result<()>,

    /// True if packets to Services have to pass INPUT, where they are taken before a socket sees them.
    pub(crate) takes_at_input: bool,
    /// True if the first packets of pods' connections to Services are forwarded, and not only answers.
    pub(crate) forwards_first_packets: bool,
    /// Returns the seconds for which it remembers an idle TCP connection, beside connection tracking.
    pub(crate) idle_limit: fn(&Configuration) -> Option<u64>,
    /// Fate of IPVS's state that is there at a start, in words.
    pub(crate) fate_of_ipvs_state: &'static str,

    /// True if it has chains of this table and name, but for `KUBE-FIREWALL`. Some are chains of several modes.
    pub(crate) has_chain: fn(table: &str, name: &str) -> bool,
    /// True if it has `KUBE-FIREWALL` of `filter`, too, which the kubelet makes as well.
    pub(crate) has_firewall: bool,
    /// True if its rules name packet counters.
    pub(crate) has_counters: bool,
    /// The mode alone: the rules and chains of all others go when a node has left mode ipvs for it.
    pub(crate) itself: &'static [Mode],
    /// Modes whose rules and chains stay before that, since connections may need them.
    pub(crate) kept_at_takeover: &'static [Mode],
}

pub(crate) type TryRules<'a> = dyn FnMut(Family) -> Result<(), ProbeError> + 'a;

/// Sysctls that a mode sets and keeps.
#[derive(Debug, Default)]
pub(crate) struct ModeSysctls {
    /// Those that it needs on every host. The probe says which differ and cannot be set.
    pub(crate) needed: Vec<Sysctl>,
    /// Those that are needed as long as IPVS leads connections beside the mode.
    pub(crate) beside_ipvs: Vec<Sysctl>,
    /// Those that an operator chose, of those that this kernel has. One that cannot be set is not kept.
    pub(crate) chosen: Vec<Sysctl>,
    /// Those that are set as soon as the rules stand.
    pub(crate) behind_rules: Vec<Sysctl>,
}

/// Returns what a mode does to its host.
pub(crate) const fn of(mode: Mode) -> &'static HostMode {
    match mode {
        Mode::Ipvs => &ipvs::IPVS,
        Mode::Iptables => &iptables::IPTABLES,
        Mode::Userspace => &userspace::USERSPACE,
    }
}

/// Returns what the mode of these settings does to its host, in its form.
#[must_use]
pub(crate) fn of_settings(settings: &Settings) -> &'static HostMode {
    if settings.has_tables() { &ipvs::IPVS_IN_NFTABLES } else { of(settings.mode) }
}

/// Returns the modules that a mode needs with these iptables variants; without any, with nf_tables.
#[must_use]
pub fn needed_modules(settings: &Settings, backends: &[Backend]) -> Vec<String> {
    let HostMode { modules, has_scheduler, .. } = of_settings(settings);
    if settings.has_tables() {
        // The kernel loads all of them when they are first used; Linux 5.10 does not load IPVS.
        let is_there = ::ipvs::Client::open().is_ok();
        return if is_there {
            Vec::new()
        } else {
            modules.iter().map(ToString::to_string).collect()
        };
    }
    modules::needed(modules, has_scheduler.then_some(&settings.scheduler), backends)
}

/// Gathers the facts about a host that needs iptables alone.
fn gather_rules(_: &Settings, sysctls: &[Sysctl], iptables: &mut TryRules<'_>) -> Facts {
    probe::gather(&ProcRoot::default(), sysctls, &mut Attempts { of_ipvs: None, iptables })
}

/// Returns the sysctl that endpoints on other nodes are reached by, in every mode. kube-proxy sets it in its mode
/// ipvs alone.
fn ip_forward() -> Sysctl {
    let why = "endpoints on other nodes are reached by forwarding";
    Sysctl::new("net/ipv4/ip_forward", 1, true, why)
}

/// Returns the sysctls that are needed while rules lead to what is a real server of IPVS, too: as long as there is the
/// interface, which is the last of IPVS mode to go.
///
/// With `nat_icmp_send`, IPVS answers in the place of an endpoint whose connection it does not know
/// (`ip_vs_out_hook` in net/netfilter/ipvs/ip_vs_core.c). By the others, IPVS forgets a connection to a
/// real server of weight 0 when it sees a SYN from the same port (`ip_vs_in_hook`), and finds no real
/// server for that (`ip_vs_check_template` in net/netfilter/ipvs/ip_vs_conn.c).
fn beside_ipvs() -> Vec<Sysctl> {
    const CUT: &str = "IPVS does not cut connections that rules direct to an endpoint";
    const FORGETS: &str = "IPVS drops its entry when a client reuses a source port";
    vec![
        Sysctl::new("net/ipv4/vs/nat_icmp_send", 0, false, CUT),
        Sysctl::new("net/ipv4/vs/expire_nodest_conn", 1, false, FORGETS),
        Sysctl::new("net/ipv4/vs/expire_quiescent_template", 1, false, FORGETS),
        Sysctl::new("net/ipv4/vs/conn_reuse_mode", 1, false, FORGETS),
    ]
}

impl HostMode {
    /// Finds out which of the abilities the host has.
    pub(crate) fn find_abilities(&self, mut search: AbilitySearch<'_>) {
        self.abilities.iter().for_each(|find| find(&mut search));
    }
}

impl ModeSysctls {
    /// Returns all of them, in the order in which a start sets them.
    pub(crate) fn all(self) -> Vec<Sysctl> {
        let Self { needed, beside_ipvs, chosen, behind_rules } = self;
        [needed, beside_ipvs, chosen, behind_rules].concat()
    }
}
