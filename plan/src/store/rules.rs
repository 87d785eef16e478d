//! The families whose constant rules are to be written again.

use std::collections::BTreeMap;

use super::Store;
use crate::model::{Family, ServiceName};

// === impl Store ===

impl Store {
    /// The families whose constant rules have become different since this was last called, and
    /// since when.
    pub fn take_dirty_rules(&mut self) -> BTreeMap<Family, u64> {
        std::mem::take(&mut self.dirty_rules)
    }

    /// Has a family's constant rules written again.
    pub(crate) fn note_other_rules(&mut self, family: Family) {
        self.dirty_rules.entry(family).or_insert(self.dirty.now());
    }

    /// Has these Services compiled again.
    pub(crate) fn compile_again(&mut self, services: impl IntoIterator<Item = ServiceName>) {
        self.dirty.extend(services);
    }
}
