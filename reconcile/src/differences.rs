//! Differences between the kernel and its desired state, without writing anything: what the audit
//! would repair, for the operator's console, which reads the kernel and asks the loop what a reading says.

use std::net::SocketAddr;

use plan::actual::ActualVirtualServer;
use plan::comparison::Reading;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::ServiceName;
use plan::op::Op;
use plan::planner::Planner;
use tokio::time::Instant;

use super::inquiry::View;
use super::writer::{Known, is_explained};

/// Operation that would repair the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The operation.
    pub op: Op,
    /// The Service that asks for its subject, if it is one.
    pub service: Option<ServiceName>,
    /// Reason for the difference, and who ends it.
    pub standing: Standing,
}

/// Reason for a difference, and who ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No write of ours is to come: another program changed the kernel, and the audit repairs it.
    Drift,
    /// The kernel refused the write, which is retried.
    Pending {
        /// Reason of the refusal.
        reason: String,
        /// Number of failed attempts in a row.
        attempts: u32,
    },
    /// It was written after the kernel had been read, or while it was: the next reading finds it.
    BeingWritten,
    /// It ends by itself: the connections of a real server that no Service wants any more.
    Draining {
        /// Seconds after which they are cut.
        seconds: u64,
    },
    /// No program runs that would write it: one does when it starts.
    AtStart,
}

impl Difference {
    /// Compares a reading with what is planned, where no program runs.
    #[must_use]
    pub fn at_start(planner: &Planner, reading: &Reading) -> Vec<Self> {
        let ops = planner.compare(reading).into_iter();
        let service = |op: &Op| planner.owner_of(&op.subject()).cloned();
        ops.map(|op| Self { service: service(&op), op, standing: Standing::AtStart }).collect()
    }
}

impl View<'_> {
    /// Compares a reading with what is planned. What drains is as it should be, and said.
    #[must_use]
    pub fn compare(&self, reading: &Reading) -> Vec<Difference> {
        match reading {
            Reading::VirtualServer(frontend, found) => {
                self.compare_virtual_server(frontend, found.as_ref())
            }
            reading => self.all(self.planner.compare(reading)),
        }
    }

    fn compare_virtual_server(
        &self,
        frontend: &Frontend,
        found: Option<&ActualVirtualServer>,
    ) -> Vec<Difference> {
        if self.planner.desired().owner(frontend).is_none() {
            return Vec::new();
        }
        let now = Instant::now();
        let repairs = self.planner.repair(frontend, found);
        // What rewriting notes is for the writer alone.
        let mut drain = self.writer.drain().excerpt(frontend);
        let known = Known::Compared(*frontend, found);
        let terms = |frontend: &Frontend| self.context.drain_terms(frontend);
        let rewritten = drain.rewrite(repairs.clone(), known, &terms, now);
        let removed: HashSet<SocketAddr> = rewritten.iter().filter_map(removed_server).collect();
        let draining = repairs.iter().filter_map(removed_server);
        let mut differences = Vec::new();
        for server in draining.filter(|server| !removed.contains(server)) {
            let deadline = drain.deadlines(frontend).find(|(it, _)| *it == server);
            let seconds =
                deadline.map_or(0, |(_, until)| until.saturating_duration_since(now).as_secs());
            differences.push(Difference {
                op: Op::RemoveRealServer(*frontend, server),
                service: None,
                standing: Standing::Draining { seconds },
            });
        }
        differences.extend(self.all(rewritten));
        differences
    }

    fn is_written_since_reading(&self, op: &Op) -> bool {
        let recent = &self.writer.recent;
        self.read_at.is_some_and(|began| recent.is_written_since(&op.subject(), began))
    }

    fn all(&self, ops: Vec<Op>) -> Vec<Difference> {
        ops.into_iter().map(|op| self.one(op)).collect()
    }

    fn one(&self, op: Op) -> Difference {
        let standing = match self.pending.get(&op.subject()) {
            Some(pending) => Standing::Pending {
                reason: pending.refusal.to_string(),
                attempts: pending.attempts,
            },
            None if is_explained(&op, self.pending) => Standing::Pending {
                reason: "an earlier change of the chain is retried first".to_owned(),
                attempts: 0,
            },
            None if self.is_written_since_reading(&op) => Standing::BeingWritten,
            None => Standing::Drift,
        };
        let service = self.planner.owner_of(&op.subject()).cloned();
        Difference { op, service, standing }
    }
}

fn removed_server(op: &Op) -> Option<SocketAddr> {
    match op {
        Op::RemoveRealServer(_, server) | Op::DrainRealServer(_, server, _) => Some(*server),
        _ => None,
    }
}
