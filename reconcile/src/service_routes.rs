//! Changes of how service addresses are local to the node: by an address each on `kube-ipvs0`, or by a
//! local route for all (`serviceRoutes: auto`).
//!
//! A change goes on beside everything else, for each family by itself. Routes are added first, with the
//! rules for them, which serve bound addresses as well. When they are there, the Services whose
//! addresses change are planned again, a few at a time: the kernel takes longer for an address the more
//! of them there are, and holds its lock of the network configuration meanwhile. In the end, routes go
//! that are no longer wanted. So every address is local at all times, also after an end of the process
//! in the middle: the next one begins with the routes that it finds.

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use plan::kernel_objects::Entry;
use plan::model::{Family, ServiceName};
use plan::op::{PartKind, Subject};
use tokio::time::Instant;
use tracing::info;

use super::context::Context;
use super::retry_queue::RetryQueue;

/// Most Services that are planned again at once. An IPv6 address takes 0.4 ms to remove where there are
/// 10,000 (docs/service-addresses.md).
const AT_ONCE: usize = 32;

/// Pause after that: 10,000 addresses take 160 s.
const PAUSE: Duration = Duration::from_millis(500);

/// The families that change.
#[derive(Debug, Default)]
pub(super) struct ServiceRoutes {
    changes: BTreeMap<Family, Change>,
    /// Time of the next step, if there is a change.
    next: Option<Instant>,
}

/// Change of a family.
#[derive(Debug)]
struct Change {
    /// Networks that are to have a local route in the end.
    wanted: Vec<IpNet>,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    /// Routes are added. Addresses are bound as before.
    AddingRoutes,
    /// Services are planned again.
    Planning {
        /// The last Service that was looked at.
        after: Option<ServiceName>,
        /// Services that were planned again last, or wait for it.
        planned: Vec<ServiceName>,
        /// True if all Services were looked at.
        is_last: bool,
    },
}

impl ServiceRoutes {
    /// Begins to change a family, or goes on to something else from where it is. Does nothing if the
    /// family has these routes.
    pub(super) fn begin(&mut self, cx: &mut Context, family: Family, wanted: Vec<IpNet>) {
        let routes = cx.planner.service_routes(family);
        let is_known = match self.changes.get(&family) {
            Some(change) => change.wanted == wanted,
            None => routes == wanted,
        };
        if is_known || !cx.uses(PartKind::Routes) {
            return;
        }
        info!(%family, routes = ?wanted, "changing the way in which Service addresses are local");
        let is_new = |net: &&IpNet| !routes.contains(net);
        let new: Vec<IpNet> = wanted.iter().filter(is_new).copied().collect();
        let mut bound = cx.planner.settings().bound_routes.clone();
        bound.retain(|net| Family::of_net(net) == family);
        bound.extend(&new);
        cx.planner.set_service_routes(family, [routes, new].concat(), bound);
        self.changes.insert(family, Change { wanted, progress: Progress::AddingRoutes });
        self.next = Some(Instant::now());
    }

    /// Returns the time of the next step.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.next.filter(|_| !self.changes.is_empty())
    }

    /// Goes on with what changes, if it is time to. What it plans is written as changes of Services are.
    pub(super) fn step(&mut self, cx: &mut Context, retry_queue: &RetryQueue) {
        let now = Instant::now();
        if self.next_due().is_some_and(|due| due <= now) {
            self.next = Some(now + PAUSE);
            self.changes.retain(|family, change| !change.step(*family, cx, retry_queue));
        }
    }
}

impl Change {
    /// Takes a step. Returns true if it was the last one.
    fn step(&mut self, family: Family, cx: &mut Context, retry_queue: &RetryQueue) -> bool {
        match &mut self.progress {
            Progress::AddingRoutes => {
                let is_there =
                    !cx.planner.has_unplanned_routes() && !awaits_routes(retry_queue, family);
                if is_there {
                    self.bind_otherwise(family, cx);
                }
                false
            }
            Progress::Planning { planned, .. } if planned.iter().any(|it| cx.planner.waits(it)) => {
                false
            }
            Progress::Planning { after, planned, is_last: is_last @ false } => {
                let (again, last) = cx.planner.plan_outdated(family, after.as_ref(), AT_ONCE);
                (*planned, *is_last) = (again, last.is_none());
                *after = last;
                false
            }
            Progress::Planning { .. } => self.end(family, cx, retry_queue),
        }
    }

    /// Has addresses bound where there will be no route, and nowhere else.
    fn bind_otherwise(&mut self, family: Family, cx: &mut Context) {
        let routes = cx.planner.service_routes(family);
        let bound = routes.iter().filter(|net| !self.wanted.contains(net)).copied().collect();
        cx.planner.set_service_routes(family, routes, bound);
        self.progress = Progress::Planning { after: None, planned: Vec::new(), is_last: false };
    }

    /// Takes routes away that are not wanted, once all addresses inside are bound. Returns true then.
    fn end(&self, family: Family, cx: &mut Context, retry_queue: &RetryQueue) -> bool {
        let routes = cx.planner.service_routes(family);
        let excess: Vec<IpNet> =
            routes.into_iter().filter(|net| !self.wanted.contains(net)).collect();
        let local = cx.planner.settings().routed_with(&excess);
        if !excess.is_empty() && awaits_addresses(retry_queue, &local) {
            return false;
        }
        cx.planner.set_service_routes(family, self.wanted.clone(), Vec::new());
        info!(%family, routes = ?self.wanted, "the way in which Service addresses are local has \
                                               changed");
        true
    }
}

/// True if routes or rules of a family are pending.
fn awaits_routes(retry_queue: &RetryQueue, family: Family) -> bool {
    let is_one = |it: &Subject| matches!(it, Subject::Route(_) | Subject::RuleSet(_));
    let mut prerequisites = retry_queue.prerequisites();
    prerequisites.any(|it| it.family() == Some(family) && is_one(it))
}

/// True if addresses inside networks are pending, or what the rules know them by.
fn awaits_addresses(retry_queue: &RetryQueue, networks: &[IpNet]) -> bool {
    retry_queue.iter().any(|(subject, _)| match subject {
        Subject::Address(address) | Subject::Entry(_, Entry::Address(address)) => {
            networks.iter().any(|net| net.contains(address))
        }
        _ => false,
    })
}
