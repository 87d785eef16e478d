//! Letting connections end: a real server that is no longer wanted gets no new connections (weight
//! 0) and is removed when its last one has ended, or when its time is over. A virtual server that
//! is to go with its real servers stays until the last of them has gone.
//!
//! Removing a real server at once would cut every connection it has: the kernel drops a packet
//! whose real server is gone. UDP real servers are removed at once, as kube-proxy does, since a client
//! that goes on sending would otherwise keep a dead one for ever. So are those of SCTP in ipvs mode
//! (`Context::drain_deadline`).
//!
//! The kernel is the only record of it that outlives us: weight 0, and the deadline, which is noted
//! in the real server itself. After a restart what is not wanted and noted there goes on draining,
//! until the same deadline.
//!
//! On the fast path IPVS forgets connections that go on. So its real servers stay until conntrack has none to them either,
//! and when their time is up, conntrack's entries go after them (`super::flows`).

mod clock;
mod open;
#[cfg(test)]
mod tests;
mod tracked;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use plan::actual::{ActualRealServer, ActualVirtualServer};
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol};
use plan::op::Op;
use tokio::time::Instant;

use crate::agenda::Agenda;
use crate::context::DrainTerms;
use clock::Clock;
pub(super) use open::OpenCounts;
use tracked::Tracked;
pub(crate) use tracked::TrackedCountEnded;

/// Time until the first check of a virtual server after a real server of it began to drain. Each
/// later pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest time from one check to the next, but for a deadline in between.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Most virtual servers that are checked in one go, at a listing each. In between, the loop does its
/// other work.
const CHECKS_AT_ONCE: usize = 64;

/// The draining real servers by virtual server, each virtual server due at the time of its next
/// check. The writer passes operations through [`Drain::rewrite`], which adds to them.
#[derive(Debug)]
pub(crate) struct Drain {
    clock: Clock,
    draining: Agenda<Frontend, Draining>,
    /// Number of virtual servers that are removed with the last of their draining real servers.
    n_removed_when_drained: usize,
    /// Families whose real servers stay until then, or their deadline, even without connections.
    held: HashMap<Family, Instant>,
    /// Connections that conntrack carries.
    tracked: Tracked,
    /// Endpoints whose time is up and to which conntrack may have connections, each with the frontend, as clients see it.
    over: Vec<(Frontend, SocketAddr)>,
}

/// Basis from which operations were computed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known<'a> {
    /// From what was desired before, without looking at the kernel.
    Nothing,
    /// From comparing this virtual server with what it should be, for no particular reason; none:
    /// it is not there.
    Compared(Frontend, Option<&'a ActualVirtualServer>),
    /// From reading this virtual server for a retry; none: it is not there.
    One(Frontend, Option<&'a ActualVirtualServer>),
}

/// Draining real servers of a virtual server. Never none.
#[derive(Debug, Clone, Default)]
struct Draining {
    deadlines: BTreeMap<SocketAddr, Instant>,
    /// True if the virtual server is removed with the last of them.
    removes_virtual_server: bool,
    /// Number of their connections that IPVS carries, when they were read last.
    connections: u64,
    /// From the next check to the one after it.
    pause: Duration,
    /// See [`DrainTerms::tracked_as`].
    tracked_as: Option<Frontend>,
    /// Time at which the last of them began to drain.
    since: Option<Instant>,
    /// True if IPVS has no connections to one of them, and conntrack may have some.
    waits_for_tracked: bool,
}

impl Drain {
    /// Nothing is draining.
    pub(super) fn new() -> Self {
        Self {
            clock: Clock::read(),
            draining: Agenda::default(),
            n_removed_when_drained: 0,
            held: HashMap::default(),
            tracked: Tracked::default(),
            over: Vec::new(),
        }
    }

    /// Turns removals of TCP and SCTP real servers into draining ones, and the return of a draining one
    /// into its weight's return. Both leave its connections untouched. The same for virtual servers
    /// that are to go with their real servers. `terms` are those of a virtual server's real servers.
    ///
    /// Omits what the kernel has noted already. Removes what has nothing to drain any more, or no
    /// time for it.
    pub(crate) fn rewrite(
        &mut self,
        ops: Vec<Op>,
        known: Known<'_>,
        terms: &dyn Fn(&Frontend) -> DrainTerms,
        now: Instant,
    ) -> Vec<Op> {
        let goes = |op: &Op| {
            matches!(op, Op::RemoveRealServer(..) | Op::RemoveVirtualServerWhenDrained(_))
        };
        // As in a first sync: nothing drains, and nothing begins to.
        if self.draining.is_empty() && !ops.iter().any(goes) {
            return ops;
        }
        self.forget_wanted(&ops, known);
        let (removals, ops): (Vec<Op>, Vec<Op>) =
            ops.into_iter().partition(|op| matches!(op, Op::RemoveVirtualServerWhenDrained(_)));
        let mut rewritten: Vec<Op> =
            ops.into_iter().filter_map(|op| self.rewrite_one(op, known, terms, now)).collect();
        for op in removals {
            let Op::RemoveVirtualServerWhenDrained(frontend) = op else { continue };
            if self.is_draining(&frontend) {
                self.set_removes_virtual_server(&frontend, true);
            } else {
                rewritten.push(Op::RemoveVirtualServer(frontend));
            }
        }
        rewritten
    }

    /// Returns a copy with the draining real servers of one virtual server, to find out what
    /// [`rewrite`](Self::rewrite) would do.
    pub(crate) fn excerpt(&self, frontend: &Frontend) -> Self {
        let mut excerpt = Self {
            clock: self.clock,
            draining: Agenda::default(),
            n_removed_when_drained: 0,
            held: self.held.clone(),
            tracked: Tracked::default(),
            over: Vec::new(),
        };
        let due = self.draining.due_time(frontend);
        if let (Some(draining), Some(due)) = (self.draining.get(frontend), due) {
            excerpt.put(*frontend, due, draining.clone());
        }
        excerpt
    }

    /// Keeps the draining real servers of a family until this time, or their deadline, even without
    /// connections.
    pub(super) fn hold(&mut self, family: Family, until: Instant) {
        self.held.insert(family, until);
    }

    /// Returns true once when the time has come until which a family was held.
    pub(super) fn take_ended_hold(&mut self, family: Family, now: Instant) -> bool {
        let has_ended = self.held.get(&family).is_some_and(|until| *until <= now);
        has_ended && self.held.remove(&family).is_some()
    }

    /// Returns the time of the next check or count; none while nothing is draining.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.draining.next_due().into_iter().chain(self.tracked.next_due()).min()
    }

    /// Returns the endpoints whose time is up and to which conntrack may have connections, once, each with the frontend, as
    /// clients see it. Their real servers are removed first.
    pub(super) fn take_over(&mut self) -> Vec<(Frontend, SocketAddr)> {
        std::mem::take(&mut self.over)
    }

    /// Returns the virtual servers to check now. There may be more.
    pub(super) fn due(&self, now: Instant) -> Vec<Frontend> {
        self.draining.due(now).take(CHECKS_AT_ONCE).collect()
    }

    /// Puts all checks off that are due: the kernel cannot be read.
    pub(super) fn postpone_due(&mut self, now: Instant, until: Instant) {
        let due: Vec<Frontend> = self.draining.due(now).collect();
        self.postpone(due, until);
    }

    /// Sets the time of the next check of these, if something drains in them.
    pub(super) fn postpone(
        &mut self,
        frontends: impl IntoIterator<Item = Frontend>,
        until: Instant,
    ) {
        for frontend in frontends {
            self.draining.reschedule(&frontend, until);
        }
    }

    /// Returns the operations that a virtual server's draining real servers need, and stops tracking
    /// those that have drained.
    ///
    /// The time of the terms can bring a deadline forward, as after a change of the setting, and never
    /// puts one off.
    pub(super) fn check(
        &mut self,
        frontend: Frontend,
        actual: Option<&ActualVirtualServer>,
        terms: DrainTerms,
        now: Instant,
    ) -> Vec<Op> {
        let Some(mut draining) = self.take(&frontend) else { return Vec::new() };
        let DrainTerms { time, tracked_as } = terms;
        let latest = self.clock.deadline(now + time);
        let held_until = self.held_until(&frontend, now);
        let mut ops = Vec::new();
        draining.connections = 0;
        draining.tracked_as = tracked_as;
        draining.waits_for_tracked = false;
        // To an internal frontend, all are tracked.
        let is_led_to = tracked_as.is_some_and(|seen| seen != frontend);
        draining.deadlines.retain(|socket, deadline| {
            let Some(found) = actual.and_then(|actual| actual.real_servers.get(socket)) else {
                return false;
            };
            let is_over = now >= *deadline || time.is_zero();
            let since = draining.since;
            let may_be_tracked =
                tracked_as.is_some_and(|seen| self.tracked.may_have(&seen, *socket, since));
            let has_drained = found.connections == 0 && !may_be_tracked && held_until.is_none();
            if has_drained || is_over {
                self.over.extend(tracked_as.filter(|_| is_over).map(|seen| (seen, *socket)));
                ops.push(Op::RemoveRealServer(frontend, *socket));
                return false;
            }
            draining.waits_for_tracked |= found.connections == 0 && may_be_tracked;
            if self.clock.instant(latest) < *deadline {
                *deadline = self.clock.instant(latest);
                ops.push(Op::DrainRealServer(frontend, *socket, latest));
            }
            draining.connections += if is_led_to { 0 } else { found.connections };
            true
        });
        if draining.deadlines.is_empty() {
            // Its real servers go with it.
            return match (draining.removes_virtual_server, actual) {
                (false, _) => ops,
                (true, Some(_)) => vec![Op::RemoveVirtualServer(frontend)],
                (true, None) => Vec::new(),
            };
        }
        self.tracked.want(tracked_as);
        draining.pause = (draining.pause * 2).min(LONGEST_PAUSE);
        let next_check = draining.next_check(now);
        let next_check = held_until.map_or(next_check, |until| next_check.min(until));
        self.put(frontend, next_check, draining);
        ops
    }

    /// Returns the number of virtual servers that stay only until their last real server has gone.
    pub(crate) fn n_removed_when_drained(&self) -> usize {
        self.n_removed_when_drained
    }

    /// Returns the number of connections of draining real servers, as they were read last.
    pub(crate) fn n_connections(&self) -> u64 {
        let by_ipvs: u64 = self.draining.iter().map(|(_, draining)| draining.connections).sum();
        // What is left of the last count is about nothing when nothing drains any more.
        let tracked = if self.draining.is_empty() { 0 } else { self.tracked.n_connections() };
        by_ipvs + tracked
    }

    /// Returns the draining real servers of a virtual server, with their deadlines.
    pub(crate) fn deadlines(
        &self,
        frontend: &Frontend,
    ) -> impl Iterator<Item = (SocketAddr, Instant)> {
        let of_frontend = self.draining.get(frontend).into_iter();
        of_frontend
            .flat_map(|it| it.deadlines.iter().map(|(server, deadline)| (*server, *deadline)))
    }

    /// Returns the number of virtual servers with a draining real server.
    pub(crate) fn n_virtual_servers(&self) -> usize {
        self.draining.len()
    }

    /// True if this real server of a virtual server is draining.
    pub(super) fn is_draining_at(&self, frontend: &Frontend, socket: &SocketAddr) -> bool {
        self.draining.get(frontend).is_some_and(|it| it.deadlines.contains_key(socket))
    }

    /// True if a real server of a virtual server is draining.
    pub(crate) fn is_draining(&self, frontend: &Frontend) -> bool {
        self.draining.contains(frontend)
    }

    fn rewrite_one(
        &mut self,
        op: Op,
        known: Known<'_>,
        terms: &dyn Fn(&Frontend) -> DrainTerms,
        now: Instant,
    ) -> Option<Op> {
        match op {
            Op::RemoveRealServer(frontend, socket) if frontend.protocol != Protocol::Udp => {
                self.drain(frontend, socket, known, terms(&frontend), now)
            }
            // It is still there, and its real servers have connections.
            Op::CreateVirtualServer(frontend, server) if self.is_kept(&frontend, known) => {
                self.stay(&frontend);
                Some(Op::ChangeVirtualServer(frontend, server))
            }
            Op::AddRealServer(frontend, server) => {
                self.stay(&frontend);
                let is_there = self.forget(&frontend, &server.socket());
                Some(if is_there && matches!(known, Known::Nothing) {
                    Op::ChangeRealServer(frontend, server)
                } else {
                    Op::AddRealServer(frontend, server)
                })
            }
            Op::ChangeRealServer(frontend, server) => {
                self.stay(&frontend);
                self.forget(&frontend, &server.socket());
                Some(Op::ChangeRealServer(frontend, server))
            }
            // With another scheduler there may be no time: `dh` goes on choosing what drains.
            Op::ChangeVirtualServer(frontend, _) => {
                self.postpone([frontend], now);
                Some(op)
            }
            Op::RemoveVirtualServer(frontend) => {
                self.take(&frontend);
                Some(op)
            }
            op => Some(op),
        }
    }

    /// Returns the operation that begins, continues or ends the draining of a real server; none if
    /// the kernel needs no change.
    fn drain(
        &mut self,
        frontend: Frontend,
        socket: SocketAddr,
        known: Known<'_>,
        terms: DrainTerms,
        now: Instant,
    ) -> Option<Op> {
        let DrainTerms { time, tracked_as } = terms;
        let found = known.real_server(&frontend, &socket);
        let before = self.draining.get(&frontend).and_then(|it| it.deadlines.get(&socket).copied());
        let deadline = match (before, found.and_then(|found| found.deadline)) {
            (Some(deadline), _) => deadline,
            // Further away it cannot be by right.
            (None, Some(noted)) => self.clock.instant(noted.min(self.clock.deadline(now + time))),
            (None, None) => self.clock.instant(self.clock.deadline(now + time)),
        };
        let idle = found.is_some_and(|found| found.weight == 0 && found.connections == 0);
        // What conntrack has, its own check finds out.
        let has_drained = idle && tracked_as.is_none() && self.held_until(&frontend, now).is_none();
        let is_over = now >= deadline || time.is_zero();
        // In a comparison that would count as what others did. Its own check will find it.
        let is_left_alone = before.is_some() && matches!(known, Known::Compared(..));
        if (has_drained || is_over) && !is_left_alone {
            self.over.extend(tracked_as.filter(|_| is_over).map(|seen| (seen, socket)));
            self.forget(&frontend, &socket);
            return Some(Op::RemoveRealServer(frontend, socket));
        }
        if before.is_none() {
            self.begin(frontend, socket, deadline, now);
            if let Some(draining) = self.draining.get_mut(&frontend) {
                draining.tracked_as = tracked_as;
                draining.connections += found.map_or(0, |found| found.connections);
            }
        }
        let noted = self.clock.deadline(deadline);
        let is_noted = found.is_some_and(|f| f.plain && f.weight == 0 && f.deadline == Some(noted));
        (!is_noted).then_some(Op::DrainRealServer(frontend, socket, noted))
    }

    /// Returns the time until which a virtual server's real servers stay even without connections, if
    /// that is to come.
    fn held_until(&self, frontend: &Frontend, now: Instant) -> Option<Instant> {
        self.held.get(&frontend.family()).copied().filter(|until| now < *until)
    }

    fn begin(&mut self, frontend: Frontend, socket: SocketAddr, deadline: Instant, now: Instant) {
        // However often one is added, the others are not put off.
        let due = [self.draining.due_time(&frontend), Some(deadline), Some(now + FIRST_PAUSE)];
        let due = due.into_iter().flatten().min().unwrap_or(now);
        let mut draining = self.take(&frontend).unwrap_or_default();
        draining.deadlines.insert(socket, deadline);
        draining.pause = FIRST_PAUSE;
        draining.since = Some(now);
        self.put(frontend, due, draining);
    }

    /// Stops tracking real servers that a reading of the kernel does not ask to remove: they are
    /// desired again, or gone, whichever program removed them.
    fn forget_wanted(&mut self, ops: &[Op], known: Known<'_>) {
        let (Known::Compared(frontend, _) | Known::One(frontend, _)) = known else { return };
        let unwanted: HashSet<(Frontend, SocketAddr)> = ops
            .iter()
            .filter_map(|op| match op {
                Op::RemoveRealServer(frontend, socket) => Some((*frontend, *socket)),
                _ => None,
            })
            .collect();
        // If it is to go all the same, an operation says so.
        self.set_removes_virtual_server(&frontend, false);
        let Some(draining) = self.draining.get_mut(&frontend) else { return };
        draining.deadlines.retain(|socket, _| unwanted.contains(&(frontend, *socket)));
        if draining.deadlines.is_empty() {
            self.take(&frontend);
        }
    }

    fn is_kept(&self, frontend: &Frontend, known: Known<'_>) -> bool {
        matches!(known, Known::Nothing) && self.is_draining(frontend)
    }

    /// Keeps a virtual server, which has real servers again.
    fn stay(&mut self, frontend: &Frontend) {
        self.set_removes_virtual_server(frontend, false);
    }

    /// Stops tracking a real server. Returns true if it was draining. A change calls this for each
    /// of its real servers, so the others are not walked.
    fn forget(&mut self, frontend: &Frontend, socket: &SocketAddr) -> bool {
        let Some(draining) = self.draining.get_mut(frontend) else { return false };
        let is_known = draining.deadlines.remove(socket).is_some();
        if draining.deadlines.is_empty() {
            self.take(frontend);
        }
        is_known
    }

    fn set_removes_virtual_server(&mut self, frontend: &Frontend, removes_virtual_server: bool) {
        if let Some(draining) = self.draining.get_mut(frontend) {
            self.n_removed_when_drained -= usize::from(draining.removes_virtual_server);
            self.n_removed_when_drained += usize::from(removes_virtual_server);
            draining.removes_virtual_server = removes_virtual_server;
        }
    }

    fn take(&mut self, frontend: &Frontend) -> Option<Draining> {
        let draining = self.draining.remove(frontend)?;
        self.n_removed_when_drained -= usize::from(draining.removes_virtual_server);
        Some(draining)
    }

    fn put(&mut self, frontend: Frontend, due: Instant, draining: Draining) {
        self.n_removed_when_drained += usize::from(draining.removes_virtual_server);
        self.draining.insert(frontend, due, draining);
    }
}

impl<'a> Known<'a> {
    fn real_server(self, frontend: &Frontend, socket: &SocketAddr) -> Option<&'a ActualRealServer> {
        let found = match self {
            Self::Nothing => None,
            Self::Compared(one, found) | Self::One(one, found) => {
                found.filter(|_| one == *frontend)
            }
        };
        found?.real_servers.get(socket)
    }
}

impl Draining {
    fn next_check(&self, now: Instant) -> Instant {
        let first_deadline = self.deadlines.values().min().copied();
        first_deadline.map_or(now, |deadline| deadline.min(now + self.pause))
    }
}
