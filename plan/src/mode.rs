//! The mechanism by which a node balances.

use std::fmt;

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

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Ipvs, Self::Iptables, Self::Userspace];

    /// Returns the name that it has in the configuration and at `/proxyMode`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Userspace => "userspace",
        }
    }

    /// Returns the mode of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// True if Services are virtual servers of IPVS, with sets, and addresses or routes that lead there.
    #[must_use]
    pub const fn has_virtual_servers(self) -> bool {
        matches!(self, Self::Ipvs)
    }

    /// True if the relay in this process balances and passes connections on.
    #[must_use]
    pub const fn relays(self) -> bool {
        matches!(self, Self::Userspace)
    }

    /// True if the rules themselves choose the endpoint of a connection.
    #[must_use]
    pub const fn balances_by_rules(self) -> bool {
        matches!(self, Self::Iptables)
    }

    /// True if rules that change with the Services lead clients: kernel state of Services is chains
    /// then, and nothing else.
    #[must_use]
    pub const fn leads_by_rules(self) -> bool {
        matches!(self, Self::Iptables | Self::Userspace)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
