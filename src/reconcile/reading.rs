//! Reading virtual servers, of which some may not be readable.

use std::sync::Arc;

use plan::actual::{ActualVirtualServer, ListedVirtualServer};
use plan::kernel::Frontend;

use super::Reconciler;
use crate::kernel::worker::{ReadFailure, WorkerGone};
use crate::kernel::{KernelRead, Listing, ReadError, VirtualServerReading};

/// Virtual servers that were read together.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Virtual servers that could be read, with what was found of each; none: it is not there.
    pub(super) found: Vec<(Frontend, Option<ActualVirtualServer>)>,
    /// Virtual servers that cannot be read, each with the reason, which has been reported.
    pub(super) unread: Vec<(Frontend, ReadError)>,
}

impl Reconciler {
    /// Reports a read that failed, and returns nothing of it. The caller retries it later.
    pub(super) fn or_report<T>(
        &mut self,
        read: Result<T, ReadFailure>,
    ) -> Result<Option<T>, WorkerGone> {
        match read {
            Ok(found) => Ok(Some(found)),
            Err(failure) => {
                self.reading_failed(&failure.retryable()?);
                Ok(None)
            }
        }
    }

    /// Lists the virtual servers.
    pub(super) async fn list_virtual_servers(&mut self) -> Result<Listing, ReadFailure> {
        self.kernel.read(KernelRead::Frontends, |kernel| kernel.list_virtual_servers()).await
    }

    /// Reads virtual servers. Those that cannot be read are reported, and set apart. If nothing of
    /// the kernel can be read, that has not been reported.
    pub(super) async fn read_virtual_servers(
        &mut self,
        frontends: &Arc<[Frontend]>,
    ) -> Result<Seen, ReadFailure> {
        let asked = Arc::clone(frontends);
        let read = KernelRead::VirtualServers;
        let found = self.kernel.read(read, move |kernel| kernel.read_virtual_servers(&asked));
        let found = found.await?;
        Ok(self.sort_readings(frontends.iter().copied().zip(found)))
    }

    /// Reads virtual servers that were listed a moment ago, in the same way.
    pub(super) async fn read_listed(
        &mut self,
        listed: &Arc<[ListedVirtualServer]>,
    ) -> Result<Seen, ReadFailure> {
        let asked = Arc::clone(listed);
        let read = KernelRead::VirtualServers;
        let found = self.kernel.read(read, move |kernel| kernel.read_listed(&asked)).await?;
        Ok(self.sort_readings(listed.iter().map(|it| it.frontend).zip(found)))
    }

    fn sort_readings(
        &mut self,
        readings: impl Iterator<Item = (Frontend, VirtualServerReading)>,
    ) -> Seen {
        let mut seen = Seen::default();
        for (frontend, reading) in readings {
            match reading {
                Ok(found) => seen.found.push((frontend, found)),
                Err(error) => seen.unread.push((frontend, error)),
            }
        }
        if let Some(((_, error), others)) = seen.unread.split_first() {
            let mut error = error.clone();
            if !others.is_empty() {
                error.what += &format!(", and {} others", others.len());
            }
            self.reading_failed(&error);
        }
        seen
    }
}
