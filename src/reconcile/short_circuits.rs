//! Clients are led to a short circuit only while it is there: the entry that leads to it is written
//! after its virtual server, its address and its own entries are confirmed, and goes before them.

use std::collections::{HashMap, HashSet};

use plan::kernel::Frontend;
use plan::op::{Op, Subject};
use tokio::time::Instant;

use super::Reconciler;
use super::retry_queue::Pending;
use super::writing::note_pending;
use crate::kernel::{Refusal, RefusalClass};

impl Reconciler {
    /// Adds what no longer leads clients to short circuits that turned out not to be there.
    /// `failed`: what has just been refused.
    pub(super) fn cut_off(&self, failed: &HashSet<Subject>, leading: &mut Vec<Op>) {
        let short_circuits = self.planner.settings().short_circuits;
        let is_missing = |subject: &&Subject| {
            self.retry_queue.get(subject).is_some_and(|pending| match pending.op {
                Op::CreateVirtualServer(short_circuit, _) => {
                    short_circuits.around(short_circuit.address).is_some()
                }
                Op::BindAddress(address) => short_circuits.around(address).is_some(),
                _ => false,
            })
        };
        let missing: HashSet<Subject> = failed.iter().filter(is_missing).copied().collect();
        if missing.is_empty() {
            return;
        }
        let about: HashSet<Subject> = leading.iter().map(Op::subject).collect();
        for (set, entry) in self.planner.leading_to(&missing) {
            let subject = Subject::Entry(set, entry);
            if !about.contains(&subject) && !self.retry_queue.contains(&subject) {
                leading.push(Op::RemoveEntry(set, entry));
            }
        }
    }

    /// Takes out what would lead clients to a short circuit that is not as it should be yet. It is
    /// pending as long as that is. What leads there still, though it should not, is tried to be
    /// removed again.
    pub(super) fn await_short_circuits(&mut self, leading: &mut Vec<Op>) {
        if leading.is_empty() || self.retry_queue.is_empty() {
            return;
        }
        let (planner, retry_queue) = (&self.planner, &mut self.retry_queue);
        leading.retain_mut(|op| {
            let Op::AddEntry(set, entry) = *op else { return true };
            let short_circuit = planner.led_to(set, &entry);
            let mut needed =
                short_circuit.iter().flat_map(|short_circuit| planner.needed_at(short_circuit));
            let pending =
                needed.find_map(|subject| Some((subject, retry_queue.due_time(&subject)?)));
            let Some((subject, due)) = pending else { return true };
            if retry_queue.get(&op.subject()).is_some_and(may_be_there) {
                *op = Op::RemoveEntry(set, entry);
                return true;
            }
            retry_queue.wait(op.clone(), reason(&subject), due);
            false
        });
        self.status.send_modify(|status| note_pending(status, &self.retry_queue));
    }

    /// The entries that these operations remove though they are desired.
    pub(super) fn removed_though_desired(&self, leading: &[Op]) -> Vec<Op> {
        let desired = self.planner.desired();
        let cut = leading.iter().filter_map(|op| match op {
            Op::RemoveEntry(set, entry) if desired.has_entry(*set, entry) => {
                Some(Op::AddEntry(*set, *entry))
            }
            _ => None,
        });
        cut.collect()
    }

    /// Has entries added again when their short circuits are there, unless they could not even be
    /// removed.
    pub(super) fn keep_pending(&mut self, entries: Vec<Op>, failed: &HashSet<Subject>) {
        if entries.is_empty() {
            return;
        }
        for op in entries.into_iter().filter(|op| !failed.contains(&op.subject())) {
            let Op::AddEntry(set, entry) = op else { continue };
            let short_circuit = self.planner.led_to(set, &entry);
            let mut needed = short_circuit
                .iter()
                .flat_map(|short_circuit| self.planner.needed_at(short_circuit));
            let pending = needed.find_map(|it| Some((it, self.retry_queue.due_time(&it)?)));
            if let Some((subject, due)) = pending {
                self.retry_queue.wait(op, reason(&subject), due);
            }
        }
        self.status.send_modify(|status| note_pending(status, &self.retry_queue));
    }

    /// Takes out what would take away a short circuit that clients may still be led to. It is
    /// pending as long as they are.
    pub(super) fn keep_short_circuits(&mut self, ops: &mut Vec<Op>) {
        if ops.is_empty() {
            return;
        }
        let planner = &self.planner;
        let mut waits_for: HashMap<Subject, (Subject, Instant)> = HashMap::new();
        for (subject, pending) in self.retry_queue.leading() {
            let Subject::Entry(set, entry) = subject else { continue };
            let due = self.retry_queue.due_time(subject).filter(|_| may_be_there(pending));
            let Some(due) = due else { continue };
            let Some(short_circuit) = planner.led_to(*set, entry) else { continue };
            if planner.desired().owner(&short_circuit).is_none() {
                waits_for.insert(Subject::VirtualServer(short_circuit), (*subject, due));
                waits_for.insert(Subject::Address(short_circuit.address), (*subject, due));
            }
        }
        if waits_for.is_empty() {
            return;
        }
        let retry_queue = &mut self.retry_queue;
        ops.retain(|op| {
            let subject = match op.subject() {
                Subject::Entry(_, entry) => entry.address().map(Subject::Address),
                subject => Some(subject),
            };
            let Some((entry, due)) = subject.and_then(|subject| waits_for.get(&subject)) else {
                return true;
            };
            let reason = format!("{entry} may still lead clients there, and has to go first");
            retry_queue.wait(op.clone(), Refusal::new(RefusalClass::Other, reason), *due);
            false
        });
        self.status.send_modify(|status| note_pending(status, &self.retry_queue));
    }

    /// Has the entry looked at again that may have waited for this short circuit, or the short
    /// circuit that may have waited for this entry.
    pub(super) fn retry_waiting_for(&mut self, subject: &Subject) {
        if self.retry_queue.is_empty() {
            return;
        }
        let now = Instant::now();
        match subject {
            Subject::VirtualServer(short_circuit) => {
                let claim = self.planner.desired().owning_claim(short_circuit);
                if let Some((set, entry)) = claim.and_then(|claim| claim.leading_entry()) {
                    self.retry_queue.retry_now(&Subject::Entry(set, entry), now);
                }
            }
            Subject::Entry(set, entry) => {
                let short_circuit = self.planner.led_to(*set, entry);
                let is_unwanted = |short_circuit: &Frontend| {
                    self.planner.desired().owner(short_circuit).is_none()
                };
                if let Some(short_circuit) = short_circuit.filter(is_unwanted) {
                    self.retry_queue.retry_now(&Subject::VirtualServer(short_circuit), now);
                    self.retry_queue.retry_now(&Subject::Address(short_circuit.address), now);
                }
            }
            _ => {}
        }
    }
}

/// True if an entry with a pending retry may be in its set.
fn may_be_there(pending: &Pending) -> bool {
    matches!(pending.op, Op::RemoveEntry(..)) || pending.refusal.class == RefusalClass::AnswerLost
}

fn reason(subject: &Subject) -> Refusal {
    let reason = format!("{subject} is not as it should be yet, and clients would be led there");
    Refusal::new(RefusalClass::Other, reason)
}
