//! Drains by hand: endpoints that an operator takes out on this node, each until its time is over.
//!
//! The planner knows what is drained, and this module when that ends. Neither outlives the loop:
//! after a restart, and in another mode, nothing is drained manually.

use std::collections::BTreeMap;
use std::time::Duration;

use plan::event::Event;
use plan::hand_drain::HandDrain;
use tokio::time::Instant;
use tracing::{info, warn};

use super::context::Context;
use super::observer::{HandDrainReport, Report};

/// Most drains by hand at a time. Every endpoint that a planned Service has is looked up in them.
pub const MOST_HAND_DRAINS: usize = 1_000;

/// Longest time of a drain by hand.
pub const LONGEST_HAND_DRAIN: Duration = Duration::from_secs(24 * 3_600);

/// The drains by hand, and when they end.
#[derive(Debug, Default)]
pub struct HandDrains {
    ends: BTreeMap<HandDrain, Instant>,
}

impl HandDrains {
    /// All drains with the times at which they end, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&HandDrain, Instant)> {
        self.ends.iter().map(|(drain, end)| (drain, *end))
    }

    /// Returns the time at which a drain ends; none: there is no such drain.
    #[must_use]
    pub fn end(&self, drain: &HandDrain) -> Option<Instant> {
        self.ends.get(drain).copied()
    }

    /// Returns the number of drains.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if nothing is drained manually.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Begins a drain, or sets another end to one that there is.
    pub(super) fn begin(&mut self, cx: &mut Context, drain: &HandDrain, time: Duration) {
        let time = time.min(LONGEST_HAND_DRAIN);
        let end = Instant::now() + time;
        if let Some(there) = self.ends.get_mut(drain) {
            *there = end;
            info!("{drain} stays drained manually for another {} s", time.as_secs());
            return;
        }
        if self.ends.len() >= MOST_HAND_DRAINS {
            warn!(
                "{drain} is not drained: the limit of {MOST_HAND_DRAINS} manual drains is reached"
            );
            return;
        }
        self.ends.insert(drain.clone(), end);
        cx.apply(Event::HandDrainBegan(Box::new(drain.clone())));
        let note = format!(
            "{drain} is drained manually: it gets no new connections from this node for {} s",
            time.as_secs()
        );
        info!("{note}");
        self.report(cx, drain, true, &note);
    }

    /// Ends a drain. Does nothing if there is no such drain.
    pub(super) fn end_now(&mut self, cx: &mut Context, drain: &HandDrain) {
        self.finish(cx, drain, "an operator ended the drain");
    }

    /// Returns the time at which the next drain ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.ends.values().min().copied()
    }

    /// Ends the drains whose time is up.
    pub(super) fn step(&mut self, cx: &mut Context) {
        let now = Instant::now();
        let due = self.ends.iter().filter(|(_, end)| **end <= now);
        let due: Vec<HandDrain> = due.map(|(drain, _)| drain.clone()).collect();
        for drain in due {
            self.finish(cx, &drain, "its time is over");
        }
    }

    fn finish(&mut self, cx: &mut Context, drain: &HandDrain, why: &str) {
        if self.ends.remove(drain).is_none() {
            return;
        }
        cx.apply(Event::HandDrainEnded(Box::new(drain.clone())));
        let note = format!("{drain} is no longer drained manually: {why}");
        info!("{note}");
        self.report(cx, drain, false, &note);
    }

    fn report(&self, cx: &mut Context, drain: &HandDrain, has_begun: bool, note: &str) {
        let count = self.ends.len();
        let report = HandDrainReport { drain, has_begun, count, note };
        cx.observers.report(&Report::HandDrained(report));
    }
}
