//! A change that is not made: what it would write.
//!
//! A preview plans some of the Services twice in planners of its own ([`Planner::excerpt`]), as they
//! are and with the change. It asks for the Services that claim the same frontends, step by step,
//! until it has them all: a frontend that one of them gives up is the next one's.
//!
//! ```text
//!   concerned_by(events) ──▶ input_of ──▶ take ──▶ plan ──▶ claimed ──▶ claimants_of ─┐
//!                              ▲                                                      │
//!                              └──────────── those that are not here yet ◀────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Event;
use crate::kernel_objects::Frontend;
use crate::model::ServiceName;
use crate::op::Op;
use crate::planner::{Plan, Planner};
use crate::store::ServiceInput;

/// A change that is not made, and the Services that it may be about.
#[derive(Debug)]
pub struct Preview {
    /// The facts about the node, and no Services.
    base: Planner,
    events: Vec<Event>,
    /// The Services; none: there is nothing by the name.
    services: BTreeMap<ServiceName, Option<ServiceInput>>,
}

/// Result of planning a change that is not made.
#[derive(Debug)]
pub struct Previewed {
    /// Operations and reports of the change, of the Services that the preview has.
    pub plan: Plan,
    /// The Services as they are.
    pub before: Planner,
    /// The Services with the change.
    pub after: Planner,
}

impl Preview {
    /// A preview of these events, which are about Services and slices, on a node like that of `base`,
    /// an excerpt without Services.
    #[must_use]
    pub fn new(base: Planner, events: Vec<Event>) -> Self {
        Self { base, events, services: BTreeMap::new() }
    }

    /// Takes the input of a Service. None: nothing is known under its name.
    pub fn take(&mut self, name: ServiceName, input: Option<ServiceInput>) {
        self.services.insert(name, input);
    }

    /// True if the preview has a Service, or knows that there is none.
    #[must_use]
    pub fn has(&self, name: &ServiceName) -> bool {
        self.services.contains_key(name)
    }

    /// Returns the number of Services.
    #[must_use]
    pub fn n_services(&self) -> usize {
        self.services.len()
    }

    /// Plans the Services that are here, as they are and with the change.
    #[must_use]
    pub fn plan(&self) -> Previewed {
        let (before, mut after) = (self.present(), self.present());
        for event in &self.events {
            after.apply(event.clone());
        }
        let plan = after.plan();
        Previewed { plan, before, after }
    }

    fn present(&self) -> Planner {
        let mut planner = self.base.excerpt();
        for input in self.services.values().flatten() {
            planner.take_input(input.clone());
        }
        drop(planner.plan());
        planner
    }
}

impl Previewed {
    /// Returns the frontends that Services of `preview` claim, before or after.
    #[must_use]
    pub fn claimed(&self, preview: &Preview) -> BTreeSet<Frontend> {
        let services = preview.services.keys();
        let each = services.flat_map(|service| {
            self.before.claimed_by(service).into_iter().chain(self.after.claimed_by(service))
        });
        each.collect()
    }

    /// True if an operation is about an address or an entry that Services need that are not in the
    /// preview: it stays as it is. `n_users`: the number of all users of the operation's subject
    /// ([`Planner::n_users`]).
    #[must_use]
    pub fn is_needed_elsewhere(&self, op: &Op, n_users: u32) -> bool {
        n_users > self.before.n_users(&op.subject())
    }
}
