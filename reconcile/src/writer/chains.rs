//! Changes of chains: their order, and those of them that wait for others.
//!
//! A rule can lead to a chain only while the chain is there. If the kernel refuses a chain, it
//! refuses the rules that lead there as well: they wait for the chain's next attempt, and all others
//! are written.

use plan::chains::{ActualChains, ChainId, ChainName, ChainOp, ChainSubject, RuleDigest};
use plan::comparison::Part;
use plan::hash::HashSet;
use plan::model::Family;
use plan::op::{Op, Phase, Subject};
use plan::planner::Planner;
use plan::rule_set::{Table, words};
use tokio::time::Instant;
use tracing::debug;

use super::rounds::LARGEST_ROUND_OF_RULES;
use super::{Basis, Writer};
use crate::context::Context;
use crate::observer::{Report, RoundKind, RuleCount};
use crate::pace::READ_RETRY;
use crate::retry_queue::{Pending, RetryQueue};
use kernel::worker::WorkerGone;
use kernel::{Refusal, RefusalClass};

/// Most operations in one request: those of about 1,000 Services, so that a COMMIT takes about a
/// second (see `ROUND_OF_RULES`).
const MOST: usize = 4_096;

/// The same where each COMMIT writes its whole table: those of the largest round, in which each is a
/// rule at least.
const MOST_OF_WHOLE_TABLES: usize = LARGEST_ROUND_OF_RULES;

/// Returns the number of operations, at most, in one request.
pub(super) fn most(cx: &Context) -> usize {
    if cx.writes_whole_tables { MOST_OF_WHOLE_TABLES } else { MOST }
}

/// Place of an operation in a batch. Changes of one family's chains are neighbours, whatever their
/// phases: neighbours of one table share a COMMIT, and families do not depend on each other.
pub(crate) fn place(op: &Op) -> (Option<Family>, Phase) {
    let family = match op {
        Op::Chain(change) => Some(change.chain().family),
        _ => None,
    };
    (family, op.phase())
}

/// Returns the chain that a refused operation waits for: the operation leads there, and the chain was refused
/// as well.
///
/// A shared chain does not wait as a whole: it is compared, and only some of its rules wait.
pub(super) fn awaited(op: &Op, refusal: &Refusal, retry_queue: &RetryQueue) -> Option<Subject> {
    let Op::Chain(change) = op else { return None };
    let is_whole = matches!(change, ChainOp::Write(chain, _) if is_shared(chain));
    if refusal.class != RefusalClass::Conflict || is_whole {
        return None;
    }
    targets(change).into_iter().find_map(|target| {
        let subject = Subject::Chain(ChainSubject::Chain(target));
        let pending = retry_queue.get(&subject)?;
        matches!(pending.op, Op::Chain(ChainOp::Write(..))).then_some(subject)
    })
}

/// Has an operation wait for a chain.
pub(super) fn wait(retry_queue: &mut RetryQueue, op: Op, chain: &Subject) {
    debug!("{op} waits for {chain}");
    retry_queue.wait(op, chain, ", its target");
}

/// Brings the retries of operations forward that lead to chains which have just been resolved.
pub(super) fn retry_dependents(retry_queue: &mut RetryQueue, resolved: &[Subject]) {
    let chains: HashSet<ChainId> = resolved
        .iter()
        .filter_map(|subject| match subject {
            Subject::Chain(ChainSubject::Chain(chain)) => Some(*chain),
            _ => None,
        })
        .collect();
    if chains.is_empty() || retry_queue.is_empty() {
        return;
    }
    let now = Instant::now();
    let leads_there = |op: &Op| match op {
        Op::Chain(change) => targets(change).iter().any(|target| chains.contains(target)),
        _ => false,
    };
    let dependents = retry_queue.iter().filter(|(_, pending)| leads_there(&pending.op));
    let dependents: Vec<Subject> = dependents.map(|(subject, _)| *subject).collect();
    for subject in dependents {
        retry_queue.retry_now(&subject, now);
    }
}

/// Leaves out changes of single rules in shared chains that are written as a whole.
pub(super) fn merge(ops: &mut Vec<Op>) {
    let mut whole = HashSet::default();
    ops.retain(|op| match op {
        Op::Chain(ChainOp::Write(chain, _)) if is_shared(chain) => whole.insert(*chain),
        _ => true,
    });
    ops.retain(|op| match op {
        Op::Chain(ChainOp::Insert(chain, _) | ChainOp::Delete(chain, _)) => !whole.contains(chain),
        _ => true,
    });
}

/// Number of changes of chains, at most, that are retried one by one before other work is done.
const RETRIED_ALONE: usize = 4;

/// Number of changes of chains, at most, that are retried together while one of them may be refused:
/// iptables-legacy does not say which, and to find out takes twice as many programs, of which 64 are run.
const RETRIED_TOGETHER: usize = 32;

/// With x_tables, takes those changes of chains out that were refused themselves, and returns some of
/// them, to be retried one by one. So they are not the reason again for which others are refused. Those
/// that are left out stay due: so do those that lead to a chain which is due as well.
pub(super) fn set_apart(ops: &mut Vec<Op>, cx: &Context, retry_queue: &RetryQueue) -> Vec<Op> {
    let is_own = |class| matches!(class, RefusalClass::NotSupported | RefusalClass::Other);
    let is_any_refused = retry_queue.classes().any(|(class, _)| is_own(class));
    if !cx.writes_whole_tables || !is_any_refused {
        return Vec::new();
    }
    let due: HashSet<Subject> = ops.iter().map(Op::subject).collect();
    let is_due = |chain: &ChainId| due.contains(&Subject::Chain(ChainSubject::Chain(*chain)));
    let (mut alone, mut n_together) = (Vec::new(), 0);
    ops.retain(|op| {
        let Op::Chain(change) = op else { return true };
        if targets(change).iter().any(is_due) {
            return false;
        }
        let pending = retry_queue.get(&op.subject());
        if pending.is_some_and(|it| it.attempts > 0 && is_own(it.refusal.class)) {
            if alone.len() < RETRIED_ALONE {
                alone.push(op.clone());
            }
            return false;
        }
        n_together += 1;
        n_together <= RETRIED_TOGETHER
    });
    alone
}

/// Returns the pending rules of a shared chain that is as it should be, since all of it has just
/// been written.
pub(super) fn rules_in_order(op: &Op, planner: &Planner, retry_queue: &RetryQueue) -> Vec<Subject> {
    let Op::Chain(ChainOp::Write(chain, rules)) = op else { return Vec::new() };
    if retry_queue.is_empty() || !is_shared(chain) {
        return Vec::new();
    }
    let written: HashSet<RuleDigest> = rules.iter().map(|rule| RuleDigest::of(rule)).collect();
    let is_in_order = |subject: &Subject| match subject {
        Subject::Chain(rule @ ChainSubject::Rule(of, digest)) => {
            of == chain && (written.contains(digest) || !planner.desired_chains().has(rule))
        }
        _ => false,
    };
    retry_queue.iter().map(|(subject, _)| *subject).filter(is_in_order).collect()
}

/// True if it is not known whether a chain or rule with a pending retry is there.
pub(super) fn is_state_unknown(
    planner: &Planner,
    pending: &Pending,
    subject: &ChainSubject,
) -> bool {
    let is_deleted = matches!(pending.op, Op::Chain(ChainOp::Delete(..)));
    pending.refusal.class == RefusalClass::AnswerLost
        || is_deleted && planner.desired_chains().has(subject)
}

/// True if an operation repairs what a pending retry would: no other program caused it.
pub(crate) fn is_explained(op: &Op, retry_queue: &RetryQueue) -> bool {
    let Op::Chain(change) = op else { return false };
    let chain = change.chain();
    retry_queue.contains(&Subject::Chain(ChainSubject::Chain(chain)))
        || matches!(change, ChainOp::Write(..)) && is_shared(&chain) && {
            let mut pending = retry_queue.iter();
            pending.any(|(subject, _)| matches!(subject, Subject::Chain(it) if it.chain() == chain))
        }
}

impl Writer {
    /// Reports the number of rules of the tables that this round has changed, and of all tables if
    /// it is one that compared everything.
    pub(super) fn report_rules(&mut self, cx: &mut Context, kind: RoundKind) {
        if !cx.leads_by_rules() {
            return;
        }
        let mut changed = std::mem::take(&mut self.written_rules);
        if kind == RoundKind::Comparison {
            let families = cx.planner.settings().families.iter();
            let tables =
                families.flat_map(|family| [Table::Nat, Table::Filter].map(|it| (*family, it)));
            tables.for_each(|table| {
                changed.entry(table).or_default();
            });
        }
        for ((family, table), written) in changed {
            let total = cx.planner.n_rules(family, table);
            let count = RuleCount { family, table, total, written };
            cx.observers.report(&Report::RulesCounted(count));
        }
    }

    /// Returns the operation that gives a chain or a rule its desired state. One that the next plan
    /// is about is put off.
    pub(super) fn chain_retry(&mut self, cx: &Context, subject: ChainSubject) -> Option<Op> {
        let op = cx.planner.repair_chain(subject).or_else(|| {
            let pending = self.retry_queue.get(&Subject::Chain(subject))?;
            match &pending.op {
                Op::Chain(ChainOp::Insert(chain, rule) | ChainOp::Delete(chain, rule))
                    if !cx.planner.desired_chains().has(&subject) =>
                {
                    Some(Op::Chain(ChainOp::Delete(*chain, rule.clone())))
                }
                _ => None,
            }
        });
        if op.is_none() {
            self.retry_queue.postpone(&Subject::Chain(subject), Instant::now() + READ_RETRY);
        }
        op
    }

    /// Writes what repairs a family's chains, which were found like this, and resolves what is
    /// pending and turned out to be in order. Returns true if another program had changed a chain.
    pub(crate) async fn repair_chains(
        &mut self,
        cx: &mut Context,
        ops: Vec<Op>,
        family: Family,
        found: &ActualChains,
    ) -> Result<bool, WorkerGone> {
        self.resolve_found(cx, &ops, family, found);
        let ops = self.without_waiting(ops, found);
        if ops.is_empty() {
            return Ok(false);
        }
        let is_drift = self.report_drift(cx, &ops);
        self.flows.note_ops(&ops, &cx.planner);
        self.carry_out(cx, ops, Basis::Reading).await?;
        Ok(is_drift)
    }

    /// Resolves what is pending of a family's chains and was found as desired. Puts off what the
    /// next plan is about.
    fn resolve_found(
        &mut self,
        cx: &mut Context,
        ops: &[Op],
        family: Family,
        found: &ActualChains,
    ) {
        if self.retry_queue.is_empty() {
            return;
        }
        let part = Part::Chains(family);
        let wrong: HashSet<Subject> = ops.iter().map(Op::subject).collect();
        let rules: HashSet<ChainSubject> = found
            .shared
            .iter()
            .flat_map(|(chain, rules)| {
                rules.iter().map(|rule| ChainSubject::Rule(*chain, RuleDigest::of(rule)))
            })
            .collect();
        let desired = cx.planner.desired_chains();
        let is_as_desired = |subject: &Subject| match subject {
            Subject::Chain(ChainSubject::Chain(chain)) if is_shared(chain) => {
                !ops.iter().any(|op| matches!(op, Op::Chain(change) if change.chain() == *chain))
            }
            Subject::Chain(ChainSubject::Chain(chain)) => {
                found.own.get(chain).copied() == desired.digest(chain)
            }
            Subject::Chain(rule) => rules.contains(rule) == desired.has(rule),
            _ => false,
        };
        let pending = self.retry_queue.iter().map(|(subject, _)| *subject);
        let (in_order, left): (Vec<Subject>, Vec<Subject>) = pending
            .filter(|subject| part.has(subject) && !wrong.contains(subject))
            .partition(is_as_desired);
        self.resolve(cx, &in_order);
        let now = Instant::now();
        for subject in left {
            if !self.retry_queue.is_put_off(&subject, now) {
                self.retry_queue.postpone(&subject, now + READ_RETRY);
            }
        }
    }

    /// Returns the operations that can be written now, in order: not those that are put off, and not
    /// those that lead to a chain which is not there and is put off. These wait for it.
    fn without_waiting(&mut self, mut ops: Vec<Op>, found: &ActualChains) -> Vec<Op> {
        if self.retry_queue.is_empty() {
            return ops;
        }
        ops.sort_by_key(place);
        let now = Instant::now();
        let mut missing = HashSet::<ChainId>::default();
        let mut left = Vec::with_capacity(ops.len());
        for op in ops {
            let Op::Chain(change) = &op else { continue };
            let is_missing =
                matches!(change, ChainOp::Write(chain, _) if !found.own.contains_key(chain));
            if self.retry_queue.is_put_off(&op.subject(), now) {
                if is_missing {
                    missing.insert(change.chain());
                }
                continue;
            }
            let awaited = |targets: Vec<ChainId>| {
                let awaited = targets.into_iter().find(|it| missing.contains(it));
                awaited.map(|it| Subject::Chain(ChainSubject::Chain(it)))
            };
            match change {
                _ if missing.is_empty() => left.push(op),
                ChainOp::Write(chain, rules) if is_shared(chain) => {
                    let mut kept = Vec::with_capacity(rules.len());
                    for rule in &**rules {
                        match awaited(target(chain, rule).into_iter().collect()) {
                            None => kept.push(rule.clone()),
                            Some(awaited) => {
                                let insert = ChainOp::Insert(*chain, (**rule).into());
                                wait(&mut self.retry_queue, Op::Chain(insert), &awaited);
                            }
                        }
                    }
                    left.push(Op::Chain(ChainOp::Write(*chain, kept.into())));
                }
                change => match awaited(targets(change)) {
                    None => left.push(op),
                    Some(awaited) => {
                        if is_missing {
                            missing.insert(change.chain());
                        }
                        wait(&mut self.retry_queue, op, &awaited);
                    }
                },
            }
        }
        left
    }
}

fn is_shared(chain: &ChainId) -> bool {
    matches!(chain.name, ChainName::Shared(_))
}

/// The chains of ours that rules lead to which an operation writes.
fn targets(change: &ChainOp) -> Vec<ChainId> {
    match change {
        ChainOp::Write(chain, rules) => {
            rules.iter().filter_map(|rule| target(chain, rule)).collect()
        }
        ChainOp::Insert(chain, rule) => target(chain, rule).into_iter().collect(),
        ChainOp::Delete(..) | ChainOp::Remove(_) => Vec::new(),
    }
}

/// The chain of a service port or endpoint that a rule leads to.
fn target(chain: &ChainId, rule: &str) -> Option<ChainId> {
    let words = words(rule);
    let (_, name) = words.iter().zip(words.iter().skip(1)).find(|(word, _)| *word == "-j")?;
    let name = ChainName::parse(chain.table, name)?;
    let target = ChainId { name, ..*chain };
    (!is_shared(&target)).then_some(target)
}
