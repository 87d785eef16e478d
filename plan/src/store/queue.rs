//! Which Services have to be looked at again: first come, first served.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::model::ServiceName;

/// The Services that wait, in the order in which they began to.
///
/// One that changes again while it waits keeps its place. The API server's own Service does not
/// wait behind the others: without it, nothing on this node can follow the cluster.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<ServiceName>,
    /// So many of the first ones are to be taken together.
    together: usize,
    /// Since when each waits.
    since: HashMap<ServiceName, u64>,
    /// The API server's Service, if it waits.
    first: Option<(ServiceName, u64)>,
    /// Those that were taken before, and are not done with.
    unfinished: HashSet<ServiceName>,
    now: u64,
}

// === impl Queue ===

impl Queue {
    /// Says what moment it is for whoever begins to wait from now on.
    pub(super) fn set_moment(&mut self, now: u64) {
        self.now = now;
    }

    /// What moment it is.
    pub(super) fn moment(&self) -> u64 {
        self.now
    }

    pub(super) fn push(&mut self, service: ServiceName) {
        if service.is_api_server() {
            self.first.get_or_insert((service, self.now));
        } else if !self.since.contains_key(&service) {
            self.since.insert(service.clone(), self.now);
            self.order.push_back(service);
        }
    }

    pub(super) fn extend(&mut self, services: impl IntoIterator<Item = ServiceName>) {
        services.into_iter().for_each(|service| self.push(service));
    }

    /// Takes the next one, and since when it has waited.
    pub(super) fn pop(&mut self) -> Option<(ServiceName, u64)> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let service = self.order.pop_front()?;
        self.together = self.together.saturating_sub(1);
        let since = self.since.remove(&service).unwrap_or(self.now);
        self.unfinished.remove(&service);
        if self.order.is_empty() {
            // At the start every Service was in here: its room is not needed again.
            (self.order, self.since) = (VecDeque::new(), HashMap::new());
        }
        Some((service, since))
    }

    /// Puts one that was taken behind the others. It has waited since then.
    pub(super) fn put_back(&mut self, service: ServiceName, since: u64) {
        if service.is_api_server() {
            self.first = Some((service, since));
        } else if self.since.insert(service.clone(), since).is_none() {
            self.unfinished.insert(service.clone());
            self.order.push_back(service);
        }
    }

    /// Puts those that wait into another order. The first ones are to be taken together, as long
    /// as this says so.
    pub(super) fn sort_by_key<K: Ord>(
        &mut self,
        key: impl FnMut(&ServiceName) -> K,
        together: impl Fn(&ServiceName) -> bool,
    ) {
        self.order.make_contiguous().sort_by_cached_key(key);
        self.together = self.order.iter().take_while(|service| together(service)).count();
    }

    pub(super) fn is_next_together(&self) -> bool {
        self.together > 0 && self.first.is_none()
    }

    /// How many wait, without the API server's Service.
    pub(super) fn n_in_turn(&self) -> usize {
        self.order.len()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len() + usize::from(self.first.is_some())
    }

    /// Since when the one has waited that has waited longest.
    pub(super) fn oldest(&self) -> Option<u64> {
        let first = self.first.as_ref().map(|(_, since)| *since);
        let others = self.order.front().into_iter().chain(&self.unfinished);
        let others = others.filter_map(|service| self.since.get(service)).copied();
        first.into_iter().chain(others).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(queue: &mut Queue) -> Vec<(String, u64)> {
        std::iter::from_fn(|| queue.pop()).map(|(name, at)| (name.to_string(), at)).collect()
    }

    #[test]
    fn one_that_changes_again_keeps_its_place_and_the_api_server_comes_first() {
        let mut queue = Queue::default();
        for (moment, name) in ["b", "a", "kubernetes", "b", "c", "kubernetes"].iter().enumerate() {
            queue.set_moment(moment as u64);
            let namespace = if *name == "kubernetes" { "default" } else { "ns" };
            queue.push(ServiceName::new(namespace, *name));
        }
        assert_eq!((queue.len(), queue.oldest()), (4, Some(0)));
        let expected = [("default/kubernetes", 2), ("ns/b", 0), ("ns/a", 1), ("ns/c", 4)];
        assert_eq!(names(&mut queue), expected.map(|(name, at)| (name.to_owned(), at)));
        assert_eq!((queue.len(), queue.oldest()), (0, None));
    }

    #[test]
    fn one_that_is_not_done_with_goes_behind_the_others_and_is_as_old_as_before() {
        let mut queue = Queue::default();
        for (moment, name) in ["a", "b"].iter().enumerate() {
            queue.set_moment(moment as u64);
            queue.push(ServiceName::new("ns", *name));
        }
        let (service, since) = queue.pop().unwrap();
        queue.put_back(service, since);
        assert_eq!((queue.len(), queue.oldest()), (2, Some(0)));
        assert_eq!(names(&mut queue), [("ns/b".to_owned(), 1), ("ns/a".to_owned(), 0)]);
        assert_eq!(queue.oldest(), None);
    }
}
