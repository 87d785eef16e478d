//! Effect of a failed `iptables-restore` on the changes that it contained.

use std::collections::BTreeSet;

use plan::chains::ChainOp;
use plan::model::Family;
use plan::rule_set::words;

use super::super::error::Cause;
use super::super::{ProgramFailure, RulesError};
use crate::Refusal;
use crate::RefusalClass;

/// Returns the refusal of all changes, if the failure is of none in particular.
pub(super) fn of_all(error: &RulesError) -> Option<Refusal> {
    let failure = match error {
        RulesError::Failed(failure) => failure,
        RulesError::Hung { .. } => return Some(Refusal::new(RefusalClass::AnswerLost, error)),
        _ => return Some(Refusal::new(error.cause().class(), error)),
    };
    // It was killed, perhaps after its work.
    if failure.status.code().is_none() {
        return Some(Refusal::new(RefusalClass::AnswerLost, error));
    }
    match failure.cause {
        Cause::Busy
        | Cause::Memory
        | Cause::NoLock
        | Cause::NotPermitted
        | Cause::NoTable
        | Cause::NotInstalled => Some(Refusal::new(failure.cause.class(), error)),
        Cause::NoExtension
        | Cause::NoSet
        | Cause::NoChain
        | Cause::InUse
        | Cause::ForeignRules
        | Cause::ForeignExtension
        | Cause::Other => None,
    }
}

/// Returns the refusal of one change. `said` is what was said about it alone.
pub(super) fn of_one(op: &ChainOp, said: Option<&str>, error: &RulesError) -> Refusal {
    let RulesError::Failed(failure) = error else {
        return Refusal::new(error.cause().class(), error);
    };
    let words = said.map_or_else(|| failure.words(), |said| said.trim().to_owned());
    let cause = match (said.map_or(failure.cause, Cause::of), op) {
        // Rules lead to it, or its rules were not as they are now.
        (_, ChainOp::Remove(_)) => Cause::InUse,
        // It was there when it was looked for just now.
        (_, ChainOp::Delete(..)) => Cause::NoChain,
        // `iptables-legacy-restore` has no word for what the kernel says about a rule.
        (Cause::Other, _) if is_wordless(failure) => Cause::NoExtension,
        (cause, _) => cause,
    };
    let modules = modules(op);
    if cause == Cause::NoExtension && !modules.is_empty() {
        return Refusal::new(
            cause.class(),
            format_args!("{op}: {words}. It needs the kernel modules {modules}"),
        );
    }
    Refusal::new(cause.class(), format_args!("{op}: {words}"))
}

/// True if there is no such chain. `iptables-nft` 1.8 says that it cannot show it.
pub(super) fn is_no_such_chain(error: &RulesError) -> bool {
    let RulesError::Failed(failure) = error else { return false };
    let says = |words: &str| failure.stderr.contains(words);
    says("No chain/target/match by that name")
        || says("does not exist")
        || says("chain `") && says("is incompatible, use 'nft' tool")
}

/// `iptables-restore: line 7 failed`, and no more.
fn is_wordless(failure: &ProgramFailure) -> bool {
    failure.stderr.trim_end().ends_with(" failed")
}

/// Returns the kernel's modules for the matches and targets of a change's rules.
fn modules(op: &ChainOp) -> String {
    let rules: Vec<&str> = match op {
        ChainOp::Write(_, rules) => rules.iter().map(|rule| &**rule).collect(),
        ChainOp::Insert(_, rule) | ChainOp::Delete(_, rule) => vec![rule],
        ChainOp::Remove(_) => Vec::new(),
    };
    let family = op.chain().family;
    let mut modules = BTreeSet::new();
    for rule in rules {
        let words = words(rule);
        for (option, name) in words.iter().zip(words.iter().skip(1)) {
            modules.extend(match option.as_str() {
                "-m" => Some(match_module(name)),
                "-j" => target_module(name, family),
                _ => None,
            });
        }
    }
    modules.into_iter().collect::<Vec<_>>().join(", ")
}

fn match_module(name: &str) -> String {
    match name {
        "tcp" | "udp" => "xt_tcpudp".to_owned(),
        name => format!("xt_{name}"),
    }
}

/// Verdicts and chains have none.
fn target_module(name: &str, family: Family) -> Option<String> {
    match (name, family) {
        ("REJECT", Family::V4) => Some("ipt_REJECT".to_owned()),
        ("REJECT", Family::V6) => Some("ip6t_REJECT".to_owned()),
        ("DNAT", _) => Some("xt_nat".to_owned()),
        ("MASQUERADE", _) => Some("xt_MASQUERADE".to_owned()),
        ("MARK", _) => Some("xt_mark".to_owned()),
        _ => None,
    }
}
