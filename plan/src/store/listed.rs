//! The Services by name, for walking them a few at a time.

use std::ops::Bound::{Excluded, Unbounded};

use super::Store;
use crate::model::{Family, ServiceName};

// === impl Store ===

impl Store {
    /// The names of the Services that come after this one, or of all, in order.
    pub fn names(&self, after: Option<&ServiceName>) -> impl Iterator<Item = &ServiceName> {
        let start = after.map_or(Unbounded, Excluded);
        self.names.range::<ServiceName, _>((start, Unbounded))
    }

    /// Number of Services.
    #[must_use]
    pub fn n_services(&self) -> usize {
        self.names.len()
    }

    /// Number of Services with a cluster address of a family.
    #[must_use]
    pub fn n_services_of(&self, family: Family) -> usize {
        let counts = Family::BOTH.into_iter().zip(self.n_clustered);
        counts.filter(|(it, _)| *it == family).map(|(_, count)| count).sum()
    }

    /// True if a Service waits to be compiled again.
    #[must_use]
    pub fn waits(&self, service: &ServiceName) -> bool {
        self.dirty.contains(service)
    }
}
