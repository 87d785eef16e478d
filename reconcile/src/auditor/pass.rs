//! A pass of the audit under way: what is still to be compared, and how much of it may be by now.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use plan::comparison::Part;
use plan::kernel_objects::Frontend;
use tokio::time::Instant;

/// Time from one drift check to the next.
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Shortest duration of a pass that is not at full speed, as a multiple of its cost: it takes less than
/// one percent of a processor.
pub(super) const REST: u32 = 125;

/// Number of virtual servers that any other part counts as, where a pass is dealt out.
const WEIGHT_OF_PART: usize = 64;

/// A pass under way.
#[derive(Debug)]
pub(super) struct AuditPass {
    /// Its beginning, which may be yet to come.
    pub(super) begins: Instant,
    pub(super) cost: Duration,
    /// Parts that are still to be compared.
    parts: VecDeque<Part>,
    frontends: Vec<Frontend>,
    /// Work of the whole pass, counted in virtual servers; then the work done, and what may be by
    /// now.
    total: usize,
    done: usize,
    granted: usize,
    pub(super) is_full_speed: bool,
    /// True if some of the pass could not be read.
    pub(super) has_missed: bool,
    /// True if drift was found since the pass began.
    pub(super) found_drift: bool,
}

impl AuditPass {
    pub(super) fn new(
        parts: VecDeque<Part>,
        frontends: Vec<Frontend>,
        is_full_speed: bool,
        begins: Instant,
    ) -> Self {
        let total = parts.len() * WEIGHT_OF_PART + frontends.len();
        Self {
            begins,
            cost: Duration::ZERO,
            parts,
            frontends,
            total,
            done: 0,
            granted: if is_full_speed { total } else { 0 },
            is_full_speed,
            has_missed: false,
            found_drift: false,
        }
    }

    /// Time from which its next part may be compared. None until drift checks grant more. The virtual
    /// servers of a chunk are waited for, so that few wake-ups do the same.
    pub(super) fn next_wake(&self, chunk: usize) -> Option<Instant> {
        let next = match self.parts.front() {
            Some(_) => WEIGHT_OF_PART,
            None => chunk.min(self.frontends.len()),
        };
        if next == 0 || self.done + next > self.granted {
            return None;
        }
        let rest = if self.is_full_speed { Duration::ZERO } else { self.cost.saturating_mul(REST) };
        Some(self.begins + rest)
    }

    /// True if everything was compared, and the time of the pass is up.
    pub(super) fn is_over(&self) -> bool {
        self.done.min(self.granted) >= self.total
    }

    /// Works out how much may be done by now, of a pass that takes this long.
    pub(super) fn grant(&mut self, period: Duration, now: Instant) {
        if !self.is_full_speed {
            let period = period.max(SECOND).as_millis();
            let elapsed = (now - self.begins).as_millis().min(period);
            let granted = (self.total as u128).saturating_mul(elapsed) / period;
            self.granted = usize::try_from(granted).unwrap_or(self.total);
        }
    }

    pub(super) fn take(&mut self, chunk: usize) -> Option<Part> {
        if let Some(part) = self.parts.pop_front() {
            self.done += WEIGHT_OF_PART;
            return Some(part);
        }
        let rest = self.frontends.len().saturating_sub(chunk);
        let chunk: Arc<[Frontend]> = self.frontends.drain(rest..).collect();
        self.done += chunk.len();
        (!chunk.is_empty()).then_some(Part::VirtualServers(chunk))
    }
}
