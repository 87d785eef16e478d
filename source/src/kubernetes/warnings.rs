//! Warnings about objects, each reported once and not whenever the object comes again.

use std::collections::HashMap;

use super::kind::ResourceKind;
use crate::Warning;
use crate::object::Metadata;

/// Problems that were reported about objects which are still as they were then. Nothing is kept of
/// objects that are fine.
#[derive(Debug, Default)]
pub(super) struct ReportedWarnings {
    reported: HashMap<(ResourceKind, String), ReportedObject>,
}

#[derive(Debug)]
struct ReportedObject {
    warnings: Vec<Warning>,
    /// True if the object was seen since the last list of its kind began.
    seen: bool,
}

impl ReportedWarnings {
    /// Returns the warnings about an object as it is now, or none if they are the same as before.
    pub(super) fn changed(
        &mut self,
        kind: ResourceKind,
        metadata: &Metadata,
        warnings: Vec<Warning>,
    ) -> Vec<Warning> {
        if warnings.is_empty() {
            self.forget(kind, metadata);
            return warnings;
        }
        let reported = ReportedObject { warnings: warnings.clone(), seen: true };
        match self.reported.insert(key(kind, metadata), reported) {
            Some(before) if before.warnings == warnings => Vec::new(),
            _ => warnings,
        }
    }

    /// Forgets an object: it is gone, or nothing is wrong with it.
    pub(super) fn forget(&mut self, kind: ResourceKind, metadata: &Metadata) {
        if !self.reported.is_empty() {
            self.reported.remove(&key(kind, metadata));
        }
    }

    pub(super) fn begin_list(&mut self, kind: ResourceKind) {
        let of_kind = self.reported.iter_mut().filter(|((other, _), _)| *other == kind);
        of_kind.for_each(|(_, reported)| reported.seen = false);
    }

    /// Forgets the objects of a kind that were not on the list: they are gone.
    pub(super) fn end_list(&mut self, kind: ResourceKind) {
        self.reported.retain(|(other, _), reported| *other != kind || reported.seen);
    }

    /// Returns the warnings that were reported and still hold.
    pub(super) fn all(&self) -> impl Iterator<Item = &Warning> {
        self.reported.values().flat_map(|reported| &reported.warnings)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.reported.is_empty()
    }
}

/// A namespace has no slash in its name.
fn key(kind: ResourceKind, metadata: &Metadata) -> (ResourceKind, String) {
    let [namespace, name] =
        [&metadata.namespace, &metadata.name].map(|text| text.as_deref().unwrap_or_default());
    (kind, format!("{namespace}/{name}"))
}
