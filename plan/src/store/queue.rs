//! Queue of the Services that have to be compiled again: first come, first served.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::turn::{Turn, TurnRank};
use crate::model::ServiceName;

/// The Services that wait, in the order in which they began to.
///
/// One that changes again while it waits keeps its place. The API server's own Service does not
/// wait behind the others: without it, nothing on this node can follow the cluster.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<ServiceName>,
    /// Number of the first ones in `order` that waited when the kernel was read.
    n_early: usize,
    /// Services that contend for frontends, of those that waited when the kernel was read.
    contending: BTreeSet<(TurnRank, ServiceName)>,
    /// True if those that contend are taken before the others now.
    contending_first: bool,
    turns: HashMap<ServiceName, Turn>,
    /// The API server's Service, if it waits.
    first: Option<(ServiceName, Turn)>,
    /// Those in `order` that were taken before, and are not done with.
    unfinished: HashSet<ServiceName>,
    now: u64,
}

// === impl Queue ===

impl Queue {
    /// Sets the timestamp of Services that begin to wait from now on.
    pub(super) fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Returns the current timestamp.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn push(&mut self, service: ServiceName) {
        if service.is_api_server() {
            self.first.get_or_insert((service, Turn::new(self.now)));
        } else if !self.turns.contains_key(&service) {
            self.turns.insert(service.clone(), Turn::new(self.now));
            self.order.push_back(service);
        }
    }

    pub(super) fn extend(&mut self, services: impl IntoIterator<Item = ServiceName>) {
        services.into_iter().for_each(|service| self.push(service));
    }

    /// Has those that contend and the others taken in turns, one round each.
    pub(super) fn begin_round(&mut self) {
        self.contending_first = !self.contending_first;
    }

    /// Takes the next one, and the turn that it has.
    pub(super) fn pop(&mut self) -> Option<(ServiceName, Turn)> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let service = self.next_in_turn()?;
        let turn = self.turns.remove(&service).unwrap_or_else(|| Turn::new(self.now));
        self.unfinished.remove(&service);
        if self.turns.is_empty() {
            // At the start every Service was in here: its room is not needed again.
            (self.order, self.turns) = (VecDeque::new(), HashMap::new());
        }
        Some((service, turn))
    }

    /// Those that came after the kernel was read wait for all that were there: they may claim what
    /// one of these is about to find.
    fn next_in_turn(&mut self) -> Option<ServiceName> {
        if (self.contending_first || self.n_early == 0)
            && let Some((_, service)) = self.contending.pop_first()
        {
            return Some(service);
        }
        self.n_early = self.n_early.saturating_sub(1);
        self.order.pop_front()
    }

    /// Puts one that was taken, and has changed in part, behind those that it is to let go.
    pub(super) fn put_back(&mut self, service: ServiceName, turn: Turn) {
        let turn = turn.waiting_since(self.now);
        if service.is_api_server() {
            self.first = Some((service, turn));
            return;
        }
        self.turns.insert(service.clone(), turn);
        if let Some(rank) = turn.rank() {
            self.contending.insert((rank, service));
            return;
        }
        self.unfinished.insert(service.clone());
        if turn.is_early() {
            self.order.insert(self.n_early, service);
            self.n_early += 1;
        } else {
            self.order.push_back(service);
        }
    }

    /// Takes note that the kernel was read, and puts those that wait into another order. Those
    /// that contend, and when they were made: they are planned in the order of their ranks.
    pub(super) fn sort_by_key<K: Ord>(
        &mut self,
        key: impl FnMut(&ServiceName) -> K,
        contends_since: impl Fn(&ServiceName) -> Option<i64>,
    ) {
        let mut order: Vec<ServiceName> = std::mem::take(&mut self.order).into();
        order.sort_by_cached_key(key);
        for service in order {
            let Some(turn) = self.turns.get_mut(&service) else { continue };
            let contends_since = contends_since(&service);
            turn.set_early(contends_since);
            match turn.rank() {
                Some(rank) => {
                    self.contending.insert((rank, service));
                }
                None => self.order.push_back(service),
            }
        }
        self.n_early = self.order.len();
        if let Some((_, turn)) = &mut self.first {
            turn.set_early(None);
        }
    }

    /// Number of those that waited when the kernel was read, and are not done with.
    pub(super) fn n_early(&self) -> usize {
        let is_first_early = self.first.as_ref().is_some_and(|(_, turn)| turn.is_early());
        self.n_early + self.contending.len() + usize::from(is_first_early)
    }

    /// True if a Service waits.
    pub(super) fn contains(&self, service: &ServiceName) -> bool {
        let is_first = |(first, _): &(ServiceName, Turn)| first == service;
        self.turns.contains_key(service) || self.first.as_ref().is_some_and(is_first)
    }

    pub(super) fn len(&self) -> usize {
        self.turns.len() + usize::from(self.first.is_some())
    }

    /// Timestamp since which the Service waits that waits longest. A part is progress: a large
    /// Service does not look as if it was stuck.
    pub(super) fn oldest(&self) -> Option<u64> {
        let first = self.first.as_ref().map(|(_, turn)| turn.waits_since());
        let contending = self.contending.iter().map(|(_, service)| service);
        let others = self.order.front().into_iter().chain(&self.unfinished).chain(contending);
        let others = others.filter_map(|service| self.turns.get(service)).map(Turn::waits_since);
        first.into_iter().chain(others).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(queue: &mut Queue) -> Vec<(String, u64)> {
        let each = std::iter::from_fn(|| queue.pop());
        each.map(|(name, turn)| (name.to_string(), turn.since())).collect()
    }

    #[test]
    fn one_that_changes_again_keeps_its_place_and_the_api_server_comes_first() {
        let mut queue = Queue::default();
        let [b, a, c] = ["b", "a", "c"].map(|name| ServiceName::new("ns", name));
        let api_server = ServiceName::api_server();
        for (now, name) in (0..).zip([&b, &a, &api_server, &b, &c, &api_server]) {
            queue.set_now(now);
            queue.push(name.clone());
        }
        assert_eq!((queue.len(), queue.oldest()), (4, Some(0)));
        let expected = [("default/kubernetes", 2), ("ns/b", 0), ("ns/a", 1), ("ns/c", 4)];
        assert_eq!(names(&mut queue), expected.map(|(name, at)| (name.to_owned(), at)));
        assert_eq!((queue.len(), queue.oldest()), (0, None));
    }

    #[test]
    fn one_that_is_not_done_with_goes_behind_the_others_and_is_as_old_as_before() {
        let mut queue = Queue::default();
        for (now, name) in ["a", "b"].iter().enumerate() {
            queue.set_now(now as u64);
            queue.push(ServiceName::new("ns", *name));
        }
        let (service, turn) = queue.pop().unwrap();
        queue.set_now(7);
        queue.put_back(service, turn);
        assert_eq!((queue.len(), queue.oldest()), (2, Some(1)));
        let (service, turn) = queue.pop().unwrap();
        assert_eq!(queue.oldest(), Some(7));
        queue.put_back(service, turn);
        assert_eq!(names(&mut queue), [("ns/a".to_owned(), 0), ("ns/b".to_owned(), 1)]);
        assert_eq!(queue.oldest(), None);
    }
}
