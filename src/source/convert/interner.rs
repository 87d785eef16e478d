//! One copy of a string that many objects have in common.

use std::collections::HashSet;
use std::sync::Arc;

/// Below this many strings it is not worth looking for unused ones.
const FIRST_SWEEP: usize = 1024;

/// Hands out shared copies of strings.
///
/// 250,000 endpoints name a few thousand nodes and zones. What nobody uses any more is dropped
/// whenever the number of strings has doubled, so that namespaces that come and go do not add up.
#[derive(Debug)]
pub struct Interner {
    strings: HashSet<Arc<str>>,
    next_sweep: usize,
}

impl Default for Interner {
    fn default() -> Self {
        Self { strings: HashSet::new(), next_sweep: FIRST_SWEEP }
    }
}

impl Interner {
    /// The shared copy of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.strings.get(text) {
            return Arc::clone(known);
        }
        if self.strings.len() >= self.next_sweep {
            self.strings.retain(|string| Arc::strong_count(string) > 1);
            self.next_sweep = FIRST_SWEEP.max(self.strings.len() * 2);
        }
        let new: Arc<str> = text.into();
        self.strings.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_held_once() {
        let mut interner = Interner::default();
        let first = interner.intern("node1");
        let second = interner.intern("node1");
        assert!(Arc::ptr_eq(&first, &second));
        assert_ne!(first, interner.intern("node2"));
    }

    #[test]
    fn what_nobody_uses_is_dropped() {
        let mut interner = Interner::default();
        let kept = interner.intern("kept");
        for index in 0..100 * FIRST_SWEEP {
            interner.intern(&format!("namespace-{index}"));
        }
        assert!(interner.strings.len() <= 2 * FIRST_SWEEP, "{}", interner.strings.len());
        assert!(Arc::ptr_eq(&kept, &interner.intern("kept")));
    }
}
