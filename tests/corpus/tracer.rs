//! The fate of a new connection's first packet, traced through the text of rules.
//!
//! A packet passes `nat`, `filter` and `nat` again, as on a node: what the node sends passes OUTPUT,
//! the rest PREROUTING; INPUT or FORWARD follow, by the destination that it has then; and
//! POSTROUTING, unless it stays. Wherever a rule matches by chance, both ways are followed, so that
//! all fates are found, each with its probability. A rule in words that are not known here is an
//! error, and never passed over.

mod rule;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use plan::model::Protocol;

use crate::saved::Saved;
pub(crate) use rule::{Rule, Target};

/// The first packet of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) protocol: Protocol,
    pub(crate) source: IpAddr,
    pub(crate) destination: SocketAddr,
    /// The interface by which it arrives; none: the node sends it.
    pub(crate) arrives_by: Option<&'static str>,
    /// The `recent` lists that know the source.
    pub(crate) known_to: Vec<String>,
}

/// Fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It gets to this address, which is not its destination's if it was changed.
    Delivered { to: SocketAddr, masqueraded: bool },
    /// It is dropped.
    Dropped,
    /// It is refused in words.
    Rejected,
}

/// Fates of a packet with their probabilities.
pub(crate) type Fates = BTreeMap<Fate, f64>;

/// Rules that packets are traced through.
#[derive(Debug)]
pub(crate) struct Tracer {
    chains: BTreeMap<(String, String), Vec<Rule>>,
    /// The node's own addresses.
    own: Vec<IpAddr>,
}

/// A packet on its way, and how likely it has come so far.
#[derive(Debug, Clone)]
struct Path {
    packet: Packet,
    mark: u32,
    translated: bool,
    masqueraded: bool,
    probability: f64,
}

/// End of a packet's way through a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It goes on.
    Accept,
    Drop,
    Reject,
}

impl Tracer {
    /// Rules of one family on a node with these addresses.
    pub(crate) fn new(saved: &Saved, own: impl IntoIterator<Item = IpAddr>) -> Self {
        let parse = |rules: &Vec<String>| rules.iter().map(|rule| Rule::parse(rule)).collect();
        let chains = saved.chains.iter().map(|(id, rules)| (id.clone(), parse(rules)));
        Self { chains: chains.collect(), own: own.into_iter().collect() }
    }

    /// Returns all fates that a packet may have.
    pub(crate) fn trace(&self, packet: Packet) -> Fates {
        let is_own = packet.arrives_by.is_none();
        let path =
            Path { packet, mark: 0, translated: false, masqueraded: false, probability: 1.0 };
        let mut fates = Fates::new();
        let entry = if is_own { "OUTPUT" } else { "PREROUTING" };
        for (path, _) in self.walk("nat", entry, path) {
            let to_node = self.is_local(path.packet.destination.ip());
            let hooks: &[&str] = match (is_own, to_node) {
                (true, true) => &["OUTPUT", "INPUT"],
                (true, false) => &["OUTPUT"],
                (false, true) => &["INPUT"],
                (false, false) => &["FORWARD"],
            };
            let mut paths = vec![(path, Verdict::Accept)];
            for hook in hooks {
                let next = paths.into_iter().flat_map(|(path, verdict)| match verdict {
                    Verdict::Accept => self.walk("filter", hook, path),
                    _ => vec![(path, verdict)],
                });
                paths = next.collect();
            }
            for (path, verdict) in paths {
                if verdict == Verdict::Accept && (is_own || !to_node) {
                    for (path, _) in self.walk("nat", "POSTROUTING", path) {
                        path.end(Verdict::Accept, &mut fates);
                    }
                } else {
                    path.end(verdict, &mut fates);
                }
            }
        }
        fates
    }

    /// Follows a path through a built-in chain, whose policy is to accept.
    fn walk(&self, table: &str, chain: &str, path: Path) -> Vec<(Path, Verdict)> {
        let ends = self.chain(table, chain, path).into_iter();
        ends.map(|(path, verdict)| (path, verdict.unwrap_or(Verdict::Accept))).collect()
    }

    /// Follows a path through a chain. No verdict: it comes back.
    fn chain(&self, table: &str, chain: &str, path: Path) -> Vec<(Path, Option<Verdict>)> {
        let rules = self.chains.get(&(table.into(), chain.into()));
        let rules = rules.unwrap_or_else(|| panic!("{table} has no chain {chain}"));
        let (mut ahead, mut ends) = (vec![path], Vec::new());
        for rule in rules {
            let mut next = Vec::new();
            for path in ahead {
                let chance = self.chance(rule, &path);
                if chance < 1.0 {
                    next.push(path.with_chance(1.0 - chance));
                }
                if chance > 0.0 {
                    self.take(table, rule, path.with_chance(chance), &mut next, &mut ends);
                }
            }
            ahead = next;
            if ahead.is_empty() {
                break;
            }
        }
        ends.extend(ahead.into_iter().map(|path| (path, None)));
        ends
    }

    /// Does what a rule that matches says.
    fn take(
        &self,
        table: &str,
        rule: &Rule,
        mut path: Path,
        next: &mut Vec<Path>,
        ends: &mut Vec<(Path, Option<Verdict>)>,
    ) {
        match &rule.target {
            Target::None => next.push(path),
            Target::Mark { value, mask } => {
                path.mark = (path.mark & !mask) ^ value;
                next.push(path);
            }
            Target::Return => ends.push((path, None)),
            Target::Accept => ends.push((path, Some(Verdict::Accept))),
            Target::Drop => ends.push((path, Some(Verdict::Drop))),
            Target::Reject => ends.push((path, Some(Verdict::Reject))),
            Target::Masquerade => {
                path.masqueraded = true;
                ends.push((path, Some(Verdict::Accept)));
            }
            Target::Dnat(to) => {
                path.packet.destination = *to;
                path.translated = true;
                ends.push((path, Some(Verdict::Accept)));
            }
            Target::Chain(chain) => {
                for (path, verdict) in self.chain(table, chain, path) {
                    match verdict {
                        None => next.push(path),
                        verdict => ends.push((path, verdict)),
                    }
                }
            }
        }
    }

    /// Probability with which a rule matches.
    fn chance(&self, rule: &Rule, path: &Path) -> f64 {
        let matches = rule.conditions.iter().map(|(wanted, condition)| {
            let chance = self.chance_of(condition, path);
            if *wanted { chance } else { 1.0 - chance }
        });
        matches.product()
    }

    fn chance_of(&self, condition: &rule::Condition, path: &Path) -> f64 {
        use rule::Condition;
        let packet = &path.packet;
        let is_met = match condition {
            Condition::Chance(probability) => return *probability,
            Condition::Source(net) => net.contains(&packet.source),
            Condition::Destination(net) => net.contains(&packet.destination.ip()),
            Condition::Interface(name) => {
                packet.arrives_by.is_some_and(|it| match name.strip_suffix('+') {
                    Some(prefix) => it.starts_with(prefix),
                    None => it == name,
                })
            }
            Condition::Protocol(name) => packet.protocol.name() == name,
            Condition::Port(port) => packet.destination.port() == *port,
            Condition::SourceIsLocal => self.is_local(packet.source),
            Condition::DestinationIsLocal => self.is_local(packet.destination.ip()),
            Condition::Mark { value, mask } => path.mark & mask == *value,
            Condition::States(states) => {
                states.iter().any(|it| it == "NEW" || (it == "DNAT" && path.translated))
            }
            Condition::KnownTo(list) => packet.known_to.contains(list),
        };
        f64::from(u8::from(is_met))
    }

    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }
}

impl Path {
    fn with_chance(&self, chance: f64) -> Self {
        Self { probability: self.probability * chance, ..self.clone() }
    }

    fn end(&self, verdict: Verdict, fates: &mut Fates) {
        let fate = match verdict {
            Verdict::Drop => Fate::Dropped,
            Verdict::Reject => Fate::Rejected,
            Verdict::Accept => {
                Fate::Delivered { to: self.packet.destination, masqueraded: self.masqueraded }
            }
        };
        *fates.entry(fate).or_default() += self.probability;
    }
}

impl fmt::Display for Fate {
    /// Writes it as the tables of flows have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered { to, masqueraded: true } => write!(f, "{to} masqueraded"),
            Self::Delivered { to, masqueraded: false } => write!(f, "{to}"),
            Self::Dropped => f.write_str("dropped"),
            Self::Rejected => f.write_str("rejected"),
        }
    }
}
