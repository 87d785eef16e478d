//! Letting connections end: a TCP real server that is no longer wanted gets no new connections
//! (weight 0) and is removed when its last one has ended, or when its time is up.
//!
//! Removing it at once would cut every connection it has: the kernel drops a packet whose real
//! server is gone. UDP and SCTP real servers are removed at once, as kube-proxy does, since a
//! client that goes on sending would otherwise keep a dead one for ever.
//!
//! The kernel's weight 0 is the only record of it that outlives us: after a restart a real server
//! that is not wanted is drained like any other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use plan::actual::{Actual, ActualVirtualServer};
use plan::kernel::{Frontend, RealServer};
use plan::model::Protocol;
use plan::op::Op;
use tokio::time::Instant;

/// How often draining real servers are looked at. One small listing for each virtual server
/// concerned, and none when there are none.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// The real servers that are draining.
#[derive(Debug)]
pub struct Drain {
    longest: Duration,
    draining: BTreeMap<Frontend, BTreeMap<SocketAddr, Instant>>,
    next_check: Instant,
}

// === impl Drain ===

impl Drain {
    /// `longest` is how long connections may take to end.
    #[must_use]
    pub fn new(longest: Duration, now: Instant) -> Self {
        Self { longest, draining: BTreeMap::new(), next_check: now }
    }

    /// Turns removals of TCP real servers into draining ones, and the return of a draining one
    /// into its weight's return, which leaves its connections untouched.
    ///
    /// `actual` is what the operations were computed from, if they were computed from a reading:
    /// what has weight 0 there already is not written again.
    pub fn rewrite(&mut self, ops: Vec<Op>, actual: Option<&Actual>, now: Instant) -> Vec<Op> {
        if self.draining.is_empty() {
            self.next_check = now + CHECK_PERIOD;
        }
        ops.into_iter().filter_map(|op| self.rewrite_one(op, actual, now)).collect()
    }

    /// When to look next; none while nothing is draining.
    #[must_use]
    pub fn next_check(&self) -> Option<Instant> {
        (!self.draining.is_empty()).then_some(self.next_check)
    }

    /// The virtual servers to look at, if the time has come.
    pub fn due(&mut self, now: Instant) -> Vec<Frontend> {
        if self.draining.is_empty() || now < self.next_check {
            return Vec::new();
        }
        self.next_check = now + CHECK_PERIOD;
        self.draining.keys().copied().collect()
    }

    /// Says what to do about a virtual server's draining real servers, and forgets those that are
    /// done with.
    pub fn check(
        &mut self,
        frontend: Frontend,
        actual: Option<&ActualVirtualServer>,
        now: Instant,
    ) -> Vec<Op> {
        let Some(real_servers) = self.draining.get_mut(&frontend) else { return Vec::new() };
        let mut ops = Vec::new();
        real_servers.retain(|socket, deadline| {
            match actual.and_then(|actual| actual.real_servers.get(socket)) {
                None => false,
                Some(found) if found.connections == 0 || now >= *deadline => {
                    ops.push(Op::RemoveRealServer(frontend, *socket));
                    false
                }
                Some(_) => true,
            }
        });
        if real_servers.is_empty() {
            self.draining.remove(&frontend);
        }
        ops
    }

    /// How many real servers are draining.
    #[must_use]
    pub fn len(&self) -> usize {
        self.draining.values().map(BTreeMap::len).sum()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.draining.is_empty()
    }

    fn rewrite_one(&mut self, op: Op, actual: Option<&Actual>, now: Instant) -> Option<Op> {
        match op {
            Op::RemoveRealServer(frontend, socket) if frontend.protocol == Protocol::Tcp => {
                let found = actual
                    .and_then(|actual| actual.virtual_servers.get(&frontend))
                    .and_then(|server| server.real_servers.get(&socket));
                let deadline = now + self.longest;
                self.draining.entry(frontend).or_default().entry(socket).or_insert(deadline);
                let quiet = RealServer { address: socket.ip(), port: socket.port(), weight: 0 };
                let written = found.is_some_and(|found| found.weight == 0);
                (!written).then_some(Op::ChangeRealServer(frontend, quiet))
            }
            Op::AddRealServer(frontend, server) => {
                let draining = self.forget(&frontend, &server.socket());
                Some(if draining {
                    Op::ChangeRealServer(frontend, server)
                } else {
                    Op::AddRealServer(frontend, server)
                })
            }
            Op::ChangeRealServer(frontend, server) => {
                self.forget(&frontend, &server.socket());
                Some(Op::ChangeRealServer(frontend, server))
            }
            Op::RemoveVirtualServer(frontend) | Op::RetireVirtualServer(frontend) => {
                self.draining.remove(&frontend);
                Some(Op::RemoveVirtualServer(frontend))
            }
            op => Some(op),
        }
    }

    fn forget(&mut self, frontend: &Frontend, socket: &SocketAddr) -> bool {
        let Some(real_servers) = self.draining.get_mut(frontend) else { return false };
        let known = real_servers.remove(socket).is_some();
        if real_servers.is_empty() {
            self.draining.remove(frontend);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::IpAddr;

    use plan::actual::ActualRealServer;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(900);

    fn frontend(protocol: Protocol) -> Frontend {
        Frontend { address: IpAddr::from([10, 96, 0, 1]), protocol, port: 80 }
    }

    fn real_server(weight: u32) -> RealServer {
        RealServer { address: IpAddr::from([10, 244, 0, 1]), port: 8080, weight }
    }

    fn found(weight: u32, connections: u64) -> ActualVirtualServer {
        let real_server_found = ActualRealServer { weight, plain: true, connections };
        ActualVirtualServer {
            server: None,
            real_servers: HashMap::from([(real_server(1).socket(), real_server_found)]),
        }
    }

    fn drained(now: Instant) -> Drain {
        let mut drain = Drain::new(LONGEST, now);
        let tcp = frontend(Protocol::Tcp);
        let removal = Op::RemoveRealServer(tcp, real_server(1).socket());
        assert_eq!(
            drain.rewrite(vec![removal], None, now),
            [Op::ChangeRealServer(tcp, real_server(0))]
        );
        drain
    }

    #[test]
    fn a_tcp_real_server_stays_until_its_last_connection_has_ended() {
        let now = Instant::now();
        let mut drain = drained(now);
        let tcp = frontend(Protocol::Tcp);
        assert!(drain.due(now).is_empty());
        let later = drain.next_check().unwrap();
        assert_eq!(drain.due(later), [tcp]);
        assert!(drain.check(tcp, Some(&found(0, 3)), later).is_empty());
        assert_eq!(
            drain.check(tcp, Some(&found(0, 0)), later),
            [Op::RemoveRealServer(tcp, real_server(0).socket())]
        );
        assert!(drain.is_empty() && drain.next_check().is_none());
    }

    #[test]
    fn its_time_may_run_out() {
        let now = Instant::now();
        let mut drain = drained(now);
        let tcp = frontend(Protocol::Tcp);
        assert!(drain.check(tcp, Some(&found(0, 3)), now + LONGEST / 2).is_empty());
        assert_eq!(drain.check(tcp, Some(&found(0, 3)), now + LONGEST).len(), 1);
    }

    #[test]
    fn one_that_comes_back_gets_its_weight_back() {
        let mut drain = drained(Instant::now());
        let tcp = frontend(Protocol::Tcp);
        assert_eq!(
            drain.rewrite(vec![Op::AddRealServer(tcp, real_server(1))], None, Instant::now()),
            [Op::ChangeRealServer(tcp, real_server(1))]
        );
        assert!(drain.is_empty());
    }

    #[test]
    fn after_a_restart_what_has_weight_0_is_drained_without_a_write() {
        let now = Instant::now();
        let tcp = frontend(Protocol::Tcp);
        let actual =
            Actual { virtual_servers: HashMap::from([(tcp, found(0, 2))]), ..Actual::default() };
        let mut drain = Drain::new(LONGEST, now);
        let removal = Op::RemoveRealServer(tcp, real_server(1).socket());
        assert!(drain.rewrite(vec![removal], Some(&actual), now).is_empty());
        assert_eq!(drain.len(), 1);
    }

    #[test]
    fn udp_and_whole_virtual_servers_are_removed_at_once() {
        let now = Instant::now();
        let mut drain = drained(now);
        let udp = Op::RemoveRealServer(frontend(Protocol::Udp), real_server(1).socket());
        let whole = Op::RemoveVirtualServer(frontend(Protocol::Tcp));
        assert_eq!(drain.rewrite(vec![udp.clone(), whole.clone()], None, now), [udp, whole]);
        assert!(drain.is_empty());
    }
}
