//! A map whose entries have a due time, and are found by it.

use std::collections::BTreeSet;
use std::hash::Hash;

use plan::hash::HashMap;
use tokio::time::Instant;

/// Entries by key, each with its due time. Only [`Agenda::iter`] walks all of them.
#[derive(Debug)]
pub(super) struct Agenda<K, V> {
    entries: HashMap<K, (Instant, V)>,
    /// The due time of each entry, once.
    queue: BTreeSet<(Instant, K)>,
}

impl<K: Copy + Eq + Hash + Ord, V> Agenda<K, V> {
    /// Adds an entry. Replaces the one that the key has.
    pub(super) fn insert(&mut self, key: K, due: Instant, value: V) {
        if let Some((former, _)) = self.entries.insert(key, (due, value)) {
            self.queue.remove(&(former, key));
        }
        self.queue.insert((due, key));
    }

    /// Removes and returns an entry.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (due, value) = self.entries.remove(key)?;
        self.queue.remove(&(due, *key));
        Some(value)
    }

    /// Changes the due time of an entry, if the key has one.
    pub(super) fn reschedule(&mut self, key: &K, due: Instant) {
        if let Some((former, _)) = self.entries.get_mut(key) {
            self.queue.remove(&(std::mem::replace(former, due), *key));
            self.queue.insert((due, *key));
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// Returns the due time of an entry.
    pub(super) fn due_time(&self, key: &K) -> Option<Instant> {
        self.entries.get(key).map(|(due, _)| *due)
    }

    /// Returns the earliest due time.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Returns the keys of the entries that are due, the earliest first.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = K> {
        self.queue.iter().take_while(move |(due, _)| *due <= now).map(|(_, key)| *key)
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<K, V> Default for Agenda<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::default(), queue: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u8, u64),
        Remove(u8),
        Reschedule(u8, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (key, due) = (0..6_u8, 0..6_u64);
        prop_oneof![
            (key.clone(), due.clone()).prop_map(|(key, due)| Step::Insert(key, due)),
            key.clone().prop_map(Step::Remove),
            (key, due).prop_map(|(key, due)| Step::Reschedule(key, due)),
        ]
    }

    #[test]
    fn the_earliest_come_first_and_only_those_that_are_due() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut agenda = Agenda::default();
        for (key, due) in [('a', 3), ('b', 1), ('c', 2)] {
            agenda.insert(key, at(due), ());
        }
        assert_eq!(agenda.due(at(2)).collect::<Vec<_>>(), ['b', 'c']);
        agenda.reschedule(&'b', at(4));
        agenda.insert('a', at(1), ());
        assert_eq!(agenda.due(at(2)).collect::<Vec<_>>(), ['a', 'c']);
        assert_eq!((agenda.next_due(), agenda.len()), (Some(at(1)), 3));
        agenda.reschedule(&'d', at(0));
        assert!(!agenda.contains(&'d') && agenda.next_due() == Some(at(1)));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_map(steps in proptest::collection::vec(step(), 0..40)) {
            let start = Instant::now();
            let at = |seconds| start + Duration::from_secs(seconds);
            let mut agenda = Agenda::default();
            let mut model: BTreeMap<u8, (u64, usize)> = BTreeMap::new();
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(key, due) => {
                        agenda.insert(key, at(due), value);
                        model.insert(key, (due, value));
                    }
                    Step::Remove(key) => {
                        prop_assert_eq!(agenda.remove(&key), model.remove(&key).map(|it| it.1));
                    }
                    Step::Reschedule(key, due) => {
                        agenda.reschedule(&key, at(due));
                        model.entry(key).and_modify(|it| it.0 = due);
                    }
                }
                for now in 0..6 {
                    let mut due: Vec<(u64, u8)> =
                        model.iter().map(|(key, it)| (it.0, *key)).filter(|it| it.0 <= now).collect();
                    due.sort_unstable();
                    let keys: Vec<u8> = due.into_iter().map(|(_, key)| key).collect();
                    prop_assert_eq!(agenda.due(at(now)).collect::<Vec<_>>(), keys);
                }
                let entries: BTreeMap<u8, usize> = agenda.iter().map(|(k, v)| (*k, *v)).collect();
                prop_assert_eq!(entries, model.iter().map(|(k, it)| (*k, it.1)).collect());
                prop_assert_eq!(agenda.next_due(), model.values().map(|it| at(it.0)).min());
            }
        }
    }
}
