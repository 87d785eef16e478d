//! Clients are led to a twin only while it is there: the entry that leads to it is written after its
//! virtual server, its address and its own entries are confirmed, and goes before them.

use std::collections::{HashMap, HashSet};

use plan::kernel::Frontend;
use plan::op::{Op, Subject};
use tokio::time::Instant;

use super::Reconciler;
use super::ledger::Owed;
use super::writing::note_owed;
use crate::kernel::{Refusal, RefusalClass};

impl Reconciler {
    /// Adds what no longer leads clients to twins that turned out not to be there. `failed`: what
    /// has just been refused.
    pub(super) fn cut_off(&self, failed: &HashSet<Subject>, leading: &mut Vec<Op>) {
        let twins = self.planner.settings().twins;
        let is_missing = |subject: &&Subject| {
            self.ledger.get(subject).is_some_and(|owed| match owed.op {
                Op::CreateVirtualServer(twin, _) => twins.around(twin.address).is_some(),
                Op::BindAddress(address) => twins.around(address).is_some(),
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
            if !about.contains(&subject) && !self.ledger.owes(&subject) {
                leading.push(Op::RemoveEntry(set, entry));
            }
        }
    }

    /// Takes out what would lead clients to a twin that is not as it should be yet. It is owed as
    /// long as that is. What leads there still, though it should not, is tried to be removed again.
    pub(super) fn await_twins(&mut self, leading: &mut Vec<Op>) {
        if leading.is_empty() || self.ledger.is_empty() {
            return;
        }
        let (planner, ledger) = (&self.planner, &mut self.ledger);
        leading.retain_mut(|op| {
            let Op::AddEntry(set, entry) = *op else { return true };
            let twin = planner.led_to(set, &entry);
            let mut needed = twin.iter().flat_map(|twin| planner.needed_at(twin));
            let owed = needed.find_map(|subject| Some((subject, ledger.get(&subject)?.due)));
            let Some((subject, due)) = owed else { return true };
            if ledger.get(&op.subject()).is_some_and(may_be_there) {
                *op = Op::RemoveEntry(set, entry);
                return true;
            }
            ledger.wait(op.clone(), reason(&subject), due);
            false
        });
        self.status.send_modify(|status| note_owed(status, &self.ledger));
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

    /// Has entries added again when their twins are there, unless they could not even be removed.
    pub(super) fn owe_entries(&mut self, entries: Vec<Op>, failed: &HashSet<Subject>) {
        if entries.is_empty() {
            return;
        }
        for op in entries.into_iter().filter(|op| !failed.contains(&op.subject())) {
            let Op::AddEntry(set, entry) = op else { continue };
            let twin = self.planner.led_to(set, &entry);
            let mut needed = twin.iter().flat_map(|twin| self.planner.needed_at(twin));
            let owed = needed.find_map(|it| Some((it, self.ledger.get(&it)?.due)));
            if let Some((subject, due)) = owed {
                self.ledger.wait(op, reason(&subject), due);
            }
        }
        self.status.send_modify(|status| note_owed(status, &self.ledger));
    }

    /// Takes out what would take away a twin that clients may still be led to. It is owed as long
    /// as they are.
    pub(super) fn keep_twins(&mut self, ops: &mut Vec<Op>) {
        if ops.is_empty() {
            return;
        }
        let planner = &self.planner;
        let mut waits_for: HashMap<Subject, (Subject, Instant)> = HashMap::new();
        for (subject, owed) in self.ledger.leading().filter(|(_, owed)| may_be_there(owed)) {
            let Subject::Entry(set, entry) = subject else { continue };
            let Some(twin) = planner.led_to(*set, entry) else { continue };
            if planner.desired().owner(&twin).is_none() {
                waits_for.insert(Subject::VirtualServer(twin), (*subject, owed.due));
                waits_for.insert(Subject::Address(twin.address), (*subject, owed.due));
            }
        }
        if waits_for.is_empty() {
            return;
        }
        let ledger = &mut self.ledger;
        ops.retain(|op| {
            let subject = match op.subject() {
                Subject::Entry(_, entry) => entry.address().map(Subject::Address),
                subject => Some(subject),
            };
            let Some((entry, due)) = subject.and_then(|subject| waits_for.get(&subject)) else {
                return true;
            };
            let reason = format!("{entry} may still lead clients there, and has to go first");
            ledger.wait(op.clone(), Refusal::new(RefusalClass::Other, reason), *due);
            false
        });
        self.status.send_modify(|status| note_owed(status, &self.ledger));
    }

    /// Has the entry looked at again that may have waited for this twin, or the twin that may have
    /// waited for this entry.
    pub(super) fn hasten_twins(&mut self, subject: &Subject) {
        if self.ledger.is_empty() {
            return;
        }
        let now = Instant::now();
        match subject {
            Subject::VirtualServer(twin) => {
                let claim = self.planner.desired().owning_claim(twin);
                if let Some((set, entry)) = claim.and_then(|claim| claim.short_circuit()) {
                    self.ledger.hasten(&Subject::Entry(set, entry), now);
                }
            }
            Subject::Entry(set, entry) => {
                let twin = self.planner.led_to(*set, entry);
                let is_unwanted = |twin: &Frontend| self.planner.desired().owner(twin).is_none();
                if let Some(twin) = twin.filter(is_unwanted) {
                    self.ledger.hasten(&Subject::VirtualServer(twin), now);
                    self.ledger.hasten(&Subject::Address(twin.address), now);
                }
            }
            _ => {}
        }
    }
}

/// True if an entry with a pending retry may be in its set.
fn may_be_there(owed: &Owed) -> bool {
    matches!(owed.op, Op::RemoveEntry(..)) || owed.refusal.class == RefusalClass::AnswerLost
}

fn reason(subject: &Subject) -> Refusal {
    let reason = format!("{subject} is not as it should be yet, and clients would be led there");
    Refusal::new(RefusalClass::Other, reason)
}
