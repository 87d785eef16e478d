//! Faults, injected at a test's request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::resource::{Resource, Verb};

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is answered with this HTTP status and a `Status` object: 500, 503, 429, 410.
    Status {
        /// The HTTP status.
        code: u16,
        /// Seconds for the header `Retry-After`.
        retry_after: Option<u32>,
    },
    /// The request is answered with 403, as when RBAC does not allow it.
    Forbidden,
    /// The request is answered with a plain 404, as by a server without that API.
    NotServed,
    /// A request that accepts Protobuf, with whatever else, is refused with this HTTP status, as by a gateway: 400, 406
    /// or 415.
    ProtobufRefused {
        /// The HTTP status.
        code: u16,
    },
    /// The answer's body is no JSON, as from a proxy in between.
    NotJson,
    /// The connection is reset after so many bytes of body. Of a watch that runs already, the
    /// bytes are counted from its next event on.
    Reset {
        /// Number of bytes that still come.
        after: usize,
    },
    /// Bodies come slowly.
    Slow {
        /// Speed of a body.
        bytes_per_second: usize,
    },
    /// A watch falls silent: no events, no bookmarks, no end. It goes on when the fault is lifted.
    Silence,
    /// A watch ends at once, and in good order.
    End,
    /// 410: of a continued list its token, of a watch its version is too old.
    Expired,
    /// An event of a watch comes twice.
    Duplicate,
    /// An object that does not fit its schema: the next one of a watch, or the first of a list.
    WrongSchema,
}

/// Requests that a fault strikes, and the number of times it strikes.
#[derive(Clone, Copy, Debug)]
pub struct On {
    resource: Resource,
    verb: Option<Verb>,
    times: Option<usize>,
    /// Requests that are spared before.
    spared: usize,
}

/// A fault that was injected. It stays in force when this is dropped.
#[derive(Clone)]
pub struct Injected {
    entry: Arc<Entry>,
    changed: Arc<watch::Sender<u64>>,
}

pub(crate) struct Faults {
    entries: Mutex<Vec<Arc<Entry>>>,
    changed: Arc<watch::Sender<u64>>,
}

struct Entry {
    fault: Fault,
    on: On,
    hits: AtomicUsize,
    spared: AtomicUsize,
    lifted: AtomicBool,
}

impl On {
    /// All requests for a resource.
    pub fn resource(resource: Resource) -> Self {
        Self { resource, verb: None, times: None, spared: 0 }
    }

    /// Lists of a resource.
    pub fn list(resource: Resource) -> Self {
        Self { verb: Some(Verb::List), ..Self::resource(resource) }
    }

    /// Watches of a resource.
    pub fn watch(resource: Resource) -> Self {
        Self { verb: Some(Verb::Watch), ..Self::resource(resource) }
    }

    /// Only so many times, then no more.
    pub fn times(self, times: usize) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Spares so many requests first.
    pub fn after(self, spared: usize) -> Self {
        Self { spared, ..self }
    }

    fn covers(self, resource: Option<Resource>, verb: Verb) -> bool {
        Some(self.resource) == resource && self.verb.is_none_or(|wanted| wanted == verb)
    }
}

impl Injected {
    /// Returns the number of times that the fault has struck.
    pub fn hits(&self) -> usize {
        self.entry.hits.load(Ordering::SeqCst)
    }

    /// Ends it.
    pub fn lift(&self) {
        self.entry.lifted.store(true, Ordering::SeqCst);
        self.changed.send_modify(|version| *version = version.wrapping_add(1));
    }

    /// True if the fault was lifted.
    pub(crate) fn is_lifted(&self) -> bool {
        self.entry.lifted.load(Ordering::SeqCst)
    }
}

impl Faults {
    pub(crate) fn new() -> Self {
        let (changed, _) = watch::channel(0);
        Self { entries: Mutex::new(Vec::new()), changed: Arc::new(changed) }
    }

    pub(crate) fn inject(&self, fault: Fault, on: On) -> Injected {
        let entry = Arc::new(Entry {
            fault,
            on,
            hits: AtomicUsize::new(0),
            spared: AtomicUsize::new(0),
            lifted: AtomicBool::new(false),
        });
        self.entries.lock().push(Arc::clone(&entry));
        self.changed.send_modify(|version| *version = version.wrapping_add(1));
        Injected { entry, changed: Arc::clone(&self.changed) }
    }

    /// The first fault in force for such a request that `wanted` picks; it counts as a hit.
    pub(crate) fn strike<T>(
        &self,
        resource: Option<Resource>,
        verb: Verb,
        wanted: impl Fn(&Fault) -> Option<T>,
    ) -> Option<(T, Injected)> {
        let mut entries = self.entries.lock();
        entries.retain(|entry| !entry.lifted.load(Ordering::SeqCst));
        entries.iter().filter(|entry| entry.on.covers(resource, verb)).find_map(|entry| {
            let picked = wanted(&entry.fault)?;
            if entry.spared.load(Ordering::SeqCst) < entry.on.spared {
                entry.spared.fetch_add(1, Ordering::SeqCst);
                return None;
            }
            let hits = entry.hits.load(Ordering::SeqCst);
            if entry.on.times.is_some_and(|times| hits >= times) {
                return None;
            }
            entry.hits.store(hits.saturating_add(1), Ordering::SeqCst);
            let changed = Arc::clone(&self.changed);
            Some((picked, Injected { entry: Arc::clone(entry), changed }))
        })
    }

    /// True if the fault strikes such a request; that counts as a hit.
    pub(crate) fn strikes(&self, resource: Option<Resource>, verb: Verb, fault: &Fault) -> bool {
        self.strike(resource, verb, |each| (each == fault).then_some(())).is_some()
    }

    /// Tells when a fault is injected or lifted.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}
