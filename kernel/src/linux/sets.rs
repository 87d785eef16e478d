//! Sets, read by the worker or beside it.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use plan::actual::ActualSet;
use plan::hash::HashMap;
use plan::sets::SetId;

use super::{ReadError, SetReader, UNUSED, of_other_kind, translate};

/// Sets, by a socket of its own; none in a mode without sets.
#[derive(Debug, Clone)]
pub(super) struct SharedSets {
    ipset: Arc<Mutex<Option<ipset::Client>>>,
    foreign: ForeignSets,
}

/// Sets of our names that another program made with another type, each with what it is. The worker and
/// readings beside it share them.
#[derive(Debug, Clone, Default)]
pub(super) struct ForeignSets(Arc<Mutex<HashMap<SetId, String>>>);

impl SharedSets {
    pub(super) fn new(ipset: Option<ipset::Client>, foreign: ForeignSets) -> Self {
        Self { ipset: Arc::new(Mutex::new(ipset)), foreign }
    }

    /// Waits for a reading under way.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<ipset::Client>> {
        self.ipset.lock()
    }
}

impl SetReader for SharedSets {
    fn read_set(&self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        read(self.lock().as_mut(), set, &self.foreign)
    }
}

impl ForeignSets {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<SetId, String>> {
        self.0.lock()
    }
}

/// Reads a set; none if there is none of this name. Notes if it is of another type than ours.
pub(super) fn read(
    ipset: Option<&mut ipset::Client>,
    set: SetId,
    foreign: &ForeignSets,
) -> Result<Option<ActualSet>, ReadError> {
    let unread = |reason: &dyn std::fmt::Display| ReadError::new(format!("set {set}"), reason);
    let name = translate::set_name(set).map_err(|error| unread(&error))?;
    let listed = ipset.ok_or_else(|| unread(&UNUSED))?.list(name);
    let mut foreign = foreign.lock();
    foreign.remove(&set);
    let found = match listed {
        Ok(found) => found,
        Err(error) if error.is_no_such_set() => return Ok(None),
        Err(error) => return Err(unread(&error)),
    };
    if !translate::is_same_kind(set, &found.header.identity) {
        let what = of_other_kind(set, &found.header.identity);
        let error = ReadError::foreign(format!("set {set}"), &what);
        foreign.insert(set, what);
        return Err(error);
    }
    drop(foreign);
    Ok(Some(translate::actual_set(&found)))
}
