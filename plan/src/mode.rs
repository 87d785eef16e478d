//! The mechanism by which a node balances, with the properties that all of the planner asks for. What only one
//! mode does is in [`backend`](crate::backend).

use std::fmt;

use crate::kernel_objects::PartKind::{
    self, Addresses, Chains, Link, Routes, Rules, Sets, VirtualServers,
};

/// Mechanism by which this node balances, named as in kube-proxy's field `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// IPVS virtual servers, ipsets, and a constant set of rules.
    #[default]
    Ipvs,
    /// Chains of iptables rules for each service port.
    Iptables,
    /// Relays in the process, to which iptables rules lead.
    Userspace,
}

/// Properties of a mode.
#[derive(Debug)]
pub struct Properties {
    name: &'static str,
    /// Kinds of kernel objects that the mode has.
    parts: &'static [PartKind],
    /// True if a relay of this process connects clients to endpoints. Portals lead to its proxy ports then.
    relays: bool,
    /// Rules of other modes that lead connections before this mode does.
    pub led_by: OtherRules,
    /// True if connections drain, for as long as `kube-ipvs.io/drain-deadline` says.
    pub drains: bool,
    /// True if local gaps are counted by service port, false if by Service, as kube-proxy does in the mode.
    pub counts_gaps_by_port: bool,
    /// Number of rules of a service port, about, for this number of source ranges and of load balancer IPs.
    pub n_source_rules: fn(usize, usize) -> usize,
}

/// Rules of other modes, where they are left on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherRules {
    /// Those of nat that lead to Services, which come before IPVS.
    Any,
    /// Portals.
    Portals,
    /// None of them.
    None,
}

const IPVS: Properties = Properties {
    name: "ipvs",
    parts: &[Link, Addresses, Routes, Sets, VirtualServers, Rules],
    relays: false,
    led_by: OtherRules::Any,
    drains: true,
    counts_gaps_by_port: false,
    // They are entries of a set, which has a limit of its own.
    n_source_rules: |_, _| 0,
};

const IPTABLES: Properties = Properties {
    name: "iptables",
    parts: &[Rules, Chains],
    relays: false,
    led_by: OtherRules::Portals,
    drains: false,
    counts_gaps_by_port: true,
    // One chain for all addresses. Each of these may be a source, too.
    n_source_rules: |n_ranges, n_addresses| n_ranges + n_addresses,
};

const USERSPACE: Properties = Properties {
    name: "userspace",
    parts: &[Rules, Chains],
    relays: true,
    led_by: OtherRules::None,
    // The relay's connections do.
    drains: true,
    counts_gaps_by_port: true,
    n_source_rules: |n_ranges, n_addresses| n_addresses.saturating_mul(n_ranges + 1),
};

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Ipvs, Self::Iptables, Self::Userspace];

    /// Returns the properties of the mode.
    #[must_use]
    pub const fn properties(self) -> &'static Properties {
        match self {
            Self::Ipvs => &IPVS,
            Self::Iptables => &IPTABLES,
            Self::Userspace => &USERSPACE,
        }
    }

    /// Returns the mode of a name; none: there is no such mode.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Returns the other modes.
    pub fn others(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |mode| *mode != self)
    }

    /// Returns the name that it has in the configuration and at `/proxyMode`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.properties().name
    }

    /// Returns what sentences call it: `in IPVS mode`.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ipvs => "IPVS mode",
            Self::Iptables => "iptables mode",
            Self::Userspace => "userspace mode",
        }
    }

    /// True if the mode has kernel objects of a kind. What there is of other kinds, another mode left.
    #[must_use]
    pub fn uses(self, part: PartKind) -> bool {
        self.properties().parts.contains(&part)
    }

    /// True if Services are virtual servers of IPVS, with sets, and addresses or routes that lead there.
    #[must_use]
    pub fn has_virtual_servers(self) -> bool {
        self.uses(VirtualServers)
    }

    /// True if the relay in this process balances and passes connections on.
    #[must_use]
    pub const fn relays(self) -> bool {
        self.properties().relays
    }

    /// True if the rules themselves choose the endpoint of a connection.
    #[must_use]
    pub fn balances_by_rules(self) -> bool {
        self.leads_by_rules() && !self.relays()
    }

    /// True if rules that change with the Services lead clients: kernel state of Services is chains
    /// then, and nothing else.
    #[must_use]
    pub fn leads_by_rules(self) -> bool {
        self.uses(Chains)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
