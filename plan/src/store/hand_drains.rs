//! Services that a drain by hand is about.

use std::collections::BTreeSet;

use super::{Record, Store};
use crate::hand_drain::HandDrain;
use crate::model::ServiceName;

// === impl Store ===

impl Store {
    /// Returns the Services with an endpoint that a drain by hand covers. Looks through all slices,
    /// unless the drain is for one Service: who drains by hand does so seldom, and an index of all
    /// endpoints would take its room all the time.
    #[must_use]
    pub fn with_endpoints_of(&self, drain: &HandDrain) -> BTreeSet<ServiceName> {
        let has_one = |record: &Record| {
            record.service.is_some() && record.slices.iter().any(|slice| drain.is_in(slice))
        };
        match &drain.service {
            Some(name) => {
                let record = self.records.get(name);
                record.filter(|record| has_one(record)).map(|_| name.clone()).into_iter().collect()
            }
            None => {
                let with_one = self.records.iter().filter(|(_, record)| has_one(record));
                with_one.map(|(name, _)| name.clone()).collect()
            }
        }
    }

    /// Has the Services planned again that a drain by hand is about, if it is new.
    pub(super) fn apply_hand_drain(&mut self, drain: &HandDrain, is_drained: bool) {
        if self.facts.note_hand_drain(drain, is_drained) {
            self.dirty.extend(self.with_endpoints_of(drain));
        }
    }
}
