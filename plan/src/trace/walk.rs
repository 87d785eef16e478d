//! The kernel's hooks in their order, and what a packet does at each.
//!
//! IPVS comes after the filter at INPUT, and before it at OUTPUT (`ip_vs_ops4` in
//! net/netfilter/ipvs/ip_vs_core.c), where rules of nat come before IPVS. What IPVS sends on passes
//! OUTPUT again, with the endpoint as its destination.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::planned::{Looked, Planned};
use super::rule::{Condition, Extent, Match, Side, State, Target, UnreadableRule};
use super::{Fate, Hook, Origin, Packet, Source, Step, Way, frontend};
use crate::kernel_objects::{Entry, RealServer};
use crate::network;
use crate::rule_set::Table;
use crate::sets::SetId;
use crate::virtual_server::DesiredFrontend;

/// Tables of each hook, in order.
const BEFORE_ROUTING: [Table; 2] = [Table::Mangle, Table::Nat];

/// A packet on its way.
#[derive(Debug, Clone)]
struct Walker {
    source: IpAddr,
    destination: SocketAddr,
    mark: u32,
    is_translated: bool,
    is_masqueraded: bool,
    steps: Vec<Step>,
    /// Share of connections that come here; none: it is not known.
    share: Option<f64>,
}

/// Verdict on a packet.
#[derive(Debug)]
enum Verdict {
    Accepted,
    Ended(Fate),
}

/// Those that a chain has let pass, and those that it has decided on.
#[derive(Debug, Default)]
struct Passed {
    running: Vec<Walker>,
    decided: Vec<(Walker, Verdict)>,
}

/// Answer to the question if a condition holds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Holds {
    Yes,
    No,
    /// With this probability.
    Perhaps(f64),
}

/// The place of a rule.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    hook: Hook,
    table: Table,
    chain: &'a str,
}

struct Walk<'a> {
    planned: &'a Planned<'a>,
    packet: &'a Packet,
    ways: Vec<Way>,
}

/// Follows a packet to all of its ends.
pub(super) fn walk(planned: &Planned<'_>, packet: &Packet) -> Result<Vec<Way>, UnreadableRule> {
    let mut walk = Walk { planned, packet, ways: Vec::new() };
    let walker = Walker {
        source: packet.source.ip(),
        destination: packet.destination,
        mark: 0,
        is_translated: false,
        is_masqueraded: false,
        steps: Vec::new(),
        share: Some(1.0),
    };
    match packet.origin {
        Origin::Node => walk.sends(vec![walker])?,
        Origin::Interface { .. } => walk.receives(vec![walker])?,
    }
    Ok(walk.ways)
}

impl Walk<'_> {
    /// Packets come in.
    fn receives(&mut self, walkers: Vec<Walker>) -> Result<(), UnreadableRule> {
        let mut walkers = self.hook(Hook::Prerouting, &BEFORE_ROUTING, walkers)?;
        for walker in &mut walkers {
            let is_local = self.planned.is_local(walker.destination.ip());
            walker.steps.push(Step::Routed { is_local });
        }
        let is_local = |walker: &Walker| self.planned.is_local(walker.destination.ip());
        let (local, other): (Vec<_>, Vec<_>) = walkers.into_iter().partition(is_local);
        self.enters(local)?;
        let forwarded = self.hook(Hook::Forward, &[Table::Mangle, Table::Filter], other)?;
        self.leaves(forwarded)
    }

    /// The node sends packets of its own.
    fn sends(&mut self, walkers: Vec<Walker>) -> Result<(), UnreadableRule> {
        let walkers = self.hook(Hook::Output, &BEFORE_ROUTING, walkers)?;
        let is_balanced = |walker: &Walker| self.is_balanced(walker);
        let (balanced, other): (Vec<_>, Vec<_>) = walkers.into_iter().partition(is_balanced);
        self.balance(balanced, Hook::Output)?;
        let other = self.hook(Hook::Output, &[Table::Filter], other)?;
        let is_local = |walker: &Walker| self.planned.is_local(walker.destination.ip());
        let (local, other): (Vec<_>, Vec<_>) = other.into_iter().partition(is_local);
        self.leaves(other)?;
        // By the loopback interface they come in again, and rules of nat are not asked again.
        let local = self.hook(Hook::Prerouting, &[Table::Mangle], local)?;
        self.enters(local)
    }

    /// Packets are for this node.
    fn enters(&mut self, walkers: Vec<Walker>) -> Result<(), UnreadableRule> {
        let walkers = self.hook(Hook::Input, &[Table::Mangle, Table::Filter], walkers)?;
        let is_balanced = |walker: &Walker| self.is_balanced(walker);
        let (balanced, other): (Vec<_>, Vec<_>) = walkers.into_iter().partition(is_balanced);
        self.balance(balanced, Hook::Input)?;
        for walker in other {
            if let Some(endpoints) = self.relayed(&walker) {
                self.relay(&walker, &endpoints);
            } else if walker.is_translated && !self.is_first_destination(&walker) {
                // An endpoint in the network of this node.
                self.arrives(walker);
            } else {
                self.end(walker, Fate::Delivered);
            }
        }
        Ok(())
    }

    fn is_first_destination(&self, walker: &Walker) -> bool {
        walker.destination == self.packet.destination
    }

    fn is_balanced(&self, walker: &Walker) -> bool {
        let frontend = frontend(self.packet.protocol, walker.destination);
        matches!(self.planned.virtual_server(&frontend), DesiredFrontend::Open(..))
    }

    /// IPVS sends packets that it met at a hook to its real servers. One in the network of this
    /// node gets what came in without any further rule (`ip_vs_nat_send_or_cont` in
    /// net/netfilter/ipvs/ip_vs_xmit.c).
    fn balance(&mut self, walkers: Vec<Walker>, hook: Hook) -> Result<(), UnreadableRule> {
        let mut sent = Vec::new();
        for walker in walkers {
            for walker in self.schedule(walker) {
                if hook == Hook::Input && self.planned.is_local(walker.destination.ip()) {
                    self.arrives(walker);
                } else {
                    sent.push(walker);
                }
            }
        }
        // Rules of nat are asked once for a connection.
        let sent = self.hook(Hook::Output, &[Table::Mangle, Table::Filter], sent)?;
        self.leaves(sent)
    }

    /// Returns the ways that a virtual server can choose.
    fn schedule(&mut self, walker: Walker) -> Vec<Walker> {
        let frontend = frontend(self.packet.protocol, walker.destination);
        let DesiredFrontend::Open(server, real_servers) = self.planned.virtual_server(&frontend)
        else {
            return Vec::new();
        };
        let chosen = real_servers.iter().filter(|it| it.weight > 0);
        let weights: u64 = chosen.clone().map(|it| u64::from(it.weight)).sum();
        let number = chosen.clone().count();
        if number == 0 {
            self.end(walker, Fate::Refused { by: "icmp-port-unreachable of IPVS".to_owned() });
            return Vec::new();
        }
        let was_led_here = walker.steps.iter().any(|it| matches!(it, Step::Translated { .. }));
        let towards = |real: &RealServer| {
            let endpoint = real.socket();
            let share = server.scheduler.share(real.weight, weights, number);
            let mut walker = walker.clone().with_share(share);
            let server = server.clone();
            let weight = real.weight;
            walker.steps.push(Step::Balanced { frontend, server, endpoint, weight });
            if was_led_here {
                let by = self.planned.later_packets(self.packet, endpoint.ip());
                walker.steps.push(Step::LaterPackets { by });
            }
            walker.destination = endpoint;
            walker.is_translated = true;
            walker
        };
        chosen.map(towards).collect()
    }

    /// Packets leave this node, or go to a process of it by the loopback interface.
    fn leaves(&mut self, walkers: Vec<Walker>) -> Result<(), UnreadableRule> {
        for walker in self.hook(Hook::Postrouting, &BEFORE_ROUTING, walkers)? {
            if walker.is_translated {
                self.arrives(walker);
            } else {
                self.end(walker, Fate::PassedOn);
            }
        }
        Ok(())
    }

    fn relayed(&self, walker: &Walker) -> Option<Arc<[SocketAddr]>> {
        self.planned.endpoints_of_proxy_port(walker.destination)
    }

    /// The relay of mode userspace connects to an endpoint by itself, to one after the other.
    fn relay(&mut self, walker: &Walker, endpoints: &[SocketAddr]) {
        if endpoints.is_empty() {
            self.end(walker.clone(), Fate::Refused { by: "the relay has no endpoint".to_owned() });
        }
        for endpoint in endpoints {
            let mut walker = walker.clone().with_share(Some(1.0 / endpoints.len() as f64));
            walker.steps.push(Step::Relayed { proxy_port: walker.destination });
            self.end(walker, Fate::Endpoint { endpoint: *endpoint, source: Source::Node });
        }
    }

    fn arrives(&mut self, walker: Walker) {
        let endpoint = walker.destination;
        let fate = if walker.is_masqueraded {
            Fate::Endpoint { endpoint, source: Source::Node }
        } else if self.planned.is_answered_past(self.packet, endpoint.ip()) {
            Fate::Unanswered { endpoint, client: walker.source }
        } else {
            Fate::Endpoint { endpoint, source: Source::Client(walker.source) }
        };
        self.end(walker, fate);
    }

    fn end(&mut self, walker: Walker, fate: Fate) {
        self.ways.push(Way { steps: walker.steps, fate, share: walker.share });
    }

    /// Asks the rules of a hook's tables. Returns those that they let pass.
    fn hook(
        &mut self,
        hook: Hook,
        tables: &[Table],
        walkers: Vec<Walker>,
    ) -> Result<Vec<Walker>, UnreadableRule> {
        let mut passing = walkers;
        for table in tables {
            let place = Place { hook, table: *table, chain: hook.chain() };
            let Passed { mut running, decided } = self.chain(place, passing)?;
            for (walker, verdict) in decided {
                match verdict {
                    Verdict::Accepted => running.push(walker),
                    Verdict::Ended(fate) => self.end(walker, fate),
                }
            }
            passing = running;
        }
        Ok(passing)
    }

    /// Asks the rules of a chain. Rules are read once for all packets.
    fn chain(&self, at: Place<'_>, walkers: Vec<Walker>) -> Result<Passed, UnreadableRule> {
        let mut passed = Passed { running: walkers, decided: Vec::new() };
        if passed.running.is_empty() {
            return Ok(passed);
        }
        let mut returned = Vec::new();
        for (index, (text, rule)) in self.planned.rules(at.table, at.chain)?.into_iter().enumerate()
        {
            let mut led = Vec::new();
            for walker in std::mem::take(&mut passed.running) {
                let holds = self.holds_all(&rule.matches, at.hook, &walker);
                if let Holds::Perhaps(chance) = holds {
                    passed.running.push(walker.clone().with_share(Some(1.0 - chance)));
                }
                let mut walker = match holds {
                    Holds::No => {
                        passed.running.push(walker);
                        continue;
                    }
                    Holds::Yes => walker,
                    Holds::Perhaps(chance) => walker.with_share(Some(chance)),
                };
                walker.steps.push(Step::Rule {
                    hook: at.hook,
                    table: at.table,
                    chain: at.chain.to_owned(),
                    number: index + 1,
                    rule: text.to_owned(),
                    entries: self.entries(&rule.matches, &walker),
                });
                match &rule.target {
                    None | Some(Target::Aside) => passed.running.push(walker),
                    Some(Target::Return) => returned.push(walker),
                    Some(Target::Mark { value, mask }) => {
                        walker.mark = (walker.mark & !mask) ^ value;
                        walker.steps.push(Step::Marked { mark: walker.mark });
                        passed.running.push(walker);
                    }
                    Some(Target::Chain(_) | Target::ChainInstead(_)) => led.push(walker),
                    Some(terminating) => passed.decided.push(decide(walker, terminating)),
                }
            }
            match &rule.target {
                Some(Target::Chain(name)) => {
                    let of_chain = self.chain(Place { chain: name, ..at }, led)?;
                    passed.running.extend(of_chain.running);
                    passed.decided.extend(of_chain.decided);
                }
                Some(Target::ChainInstead(name)) => {
                    let of_chain = self.chain(Place { chain: name, ..at }, led)?;
                    returned.extend(of_chain.running);
                    passed.decided.extend(of_chain.decided);
                }
                _ => {}
            }
        }
        passed.running.extend(returned);
        Ok(passed)
    }

    /// Returns the entries by which sets know a packet for which these conditions hold.
    fn entries(&self, matches: &[Match], walker: &Walker) -> Vec<(SetId, Entry)> {
        let found = matches.iter().filter(|it| !it.is_negated).filter_map(|it| {
            let Condition::InSet(set, sides) = &it.condition else { return None };
            Some((*set, self.entry_in_set(*set, sides, walker)?))
        });
        found.collect()
    }

    /// Returns the entry by which a set knows these sides of a packet.
    fn entry_in_set(&self, set: SetId, sides: &[Side], walker: &Walker) -> Option<Entry> {
        let first = sides.first().map_or(walker.destination.ip(), |side| walker.address(*side));
        let last = sides.last().map_or(first, |side| walker.address(*side));
        let socket = SocketAddr::new(first, walker.destination.port());
        let frontend = frontend(self.packet.protocol, socket);
        self.planned.entry_in_set(set, &Looked { first, last, frontend })
    }

    fn holds_all(&self, matches: &[Match], hook: Hook, walker: &Walker) -> Holds {
        let mut all = Holds::Yes;
        for Match { is_negated, condition } in matches {
            match (self.holds(condition, hook, walker), is_negated) {
                (Holds::Yes, true) | (Holds::No, false) => return Holds::No,
                (Holds::Perhaps(chance), false) => all = Holds::Perhaps(chance),
                (Holds::Perhaps(chance), true) => all = Holds::Perhaps(1.0 - chance),
                (Holds::Yes, false) | (Holds::No, true) => {}
            }
        }
        all
    }

    fn holds(&self, condition: &Condition, hook: Hook, walker: &Walker) -> Holds {
        let holds = match condition {
            Condition::Source(network) => network.contains(&walker.source),
            Condition::Destination(network) => network.contains(&walker.destination.ip()),
            Condition::ComesBy(name, extent) => self.comes_by(name, *extent, hook),
            Condition::Protocol(protocol) => *protocol == self.packet.protocol,
            Condition::DestinationPort(port) => *port == walker.destination.port(),
            Condition::InSet(set, sides) => self.entry_in_set(*set, sides, walker).is_some(),
            Condition::Mark { value, mask } => walker.mark & mask == *value,
            Condition::IsLocal(side) => self.planned.is_local(walker.address(*side)),
            Condition::ComesByBridgePort => match &self.packet.origin {
                Origin::Interface { is_by_bridge_port, .. } => *is_by_bridge_port,
                Origin::Node => false,
            },
            Condition::State(states) => states.iter().any(|state| match state {
                State::New => true,
                State::Translated => walker.is_translated,
                State::Later => false,
            }),
            Condition::IsConfirmed | Condition::IsRemembered | Condition::Never => false,
            Condition::Chance(chance) => return Holds::Perhaps(*chance),
            Condition::Always => true,
        };
        if holds { Holds::Yes } else { Holds::No }
    }

    /// True if the packet came in by this interface, at a hook that knows it.
    fn comes_by(&self, name: &str, extent: Extent, hook: Hook) -> bool {
        let Origin::Interface { name: found, .. } = &self.packet.origin else {
            return false;
        };
        let is_known = matches!(hook, Hook::Prerouting | Hook::Input | Hook::Forward);
        is_known
            && match extent {
                Extent::Whole => **found == *name,
                Extent::Beginning => found.starts_with(name),
            }
    }
}

impl Walker {
    /// The same, with this share of the connections that came here; none: it is not known.
    fn with_share(self, of_these: Option<f64>) -> Self {
        let share = self.share.zip(of_these).map(|(share, of_these)| share * of_these);
        Self { share, ..self }
    }

    fn address(&self, side: Side) -> IpAddr {
        match side {
            Side::Source => self.source,
            Side::Destination => self.destination.ip(),
        }
    }
}

/// Does what a target does that ends the rules of a table.
fn decide(mut walker: Walker, target: &Target) -> (Walker, Verdict) {
    let verdict = match target {
        Target::Drop => Verdict::Ended(Fate::Dropped),
        Target::Reject(how) => Verdict::Ended(Fate::Refused { by: how.clone() }),
        Target::Masquerade => {
            walker.is_masqueraded = true;
            Verdict::Accepted
        }
        Target::TranslateTo(to) => {
            walker.translate(*to);
            Verdict::Accepted
        }
        Target::TranslateInto(network) => {
            walker.translate_address(network::inside(*network, walker.destination.ip()));
            Verdict::Accepted
        }
        Target::TranslateIntoOtherHalf(network) => {
            walker.translate_address(network::in_other_half(*network, walker.destination.ip()));
            Verdict::Accepted
        }
        Target::Accept
        | Target::Return
        | Target::Mark { .. }
        | Target::Aside
        | Target::Chain(_)
        | Target::ChainInstead(_) => Verdict::Accepted,
    };
    (walker, verdict)
}

impl Walker {
    fn translate_address(&mut self, to: IpAddr) {
        self.translate(SocketAddr::new(to, self.destination.port()));
    }

    fn translate(&mut self, to: SocketAddr) {
        self.destination = to;
        self.is_translated = true;
        self.steps.push(Step::Translated { to });
    }
}
