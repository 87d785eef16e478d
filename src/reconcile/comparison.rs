//! Comparing the whole kernel with what it should be.

use std::collections::HashSet;

use plan::event::Event;
use plan::op::{Op, Subject};
use tokio::time::Instant;
use tracing::{info, warn};

use super::drain::Known;
use super::observer::RoundKind;
use super::{Basis, Reconciler};
use crate::kernel::worker::WorkerGone;

impl Reconciler {
    /// Reads the kernel and writes the difference to what is wished for.
    pub(super) async fn compare(&mut self) -> Result<(), WorkerGone> {
        let first = !self.status.borrow().in_sync_once;
        let started = Instant::now();
        if first {
            // Node ports have no place before the node's addresses are known, and the kernel side
            // must know the rules before it is asked whether they are there. The operations
            // themselves are part of the comparison.
            if self.read_addresses().await?.is_none() {
                return Ok(());
            }
            drop(self.plan().await?);
        }
        let reading = Instant::now();
        let actual = match self.kernel.read().await? {
            Ok(actual) => {
                self.observer.read(reading.elapsed());
                actual
            }
            Err(error) => {
                self.reading_failed(&error);
                // What is due waits for that reading too, or it would ask for one at once.
                for subject in self.ledger.due(Instant::now()) {
                    self.ledger.postpone(&subject, self.next_reading);
                }
                return Ok(());
            }
        };
        self.planner.found_sets(&actual.sets);
        let local = actual.local_addresses.iter().copied().collect();
        self.take(Event::LocalAddresses(local));
        // Changes that waited are part of what is wished for, so the comparison covers them; but
        // for rules that became different after they were compared.
        let planned = self.plan().await?;
        let mut ops = self.planner.diff(&actual);
        for family in self.planner.settings().families.clone() {
            let rules = Op::WriteLayer(family);
            if planned.contains(&rules) && !ops.contains(&rules) {
                ops.push(rules);
            }
        }
        let owed: Vec<Subject> = self.ledger.iter().map(|(subject, _)| *subject).collect();
        let known: HashSet<Subject> = ops.iter().map(Op::subject).collect();
        let wanted = owed.iter().copied().chain(planned.iter().map(Op::subject));
        for subject in wanted.filter(|s| !known.contains(s)).collect::<HashSet<_>>() {
            // One that is to be removed may have lost what tells the comparison that it is ours.
            if let Subject::VirtualServer(frontend) = subject {
                let found = actual.virtual_servers.get(&frontend);
                ops.extend(self.planner.repair(&frontend, found));
            }
        }
        let ops = self.let_drain(ops, Known::All(&actual));
        let wrong: HashSet<Subject> = ops.iter().map(Op::subject).collect();
        if first {
            info!(changes = ops.len(), "first comparison with the kernel");
        } else {
            self.count_drift(&ops, &planned);
        }
        // What is still wrong is in the difference, and is noted again if it fails again.
        for subject in owed.iter().filter(|subject| !wrong.contains(subject)) {
            self.settle(subject);
        }
        self.flows.note_ops(&ops, &self.planner);
        self.carry_out(ops, Basis::Reading).await?;
        let now = Instant::now();
        self.next_reading = now + self.pace.sync_period;
        self.next_write = now + self.pace.min_sync_period;
        self.status.send_modify(|status| {
            status.in_sync_once = true;
            status.readings += 1;
        });
        if first {
            info!(owed = self.ledger.len(), "in sync with the kernel");
        }
        self.round_ended(RoundKind::Comparison, started);
        Ok(())
    }

    /// Counts what others changed: neither what we could not write ourselves, nor what is new.
    pub(super) fn count_drift(&mut self, ops: &[Op], planned: &[Op]) {
        let new: HashSet<Subject> = planned.iter().map(Op::subject).collect();
        let is_drift = |subject| !self.ledger.owes(&subject) && !new.contains(&subject);
        let drift: Vec<&Op> = ops.iter().filter(|op| is_drift(op.subject())).collect();
        if !drift.is_empty() {
            warn!(changes = drift.len(), "the kernel was not as we left it, mending it");
            self.status.send_modify(|status| status.drift_repaired += drift.len() as u64);
            self.observer.drifted(&drift);
        }
    }
}
