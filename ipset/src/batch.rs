//! Changes waiting to be sent together.

use crate::entry::{Entry, EntryOptions};
use crate::error::Attempt;
use crate::name::Name;
use crate::set::SetSpec;

/// Changes to sets, in the order in which the kernel is to work through them.
///
/// Consecutive entries that are added to (or deleted from) the same set go to the kernel in
/// messages of up to 1,000, so keep a set's entries together where the order does not matter. The
/// order is kept all the same: [`Client::send`](crate::Client::send) says what it promises.
#[derive(Debug, Default)]
pub struct Batch {
    strict: bool,
    steps: Vec<Step>,
    entries: Vec<Entry>,
    /// Options attached to some of the entries, by their place, sorted.
    options: Vec<(usize, EntryOptions)>,
    length: usize,
}

/// One or more changes that are told to the kernel in the same way.
#[derive(Debug)]
pub(crate) enum Step {
    Entries(Run),
    Command { place: usize, command: Command },
}

/// Consecutive entries for the same set, all of one shape. A set that cannot hold that shape
/// refuses the first one, so that a message is never cut short by an entry further behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) action: Action,
    pub(crate) set: Name,
    /// The first one's place among the entries.
    pub(crate) first: usize,
    /// The first one's place among all changes.
    pub(crate) place: usize,
    pub(crate) count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Add,
    Delete,
}

#[derive(Debug)]
pub(crate) enum Command {
    Create(Name, Box<SetSpec>),
    Destroy(Option<Name>),
    Flush(Option<Name>),
    Rename(Name, Name),
    Swap(Name, Name),
}

impl Batch {
    /// An empty batch that wants the outcome: to add an entry that is there (which updates what is
    /// attached to it), to delete one that is not, to create a set that exists with the same
    /// options, and to destroy one that does not, are successes.
    ///
    /// The kernel compares neither families nor hash sizes when it says that a set exists with the
    /// same options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch that wants the change: what [`Batch::new`] takes as success are errors.
    #[must_use]
    pub fn strict() -> Self {
        Self { strict: true, ..Self::default() }
    }

    /// Adds an entry to a set. This and every function below return the change's place in the
    /// batch, which is its place among the results.
    pub fn add(&mut self, set: Name, entry: Entry) -> usize {
        self.push_entry(Action::Add, set, entry)
    }

    /// Adds an entry to a set with something attached to it.
    pub fn add_with(&mut self, set: Name, entry: Entry, options: EntryOptions) -> usize {
        if !options.is_empty() {
            self.options.push((self.entries.len(), options));
        }
        self.push_entry(Action::Add, set, entry)
    }

    /// Deletes an entry from a set.
    pub fn delete(&mut self, set: Name, entry: Entry) -> usize {
        self.push_entry(Action::Delete, set, entry)
    }

    /// Creates a set, in the oldest revision of its type that has what the options ask for, so
    /// that tools of any age can list it.
    pub fn create(&mut self, set: Name, spec: SetSpec) -> usize {
        self.push_command(Command::Create(set, Box::new(spec)))
    }

    /// Destroys a set that nothing refers to, with its entries.
    pub fn destroy(&mut self, set: Name) -> usize {
        self.push_command(Command::Destroy(Some(set)))
    }

    /// Destroys all sets of the network namespace, or none if one of them is in use.
    pub fn destroy_all(&mut self) -> usize {
        self.push_command(Command::Destroy(None))
    }

    /// Deletes all entries of a set.
    pub fn flush(&mut self, set: Name) -> usize {
        self.push_command(Command::Flush(Some(set)))
    }

    /// Deletes all entries of all sets of the network namespace.
    pub fn flush_all(&mut self) -> usize {
        self.push_command(Command::Flush(None))
    }

    /// Gives a set that nothing refers to another name.
    pub fn rename(&mut self, from: Name, to: Name) -> usize {
        self.push_command(Command::Rename(from, to))
    }

    /// Exchanges two sets of the same type and family: what refers to one name finds the other
    /// set's entries from now on. Packets see either the old entries or the new ones.
    pub fn swap(&mut self, one: Name, other: Name) -> usize {
        self.push_command(Command::Swap(one, other))
    }

    /// Returns the number of changes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if no change waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Forgets every change and keeps the memory.
    pub fn clear(&mut self) {
        self.steps.clear();
        self.entries.clear();
        self.options.clear();
        self.length = 0;
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// `count` entries from the place `first` on.
    pub(crate) fn entries(&self, first: usize, count: usize) -> &[Entry] {
        self.entries.get(first..first + count).unwrap_or_default()
    }

    /// Returns the options attached to entries from the place `first` on.
    pub(crate) fn options_from(&self, first: usize) -> &[(usize, EntryOptions)] {
        let start = self.options.partition_point(|(place, _)| *place < first);
        self.options.get(start..).unwrap_or_default()
    }

    fn push_entry(&mut self, action: Action, set: Name, entry: Entry) -> usize {
        let shape = self.entries.last().map(std::mem::discriminant);
        let place = self.length;
        match self.steps.last_mut() {
            Some(Step::Entries(run))
                if run.set == set
                    && run.action == action
                    && shape == Some(std::mem::discriminant(&entry)) =>
            {
                run.count += 1;
            }
            _ => {
                let first = self.entries.len();
                self.steps.push(Step::Entries(Run { action, set, first, place, count: 1 }));
            }
        }
        self.entries.push(entry);
        self.length += 1;
        place
    }

    fn push_command(&mut self, command: Command) -> usize {
        let place = self.length;
        self.steps.push(Step::Command { place, command });
        self.length += 1;
        place
    }
}

impl Command {
    /// The sets it is about; `None` if it is about all of them.
    pub(crate) fn sets(&self) -> Option<[Name; 2]> {
        match self {
            Self::Create(set, _) => Some([*set, *set]),
            Self::Destroy(set) | Self::Flush(set) => set.map(|set| [set, set]),
            Self::Rename(one, other) | Self::Swap(one, other) => Some([*one, *other]),
        }
    }

    pub(crate) fn attempt(&self) -> Attempt {
        match self {
            Self::Create(set, spec) => Attempt::Create(*set, spec.set_type),
            Self::Destroy(set) => Attempt::Destroy(*set),
            Self::Flush(set) => Attempt::Flush(*set),
            Self::Rename(from, to) => Attempt::Rename(*from, *to),
            Self::Swap(one, other) => Attempt::Swap(*one, *other),
        }
    }
}

impl Action {
    pub(crate) fn attempt(self, set: Name, entry: Entry) -> Attempt {
        match self {
            Self::Add => Attempt::Add(set, entry),
            Self::Delete => Attempt::Delete(set, entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(batch: &Batch) -> Vec<(Action, String, usize, usize, usize)> {
        let run = |step: &Step| match step {
            Step::Entries(r) => Some((r.action, r.set.to_string(), r.first, r.place, r.count)),
            Step::Command { .. } => None,
        };
        batch.steps().iter().filter_map(run).collect()
    }

    #[test]
    fn what_follows_on_the_same_set_goes_together() {
        let [a, b] = ["A", "B"].map(|name| Name::new(name).unwrap());
        let mut batch = Batch::new();
        let ip = |last| Entry::Ip([10, 0, 0, last].into());
        assert_eq!(batch.add(a, ip(1)), 0);
        assert_eq!(batch.add(a, ip(2)), 1);
        assert_eq!(batch.delete(a, ip(3)), 2);
        assert_eq!(batch.delete(b, ip(3)), 3);
        assert_eq!(batch.swap(a, b), 4);
        assert_eq!(batch.delete(b, ip(4)), 5);
        assert_eq!(batch.delete(b, Entry::Port(4)), 6);
        let wanted = [
            (Action::Add, "A".to_owned(), 0, 0, 2),
            (Action::Delete, "A".to_owned(), 2, 2, 1),
            (Action::Delete, "B".to_owned(), 3, 3, 1),
            (Action::Delete, "B".to_owned(), 4, 5, 1),
            (Action::Delete, "B".to_owned(), 5, 6, 1),
        ];
        assert_eq!(runs(&batch), wanted);
        assert_eq!(batch.len(), 7);
        batch.clear();
        assert!(batch.is_empty() && batch.steps().is_empty());
    }

    #[test]
    fn options_are_kept_for_the_entries_that_have_some() {
        let set = Name::new("A").unwrap();
        let mut batch = Batch::new();
        batch.add_with(set, Entry::Port(1), EntryOptions::default());
        let options = EntryOptions { timeout: Some(5), ..EntryOptions::default() };
        batch.add_with(set, Entry::Port(2), options.clone());
        assert_eq!(batch.options_from(0), [(1, options)]);
        assert_eq!(batch.options_from(2), []);
    }
}
