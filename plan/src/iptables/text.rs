//! Text of rules, as `iptables-save` 1.8 prints it: so what is written and what is found can be
//! compared as they are. `iptables-restore` reads the same text.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::chains::{ChainHash, ChainName, PortChain};
use crate::facts::NodeFacts;
use crate::model::{Family, Protocol};
use crate::settings::{LocalDetection, Settings};

/// Chain that marks packets to be masqueraded.
pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";

/// A rule in the making. Its parts are added in the order in which `iptables-save` prints them: the
/// packet's header, the matches, the target.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule(String);

/// Criterion by which traffic of this node's own pods is recognised, as parts of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Detector {
    /// By the source.
    Network(IpNet),
    /// By the interface by which it arrives.
    Interface(String),
}

impl Rule {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn source(self, net: IpNet) -> Self {
        self.word(format_args!("-s {net}"))
    }

    pub(super) fn source_host(self, address: IpAddr) -> Self {
        self.source(IpNet::from(address))
    }

    pub(super) fn destination_host(self, address: IpAddr) -> Self {
        self.word(format_args!("-d {}", IpNet::from(address)))
    }

    pub(super) fn destination(self, net: &str) -> Self {
        self.word(format_args!("-d {net}"))
    }

    pub(super) fn protocol(self, protocol: Protocol) -> Self {
        self.word(format_args!("-p {}", protocol.name()))
    }

    /// No text that comes here has a quote or a backslash: it is of names of the API, of addresses
    /// and of chains.
    pub(super) fn comment(self, text: impl std::fmt::Display) -> Self {
        self.word(format_args!("-m comment --comment \"{text}\""))
    }

    /// The match of a protocol and a destination port.
    pub(super) fn port(self, protocol: Protocol, port: u16) -> Self {
        self.word(format_args!("-m {} --dport {port}", protocol.name()))
    }

    /// Any other match.
    pub(super) fn matching(self, text: &str) -> Self {
        self.word(format_args!("-m {text}"))
    }

    pub(super) fn jump(self, target: impl std::fmt::Display) -> Box<str> {
        self.word(format_args!("-j {target}")).0.into()
    }

    /// A rule that only counts.
    pub(super) fn without_target(self) -> Box<str> {
        self.0.into()
    }

    fn word(mut self, text: std::fmt::Arguments<'_>) -> Self {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{space}{text}");
        self
    }
}

impl Detector {
    /// The node's criterion for a family; none if there is none.
    pub(super) fn of(settings: &Settings, facts: &NodeFacts, family: Family) -> Option<Self> {
        let of_family = |nets: &[IpNet]| {
            let net = nets.iter().find(|net| Family::of_net(net) == family);
            net.map(IpNet::trunc).map(Self::Network)
        };
        match &settings.local_detection {
            LocalDetection::None => None,
            LocalDetection::ClusterCidr(nets) => of_family(nets),
            LocalDetection::NodeCidr => {
                facts.pod_network(settings, family).map(|net| Self::Network(net.trunc()))
            }
            LocalDetection::BridgeInterface(name) => Some(Self::Interface(name.to_string())),
            LocalDetection::InterfaceNamePrefix(name) => Some(Self::Interface(format!("{name}+"))),
        }
    }

    /// The beginning of a rule for traffic of this node's own pods.
    pub(super) fn local(&self) -> Rule {
        match self {
            // Every source, which is not printed.
            Self::Network(net) if net.prefix_len() == 0 => Rule::new(),
            Self::Network(net) => Rule::new().word(format_args!("-s {net}")),
            Self::Interface(name) => Rule::new().word(format_args!("-i {name}")),
        }
    }

    /// The beginning of a rule for all other traffic to an address. None: there is no other
    /// traffic. iptables-nft refuses `! -s 0.0.0.0/0`, which matches nothing.
    pub(super) fn not_local_to(&self, address: IpAddr) -> Option<Rule> {
        Some(match self {
            Self::Network(net) if net.prefix_len() == 0 => return None,
            Self::Network(net) => {
                Rule::new().word(format_args!("! -s {net}")).destination_host(address)
            }
            Self::Interface(name) => {
                Rule::new().destination_host(address).word(format_args!("! -i {name}"))
            }
        })
    }
}

/// The name of a chain of a service port or endpoint.
pub(super) const fn chain(kind: PortChain, hash: ChainHash) -> ChainName {
    ChainName::OfPort(kind, hash)
}

/// The `statistic` match that lets one of `n` packets pass. None for one of one.
///
/// kube-proxy writes the share with ten decimals (`computeProbability` in
/// pkg/proxy/iptables/proxier.go), the kernel has it as a number of 31 bits (`XT_STATISTIC_MODE_RANDOM`
/// in net/netfilter/xt_statistic.c), and the text is that number's share. The same steps give the same
/// text, which exact shares do not: already for 44 endpoints the last bit is another one.
pub(super) fn one_of(n: usize) -> Option<String> {
    const SCALE: f64 = 2_147_483_648.0;
    let n = u32::try_from(n).ok().filter(|n| *n > 1)?;
    let written: f64 = format!("{:.10}", 1.0 / f64::from(n)).parse().ok()?;
    let share = (SCALE * written).round() / SCALE;
    Some(format!("statistic --mode random --probability {share:.11}"))
}

/// The `recent` match that asks for, or notes, the clients of an endpoint's list.
pub(super) fn recent(family: Family, verb: &str, list: ChainName) -> String {
    let mask = match family {
        Family::V4 => "255.255.255.255",
        Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    };
    format!("recent {verb} --name {list} --mask {mask} --rsource")
}

/// `DNAT` to an endpoint.
pub(super) fn dnat(endpoint: SocketAddr) -> String {
    format!("DNAT --to-destination {endpoint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_what_iptables_prints_for_what_the_kernel_has() {
        for (n, text) in [
            (2, "0.50000000000"),
            (3, "0.33333333349"),
            (4, "0.25000000000"),
            (5, "0.20000000019"),
            (6, "0.16666666651"),
            (7, "0.14285714272"),
            (9, "0.11111111101"),
            (11, "0.09090909082"),
            (44, "0.02272727247"),
            (51, "0.01960784290"),
            (71, "0.01408450678"),
            (124, "0.00806451589"),
            (1_000, "0.00100000016"),
            (9_999, "0.00010001007"),
        ] {
            let expected = format!("statistic --mode random --probability {text}");
            assert_eq!(one_of(n), Some(expected), "{n}");
        }
        assert_eq!((one_of(0), one_of(1)), (None, None));
    }

    #[test]
    fn every_number_of_endpoints_up_to_the_limit_of_precision_has_a_share_of_its_own() {
        let shares: Vec<_> = (2..40_000).map(|n| one_of(n).unwrap()).collect();
        assert!(shares.windows(2).all(|pair| pair[0] > pair[1]));
    }
}
