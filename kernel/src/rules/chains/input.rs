//! Input for `iptables-restore --noflush`, and which change each of its lines is for.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use plan::chains::ChainOp;

use super::super::RulesError;

/// One transaction.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) text: String,
    /// Place of the change that each line is for, in order. Lines that are for all have none.
    places: Vec<Option<usize>>,
}

impl Input {
    /// The changes at these places of `ops`, all of one table.
    pub(super) fn new(ops: &[&ChainOp], part: &[usize]) -> Self {
        let mut input = Self { text: String::new(), places: Vec::new() };
        let changes = || part.iter().filter_map(|at| Some((*at, *ops.get(*at)?)));
        if let Some((_, op)) = changes().next() {
            input.line(None, format_args!("*{}", op.chain().table));
        }
        // Chains first, since any rule may lead to any chain. Those to be removed are emptied, so
        // that they do not keep each other; one that is gone is made for the moment.
        for (at, op) in changes() {
            if let ChainOp::Write(chain, _) | ChainOp::Remove(chain) = op {
                input.line(Some(at), format_args!(":{} - [0:0]", chain.name));
            }
        }
        for (at, op) in changes() {
            let at = Some(at);
            match op {
                ChainOp::Write(chain, rules) => {
                    for rule in &**rules {
                        input.line(at, format_args!("-A {} {rule}", chain.name));
                    }
                }
                ChainOp::Insert(chain, rule) => {
                    input.line(at, format_args!("-I {} 1 {rule}", chain.name));
                }
                ChainOp::Delete(chain, rule) => {
                    input.line(at, format_args!("-D {} {rule}", chain.name));
                }
                ChainOp::Remove(chain) => input.line(at, format_args!("-X {}", chain.name)),
            }
        }
        input.line(None, format_args!("COMMIT"));
        input
    }

    fn line(&mut self, place: Option<usize>, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{text}");
        self.places.push(place);
    }

    /// Returns the places of the changes that a program's words name, each with the words' line if
    /// that has more than a number.
    pub(super) fn refused(
        &self,
        ops: &[&ChainOp],
        part: &[usize],
        error: &RulesError,
    ) -> BTreeMap<usize, Option<String>> {
        let RulesError::Failed(failure) = error else { return BTreeMap::new() };
        let mut refused = BTreeMap::new();
        for said in failure.stderr.lines() {
            if let Some(chain) = missing_chain(said) {
                let leads_there = |at: &&usize| ops.get(**at).is_some_and(|op| leads(op, chain));
                let those = part.iter().filter(leads_there);
                refused.extend(those.map(|at| (*at, Some(said.to_owned()))));
                continue;
            }
            let Some(number) = super::super::error::named_line(said) else { continue };
            let place = number.checked_sub(1).and_then(|at| self.places.get(at).copied());
            if let Some(at) = place.flatten() {
                let words = said.contains(": ").then(|| said.to_owned());
                refused.entry(at).or_insert(words.filter(|words| !words.contains("at line:")));
            }
        }
        refused
    }

    /// Returns the line of this number, from 1.
    #[cfg(test)]
    pub(super) fn number_of(&self, text: &str) -> Option<usize> {
        self.text.lines().position(|line| line == text).map(|at| at + 1)
    }
}

/// `Chain 'KUBE-X' does not exist`: `iptables-nft-restore` finds that out at the COMMIT.
fn missing_chain(said: &str) -> Option<&str> {
    said.split_once("Chain '")?.1.strip_suffix("' does not exist")
}

fn leads(op: &ChainOp, chain: &str) -> bool {
    let leads = |rule: &str| {
        rule.split_once("-j ").is_some_and(|(_, to)| to.split(' ').next() == Some(chain))
    };
    match op {
        ChainOp::Write(_, rules) => rules.iter().any(|rule| leads(rule)),
        ChainOp::Insert(_, rule) => leads(rule),
        ChainOp::Delete(..) | ChainOp::Remove(_) => false,
    }
}
