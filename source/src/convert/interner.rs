//! One copy of a string that many objects have in common.

use std::collections::HashSet;
use std::sync::Arc;

use plan::model::ServiceName;

/// Below this many strings it is not worth looking for unused ones.
const FIRST_SWEEP: usize = 1024;
const FIRST_SWEEP_OF_NODES: usize = 16;

/// Hands out shared copies of strings, and of Services' names.
///
/// 250,000 endpoints name a few thousand nodes and zones. Unused entries are dropped whenever
/// there are twice as many entries as after the last sweep. So namespaces that come and go do not
/// add up.
#[derive(Debug)]
pub struct Interner {
    strings: HashSet<Arc<str>>,
    nodes: HashSet<Arc<str>>,
    services: HashSet<ServiceName>,
    next_sweep: usize,
    next_sweep_of_nodes: usize,
    next_sweep_of_services: usize,
}

impl Interner {
    /// The shared copy of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        shared(&mut self.strings, &mut self.next_sweep, FIRST_SWEEP, text)
    }

    /// The shared copy of a node's name.
    pub fn intern_node(&mut self, name: &str) -> Arc<str> {
        shared(&mut self.nodes, &mut self.next_sweep_of_nodes, FIRST_SWEEP_OF_NODES, name)
    }

    /// Number of nodes that are in use as names: up to twice as many where nodes have gone.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The shared copy of a Service's name, which the Service has, and each of its slices.
    pub fn intern_service(&mut self, name: ServiceName) -> ServiceName {
        if let Some(known) = self.services.get(&name) {
            return known.clone();
        }
        if self.services.len() >= self.next_sweep_of_services {
            self.services.retain(|name| !name.is_last());
            self.next_sweep_of_services = FIRST_SWEEP.max(self.services.len() * 2);
        }
        self.services.insert(name.clone());
        name
    }
}

impl Default for Interner {
    fn default() -> Self {
        Self {
            strings: HashSet::new(),
            nodes: HashSet::new(),
            services: HashSet::new(),
            next_sweep: FIRST_SWEEP,
            next_sweep_of_nodes: FIRST_SWEEP_OF_NODES,
            next_sweep_of_services: FIRST_SWEEP,
        }
    }
}

/// The copy of `text` in a set. Texts that are not in use are dropped once the set is so large.
fn shared(
    strings: &mut HashSet<Arc<str>>,
    next_sweep: &mut usize,
    first_sweep: usize,
    text: &str,
) -> Arc<str> {
    if let Some(known) = strings.get(text) {
        return Arc::clone(known);
    }
    if strings.len() >= *next_sweep {
        strings.retain(|string| Arc::strong_count(string) > 1);
        *next_sweep = first_sweep.max(strings.len() * 2);
    }
    let new: Arc<str> = text.into();
    strings.insert(Arc::clone(&new));
    new
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
    fn unused_strings_are_dropped() {
        let mut interner = Interner::default();
        let kept = interner.intern("kept");
        for index in 0..100 * FIRST_SWEEP {
            interner.intern(&format!("namespace-{index}"));
        }
        assert!(interner.strings.len() <= 2 * FIRST_SWEEP, "{}", interner.strings.len());
        assert!(Arc::ptr_eq(&kept, &interner.intern("kept")));
    }

    #[test]
    fn names_of_services_are_held_once_and_as_long_as_they_are_used() {
        let mut interner = Interner::default();
        let kept = interner.intern_service(ServiceName::new("a", "kept"));
        assert!(std::ptr::eq(&*kept, &*interner.intern_service(ServiceName::new("a", "kept"))));
        for index in 0..100 * FIRST_SWEEP {
            interner.intern_service(ServiceName::new("a", format!("service-{index}")));
        }
        assert!(interner.services.len() <= 2 * FIRST_SWEEP, "{}", interner.services.len());
        assert!(std::ptr::eq(&*kept, &*interner.intern_service(ServiceName::new("a", "kept"))));
    }
}
