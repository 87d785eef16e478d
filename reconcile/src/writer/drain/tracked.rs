//! Connections to draining real servers that conntrack carries, on the fast path.
//!
//! The kernel lists its table for a count, so a count runs beside the loop, and rests in proportion to what it took. No new
//! connections come to what drains: one count without any, begun after that, is enough.

use std::net::SocketAddr;
use std::time::Duration;

use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use tokio::time::Instant;
use tracing::warn;

use super::Drain;
use kernel::conntrack::{REST, TrackedCounts};
use kernel::worker::{KernelHandle, TrackedCount, TrackedCountUnderWay, WorkerGone};

/// Shortest time between two counts.
const PAUSE: Duration = Duration::from_secs(1);

/// Counts of these connections.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    /// The last count, with the time at which it began; none: there was none, or it failed.
    last: Option<(Instant, TrackedCounts)>,
    /// Number of connections of draining real servers in it.
    n_connections: u64,
    /// Count under way, with the time at which it began.
    under_way: Option<(Instant, TrackedCountUnderWay)>,
    is_wanted: bool,
    /// End of the pause after the last count.
    rested: Option<Instant>,
    /// True if the last count failed.
    is_unreadable: bool,
}

/// End of a count.
#[derive(Debug)]
pub(crate) struct TrackedCountEnded {
    began: Instant,
    count: TrackedCount,
}

impl Tracked {
    /// True if there may be connections from a frontend, as clients see it, to an endpoint that drains since then: no
    /// count after that has found none.
    pub(super) fn may_have(
        &self,
        frontend: &Frontend,
        endpoint: SocketAddr,
        since: Option<Instant>,
    ) -> bool {
        let counted = self.last.as_ref().filter(|(began, _)| since.is_none_or(|it| it <= *began));
        counted.is_none_or(|(_, counts)| counts.get(frontend, endpoint).total() > 0)
    }

    /// Has the connections counted, if some may be tracked.
    pub(super) fn want(&mut self, tracked_as: Option<Frontend>) {
        self.is_wanted |= tracked_as.is_some();
    }

    pub(super) fn n_connections(&self) -> u64 {
        self.n_connections
    }

    /// Returns the time of the next count; none while none is wanted.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.rested.filter(|_| self.is_wanted && self.under_way.is_none())
    }
}

impl Drain {
    /// Begins to count the connections that conntrack carries, if that is wanted, and the last count has rested.
    pub(in crate::writer) fn begin_count(&mut self, kernel: &KernelHandle, now: Instant) {
        let rests = self.tracked.rested.is_some_and(|rested| now < rested);
        if !self.tracked.is_wanted || rests || self.tracked.under_way.is_some() {
            return;
        }
        self.tracked.is_wanted = false;
        let frontends: HashSet<Frontend> =
            self.draining.iter().filter_map(|(_, draining)| draining.tracked_as).collect();
        if !frontends.is_empty() {
            self.tracked.under_way = Some((now, kernel.count_flows(frontends)));
        }
    }

    /// Waits for the end of the count under way; for ever if there is none.
    pub(in crate::writer) async fn count_ended(&mut self) -> Result<TrackedCountEnded, WorkerGone> {
        let Some((began, count)) = &mut self.tracked.under_way else {
            return std::future::pending().await;
        };
        let ended =
            TrackedCountEnded { count: count.await.map_err(|_| WorkerGone)?, began: *began };
        self.tracked.under_way = None;
        Ok(ended)
    }

    /// Takes in a count. What waited for it, and has no connections any more, is checked at once.
    pub(in crate::writer) fn end_count(&mut self, ended: TrackedCountEnded, now: Instant) {
        let TrackedCountEnded { began, count: TrackedCount { counts, took } } = ended;
        self.tracked.rested = Some(now + (took * REST).max(PAUSE));
        self.tracked.n_connections = 0;
        match counts {
            Ok(counts) => {
                self.tracked.is_unreadable = false;
                self.tracked.n_connections = self.n_tracked(&counts);
                self.tracked.last = Some((began, counts));
                let ready = self.without_tracked();
                self.postpone(ready, now);
            }
            Err(error) => {
                self.tracked.last = None;
                if !std::mem::replace(&mut self.tracked.is_unreadable, true) {
                    warn!(
                        "{error}. Until then, endpoints of Services on the fast path stay in IPVS \
                         until their drain deadline. Load the kernel module nf_conntrack_netlink"
                    );
                }
            }
        }
    }

    /// Returns the number of connections of draining real servers. An internal frontend and its frontend have the same.
    fn n_tracked(&self, counts: &TrackedCounts) -> u64 {
        let tracked = self.draining.iter().filter_map(|(_, it)| Some((it.tracked_as?, it)));
        let sockets = |(seen, draining): (Frontend, &super::Draining)| {
            draining.deadlines.keys().map(move |socket| (seen, *socket)).collect::<Vec<_>>()
        };
        let distinct: HashSet<(Frontend, SocketAddr)> = tracked.flat_map(sockets).collect();
        distinct.iter().map(|(seen, socket)| counts.get(seen, *socket).total()).sum()
    }

    /// Returns the virtual servers that waited for a count, and of which one has a real server without connections.
    fn without_tracked(&self) -> Vec<Frontend> {
        let waiting = self.draining.iter().filter(|(_, draining)| draining.waits_for_tracked);
        let is_ready = |draining: &super::Draining| {
            let has_none = |seen| {
                let mut sockets = draining.deadlines.keys();
                sockets.any(|socket| !self.tracked.may_have(&seen, *socket, draining.since))
            };
            draining.tracked_as.is_some_and(has_none)
        };
        waiting.filter(|(_, it)| is_ready(it)).map(|(frontend, _)| *frontend).collect()
    }
}

#[cfg(test)]
mod tests {
    use kernel::ReadError;
    use kernel::counters::ConnectionCount;
    use plan::actual::{ActualRealServer, ActualVirtualServer};
    use plan::kernel_objects::Deadline;
    use plan::model::Protocol;
    use plan::op::Op;

    use super::super::{FIRST_PAUSE, Known};
    use super::*;
    use crate::context::DrainTerms;

    const TIME: Duration = Duration::from_secs(900);
    const SECOND: Duration = Duration::from_secs(1);

    fn frontend(last: u8) -> Frontend {
        Frontend { address: [10, 96, 0, last].into(), protocol: Protocol::Tcp, port: 80 }
    }

    /// The frontend that clients ask, and its internal frontend.
    fn asked() -> Frontend {
        frontend(10)
    }

    fn led_to() -> Frontend {
        Frontend { address: [250, 96, 0, 10].into(), ..asked() }
    }

    fn endpoint() -> SocketAddr {
        SocketAddr::from(([10, 244, 0, 1], 8_080))
    }

    fn within(time: Duration) -> DrainTerms {
        DrainTerms { time, tracked_as: Some(asked()) }
    }

    fn removal(of: Frontend) -> Op {
        Op::RemoveRealServer(of, endpoint())
    }

    /// The endpoint with weight 0, and so many connections that IPVS knows.
    fn found(connections: u64, deadline: Option<Deadline>) -> ActualVirtualServer {
        let real = ActualRealServer { weight: 0, plain: true, deadline, connections };
        ActualVirtualServer {
            server: None,
            real_servers: [(endpoint(), real)].into_iter().collect(),
        }
    }

    /// The endpoint drains at both frontends since `now`.
    fn draining(now: Instant) -> Drain {
        let mut drain = Drain::new();
        let ops = vec![removal(asked()), removal(led_to())];
        let ops = drain.rewrite(ops, Known::Nothing, &|_| within(TIME), now);
        assert!(ops.iter().all(|op| matches!(op, Op::DrainRealServer(..))), "{ops:?}");
        drain
    }

    fn counted(drain: &mut Drain, began: Instant, n: Option<u64>) {
        let of = |active| (asked(), endpoint(), ConnectionCount { active, inactive: 0 });
        let unread = || ReadError::new("connections", "refused");
        let counts = n.map(|n| [of(n)].into_iter().collect()).ok_or_else(unread);
        let count = TrackedCount { counts, took: Duration::from_millis(20) };
        drain.end_count(TrackedCountEnded { began, count }, began + SECOND);
    }

    #[test]
    fn a_real_server_stays_until_conntrack_has_no_connections_either() {
        let now = Instant::now();
        let mut drain = draining(now);
        counted(&mut drain, now - SECOND, Some(0));
        let check =
            |drain: &mut Drain, of, at| drain.check(of, Some(&found(0, None)), within(TIME), at);
        for of in [asked(), led_to()] {
            assert_eq!(check(&mut drain, of, now + SECOND), [], "counted before it drained");
        }
        counted(&mut drain, now + SECOND, Some(2));
        assert_eq!(drain.n_connections(), 2, "each once");
        for of in [asked(), led_to()] {
            assert_eq!(check(&mut drain, of, now + 3 * SECOND), []);
        }
        assert!(drain.due(now + 4 * SECOND).is_empty());
        counted(&mut drain, now + 3 * SECOND, Some(0));
        let mut due = drain.due(now + 4 * SECOND);
        due.sort();
        assert_eq!(due, [asked(), led_to()], "what waited is checked at once");
        for of in due {
            assert_eq!(check(&mut drain, of, now + 4 * SECOND), [removal(of)]);
        }
        assert_eq!(drain.take_over(), [], "no connection is to be ended");
    }

    #[test]
    fn connections_that_ipvs_knows_hold_it_as_well_and_are_not_added() {
        let now = Instant::now();
        let mut drain = draining(now);
        counted(&mut drain, now + SECOND, Some(1));
        let ops = drain.check(led_to(), Some(&found(1, None)), within(TIME), now + 2 * SECOND);
        assert_eq!((ops, drain.n_connections()), (Vec::new(), 1));
        counted(&mut drain, now + 3 * SECOND, Some(0));
        let ops = drain.check(led_to(), Some(&found(1, None)), within(TIME), now + 4 * SECOND);
        assert_eq!(ops, []);
        // One of before the fast path.
        let ops = drain.check(asked(), Some(&found(5, None)), within(TIME), now + 4 * SECOND);
        assert_eq!((ops, drain.n_connections()), (Vec::new(), 5));
    }

    #[test]
    fn without_counts_a_real_server_stays_until_its_deadline_and_its_connections_go_with_it() {
        let now = Instant::now();
        let mut drain = draining(now);
        for passed in [1, 3, 600, 890] {
            counted(&mut drain, now + passed * SECOND, None);
            let at = now + (passed + 1) * SECOND;
            assert_eq!(drain.check(led_to(), Some(&found(0, None)), within(TIME), at), []);
        }
        let end = now + TIME + SECOND;
        let ops = drain.check(led_to(), Some(&found(0, None)), within(TIME), end);
        assert_eq!(ops, [removal(led_to())]);
        assert_eq!(drain.take_over(), [(asked(), endpoint())]);
        assert!(drain.take_over().is_empty() && drain.is_draining_at(&asked(), &endpoint()));
        let ops = drain.check(asked(), Some(&found(0, None)), within(TIME), end);
        assert_eq!(ops, [removal(asked())]);
        assert!(!drain.is_draining_at(&asked(), &endpoint()));
    }

    #[test]
    fn no_time_ends_connections_at_once() {
        let mut drain = Drain::new();
        let terms = |_: &Frontend| within(Duration::ZERO);
        let ops = drain.rewrite(vec![removal(led_to())], Known::Nothing, &terms, Instant::now());
        assert_eq!(
            (ops, drain.take_over()),
            (vec![removal(led_to())], vec![(asked(), endpoint())])
        );
    }

    #[test]
    fn after_a_restart_what_ipvs_has_forgotten_stays_until_the_same_deadline() {
        let now = Instant::now();
        let mut drain = draining(now);
        let noted = drain.clock.deadline(now + TIME);
        drain = Drain::new();
        let found = found(0, Some(noted));
        let known = Known::Compared(led_to(), Some(&found));
        let ops =
            drain.rewrite(vec![removal(led_to())], known, &|_| within(TIME), now + 60 * SECOND);
        assert_eq!(ops, []);
        assert_eq!(drain.next_due(), Some(now + 60 * SECOND + FIRST_PAUSE));
        let check = drain.check(led_to(), Some(&found), within(TIME), now + 61 * SECOND);
        assert_eq!(check, []);
        let end = drain.clock.instant(noted);
        assert_eq!(drain.check(led_to(), Some(&found), within(TIME), end), [removal(led_to())]);
        assert_eq!(drain.take_over(), [(asked(), endpoint())]);
    }
}
