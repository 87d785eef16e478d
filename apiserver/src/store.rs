//! The objects and their history.
//!
//! Every change gets the next resource version. The history holds the changes since the last
//! compaction: watches read it from where they are, and a list at an exact version is the present
//! with the changes since then undone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::object::{self, Identity, Object};
use crate::resource::Resource;

/// Time that a list or a watch waits for a version that does not exist yet.
const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) struct Store {
    state: Mutex<State>,
    /// The current version, for those that wait for the next one.
    version: watch::Sender<u64>,
    managed_fields: bool,
    /// Number of changes that the history holds.
    limit: usize,
}

/// One change of one object.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) resource: Resource,
    pub(crate) key: String,
    pub(crate) before: Option<Object>,
    pub(crate) after: Option<Object>,
}

/// The objects of a resource at one version, by key.
pub(crate) struct Snapshot {
    pub(crate) version: u64,
    pub(crate) objects: BTreeMap<String, Object>,
}

/// The version asked for is older than what the history reaches back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expired {
    pub(crate) oldest: u64,
}

/// The outcome of a write.
pub(crate) struct Written {
    pub(crate) version: u64,
    pub(crate) object: Object,
}

struct State {
    version: u64,
    /// Requests at versions before this one are refused.
    compacted: u64,
    /// Changes up to this version are no longer in the history. It may be older than `compacted`:
    /// a compaction does not tear the watches down that have begun.
    forgotten: u64,
    objects: BTreeMap<Resource, BTreeMap<String, Object>>,
    history: VecDeque<Arc<Change>>,
}

impl Store {
    pub(crate) fn new(managed_fields: bool, limit: usize) -> Self {
        // Version 0 has a meaning of its own in requests, so the empty store is at 1.
        let state = State {
            version: 1,
            compacted: 1,
            forgotten: 1,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
        };
        let (version, _) = watch::channel(1);
        Self { state: Mutex::new(state), version, managed_fields, limit }
    }

    /// Creates or replaces an object. `only_new` refuses to replace: `None`.
    pub(crate) fn put(
        &self,
        identity: &Identity,
        object: Value,
        only_new: bool,
    ) -> Option<Written> {
        let mut state = self.state.lock();
        let key = identity.key();
        let before = state.objects.get(&identity.resource).and_then(|all| all.get(&key)).cloned();
        if only_new && before.is_some() {
            return None;
        }
        let version = state.version.saturating_add(1);
        let prepared =
            object::prepare(identity, object, before.as_deref(), version, self.managed_fields);
        let Some(prepared) = prepared else {
            return before.map(|object| Written { version: state.version, object });
        };
        let after = Arc::new(prepared);
        state.objects.entry(identity.resource).or_default().insert(key.clone(), Arc::clone(&after));
        let resource = identity.resource;
        let object = Arc::clone(&after);
        self.record(&mut state, Change { version, resource, key, before, after: Some(after) });
        Some(Written { version, object })
    }

    /// Deletes an object; says whether there was one.
    pub(crate) fn remove(&self, identity: &Identity) -> bool {
        let mut state = self.state.lock();
        let key = identity.key();
        let resource = identity.resource;
        let Some(before) = state.objects.get_mut(&resource).and_then(|all| all.remove(&key)) else {
            return false;
        };
        let version = state.version.saturating_add(1);
        let before = Some(before);
        self.record(&mut state, Change { version, resource, key, before, after: None });
        true
    }

    pub(crate) fn get(&self, resource: Resource, key: &str) -> Option<Object> {
        self.state.lock().objects.get(&resource)?.get(key).cloned()
    }

    pub(crate) fn version(&self) -> u64 {
        self.state.lock().version
    }

    /// Forgets what was before now: older versions can no longer be asked for.
    pub(crate) fn compact(&self) -> u64 {
        let mut state = self.state.lock();
        state.compacted = state.version;
        state.version
    }

    /// The present, or the objects as they were at a version.
    pub(crate) fn snapshot(
        &self,
        resource: Resource,
        exact: Option<u64>,
    ) -> Result<Snapshot, Expired> {
        let state = self.state.lock();
        let mut objects = state.objects.get(&resource).cloned().unwrap_or_default();
        let Some(version) = exact else {
            return Ok(Snapshot { version: state.version, objects });
        };
        state.check(version)?;
        for change in state.history.iter().rev().take_while(|change| change.version > version) {
            if change.resource != resource {
                continue;
            }
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        Ok(Snapshot { version, objects })
    }

    /// Checks that a watch may start at a version.
    pub(crate) fn check(&self, version: u64) -> Result<(), Expired> {
        self.state.lock().check(version)
    }

    /// The changes of a resource after a version, and the version that they lead to.
    pub(crate) fn changes(
        &self,
        resource: Resource,
        after: u64,
    ) -> Result<(u64, Vec<Arc<Change>>), Expired> {
        let state = self.state.lock();
        if after < state.forgotten {
            return Err(Expired { oldest: state.forgotten });
        }
        let begin = state.history.partition_point(|change| change.version <= after);
        let changes = state
            .history
            .range(begin..)
            .filter(|change| change.resource == resource)
            .cloned()
            .collect();
        // A watch from the future stays there until the present has come after it.
        Ok((state.version.max(after), changes))
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Waits until a version exists, though not for long.
    ///
    /// # Errors
    ///
    /// The current version, when the one asked for did not come.
    pub(crate) async fn wait_for(&self, version: u64) -> Result<(), u64> {
        let mut receiver = self.subscribe();
        let come = receiver.wait_for(|current| *current >= version);
        match tokio::time::timeout(PATIENCE, come).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(self.version()),
        }
    }

    fn record(&self, state: &mut State, change: Change) {
        state.version = change.version;
        state.history.push_back(Arc::new(change));
        while state.history.len() > self.limit {
            if let Some(oldest) = state.history.pop_front() {
                state.forgotten = oldest.version;
                state.compacted = state.compacted.max(oldest.version);
            }
        }
        self.version.send_replace(state.version);
    }
}

impl State {
    fn check(&self, version: u64) -> Result<(), Expired> {
        if version < self.compacted { Err(Expired { oldest: self.compacted }) } else { Ok(()) }
    }
}
