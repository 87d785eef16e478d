//! The constant iptables rule set, as data.
//!
//! IPVS balances; what it does not do (masquerading, source ranges, keeping service addresses from
//! being a door to the node's own ports) is done by iptables rules that look things up in the sets
//! of [`sets`](crate::sets). Number and text of these rules depend on the settings and
//! the node's own addresses and pod networks: never on how many services there are, nor on whether a set is empty, because a rule that looks into an
//! empty set matches nothing. So they are written once, and then only watched.
//!
//! Chains, jumps, comments and their order are kube-proxy's, so that taking over from it changes as
//! little as possible, and what people know from runbooks stays true. Six things are ours: the way
//! to internal frontends, refusing where there are no endpoints, source ranges for the node's own
//! traffic, refusing inside local routes, letting in what is for a frontend, and that node ports come
//! after all other frontends.
//!
//! Rules are held in the text that `iptables-save` 1.8 prints for them.

mod access_filter;
mod bound;
mod chains;
mod copies;
mod dispatch;
mod jumps;
mod local_traffic;
pub mod nft;
mod saved;
mod settings;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::facts::BoundAddresses;
use crate::mode::Mode;
use crate::model::Family;
use crate::settings::FastPath;

pub(crate) use chains::ipvs_chains;
pub use chains::{INTERNAL_FRONTEND_CHAIN, UNANSWERED};
pub use dispatch::is_of_services;
pub use jumps::{COPY_JUMPS, Jump, JumpDestination, JumpPlace, JumpStates};
pub(crate) use saved::meaning;
pub use saved::{ChainDifference, Comparison, is_same_rule, words};

use jumps::SHOWN;
use saved::Saved;

/// The constant rules of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    mode: Mode,
    family: Family,
    /// False as long as another mode's rules lead connections.
    has_dispatch: bool,
    /// True if IPVS is shown copies of packets.
    has_copies: bool,
    /// True if jumps to such copies may be there even without them.
    spares_copies: bool,
    chains: Vec<Chain>,
    shared: Vec<Chain>,
    jumps: Vec<Jump>,
    /// Jumps of other modes that must not be there.
    superseded: &'static [Jump],
    /// The rules in the form of nf_tables, for no load balancer with source ranges. None in a mode without that form.
    nft: Vec<nft::Chain>,
}

/// Settings that decide the rules of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSetSettings {
    masquerade_all: bool,
    /// One bit set: the packet mark that means "masquerade this".
    mark: u32,
    local: LocalTraffic,
    random_fully: bool,
    /// Network in which internal frontends live; none: there are none.
    internal_frontend_network: Option<IpNet>,
    /// Way of established connections. But for [`FastPath::Off`], all clients of a frontend with the policy Cluster are led to
    /// its internal frontend.
    fast_path: FastPath,
    /// The networks that are local by a route, in order.
    routes: Vec<IpNet>,
    /// The node's own addresses inside these, in order.
    own: Vec<IpAddr>,
    /// Networks in which NodePorts are served, if new connections to frontends are let in; of length
    /// 0: everywhere. None: the host's other rules decide about all frontends.
    accepted_node_ports: Option<Vec<IpNet>>,
    /// Port at which the health server listens on all addresses.
    health_port: Option<u16>,
    /// Rules of iptables mode alone.
    optional: OptionalRules,
    /// Service addresses that are local although rules lead to Services.
    bound: Option<BoundAddresses>,
}

/// Constant rules of iptables mode that not every node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OptionalRules {
    /// True if packets that connection tracking calls invalid are dropped.
    pub drop_invalid: bool,
    /// True if rules count packets by name.
    pub nfacct: bool,
    /// True if IPv4 node ports are served on loopback addresses.
    pub localhost_node_ports: bool,
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
    pub table: Table,
    pub name: &'static str,
    /// Its rules in order, each as `iptables-save` prints it, without `-A` and the chain's name.
    pub rules: Vec<String>,
}

/// Settings that no rule can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRuleSetSettings {
    /// A packet mark has 32 bits.
    #[error("masquerade bit {0}: must be within 0 to 31, the bits of a packet mark")]
    MasqueradeBit(u8),
    /// Not an interface's name.
    #[error(
        "local traffic by interface {0:?}: an interface name has 1 to 15 (a prefix: 14) visible \
         ASCII characters without /, :, quotes and backslashes, and does not end in +, which is a \
         wildcard in iptables"
    )]
    InterfaceName(String),
}

impl RuleSet {
    /// The rules of a family in a mode, without jumps, as the mode's backend made them.
    pub(crate) fn of_mode(
        mode: Mode,
        family: Family,
        chains: Vec<Chain>,
        shared: Vec<Chain>,
    ) -> Self {
        Self {
            mode,
            family,
            has_dispatch: true,
            has_copies: false,
            spares_copies: false,
            chains,
            shared,
            jumps: Vec::new(),
            superseded: &[],
            nft: Vec::new(),
        }
    }

    /// The same with these jumps, which supersede others.
    pub(crate) fn with_jumps(
        self,
        jumps: impl IntoIterator<Item = Jump>,
        superseded: &'static [Jump],
    ) -> Self {
        // The kubelet's, too, and of IPv4 alone.
        let is_of_family = |jump: &Jump| jump.comment.is_some() || self.family == Family::V4;
        Self { jumps: jumps.into_iter().filter(is_of_family).collect(), superseded, ..self }
    }

    /// Returns the rules in the form of nf_tables; none in a mode without that form. `ranges`: lengths of the networks
    /// that load balancers' clients are in.
    #[must_use]
    pub fn nft_chains(&self, ranges: &nft::SourceRanges) -> Vec<nft::Chain> {
        let mut chains = self.nft.clone();
        for chain in chains.iter_mut().filter(|chain| chain.name == nft::SOURCE_RANGES) {
            chain.rules = nft::source_ranges(self.family, ranges);
        }
        chains
    }

    /// True if the rules in that form lead connections to a flow table.
    #[must_use]
    pub fn has_flow_table(&self) -> bool {
        self.nft.iter().any(|chain| chain.hook == Some(nft::Hook::Forward))
    }

    pub(crate) fn with_nft(self, nft: Vec<nft::Chain>) -> Self {
        Self { nft, ..self }
    }

    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The chains that every rule set of ipvs mode has, whatever the settings.
    pub fn chain_names() -> impl Iterator<Item = (Table, &'static str)> {
        let any = RuleSetSettings::plain(1, LocalTraffic::Unknown);
        ipvs_chains(Family::V4, &any).into_iter().map(|chain| (chain.table, chain.name))
    }

    /// The chains by which IPVS is shown copies of packets.
    pub fn copy_chain_names() -> impl Iterator<Item = (Table, &'static str)> {
        COPY_JUMPS.into_iter().map(|jump| (jump.table, jump.to)).chain([(Table::Mangle, SHOWN)])
    }

    /// Our chains: those of `nat` first.
    #[must_use]
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// Chains that must be there and have at least these rules. Their other rules are none of this
    /// rule set's: of Services, or of other programs.
    #[must_use]
    pub fn shared(&self) -> &[Chain] {
        &self.shared
    }

    /// The jumps, in the order in which they are put before everything else of the built-in chain,
    /// or behind it: of two that go first into the same chain the later one comes to stand first.
    #[must_use]
    pub fn jumps(&self) -> &[Jump] {
        &self.jumps
    }

    /// Compares what is there with what should be.
    ///
    /// `saved` is what `iptables-save` prints, for our tables at least, of either variant, with
    /// or without counters. Everything that is not ours is passed over. Rules are compared by
    /// meaning: quoting, the order of matches within a rule and how an address is written do not
    /// count, since they vary between versions. A jump is there if it is anywhere in its built-in
    /// chain; a rule of a shared chain, if it is anywhere in that chain. In IPVS mode the jumps of a
    /// built-in chain have their order among each other.
    #[must_use]
    pub fn compare(&self, saved: &str) -> Comparison {
        saved::compare(self, &Saved::parse(saved))
    }

    /// Input for `iptables-restore --noflush` that writes all our chains from scratch, puts the
    /// missing jumps in front, and adds what is missing of the shared chains. Each table changes in
    /// one step, and nothing else in it is touched.
    ///
    /// A shared chain that is there is not mentioned: declaring it would empty it.
    #[must_use]
    pub fn restore_input(&self, found: &Comparison) -> String {
        let mut tables = Table::ALL;
        if !self.tables_are_independent(found) {
            // What the dispatch leads past must have been replaced before. What ends a copy must be
            // there before the first one is made.
            tables.reverse();
        }
        let mut input = String::new();
        for table in tables {
            let chains = || self.chains.iter().filter(|chain| chain.table == table);
            let is_of_table = |of: &Table| *of == table;
            let absent = found.absent_shared.iter().filter(|(of, _)| is_of_table(of));
            let rules = found.missing_rules.iter().filter(|(of, ..)| is_of_table(of));
            // From the constant list, so that the order is right whatever the caller's was.
            let mut jumps = self.jumps().iter().filter(|jump| is_of_table(&jump.table)).peekable();
            let has_superseded = found.superseded_jumps.iter().any(|it| it.table == table);
            if jumps.peek().is_none() && !has_superseded {
                continue;
            }
            begin(&mut input, table);
            chains()
                .map(|chain| chain.name)
                .chain(absent.map(|(_, name)| *name))
                .for_each(|name| declare(&mut input, name));
            for chain in chains() {
                for rule in &chain.rules {
                    line(&mut input, format_args!("-A {} {rule}", chain.name));
                }
            }
            for (_, chain, rule) in rules {
                line(&mut input, format_args!("-A {chain} {rule}"));
            }
            // The first of several copies is deleted: so before the jump is there once more.
            for jump in found.misplaced_jumps.iter().filter(|jump| is_of_table(&jump.table)) {
                line(&mut input, format_args!("-D {} {}", jump.from, jump.rule()));
            }
            let is_to_come = |jump: &&Jump| {
                found.missing_jumps.contains(jump) || found.misplaced_jumps.contains(jump)
            };
            for jump in jumps.filter(is_to_come) {
                match jump.place {
                    JumpPlace::First => {
                        line(&mut input, format_args!("-I {} 1 {}", jump.from, jump.rule()));
                    }
                    JumpPlace::Last => {
                        line(&mut input, format_args!("-A {} {}", jump.from, jump.rule()));
                    }
                }
            }
            for jump in found.superseded_jumps.iter().filter(|jump| is_of_table(&jump.table)) {
                line(&mut input, format_args!("-D {} {}", jump.from, jump.rule()));
            }
            for (from, rule) in found.portal_jumps.iter().filter(|_| table == Table::Nat) {
                line(&mut input, format_args!("-D {from} {rule}"));
            }
            commit(&mut input);
        }
        input
    }

    /// The same, for one table after the other.
    #[must_use]
    pub fn restore_inputs(&self, found: &Comparison) -> Vec<String> {
        let input = self.restore_input(found);
        input.split_inclusive("COMMIT\n").map(str::to_owned).collect()
    }

    /// True if a table may be written although another one cannot be: none of them needs that another
    /// was written before.
    #[must_use]
    pub fn tables_are_independent(&self, found: &Comparison) -> bool {
        !found.is_led_by_rules && !self.has_copies
    }

    /// Input for a host that has nothing of it.
    #[must_use]
    pub fn first_input(&self) -> String {
        self.restore_input(&self.compare(""))
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
