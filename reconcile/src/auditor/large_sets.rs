//! Readings of large sets, beside the loop: the kernel lists a set whole, and changes of Services must not
//! wait with it. Sets take turns. When a reading ends, the loop compares it with what is desired then, and
//! leaves out what was written since the reading began. If that is more than is remembered, the reading says
//! nothing; after a few in a row, the set is read in the loop.

use std::collections::VecDeque;

use plan::comparison::Part;
use plan::hash::HashMap;
use plan::sets::SetId;
use tokio::time::Instant;

use super::Auditor;
use crate::comparison::compare_earlier;
use crate::context::Context;
use crate::writer::Writer;
use kernel::worker::{SetReading, SetReadingUnderWay, WorkerGone};

/// Number of readings of a set in a row that said nothing, because more was written meanwhile than is
/// remembered, after which it is read in the loop. Writes without end put its repair off no longer.
const MOST_MISSED: u32 = 2;

/// The reading under way or just ended, and the sets that are read after it.
#[derive(Debug, Default)]
pub(super) struct LargeSets {
    under_way: Option<UnderWay>,
    /// A reading that has ended and is not compared yet.
    read: Option<LargeSetRead>,
    waiting: VecDeque<LargeSetRequest>,
    /// Number of readings in a row that said nothing, of each set whose last one did not.
    n_missed: HashMap<SetId, u32>,
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
pub(crate) struct LargeSetRead {
    request: LargeSetRequest,
    n_writes: u64,
    reading: SetReading,
}

impl LargeSets {
    /// True while there is a reading under way.
    pub(super) fn are_read(&self) -> bool {
        self.under_way.is_some()
    }

    /// Has a set read, unless it is to be read already. The end is waited for by [`LargeSets::ended`].
    /// Returns false if the set is to be read in the loop instead.
    pub(super) fn begin(
        &mut self,
        cx: &Context,
        writer: &Writer,
        request: LargeSetRequest,
    ) -> bool {
        let is_under_way = self.under_way.as_ref().is_some_and(|it| it.request.set == request.set);
        if is_under_way || self.waiting.iter().any(|it| it.set == request.set) {
            return true;
        }
        if self.n_missed.get(&request.set).is_some_and(|n_missed| *n_missed >= MOST_MISSED) {
            self.n_missed.remove(&request.set);
            return false;
        }
        if self.under_way.is_some() {
            self.waiting.push_back(request);
        } else {
            self.start(cx, writer, request);
        }
        true
    }

    fn start(&mut self, cx: &Context, writer: &Writer, request: LargeSetRequest) {
        let n_writes = writer.recent.n_writes();
        let reading = cx.kernel.begin_reading(request.set);
        self.under_way = Some(UnderWay { request, n_writes, reading });
    }

    /// Notes a comparison with what was read beside the loop.
    fn compared(&mut self, set: SetId, has_missed: bool) {
        if has_missed {
            *self.n_missed.entry(set).or_default() += 1;
        } else {
            self.n_missed.remove(&set);
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
    pub(crate) async fn large_set_ended(&mut self) -> Result<LargeSetRead, WorkerGone> {
        self.large_sets.ended().await
    }

    /// Takes what was read beside the loop. The next step compares it.
    pub(crate) fn take_large_set(&mut self, ended: LargeSetRead) {
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
        let part = Part::Sets([request.set].into());
        let started = Instant::now();
        let compared = compare_earlier(cx, writer, request.set, reading.found, n_writes).await?;
        if let Some(compared) = self.note(cx, writer, &part, compared) {
            self.schedule.compared(&part, reading.took + started.elapsed());
            self.large_sets.compared(request.set, compared.has_missed);
            let is_in_order = !compared.found_drift && !compared.has_missed;
            if let Some(n_foreign) = request.n_foreign.filter(|_| is_in_order) {
                self.expected.learn_entries(request.set, n_foreign);
            }
        }
        if let Some(next) = self.large_sets.waiting.pop_front() {
            self.large_sets.start(cx, writer, next);
        }
        Ok(())
    }
}
