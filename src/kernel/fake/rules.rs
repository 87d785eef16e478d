//! The constant rules of a fake kernel.

use std::collections::HashMap;

use plan::model::Family;
use plan::rule_set::RuleSet;

use super::Fake;

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

    /// From now on, iptables keeps its rules in x_tables.
    pub fn keep_x_tables(&self) {
        self.state().rules.is_of_x_tables = true;
    }
}
