//! Reading virtual servers, of which some may not be readable.

use std::sync::Arc;

use plan::actual::{ActualVirtualServer, ListedVirtualServer};
use plan::kernel::Frontend;

use super::Reconciler;
use crate::kernel::worker::WorkerGone;
use crate::kernel::{ReadError, VirtualServerReading};

/// Virtual servers that were read together.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Virtual servers that could be read, with what was found of each; none: it is not there.
    pub(super) found: Vec<(Frontend, Option<ActualVirtualServer>)>,
    /// Virtual servers that cannot be read, each with the reason, which has been told.
    pub(super) unread: Vec<(Frontend, ReadError)>,
}

impl Reconciler {
    /// Reads virtual servers. What cannot be read is told of, and set apart. The inner error is that
    /// of a kernel of which nothing can be read; it has not been told.
    pub(super) async fn read_virtual_servers(
        &mut self,
        frontends: &Arc<[Frontend]>,
    ) -> Result<Result<Seen, ReadError>, WorkerGone> {
        let readings = self.kernel.read_virtual_servers(Arc::clone(frontends)).await?;
        Ok(readings.map(|readings| self.sort_readings(frontends.iter().copied().zip(readings))))
    }

    /// The same for those that were listed a moment ago.
    pub(super) async fn read_listed(
        &mut self,
        listed: &Arc<[ListedVirtualServer]>,
    ) -> Result<Result<Seen, ReadError>, WorkerGone> {
        let readings = self.kernel.read_listed(Arc::clone(listed)).await?;
        let frontends = listed.iter().map(|it| it.frontend);
        Ok(readings.map(|readings| self.sort_readings(frontends.zip(readings))))
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
