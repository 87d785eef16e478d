//! Changes of chains by `iptables-restore`: neighbouring ones in one step, and a result for each.
//!
//! All of a table's changes are one transaction. If it is refused, nothing of it was done, and the
//! programs say more or less exactly why: `iptables-nft-restore` names every line that the kernel
//! refused; both name the first line that they do not understand themselves; of what the kernel
//! refused, `iptables-legacy-restore` names only the line of the COMMIT. So what is named is left
//! out, and the rest tried again; where nothing is named, each half is tried by itself.

mod input;
mod refusal;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use plan::chains::{ChainId, ChainName, ChainOp};
use plan::hash::{HashMap, HashSet};
use plan::rule_set::{Table, is_same_rule};

use super::super::{Refusal, RefusalClass};
use super::{Backend, Rules, RulesError, installed};
use input::Input;
use refusal::{of_all, of_one};

/// Maximum number of programs run to carry out changes that belong together. To find one of 10,000
/// takes 14.
const ATTEMPTS: usize = 64;

/// Time after which no further program is run.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of chains of Services, at most, that `iptables-nft-restore` writes at once. Its time grows
/// with their square: 3,000 took 0.4 s on Linux 6.18, and 30,000 took 281 s. What legacy takes
/// depends on the whole table, however few chains it writes.
const MOST_CHAINS: usize = 1_000;

/// The programs that changing chains takes.
pub(super) trait ChainPrograms {
    /// Number of chains of Services, at most, that are written at once.
    fn most_chains(&self) -> usize;

    /// Hands `iptables-restore --noflush` its input.
    fn restore(&mut self, input: &str) -> Result<(), RulesError>;

    /// Returns the rules of a chain as saved; none if there is no such chain.
    fn rules_of(&mut self, table: Table, chain: &str) -> Result<Option<Vec<String>>, RulesError>;
}

/// Changes that are carried out by one transaction, or by several if it is refused.
struct Step<'a, P> {
    programs: &'a mut P,
    ops: &'a [&'a ChainOp],
    /// By the place of the change among `ops`.
    results: Vec<Option<Result<(), Refusal>>>,
    /// Number of transactions.
    committed: u32,
}

/// Results of changes.
#[derive(Debug, Default)]
pub(crate) struct ChainsWritten {
    /// One for each change, in their order.
    pub(crate) results: Vec<Result<(), Refusal>>,
    /// Number of transactions that changed something. None if an answer was lost, so that there
    /// may have been another.
    pub(crate) transactions: Option<u32>,
}

/// Carries out changes in one table of one family, in their order.
pub(super) fn write(programs: &mut impl ChainPrograms, ops: &[&ChainOp]) -> ChainsWritten {
    let mut written = ChainsWritten { results: Vec::new(), transactions: Some(0) };
    for ops in steps(ops, programs.most_chains()) {
        let mut step =
            Step { programs, ops, results: ops.iter().map(|_| None).collect(), committed: 0 };
        step.run();
        let is_lost = |result: &Option<Result<(), Refusal>>| matches!(result, Some(Err(refusal)) if refusal.class == RefusalClass::AnswerLost);
        let is_lost = step.results.iter().any(is_lost);
        let before = written.transactions.filter(|_| !is_lost);
        written.transactions = before.map(|before| before + step.committed);
        written.results.extend(step.results.into_iter().map(|result| result.unwrap_or(Ok(()))));
    }
    written
}

/// Cuts changes where the later ones cannot be in the same transaction: a chain that is written or
/// removed is declared at the beginning, which empties it. Chains of Services come first; if there
/// are very many, some go ahead. The last of them, and all that leads to them, stay together.
fn steps<'a, 'b>(ops: &'a [&'b ChainOp], most_chains: usize) -> Vec<&'a [&'b ChainOp]> {
    let (mut steps, mut begin) = (Vec::new(), 0);
    let (mut touched, mut removed) = (HashSet::default(), HashSet::default());
    for (at, op) in ops.iter().enumerate() {
        let chain = op.chain();
        let is_declared = matches!(op, ChainOp::Write(..) | ChainOp::Remove(_));
        let is_of_service =
            matches!(op, ChainOp::Write(chain, _) if matches!(chain.name, ChainName::OfPort(..)));
        if removed.contains(&chain)
            || is_declared && touched.contains(&chain)
            || is_of_service && at - begin >= most_chains
        {
            steps.extend(ops.get(begin..at));
            begin = at;
            touched.clear();
            removed.clear();
        }
        touched.insert(chain);
        if matches!(op, ChainOp::Remove(_)) {
            removed.insert(chain);
        }
    }
    steps.extend(ops.get(begin..).filter(|rest| !rest.is_empty()));
    steps
}

impl<P: ChainPrograms> Step<'_, P> {
    fn run(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let mut attempts = 0;
        // The first part of what is left is the last one.
        let mut left = vec![(0..self.ops.len()).collect::<Vec<usize>>()];
        while let Some(part) = left.pop() {
            if part.is_empty() {
                continue;
            }
            if attempts == ATTEMPTS || attempts > 0 && Instant::now() >= deadline {
                let refusal = Refusal::new(
                    RefusalClass::Exhausted,
                    "not tried, because iptables rejected too many other changes of chains",
                );
                left.push(part);
                return self.refuse_all(&left, &refusal);
            }
            attempts += 1;
            let input = Input::new(self.ops, &part);
            match self.programs.restore(&input.text) {
                Ok(()) => {
                    self.committed += 1;
                    part.iter().for_each(|at| self.settle(*at, Ok(())));
                }
                Err(error) => {
                    if let Some(refusal) = of_all(&error) {
                        left.push(part);
                        return self.refuse_all(&left, &refusal);
                    }
                    left.extend(self.without_refused(part, &input, &error));
                }
            }
        }
    }

    /// Settles the changes that were refused, as far as the program's words tell which. Returns
    /// the parts to be tried next, the first of them last.
    fn without_refused(
        &mut self,
        mut part: Vec<usize>,
        input: &Input,
        error: &RulesError,
    ) -> Vec<Vec<usize>> {
        let mut refused = input.refused(self.ops, &part, error);
        if refused.is_empty() {
            if part.len() > 1 {
                let second = part.split_off(part.len() / 2);
                return vec![second, part];
            }
            refused.extend(part.iter().map(|at| (*at, None)));
        }
        let is_delete = |at: &usize| matches!(self.ops.get(*at), Some(ChainOp::Delete(..)));
        if refused.keys().any(is_delete) {
            // Only the first rule that is missing is named.
            self.settle_deleted(&part);
        }
        for (at, line) in refused {
            if self.results.get(at).is_some_and(Option::is_none) {
                let refusal = self.refusal(at, line.as_deref(), error);
                self.settle(at, Err(refusal));
            }
        }
        part.retain(|at| self.results.get(*at).is_some_and(Option::is_none));
        vec![part]
    }

    /// Settles the deletions of rules that are not there.
    fn settle_deleted(&mut self, part: &[usize]) {
        let mut found: HashMap<ChainId, Option<Vec<String>>> = HashMap::default();
        for at in part {
            let Some(ChainOp::Delete(chain, rule)) = self.ops.get(*at) else { continue };
            let rules = match found.entry(*chain) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(unknown) => {
                    match self.programs.rules_of(chain.table, &chain.name.to_string()) {
                        Ok(rules) => unknown.insert(rules),
                        Err(error) => {
                            tracing::debug!("{error}");
                            continue;
                        }
                    }
                }
            };
            let is_there = rules.iter().flatten().any(|found| is_same_rule(found, rule));
            if !is_there {
                self.settle(*at, Ok(()));
            }
        }
    }

    fn refusal(&mut self, at: usize, line: Option<&str>, error: &RulesError) -> Refusal {
        let Some(op) = self.ops.get(at) else {
            return Refusal::new(RefusalClass::Other, error);
        };
        // A rule is inserted into a shared chain, which another program may have removed.
        if let ChainOp::Insert(chain, _) = op
            && matches!(self.programs.rules_of(chain.table, &chain.name.to_string()), Ok(None))
        {
            return Refusal::new(RefusalClass::Conflict, format_args!("{chain}: no such chain"));
        }
        of_one(op, line, error)
    }

    fn settle(&mut self, at: usize, result: Result<(), Refusal>) {
        if let Some(place) = self.results.get_mut(at) {
            *place = Some(result);
        }
    }

    fn refuse_all(&mut self, left: &[Vec<usize>], refusal: &Refusal) {
        for at in left.iter().flatten() {
            self.settle(*at, Err(refusal.clone()));
        }
    }
}

impl ChainPrograms for &Rules {
    fn most_chains(&self) -> usize {
        match self.programs.backend {
            Backend::Nft => MOST_CHAINS,
            Backend::Legacy => usize::MAX,
        }
    }

    fn restore(&mut self, input: &str) -> Result<(), RulesError> {
        Rules::restore(self, input)
    }

    fn rules_of(&mut self, table: Table, chain: &str) -> Result<Option<Vec<String>>, RulesError> {
        let arguments = ["-w", super::LOCK_WAIT, "-t", table.name(), "-S", chain];
        let listed = match installed::run(&self.programs.plain, &arguments, "") {
            Ok(listed) => listed,
            Err(error) if refusal::is_no_such_chain(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let start = format!("-A {chain} ");
        let rules = listed.lines().filter_map(|line| line.strip_prefix(&start));
        Ok(Some(rules.map(|rule| rule.trim_end().to_owned()).collect()))
    }
}
