//! Readings of a fake kernel's sets beside the loop.

use std::sync::Arc;

use plan::actual::ActualSet;
use plan::sets::SetId;

use super::Fake;
use crate::kernel::{Kernel, ReadError, SetReader};

impl Fake {
    /// Readings of sets beside the loop wait for this lock before they end. They have what was there
    /// when they began.
    #[must_use]
    pub fn set_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.state().set_lock)
    }
}

impl SetReader for Fake {
    fn read_set(&self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        let found = Kernel::read_set(&mut self.clone(), set);
        self.state().looks.sets_beside += 1;
        let lock = self.set_lock();
        let _held = lock.blocking_lock();
        found
    }
}
