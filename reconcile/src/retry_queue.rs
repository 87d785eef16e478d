//! Pending retries of what the kernel refused: every failed write has an owner until it has
//! succeeded. So has a virtual server that could not be read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use plan::hash::HashSet;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::op::{Op, Subject};
use plan::routes::RouteOp;
use tokio::time::Instant;

use super::agenda::Agenda;
use kernel::{Refusal, RefusalClass};

const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Least time for which an operation waits for another one, whose end brings it forward: a retry that is due,
/// and has its turn later, must not have those that wait for it tried in its place again and again.
const LEAST_WAIT: Duration = Duration::from_secs(1);

/// Most subjects that are retried in one go. In between, the loop does its other work.
const RETRIES_AT_ONCE: usize = 1_024;

/// The failed writes by subject, each due at the time of its next attempt. Only
/// [`RetryQueue::iter`] walks all of them: a hundred thousand may be pending when the kernel refuses
/// everything. The writer adds and resolves them.
#[derive(Debug, Default)]
pub struct RetryQueue {
    pending: Agenda<Subject, Pending>,
    /// Pending subjects that others rest on.
    prerequisites: BTreeSet<Subject>,
    /// Pending entries that lead clients from a frontend to its internal frontend.
    leading: BTreeSet<Subject>,
    /// Frontends without what keeps clients from the node's own ports, each with that: virtual servers
    /// that could not be made, and entries that could not be added and close them.
    unserved: BTreeSet<(Frontend, Subject)>,
    /// Local routes that could not be removed.
    removed_routes: BTreeSet<IpNet>,
    /// Number of pending changes of chains that nothing about the chain stands in the way of.
    withheld_chains: BTreeMap<Family, usize>,
    /// Number of pending retries, by the class of the refusal; no zeros.
    classes: BTreeMap<RefusalClass, usize>,
}

/// A failed write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The operation that failed last.
    pub op: Op,
    /// Reason for the failure.
    pub refusal: Refusal,
    /// Number of failed attempts in a row.
    pub attempts: u32,
}

impl RetryQueue {
    /// Records a failure. Returns true if it is news: not known, or known for another reason.
    pub fn record(&mut self, op: Op, refusal: Refusal, now: Instant) -> bool {
        let former = self.take(&op.subject());
        let is_news = former.as_ref().is_none_or(|former| former.refusal != refusal);
        let attempts = former.map_or(0, |former| former.attempts).saturating_add(1);
        let due = now + delay(refusal.class, attempts);
        self.put(due, Pending { op, refusal, attempts });
        is_news
    }

    /// Records an operation that was not tried, because what is pending for another subject has to come
    /// first: `why`. It is due when that one is, and no sooner than in a second.
    pub fn wait(&mut self, op: Op, awaited: &Subject, why: &str) {
        let least = Instant::now() + LEAST_WAIT;
        let due = self.due_time(awaited).map_or(least, |due| due.max(least));
        let attempts = self.take(&op.subject()).map_or(0, |former| former.attempts);
        let refusal = Refusal::new(RefusalClass::Other, format!("waiting for {awaited}{why}"));
        self.put(due, Pending { op, refusal, attempts });
    }

    /// Has those of these operations wait that have to, and what else is about their subjects. `awaited` returns what
    /// an operation waits for, and why.
    pub fn hold_back(
        &mut self,
        ops: &mut Vec<Op>,
        awaited: impl Fn(&Self, &Op) -> Option<(Subject, &'static str)>,
    ) {
        if self.pending.is_empty() {
            return;
        }
        let mut held = HashSet::default();
        ops.retain(|op| {
            let Some((awaited, why)) = awaited(self, op) else { return true };
            self.wait(op.clone(), &awaited, why);
            held.insert(op.subject());
            false
        });
        ops.retain(|op| !held.contains(&op.subject()));
    }

    /// Removes a subject, which has its desired state. Returns true if a retry was pending.
    pub fn resolve(&mut self, subject: &Subject) -> bool {
        self.take(subject).is_some()
    }

    /// True if a retry is pending for a subject.
    pub fn contains(&self, subject: &Subject) -> bool {
        self.pending.contains(subject)
    }

    /// Brings a subject's next attempt forward to now, because the desired state has changed.
    pub fn retry_now(&mut self, subject: &Subject, now: Instant) {
        self.pending.reschedule(subject, now);
    }

    /// Puts a subject's next attempt off, because it could not be read.
    pub fn postpone(&mut self, subject: &Subject, due: Instant) {
        self.pending.reschedule(subject, due);
    }

    /// Returns the time at which the next attempt is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.pending.next_due()
    }

    /// Returns the time at which a subject's next attempt is due.
    #[must_use]
    pub fn due_time(&self, subject: &Subject) -> Option<Instant> {
        self.pending.due_time(subject)
    }

    /// True if a retry is pending for a subject and not due yet.
    #[must_use]
    pub fn is_put_off(&self, subject: &Subject, now: Instant) -> bool {
        self.due_time(subject).is_some_and(|due| due > now)
    }

    /// Returns the subjects that are due, those first that have waited longest. There may be more.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<Subject> {
        self.pending.due(now).take(RETRIES_AT_ONCE).collect()
    }

    /// Returns the pending retry of a subject.
    #[must_use]
    pub fn get(&self, subject: &Subject) -> Option<&Pending> {
        self.pending.get(subject)
    }

    /// Returns everything that is pending.
    pub fn iter(&self) -> impl Iterator<Item = (&Subject, &Pending)> {
        self.pending.iter()
    }

    /// Returns the subjects of pending retries that others rest on: the interface, sets, rules,
    /// routes.
    pub fn prerequisites(&self) -> impl Iterator<Item = &Subject> {
        self.prerequisites.iter()
    }

    /// Returns those of [`Self::prerequisites`] that may come: not those in whose place another program's
    /// object is, without which the rest is served.
    pub fn awaited_prerequisites(&self) -> impl Iterator<Item = &Subject> {
        let is_foreign =
            |it: &Subject| self.get(it).is_some_and(|it| it.refusal.class == RefusalClass::Foreign);
        self.prerequisites().filter(move |subject| !is_foreign(subject))
    }

    /// True if changes of a family's chains are pending that would be refused whatever they are: the
    /// lock is held, a permission or a program is missing.
    #[must_use]
    pub fn withholds_chains(&self, family: Family) -> bool {
        self.withheld_chains.get(&family).is_some_and(|count| *count > 0)
    }

    /// Returns the pending entries that lead clients from a frontend to its internal frontend.
    pub fn leading(&self) -> impl Iterator<Item = (&Subject, &Pending)> {
        self.leading.iter().filter_map(|subject| Some((subject, self.pending.get(subject)?)))
    }

    /// Returns the virtual servers at an address that could not be made, and the entries that could not
    /// be added and close frontends there.
    pub fn unserved_at(&self, address: IpAddr) -> impl Iterator<Item = Subject> {
        let first = (Frontend { address, protocol: Protocol::Tcp, port: 0 }, Subject::Link);
        let from_it = self.unserved.range(first..);
        from_it.take_while(move |(it, _)| it.address == address).map(|(_, subject)| *subject)
    }

    /// Returns the local routes that could not be removed.
    pub fn removed_routes(&self) -> impl Iterator<Item = IpNet> {
        self.removed_routes.iter().copied()
    }

    /// Returns the number of pending retries by the class of the refusal, without classes that have
    /// none.
    pub fn classes(&self) -> impl Iterator<Item = (RefusalClass, usize)> {
        self.classes.iter().map(|(class, count)| (*class, *count))
    }

    /// Returns the number of pending retries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// True if no retry is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    fn put(&mut self, due: Instant, pending: Pending) {
        let subject = pending.op.subject();
        if pending.op.is_prerequisite() {
            self.prerequisites.insert(subject);
        }
        if pending.op.leads_to_internal_frontends() {
            self.leading.insert(subject);
        }
        if let Some(frontend) = unserved(&pending.op) {
            self.unserved.insert((frontend, subject));
        }
        if let Op::Route(RouteOp::Remove(network)) = pending.op {
            self.removed_routes.insert(network);
        }
        if let Some(family) = withheld(&pending.op, pending.refusal.class) {
            *self.withheld_chains.entry(family).or_default() += 1;
        }
        *self.classes.entry(pending.refusal.class).or_default() += 1;
        self.pending.insert(subject, due, pending);
    }

    fn take(&mut self, subject: &Subject) -> Option<Pending> {
        let pending = self.pending.remove(subject)?;
        self.prerequisites.remove(subject);
        self.leading.remove(subject);
        if let Some(frontend) = unserved(&pending.op) {
            self.unserved.remove(&(frontend, *subject));
        }
        if let Op::Route(RouteOp::Remove(network)) = pending.op {
            self.removed_routes.remove(&network);
        }
        let class = pending.refusal.class;
        if let Some(family) = withheld(&pending.op, class)
            && let Some(count) = self.withheld_chains.get_mut(&family)
        {
            *count -= 1;
        }
        if let Some(count) = self.classes.get_mut(&class) {
            *count -= 1;
            if *count == 0 {
                self.classes.remove(&class);
            }
        }
        Some(pending)
    }
}

/// Returns the frontend at which clients would come to the node without this operation.
fn unserved(op: &Op) -> Option<Frontend> {
    match op {
        Op::CreateVirtualServer(frontend, _) => Some(*frontend),
        Op::AddEntry(set, Entry::AddressPort(frontend)) => set.kind.closes().then_some(*frontend),
        _ => None,
    }
}

/// Returns the family of a refused change of a chain if the reason is not in the chain: every other
/// change of the family's chains would be refused as well.
#[must_use]
pub fn withheld(op: &Op, class: RefusalClass) -> Option<Family> {
    let Op::Chain(change) = op else { return None };
    let is_general = match class {
        RefusalClass::Exhausted
        | RefusalClass::NotPermitted
        | RefusalClass::AnswerLost
        | RefusalClass::NotInstalled => true,
        RefusalClass::Conflict
        | RefusalClass::SetFull
        | RefusalClass::NotSupported
        | RefusalClass::NoScheduler
        | RefusalClass::Foreign
        | RefusalClass::Other => false,
    };
    is_general.then_some(change.chain().family)
}

/// Returns the time until the next attempt. A conflict is retried without delay, since the first
/// retry usually repairs it. A full set is a conflict, since a set grows before it is full.
pub(super) fn delay(class: RefusalClass, attempts: u32) -> Duration {
    let conflict = matches!(
        class,
        RefusalClass::Conflict
            | RefusalClass::AnswerLost
            | RefusalClass::SetFull
            | RefusalClass::Foreign
    );
    let doublings = match (conflict, attempts) {
        (true, 1) => return Duration::ZERO,
        (true, n) => n.saturating_sub(2),
        (false, n) => n.saturating_sub(1),
    };
    FIRST_DELAY.saturating_mul(1 << doublings.min(10)).min(LONGEST_DELAY)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn refusal(class: RefusalClass) -> Refusal {
        Refusal::new(class, "no")
    }

    fn bind() -> Op {
        Op::BindAddress(IpAddr::from([10, 96, 0, 1]))
    }

    #[test]
    fn attempts_come_at_growing_distances_up_to_a_minute() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..9 {
            retry_queue.record(bind(), refusal(RefusalClass::Other), now);
            delays.push((retry_queue.next_due().unwrap() - now).as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_conflict_is_retried_at_once_but_only_once() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        retry_queue.record(bind(), refusal(RefusalClass::Conflict), now);
        assert_eq!(retry_queue.due(now), [bind().subject()]);
        retry_queue.record(bind(), refusal(RefusalClass::Conflict), now);
        assert_eq!(retry_queue.due(now), []);
        assert_eq!(retry_queue.next_due(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn only_news_is_news() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        assert!(retry_queue.record(bind(), refusal(RefusalClass::Other), now));
        assert!(!retry_queue.record(bind(), refusal(RefusalClass::Other), now));
        assert!(retry_queue.record(bind(), refusal(RefusalClass::NotPermitted), now));
        assert!(retry_queue.resolve(&bind().subject()));
        assert!(retry_queue.is_empty() && !retry_queue.resolve(&bind().subject()));
    }

    #[test]
    fn a_changed_desired_state_is_retried_at_once() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        retry_queue.record(bind(), refusal(RefusalClass::Other), now);
        assert!(retry_queue.due(now).is_empty());
        retry_queue.retry_now(&bind().subject(), now);
        assert_eq!(retry_queue.due(now).len(), 1);
    }

    #[test]
    fn the_accounts_agree_whatever_is_recorded_and_resolved() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        let classes = [RefusalClass::Other, RefusalClass::Conflict, RefusalClass::Exhausted];
        let op = |number: u8| match number {
            0 => Op::CreateLink,
            _ => Op::BindAddress(IpAddr::from([10, 96, 0, number])),
        };
        for step in 0..1_000_usize {
            let number = u8::try_from(step * step % 7).unwrap();
            let subject = op(number).subject();
            match step % 5 {
                0 => drop(retry_queue.resolve(&subject)),
                1 => retry_queue.retry_now(&subject, now),
                2 => retry_queue.postpone(&subject, now + Duration::from_secs(9)),
                _ => drop(retry_queue.record(op(number), refusal(classes[step % 3]), now)),
            }
            let due_times = retry_queue.iter().filter_map(|(it, _)| retry_queue.due_time(it));
            assert_eq!(retry_queue.next_due(), due_times.min());
            assert_eq!(
                retry_queue.classes().map(|(_, count)| count).sum::<usize>(),
                retry_queue.len()
            );
            assert_eq!(
                retry_queue.prerequisites().count() == 1,
                retry_queue.contains(&Subject::Link)
            );
        }
    }

    #[test]
    fn those_that_wait_longest_come_first_and_not_all_at_once() {
        let mut retry_queue = RetryQueue::default();
        let now = Instant::now();
        let bind = |number: u16| {
            let [high, low] = number.to_be_bytes();
            Op::BindAddress([10, 96, high, low].into())
        };
        for number in 0..3_000 {
            retry_queue.record(bind(number), refusal(RefusalClass::Conflict), now);
        }
        retry_queue.retry_now(&bind(2_999).subject(), now - Duration::from_secs(1));
        let due = retry_queue.due(now);
        assert_eq!((due.len(), due[0]), (RETRIES_AT_ONCE, bind(2_999).subject()));
        for subject in due {
            retry_queue.resolve(&subject);
        }
        assert_eq!(retry_queue.due(now).first(), Some(&bind(1_023).subject()));
    }
}
