//! Queue of the Services that have to be compiled again: first come, first served, but for those
//! whose endpoints change while the kernel's state is taken over.

use std::collections::{BTreeMap, BTreeSet};

use super::turn::{Turn, TurnRank};
use crate::hash::{HashMap, HashSet};
use crate::model::ServiceName;

/// The Services that wait, in the order in which they began to.
///
/// One that changes again while it waits keeps its place. The API server's own Service does not
/// wait behind the others: without it, nothing on this node can follow the cluster.
///
/// After a restart every Service waits, most of them only to be found as they should be. So those
/// whose endpoints change meanwhile get every other turn: see [`Queue::push_endpoints`].
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BTreeMap<Place, ServiceName>,
    /// Number that the next place gets.
    next: u64,
    /// Number of those in `order` that waited when the kernel was read.
    n_early: usize,
    /// True if the last turn went to one that is ahead of the others.
    was_ahead: bool,
    /// Services that contend for frontends, of those that waited when the kernel was read.
    contending: BTreeSet<(TurnRank, ServiceName)>,
    /// True if those that contend are taken before the others now.
    contending_first: bool,
    waiting: HashMap<ServiceName, Waiting>,
    /// The API server's Service, if it waits.
    first: Option<(ServiceName, Turn)>,
    /// Those in `order` that were taken before, and are not done with.
    unfinished: HashSet<ServiceName>,
    now: u64,
}

/// Place of a Service in the order of those that wait.
type Place = (Group, u64);

/// Services that are served in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Those that waited when the kernel was read.
    Early,
    /// Those whose endpoints have changed since, and with them none of their claims.
    Ahead,
    /// Those that came later. They may claim what an early one is about to find, and wait for all of
    /// them, also for those that are ahead.
    Late,
}

/// Turn of a Service that waits, and its place; none if it contends.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    turn: Turn,
    place: Option<Place>,
}

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
        } else if !self.waiting.contains_key(&service) {
            self.insert(Group::Late, service, Turn::new(self.now));
        }
    }

    /// As [`push`](Self::push), for a Service of which nothing but endpoints has changed. During the
    /// takeover it is taken ahead of the others, unless it contends for frontends, or came after the
    /// kernel was read.
    pub(super) fn push_endpoints(&mut self, service: ServiceName) {
        if self.n_early == 0 || service.is_api_server() {
            return self.push(service);
        }
        match self.waiting.get(&service) {
            None => self.insert(Group::Ahead, service, Turn::new(self.now)),
            Some(&Waiting { turn, place: Some(place @ (Group::Early, _)) }) => {
                self.order.remove(&place);
                self.n_early -= usize::from(turn.is_early());
                self.insert(Group::Ahead, service, turn);
            }
            Some(_) => {}
        }
    }

    pub(super) fn extend(&mut self, services: impl IntoIterator<Item = ServiceName>) {
        services.into_iter().for_each(|service| self.push(service));
    }

    fn insert(&mut self, group: Group, service: ServiceName, turn: Turn) {
        let place = (group, self.next);
        self.next += 1;
        self.n_early += usize::from(turn.is_early());
        self.waiting.insert(service.clone(), Waiting { turn, place: Some(place) });
        self.order.insert(place, service);
    }

    /// Has those that contend and the others taken in turns, one round each.
    pub(super) fn begin_round(&mut self) {
        self.contending_first = !self.contending_first;
    }

    /// True if the API server's Service waits.
    pub(super) fn has_api_server(&self) -> bool {
        self.first.is_some()
    }

    /// Takes the API server's Service, if it waits.
    pub(super) fn pop_api_server(&mut self) -> Option<(ServiceName, Turn)> {
        self.first.take()
    }

    /// Takes the next one, and the turn that it has.
    pub(super) fn pop(&mut self) -> Option<(ServiceName, Turn)> {
        if let Some(first) = self.pop_api_server() {
            return Some(first);
        }
        let service = self.next_in_turn()?;
        let waiting = self.waiting.remove(&service);
        let turn = waiting.map_or_else(|| Turn::new(self.now), |waiting| waiting.turn);
        self.n_early -= usize::from(turn.is_early() && turn.rank().is_none());
        self.unfinished.remove(&service);
        if self.waiting.is_empty() {
            // At the start every Service was in here: its room is not needed again.
            self.waiting = HashMap::default();
        }
        Some((service, turn))
    }

    fn next_in_turn(&mut self) -> Option<ServiceName> {
        self.was_ahead = !self.was_ahead;
        if self.was_ahead
            && let Some(place) = self.first_of(Group::Ahead).map(|(place, _)| *place)
        {
            return self.order.remove(&place);
        }
        if (self.contending_first || self.n_early == 0)
            && let Some((_, service)) = self.contending.pop_first()
        {
            return Some(service);
        }
        self.order.pop_first().map(|(_, service)| service)
    }

    fn first_of(&self, group: Group) -> Option<(&Place, &ServiceName)> {
        self.order.range((group, 0)..=(group, u64::MAX)).next()
    }

    /// True if one waits that is taken ahead of the others.
    pub(super) fn has_ahead(&self) -> bool {
        self.first_of(Group::Ahead).is_some()
    }

    /// Puts one that was taken, and has changed in part, behind those that it is to let go.
    pub(super) fn put_back(&mut self, service: ServiceName, turn: Turn) {
        let turn = turn.waiting_since(self.now);
        if service.is_api_server() {
            self.first = Some((service, turn));
            return;
        }
        if let Some(rank) = turn.rank() {
            self.waiting.insert(service.clone(), Waiting { turn, place: None });
            self.contending.insert((rank, service));
            return;
        }
        self.unfinished.insert(service.clone());
        let group = if turn.is_early() { Group::Early } else { Group::Late };
        self.insert(group, service, turn);
    }

    /// Takes note that the kernel was read, and puts those that wait into another order. Those
    /// that contend, and when they were made: they are planned in the order of their ranks.
    pub(super) fn sort_by_key<K: Ord>(
        &mut self,
        key: impl FnMut(&ServiceName) -> K,
        contends_since: impl Fn(&ServiceName) -> Option<i64>,
    ) {
        let mut order: Vec<ServiceName> = std::mem::take(&mut self.order).into_values().collect();
        order.sort_by_cached_key(key);
        self.n_early = 0;
        for service in order {
            let Some(waiting) = self.waiting.get_mut(&service) else { continue };
            waiting.turn.set_early(contends_since(&service));
            if let Some(rank) = waiting.turn.rank() {
                waiting.place = None;
                self.contending.insert((rank, service));
                continue;
            }
            let place = (Group::Early, self.next);
            waiting.place = Some(place);
            self.next += 1;
            self.n_early += 1;
            self.order.insert(place, service);
        }
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
        self.waiting.contains_key(service) || self.first.as_ref().is_some_and(is_first)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.first.is_some())
    }

    /// Timestamp since which the Service waits that waits longest. A part is progress: a large
    /// Service does not look as if it was stuck.
    pub(super) fn oldest(&self) -> Option<u64> {
        let first = self.first.as_ref().map(|(_, turn)| turn.waits_since());
        let groups = [Group::Early, Group::Ahead, Group::Late];
        let of_groups = groups.into_iter().filter_map(|group| self.first_of(group));
        let of_groups = of_groups.map(|(_, service)| service);
        let contending = self.contending.iter().map(|(_, service)| service);
        let others = of_groups.chain(&self.unfinished).chain(contending);
        let others = others.filter_map(|service| self.waiting.get(service));
        first.into_iter().chain(others.map(|waiting| waiting.turn.waits_since())).min()
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

    /// A queue of these Services, all of which waited when the kernel was read.
    fn early(services: &[&ServiceName]) -> Queue {
        let mut queue = Queue::default();
        queue.extend(services.iter().copied().cloned());
        queue.sort_by_key(Clone::clone, |_| None);
        queue
    }

    #[test]
    fn new_endpoints_get_every_other_turn_during_the_takeover() {
        let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| ServiceName::new("ns", name));
        let mut queue = early(&[&a, &b, &c, &d, &e]);
        queue.set_now(1);
        for service in [&e, &c, &e] {
            queue.push_endpoints(service.clone());
        }
        assert_eq!((queue.len(), queue.n_early(), queue.oldest()), (5, 5, Some(0)));
        assert!(queue.has_ahead());
        // One that was taken is taken again.
        let taken: Vec<_> =
            std::iter::from_fn(|| queue.pop().map(|(name, _)| name)).take(2).collect();
        assert_eq!((taken, queue.n_early()), (vec![e.clone(), a], 3));
        assert!(queue.has_ahead(), "c has not been taken");
        queue.push_endpoints(e.clone());
        assert_eq!((queue.len(), queue.n_early()), (4, 3));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop().map(|(name, _)| name)).collect();
        assert_eq!((rest, queue.n_early()), (vec![c, b, e, d], 0));
        assert_eq!((queue.oldest(), queue.has_ahead()), (None, false));
    }

    #[test]
    fn what_came_after_the_kernel_was_read_waits_for_all_that_was_there() {
        let [a, b, new] = ["a", "b", "new"].map(|name| ServiceName::new("ns", name));
        let mut queue = early(&[&a, &b]);
        queue.push(new.clone());
        queue.push_endpoints(new.clone());
        // Also for those that do not wait for one another.
        queue.push_endpoints(a.clone());
        queue.push_endpoints(b.clone());
        let taken: Vec<_> = std::iter::from_fn(|| queue.pop().map(|(name, _)| name)).collect();
        assert_eq!(taken, [a, b, new]);
    }

    #[test]
    fn one_that_contends_keeps_its_turn_and_after_the_takeover_all_do() {
        let [a, b, c] = ["a", "b", "c"].map(|name| ServiceName::new("ns", name));
        let mut queue = Queue::default();
        queue.extend([&a, &b, &c].map(Clone::clone));
        queue.sort_by_key(Clone::clone, |name| (*name == c).then_some(7));
        queue.push_endpoints(c.clone());
        let taken: Vec<_> = std::iter::from_fn(|| queue.pop().map(|(name, _)| name)).collect();
        assert_eq!(taken, [a.clone(), b.clone(), c]);
        queue.push(a.clone());
        queue.push_endpoints(b.clone());
        let taken: Vec<_> = std::iter::from_fn(|| queue.pop().map(|(name, _)| name)).collect();
        assert_eq!(taken, [a, b]);
    }
}
