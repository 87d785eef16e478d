//! The latest value of each key, handed from one thread to another.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Mailbox that keeps only the latest value of each key: writing never waits, and however slow the
/// reader is, memory is bounded by the number of keys. Copies share it.
#[derive(Debug)]
pub(crate) struct Mailbox<K, V>(Arc<Shared<K, V>>);

#[derive(Debug)]
struct Shared<K, V> {
    pending: Mutex<Pending<K, V>>,
    wake: Notify,
}

/// Values that the reader does not know yet.
#[derive(Debug)]
pub(crate) struct Pending<K, V> {
    /// The latest value of each key.
    pub(crate) values: BTreeMap<K, V>,
    /// True if no more values come.
    pub(crate) has_ended: bool,
}

impl<K: Ord, V> Mailbox<K, V> {
    /// Replaces the values of these keys.
    pub(crate) fn put(&self, values: impl IntoIterator<Item = (K, V)>) {
        self.change(|pending| pending.values.extend(values));
    }

    /// Tells the reader that no more values come.
    pub(crate) fn end(&self) {
        self.change(|pending| pending.has_ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut Pending<K, V>)) {
        change(&mut self.0.pending.lock());
        self.0.wake.notify_one();
    }

    /// Waits for values, and takes them. A reader that stops waiting loses nothing.
    pub(crate) async fn next(&self) -> Pending<K, V> {
        self.0.wake.notified().await;
        mem::take(&mut *self.0.pending.lock())
    }

    /// Returns what is waiting, and leaves it there.
    #[cfg(test)]
    pub(crate) fn peek(&self) -> BTreeMap<K, V>
    where
        K: Clone,
        V: Clone,
    {
        self.0.pending.lock().values.clone()
    }
}

impl<K, V> Clone for Mailbox<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for Mailbox<K, V> {
    fn default() -> Self {
        Self(Arc::new(Shared { pending: Mutex::default(), wake: Notify::new() }))
    }
}

impl<K, V> Default for Pending<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), has_ended: false }
    }
}
