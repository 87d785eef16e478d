//! The constant rules of a fake kernel.

use std::sync::Arc;

use plan::hash::HashMap;
use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSet;

use super::Fake;
use crate::kernel::{Kernel, ReadError, Refusal, RuleRepairer, RuleSetReading};

/// The constant rules of each family: those that are desired, and those that were written last.
#[derive(Default)]
pub(super) struct FakeRules {
    desired: HashMap<Family, RuleSet>,
    written: HashMap<Family, RuleSet>,
    /// True if a COMMIT reads and writes the whole table.
    pub(super) is_of_x_tables: bool,
}

// === impl FakeRules ===

impl FakeRules {
    /// Sets a family's desired rules. Returns true if others were written.
    pub(super) fn desire(&mut self, rule_set: RuleSet) -> bool {
        let family = rule_set.family();
        let is_other = self.written.get(&family).is_some_and(|written| *written != rule_set);
        self.desired.insert(family, rule_set);
        is_other
    }

    /// Writes the desired rules of a family.
    pub(super) fn write(&mut self, family: Family) {
        self.written.extend(self.desired.get(&family).map(|rules| (family, rules.clone())));
    }
}

// === impl Fake ===

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
