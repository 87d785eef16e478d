//! The constant iptables rule set, as data.
//!
//! IPVS balances; what it does not do (masquerading, source ranges, keeping service addresses from
//! being a door to the node's own ports) is done by iptables rules that look things up in the sets
//! of [`sets`](crate::sets). Number and text of these rules depend on the settings and
//! the node's own addresses and pod networks: never on how many services there are, nor on whether a set is empty, because a rule that looks into an
//! empty set matches nothing. So they are written once, and then only watched.
//!
//! Chains, jumps, comments and their order are kube-proxy's, so that taking over from it changes as
//! little as possible, and what people know from runbooks stays true. Five things are ours: the way
//! to short circuits, refusing where there are no endpoints, source ranges for the node's own
//! traffic, refusing inside local routes, and that node ports come after all other frontends.
//!
//! Rules are held in the text that `iptables-save` 1.8 prints for them.

mod chains;
mod saved;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::facts::NodeFacts;
use crate::model::Family;
use crate::settings::{LocalDetection, Settings};

pub use saved::{ChainDifference, Comparison, words};

use saved::Saved;

/// The constant rules of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    family: Family,
    chains: Vec<Chain>,
}

/// Settings that decide the rules of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSetSettings {
    masquerade_all: bool,
    /// One bit set: the packet mark that means "masquerade this".
    mark: u32,
    local: LocalTraffic,
    random_fully: bool,
    /// Networks in which short circuits live, the spare network second; none: there are none.
    short_circuit_networks: [Option<IpNet>; 2],
    /// The networks that are local by a route, in order.
    routes: Vec<IpNet>,
    /// The node's own addresses inside these, in order.
    own: Vec<IpAddr>,
}

/// Criterion for traffic from this node's own pods, for one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalTraffic {
    /// No known criterion.
    #[default]
    Unknown,
    /// It comes from inside this network.
    Cidr(IpNet),
    /// It comes from inside the cluster's pod network, as the traffic of other nodes' pods does.
    ClusterCidr {
        /// The cluster's pod network.
        cluster: IpNet,
        /// This node's part of it, as far as that is known.
        node: Option<IpNet>,
    },
    /// It arrives by this bridge.
    Bridge(Arc<str>),
    /// It arrives by an interface whose name begins so.
    Prefix(Arc<str>),
}

/// The tables that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// `nat`
    Nat,
    /// `mangle`
    Mangle,
    /// `filter`
    Filter,
}

/// A chain that is ours, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: &'static str,
    /// Its rules in order, each as `iptables-save` prints it, without `-A` and the chain's name.
    pub rules: Vec<String>,
}

/// A rule of a built-in chain that leads into one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Jump {
    /// Its table.
    pub table: Table,
    /// The built-in chain.
    pub from: &'static str,
    /// Our chain.
    pub to: &'static str,
    /// Comment that the rule has.
    pub comment: &'static str,
}

/// Settings that no rule can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRuleSetSettings {
    /// A packet mark has 32 bits.
    #[error("masquerade bit {0}: a packet mark has the bits 0 to 31")]
    MasqueradeBit(u8),
    /// Not an interface's name.
    #[error(
        "local traffic by interface {0:?}: an interface's name, or the beginning of one, has 1 to \
         15 (a beginning: 14) visible ASCII characters without /, :, quotes and backslashes, and \
         does not end in +, which iptables reads as \"whatever follows\""
    )]
    InterfaceName(String),
}

/// The jumps, in the order in which they are put before everything else of the built-in chain: of
/// two from the same chain the later one comes to stand first.
pub const JUMPS: [Jump; 10] = [
    Jump::new(Table::Nat, "OUTPUT", "KUBE-SERVICES", "kubernetes service portals"),
    Jump::new(Table::Nat, "PREROUTING", "KUBE-SERVICES", "kubernetes service portals"),
    Jump::new(Table::Nat, "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
    Jump::new(Table::Mangle, "OUTPUT", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    Jump::new(Table::Filter, "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    Jump::new(Table::Filter, "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    Jump::new(Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    Jump::new(Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    Jump::new(Table::Filter, "INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter"),
    Jump::new(Table::Filter, "OUTPUT", "KUBE-IPVS-OUT-FILTER", "kubernetes ipvs access filter"),
];

// === impl RuleSet ===

impl RuleSet {
    /// The rules of a family.
    #[must_use]
    pub fn new(family: Family, settings: &RuleSetSettings) -> Self {
        Self { family, chains: chains::chains(family, settings) }
    }

    /// Its family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The chains that every rule set has, whatever the settings.
    pub fn chain_names() -> impl Iterator<Item = (Table, &'static str)> {
        let local = LocalTraffic::Unknown;
        let any = RuleSetSettings {
            masquerade_all: false,
            mark: 1,
            local,
            random_fully: false,
            short_circuit_networks: [None; 2],
            routes: Vec::new(),
            own: Vec::new(),
        };
        chains::chains(Family::V4, &any).into_iter().map(|chain| (chain.table, chain.name))
    }

    /// Our chains: those of `nat` first.
    #[must_use]
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// Compares what is there with what should be.
    ///
    /// `saved` is what `iptables-save` prints, for our tables at least, of either variant, with
    /// or without counters. Everything that is not ours is passed over. Rules are compared by
    /// meaning: quoting, the order of matches within a rule and how an address is written do not
    /// count, since they vary between versions. A jump is there if it is anywhere in its built-in
    /// chain.
    #[must_use]
    pub fn compare(&self, saved: &str) -> Comparison {
        saved::compare(self, &Saved::parse(saved))
    }

    /// Input for `iptables-restore --noflush` that writes all our chains from scratch and puts the
    /// missing jumps in front. Each table changes in one step, and nothing else in it is touched.
    #[must_use]
    pub fn restore_input(&self, missing_jumps: &[Jump]) -> String {
        let mut input = String::new();
        for table in Table::ALL {
            let chains = || self.chains.iter().filter(|chain| chain.table == table);
            begin(&mut input, table);
            for chain in chains() {
                declare(&mut input, chain.name);
            }
            for chain in chains() {
                for rule in &chain.rules {
                    line(&mut input, format_args!("-A {} {rule}", chain.name));
                }
            }
            // From the constant list, so that the order is right whatever the caller's was.
            for jump in JUMPS.iter().filter(|jump| jump.table == table) {
                if missing_jumps.contains(jump) {
                    line(&mut input, format_args!("-I {} 1 {}", jump.from, jump.rule()));
                }
            }
            commit(&mut input);
        }
        input
    }
}

fn begin(input: &mut String, table: Table) {
    line(input, format_args!("*{table}"));
}

/// Makes a chain, or empties it if it is there.
fn declare(input: &mut String, chain: &str) {
    line(input, format_args!(":{chain} - [0:0]"));
}

fn commit(input: &mut String) {
    line(input, format_args!("COMMIT"));
}

fn line(input: &mut String, text: fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(input, "{text}");
}

// === impl RuleSetSettings ===

impl RuleSetSettings {
    /// Makes the settings that decide the rules. `random_fully`: true if iptables knows that option
    /// (1.6.2 on).
    ///
    /// # Errors
    /// When the bit is not one of a mark's, or the interface name could be no interface's.
    pub fn new(
        masquerade_all: bool,
        masquerade_bit: u8,
        local: LocalTraffic,
        random_fully: bool,
    ) -> Result<Self, InvalidRuleSetSettings> {
        let mark = 1_u32
            .checked_shl(masquerade_bit.into())
            .ok_or(InvalidRuleSetSettings::MasqueradeBit(masquerade_bit))?;
        Ok(Self {
            masquerade_all,
            mark,
            local: local.checked()?,
            random_fully,
            short_circuit_networks: [None; 2],
            routes: Vec::new(),
            own: Vec::new(),
        })
    }

    /// The same, with short circuits in these networks, which are of the rules' family:
    /// [`ShortCircuitNetworks::networks`](crate::settings::ShortCircuitNetworks::networks).
    #[must_use]
    pub fn with_short_circuit_networks(self, networks: [Option<IpNet>; 2]) -> Self {
        Self { short_circuit_networks: networks.map(|net| Some(net?.trunc())), ..self }
    }

    /// The same, with these local routes, all of the rules' family. `local` are the addresses of
    /// all interfaces but `kube-ipvs0`.
    #[must_use]
    pub fn with_routes(self, routes: Vec<IpNet>, local: &HashSet<IpAddr>) -> Self {
        let is_inside = |address: &&IpAddr| routes.iter().any(|route| route.contains(*address));
        let mut own: Vec<IpAddr> = local.iter().filter(is_inside).copied().collect();
        own.sort_unstable();
        Self { routes, own, ..self }
    }

    /// Resolves the operator's settings for a family on this node.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn resolve(
        settings: &Settings,
        family: Family,
        facts: &NodeFacts,
    ) -> Result<Self, InvalidRuleSetSettings> {
        let pod_network = facts.pod_network(settings, family);
        let local = match &settings.local_detection {
            LocalDetection::None => LocalTraffic::Unknown,
            LocalDetection::ClusterCidr(nets) => {
                let cluster = nets.iter().find(|net| Family::of_net(net) == family);
                cluster
                    .map_or(LocalTraffic::Unknown, |it| LocalTraffic::of_cluster(*it, pod_network))
            }
            LocalDetection::NodeCidr => {
                pod_network.map_or(LocalTraffic::Unknown, LocalTraffic::Cidr)
            }
            LocalDetection::BridgeInterface(name) => LocalTraffic::Bridge(Arc::clone(name)),
            LocalDetection::InterfaceNamePrefix(name) => LocalTraffic::Prefix(Arc::clone(name)),
        };
        let Settings { masquerade_all, masquerade_bit, random_fully, .. } = *settings;
        let rule_set = Self::new(masquerade_all, masquerade_bit, local, random_fully)?;
        let rule_set =
            rule_set.with_short_circuit_networks(settings.short_circuit_networks.networks(family));
        Ok(rule_set.with_routes(settings.routes(family), facts.local_addresses()))
    }
}

// === impl LocalTraffic ===

impl LocalTraffic {
    /// The kernel's `IFNAMSIZ` (include/uapi/linux/if.h) counts the ending zero.
    const MOST_BYTES: usize = 15;

    /// It comes from the cluster's pod network, `node` of which is this node's.
    fn of_cluster(cluster: IpNet, node: Option<IpNet>) -> Self {
        match node {
            // The only node there is.
            Some(node) if node.contains(&cluster) => Self::Cidr(cluster),
            node => Self::ClusterCidr { cluster, node: node.filter(|node| cluster.contains(node)) },
        }
    }

    /// Only what can be written into a rule and read back the same.
    fn checked(self) -> Result<Self, InvalidRuleSetSettings> {
        let (name, most_bytes) = match &self {
            Self::Unknown => return Ok(self),
            Self::Cidr(net) => return Ok(Self::Cidr(net.trunc())),
            Self::ClusterCidr { cluster, node } => {
                let (cluster, node) = (cluster.trunc(), node.map(|net| net.trunc()));
                return Ok(Self::ClusterCidr { cluster, node });
            }
            Self::Bridge(name) => (name, Self::MOST_BYTES),
            // The + after it takes one.
            Self::Prefix(name) => (name, Self::MOST_BYTES - 1),
        };
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/:\"'\\!".contains(&byte);
        if (1..=most_bytes).contains(&name.len())
            && name.bytes().all(is_plain)
            && !name.ends_with('+')
        {
            Ok(self)
        } else {
            Err(InvalidRuleSetSettings::InterfaceName(name.to_string()))
        }
    }
}

// === impl Table ===

impl Table {
    /// All, in the order in which they are written.
    pub const ALL: [Self; 3] = [Self::Nat, Self::Mangle, Self::Filter];

    /// Returns the name that iptables has for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Mangle => "mangle",
            Self::Filter => "filter",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
        Self { table, from, to, comment }
    }

    /// Its text, as `iptables-save` prints it, without `-A` and the built-in chain's name.
    #[must_use]
    pub fn rule(&self) -> String {
        format!("-m comment --comment \"{}\" -j {}", self.comment, self.to)
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} to {}", self.table, self.from, self.to)
    }
}
