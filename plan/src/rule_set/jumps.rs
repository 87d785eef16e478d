//! Jumps from the built-in chains into ours.

use std::fmt;

use super::Table;
use crate::mode::Mode;

/// A rule of a built-in chain that leads into one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Jump {
    /// Its table.
    pub table: Table,
    /// The built-in chain.
    pub from: &'static str,
    /// Our chain.
    pub to: &'static str,
    /// Comment that the rule has, if it has one.
    pub comment: Option<&'static str>,
    /// True if it is for the first packet of a connection alone.
    pub is_new: bool,
}

const PORTALS: &str = "kubernetes service portals";
const OUTSIDE: &str = "kubernetes externally-visible service portals";
const POSTROUTING: &str = "kubernetes postrouting rules";
const FORWARDING: &str = "kubernetes forwarding rules";
const HEALTH: &str = "kubernetes health check service ports";
const IPVS_FIREWALL: &str = "kube-proxy firewall rules";
const FIREWALL: &str = "kubernetes load balancer firewall";

const IPVS: [Jump; 10] = [
    Jump::new(Table::Nat, "OUTPUT", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "POSTROUTING", "KUBE-POSTROUTING", POSTROUTING),
    Jump::new(Table::Mangle, "OUTPUT", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
    Jump::new(Table::Filter, "INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter"),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-IPVS-OUT-FILTER", "kubernetes ipvs access filter"),
];

/// In kube-proxy's order (`iptablesJumpChains` in pkg/proxy/iptables/proxier.go), and then those
/// that the kubelet has too.
const IPTABLES: [Jump; 14] = [
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODEPORTS", HEALTH),
    Jump::new(Table::Filter, "FORWARD", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-SERVICES", PORTALS).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", FORWARDING),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL).of_new(),
    Jump::new(Table::Nat, "OUTPUT", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-SERVICES", PORTALS),
    Jump::new(Table::Nat, "POSTROUTING", "KUBE-POSTROUTING", POSTROUTING),
    Jump::bare(Table::Filter, "INPUT", "KUBE-FIREWALL"),
    Jump::bare(Table::Filter, "OUTPUT", "KUBE-FIREWALL"),
];

/// Jumps of IPVS mode into `KUBE-PROXY-FIREWALL`, which iptables mode has too, with other rules:
/// those are for the first packet of a connection, and would drop the others of IPVS's connections.
const SUPERSEDED: [Jump; 2] = [
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", IPVS_FIREWALL),
];

/// Jumps of iptables mode into verdicts on frontends for clients outside. In ipvs mode these
/// frontends are local, and INPUT comes before IPVS: a verdict that is out of date would refuse what
/// has endpoints.
const SUPERSEDED_BY_IPVS: [Jump; 2] = [
    Jump::new(Table::Filter, "INPUT", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
    Jump::new(Table::Filter, "FORWARD", "KUBE-EXTERNAL-SERVICES", OUTSIDE).of_new(),
];

/// The jumps of other modes that must not be there in this one.
#[must_use]
pub(super) const fn superseded_jumps(mode: Mode) -> &'static [Jump] {
    match mode {
        Mode::Iptables => &SUPERSEDED,
        Mode::Ipvs => &SUPERSEDED_BY_IPVS,
        Mode::Userspace => &[],
    }
}

/// The jumps of a mode, in the order in which they are put before everything else of the built-in
/// chain: of two from the same chain the later one comes to stand first.
#[must_use]
pub const fn jumps(mode: Mode) -> &'static [Jump] {
    match mode {
        Mode::Ipvs => &IPVS,
        Mode::Iptables => &IPTABLES,
        Mode::Userspace => &[],
    }
}

// === impl Jump ===

impl Jump {
    const fn new(
        table: Table,
        from: &'static str,
        to: &'static str,
        comment: &'static str,
    ) -> Self {
        Self { table, from, to, comment: Some(comment), is_new: false }
    }

    /// A jump that has neither a comment nor a match.
    const fn bare(table: Table, from: &'static str, to: &'static str) -> Self {
        Self { table, from, to, comment: None, is_new: false }
    }

    const fn of_new(self) -> Self {
        Self { is_new: true, ..self }
    }

    /// Its text, as `iptables-save` prints it, without `-A` and the built-in chain's name.
    #[must_use]
    pub fn rule(&self) -> String {
        let new = if self.is_new { "-m conntrack --ctstate NEW " } else { "" };
        match self.comment {
            Some(comment) => format!("{new}-m comment --comment \"{comment}\" -j {}", self.to),
            None => format!("{new}-j {}", self.to),
        }
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} to {}", self.table, self.from, self.to)
    }
}
