//! Readings of large sets, beside the loop: the kernel lists a set whole, and changes of Services must not
//! wait with it. Sets take turns. When a reading ends, the loop compares it with what is desired then, and
//! leaves out what was written since the reading began.

use std::collections::VecDeque;

use plan::sets::SetId;
use tokio::time::Instant;

use super::Auditor;
use crate::kernel::worker::{SetReading, SetReadingUnderWay, WorkerGone};
use crate::reconcile::comparison::{AuditedPart, compare_earlier};
use crate::reconcile::context::Context;
use crate::reconcile::writer::Writer;

/// The reading under way or just ended, and the sets that are read after it.
#[derive(Debug, Default)]
pub(super) struct LargeSets {
    under_way: Option<UnderWay>,
    /// A reading that has ended and is not compared yet.
    read: Option<LargeSetRead>,
    waiting: VecDeque<LargeSetRequest>,
}

/// A set that is to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct LargeSetRequest {
    pub(super) set: SetId,
    /// Number of its entries that are not ours if it turns out to be in order, as the drift check has it
    /// that suspected the set.
    pub(super) n_foreign: Option<i64>,
}

#[derive(Debug)]
struct UnderWay {
    request: LargeSetRequest,
    /// Number of writes before the reading began.
    n_writes: u64,
    reading: SetReadingUnderWay,
}

/// End of a reading.
#[derive(Debug)]
pub(in crate::reconcile) struct LargeSetRead {
    request: LargeSetRequest,
    n_writes: u64,
    reading: SetReading,
}

// === impl LargeSets ===

impl LargeSets {
    /// True while there is a reading under way.
    pub(super) fn are_read(&self) -> bool {
        self.under_way.is_some()
    }

    /// Has a set read, unless it is to be read already. The end is waited for by [`LargeSets::ended`].
    pub(super) fn begin(&mut self, cx: &Context, writer: &Writer, request: LargeSetRequest) {
        match &self.under_way {
            Some(it) if it.request.set == request.set => {}
            Some(_) if self.waiting.iter().any(|it| it.set == request.set) => {}
            Some(_) => self.waiting.push_back(request),
            None => {
                let n_writes = writer.recent.n_writes();
                let reading = cx.kernel.begin_reading(request.set);
                self.under_way = Some(UnderWay { request, n_writes, reading });
            }
        }
    }

    /// Waits for the end of the reading under way; for ever if there is none.
    async fn ended(&mut self) -> Result<LargeSetRead, WorkerGone> {
        let Some(UnderWay { request, n_writes, reading }) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let reading = reading.await.map_err(|_| WorkerGone)?;
        let ended = LargeSetRead { request: *request, n_writes: *n_writes, reading };
        self.under_way = None;
        Ok(ended)
    }
}

impl Auditor {
    /// Waits for the end of a reading beside the loop; for ever if there is none.
    pub(in crate::reconcile) async fn large_set_ended(
        &mut self,
    ) -> Result<LargeSetRead, WorkerGone> {
        self.large_sets.ended().await
    }

    /// Takes what was read beside the loop. The next step compares it.
    pub(in crate::reconcile) fn take_large_set(&mut self, ended: LargeSetRead) {
        self.large_sets.read = Some(ended);
    }

    /// Compares what was read beside the loop, if something was, and begins the next reading.
    pub(super) async fn compare_large_set(
        &mut self,
        cx: &mut Context,
        writer: &mut Writer,
    ) -> Result<(), WorkerGone> {
        let Some(LargeSetRead { request, n_writes, reading }) = self.large_sets.read.take() else {
            return Ok(());
        };
        let part = AuditedPart::Sets([request.set].into());
        let started = Instant::now();
        let compared = compare_earlier(cx, writer, request.set, reading.found, n_writes).await?;
        if let Some(compared) = self.note(cx, writer, &part, compared) {
            self.schedule.compared(&part, reading.took + started.elapsed());
            let is_in_order = !compared.found_drift && !compared.has_missed;
            if let Some(n_foreign) = request.n_foreign.filter(|_| is_in_order) {
                self.expected.learn_entries(request.set, n_foreign);
            }
        }
        if let Some(next) = self.large_sets.waiting.pop_front() {
            self.large_sets.begin(cx, writer, next);
        }
        Ok(())
    }
}
