//! Saying what is wrong with an object once, and not whenever the object comes again.

use std::collections::HashMap;

use super::kind::ResourceKind;
use crate::source::Warning;
use crate::source::object::Metadata;

/// Problems that were reported about objects which are still as they were then. Nothing is kept of
/// objects that are fine.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    said: HashMap<(ResourceKind, String), Said>,
}

#[derive(Debug)]
struct Said {
    what: Vec<Warning>,
    /// True if the object was seen since the last list of its kind began.
    seen: bool,
}

// === impl Warnings ===

impl Warnings {
    /// The warnings about an object as it is now, or none if they are the same as before.
    pub(super) fn news(
        &mut self,
        kind: ResourceKind,
        metadata: &Metadata,
        warnings: Vec<Warning>,
    ) -> Vec<Warning> {
        if warnings.is_empty() {
            self.forget(kind, metadata);
            return warnings;
        }
        let said = Said { what: warnings.clone(), seen: true };
        match self.said.insert(key(kind, metadata), said) {
            Some(before) if before.what == warnings => Vec::new(),
            _ => warnings,
        }
    }

    /// The object is gone, or nothing is wrong with it.
    pub(super) fn forget(&mut self, kind: ResourceKind, metadata: &Metadata) {
        if !self.said.is_empty() {
            self.said.remove(&key(kind, metadata));
        }
    }

    pub(super) fn begin_list(&mut self, kind: ResourceKind) {
        let of_kind = self.said.iter_mut().filter(|((other, _), _)| *other == kind);
        of_kind.for_each(|(_, said)| said.seen = false);
    }

    /// Forgets the objects of a kind that were not on the list: they are gone.
    pub(super) fn end_list(&mut self, kind: ResourceKind) {
        self.said.retain(|(other, _), said| *other != kind || said.seen);
    }

    /// Everything that was said and still holds.
    pub(super) fn all(&self) -> impl Iterator<Item = &Warning> {
        self.said.values().flat_map(|said| &said.what)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.said.is_empty()
    }
}

/// A namespace has no slash in its name.
fn key(kind: ResourceKind, metadata: &Metadata) -> (ResourceKind, String) {
    let [namespace, name] =
        [&metadata.namespace, &metadata.name].map(|text| text.as_deref().unwrap_or_default());
    (kind, format!("{namespace}/{name}"))
}
