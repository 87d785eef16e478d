//! Numbers of objects.

use super::Store;

/// Numbers of objects in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InputCounts {
    /// Services that are balanced.
    pub services: usize,
    /// EndpointSlices of Services, those included whose Service is not there yet.
    pub slices: usize,
    /// Endpoints in these slices, ready or not.
    pub endpoints: usize,
}

impl Store {
    /// Counts the objects. Walks all of them.
    #[must_use]
    pub fn count(&self) -> InputCounts {
        let mut counts = InputCounts::default();
        for record in self.records.values() {
            counts.services += usize::from(record.service.is_some());
            counts.slices += record.slices.len();
            counts.endpoints += record.slices.iter().map(|it| it.endpoints.len()).sum::<usize>();
        }
        counts
    }
}
