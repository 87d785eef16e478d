//! Differences between the kernel and its desired state, without writing anything: what the audit
//! would repair, for the operator's console.
//!
//! The console reads the kernel, and has each part compared by a question to the loop. The parts are
//! those of `comparison`, and so are the functions that compare them.

use std::net::SocketAddr;

use plan::actual::{ActualSet, ActualVirtualServer};
use plan::chains::{ActualChains, ChainId};
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::{Family, ServiceName};
use plan::op::Op;
use plan::sets::SetId;
use tokio::time::Instant;

use super::comparison::{address_repairs, excess_of, orphaned};
use super::inquiry::View;
use super::writer::{Known, is_explained};
use crate::kernel::Addresses;

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
}

// === impl View ===

impl View<'_> {
    /// Compares the interface, its addresses and the routes.
    #[must_use]
    pub fn compare_addresses(&self, found: &Addresses) -> Vec<Difference> {
        self.all(address_repairs(self.planner, found))
    }

    /// Compares a set. None: it is not there.
    #[must_use]
    pub fn compare_set(&self, set: SetId, found: Option<&ActualSet>) -> Vec<Difference> {
        self.all(self.planner.differences_of_set(set, found))
    }

    /// Returns the difference of a family's constant rules, which are not as they should be.
    #[must_use]
    pub fn differing_rule_set(&self, family: Family) -> Difference {
        self.one(Op::WriteRuleSet(family))
    }

    /// Returns those of these virtual servers that are ours and that no Service asks for.
    /// `repairs`: of addresses and sets, which have removed their ownership markers if they are to be
    /// removed.
    #[must_use]
    pub fn orphaned(&self, found: &[Frontend], repairs: &[Op]) -> Vec<Difference> {
        let excess = excess_of(repairs);
        self.all(orphaned(self.planner, found.iter().copied(), excess))
    }

    /// Compares virtual servers. None: it is not there. What drains is as it should be, and said.
    #[must_use]
    pub fn compare_virtual_servers(
        &self,
        found: &[(Frontend, Option<ActualVirtualServer>)],
    ) -> Vec<Difference> {
        let now = Instant::now();
        let mut differences = Vec::new();
        for (frontend, found) in found {
            if self.planner.desired().owner(frontend).is_none() {
                continue;
            }
            let repairs = self.planner.repair(frontend, found.as_ref());
            // What rewriting notes is for the writer alone.
            let mut drain = self.writer.drain().excerpt(frontend);
            let known = Known::Compared(*frontend, found.as_ref());
            let deadline = |frontend: &Frontend| self.context.drain_deadline(frontend);
            let rewritten = drain.rewrite(repairs.clone(), known, &deadline, now);
            let removed: HashSet<SocketAddr> =
                rewritten.iter().filter_map(removed_server).collect();
            let draining = repairs.iter().filter_map(removed_server);
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
        }
        differences
    }

    /// Compares the chains of these Services' ports and endpoints, without those in excess.
    #[must_use]
    pub fn compare_own_chains(
        &self,
        family: Family,
        found: &ActualChains,
        services: &[ServiceName],
    ) -> Vec<Difference> {
        self.all(self.planner.compare_own_chains(family, found, services.iter()))
    }

    /// Returns those of these chains that no Service asks for.
    #[must_use]
    pub fn excess_chains(&self, found: &[ChainId]) -> Vec<Difference> {
        self.all(self.planner.excess_chains(found.iter()))
    }

    /// Compares a shared chain. None: it is not there.
    #[must_use]
    pub fn compare_shared_chain(
        &self,
        chain: ChainId,
        found: Option<&[Box<str>]>,
    ) -> Vec<Difference> {
        self.all(self.planner.compare_shared_chain(chain, found))
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
                reason: "another change of the chain is retried, and comes first".to_owned(),
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
