//! The constant rules of a fake kernel.

use std::sync::Arc;

use plan::hash::HashMap;
use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSet;

use super::Fake;
use crate::Kernel;
use crate::ReadError;
use crate::Refusal;
use crate::RefusalClass;
use crate::RuleRepairer;
use crate::RuleSetReading;

/// The constant rules of each family: those that are desired, and those that were written last.
#[derive(Default)]
pub(super) struct FakeRules {
    desired: HashMap<Family, RuleSet>,
    written: HashMap<Family, RuleSet>,
    /// True if a COMMIT reads and writes the whole table.
    pub(super) is_of_x_tables: bool,
}

/// Number of refused changes of chains in a large COMMIT with x_tables that are told from others.
const MOST_TOLD_APART: usize = 4;

/// Number of changes of chains of which iptables-legacy tells all that are refused.
const ALL_TOLD_APART: usize = 32;

/// Refused changes of chains of one batch.
#[derive(Debug)]
pub(super) struct RefusedInBatch {
    count: usize,
    most: usize,
}

impl RefusedInBatch {
    /// Carries an operation out, unless so many were refused before it that it is not tried.
    pub(super) fn note(
        &mut self,
        op: &Op,
        apply: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if !matches!(op, Op::Chain(_)) {
            return apply();
        }
        if self.count > self.most {
            return Err(Refusal::new(RefusalClass::Exhausted, "so many others were refused"));
        }
        let result = apply();
        self.count += usize::from(result.is_err());
        result
    }
}

impl FakeRules {
    /// Sets a family's desired rules. Returns true if others were written.
    pub(super) fn desire(&mut self, rule_set: RuleSet) -> bool {
        let family = rule_set.family();
        let is_other = self.written.get(&family).is_some_and(|written| *written != rule_set);
        self.desired.insert(family, rule_set);
        is_other
    }

    /// Returns the account of a batch. `iptables-legacy-restore` names no change that is refused.
    pub(super) fn refused_in(&self, ops: &[Op]) -> RefusedInBatch {
        let is_told = !self.is_of_x_tables || ops.len() <= ALL_TOLD_APART;
        RefusedInBatch { count: 0, most: if is_told { usize::MAX } else { MOST_TOLD_APART } }
    }

    /// Writes the desired rules of a family.
    pub(super) fn write(&mut self, family: Family) {
        self.written.extend(self.desired.get(&family).map(|rules| (family, rules.clone())));
    }
}

impl Fake {
    /// Returns the constant rules of a family that were written last.
    #[must_use]
    pub fn written_rules(&self, family: Family) -> Option<RuleSet> {
        self.state().rules.written.get(&family).cloned()
    }

    /// The lock of x_tables: repairs of the constant rules wait for it.
    #[must_use]
    pub fn xtables_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.state().xtables_lock)
    }

    /// From now on, iptables keeps its rules in x_tables.
    pub fn keep_x_tables(&self) {
        self.state().rules.is_of_x_tables = true;
    }
}

impl RuleRepairer for Fake {
    fn read_rule_set(&self, family: Family) -> Result<RuleSetReading, ReadError> {
        Kernel::read_rule_set(&mut self.clone(), family)
    }

    fn write_rule_set(&self, family: Family) -> Result<(), Refusal> {
        let lock = self.xtables_lock();
        let _held = lock.blocking_lock();
        self.clone().apply(&[Op::WriteRuleSet(family)]).pop().unwrap_or(Ok(()))
    }
}
