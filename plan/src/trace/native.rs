//! Rules of nf_tables, in the words in which a packet is followed.

use super::rule::{Condition, Extent, Match, Rule, Side, Target};
use crate::rule_set::nft::{self, Action, Key};
use crate::sets::SetId;

/// Returns the rule in these words.
pub(super) fn read(rule: &nft::Rule) -> Rule {
    Rule {
        matches: rule.matches.iter().flat_map(conditions).collect(),
        target: Some(target(&rule.action)),
    }
}

fn conditions(condition: &nft::Match) -> Vec<Match> {
    let one = |condition| vec![Match { is_negated: false, condition }];
    let or_not = |is_negated: &bool, condition| vec![Match { is_negated: *is_negated, condition }];
    match condition {
        nft::Match::InSet { key, set, is_not } => in_set(*key, set, *is_not),
        nft::Match::Source { net, is_not } => or_not(is_not, Condition::Source(*net)),
        nft::Match::Destination { net, is_not } => or_not(is_not, Condition::Destination(*net)),
        nft::Match::Interface { name, is_prefix, is_not } => {
            let extent = if *is_prefix { Extent::Beginning } else { Extent::Whole };
            or_not(is_not, Condition::ComesBy(name.to_string(), extent))
        }
        nft::Match::Protocol(protocol) => one(Condition::Protocol(*protocol)),
        nft::Match::Port(protocol, port) => {
            [one(Condition::Protocol(*protocol)), one(Condition::DestinationPort(*port))].concat()
        }
        nft::Match::NotLocalDestination => or_not(&true, Condition::IsLocal(Side::Destination)),
        nft::Match::Marked(mark) => one(Condition::Mark { value: *mark, mask: *mark }),
        // A first packet, which is followed, is no reset, and none of its connection has come before it.
        nft::Match::Reset | nft::Match::TranslatedBefore => one(Condition::Never),
        nft::Match::FirstDirection => Vec::new(),
    }
}

fn in_set(key: Key, set: &str, is_negated: bool) -> Vec<Match> {
    let family = crate::model::Family::BOTH.into_iter();
    // Networks are in a set for each length.
    let of_networks =
        { family }.map(nft::networks).find(|it| nft::length_of(it.family, set).is_some());
    let Some(set) = SetId::by_name(set).or(of_networks) else {
        return vec![Match { is_negated: false, condition: Condition::Never }];
    };
    let (first, last) = match key {
        Key::Frontend | Key::OriginalFrontend => (Side::Destination, Side::Destination),
        Key::SourceFrontend => (Side::Source, Side::Destination),
        Key::FrontendAndSource | Key::FrontendAndSourceNetwork(_) => {
            (Side::Destination, Side::Source)
        }
        Key::Address | Key::Port(_) => (Side::Destination, Side::Destination),
        Key::SourceAddress => (Side::Source, Side::Source),
    };
    let of_protocol = match key {
        Key::Port(protocol) => Some(Condition::Protocol(protocol)),
        _ => None,
    };
    let of_protocol = of_protocol.map(|condition| Match { is_negated: false, condition });
    let lookup = Match { is_negated, condition: Condition::InSet(set, vec![first, last]) };
    of_protocol.into_iter().chain([lookup]).collect()
}

fn target(action: &Action) -> Target {
    match action {
        Action::SetMark(mark) => Target::Mark { value: *mark, mask: *mark },
        Action::ClearMark(mark) => Target::Mark { value: 0, mask: *mark },
        // It ends all rules of nat, as accepting ends those of a table of iptables.
        Action::KeepDestination => Target::Accept,
        Action::MapDestination(net) => Target::TranslateInto(*net),
        Action::MapToOtherHalf(net) => Target::TranslateIntoOtherHalf(*net),
        Action::Masquerade { .. } => Target::Masquerade,
        Action::Offload => Target::Aside,
        Action::RejectWithReset => Target::Reject("tcp-reset".to_owned()),
        Action::RejectAsUnreachable => Target::Reject("port-unreachable".to_owned()),
        Action::Drop => Target::Drop,
        Action::Return => Target::Return,
        Action::GoTo(chain) => Target::ChainInstead((*chain).to_owned()),
        Action::Jump(chain) => Target::Chain((*chain).to_owned()),
    }
}
