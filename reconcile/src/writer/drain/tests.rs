use std::net::IpAddr;

use plan::kernel_objects::{Deadline, RealServer, VirtualServer};
use plan::scheduler::SchedulerName;

use super::*;

const LONGEST: Duration = Duration::from_secs(900);
const SECOND: Duration = Duration::from_secs(1);

/// Terms with this time, where IPVS carries all connections.
fn within(time: Duration) -> DrainTerms {
    DrainTerms { time, tracked_as: None }
}

impl Drain {
    fn is_empty(&self) -> bool {
        self.draining.is_empty()
    }

    fn len(&self) -> usize {
        self.draining.iter().map(|(_, draining)| draining.deadlines.len()).sum()
    }
}

fn frontend(protocol: Protocol) -> Frontend {
    Frontend { address: IpAddr::from([10, 96, 0, 1]), protocol, port: 80 }
}

fn tcp() -> Frontend {
    frontend(Protocol::Tcp)
}

fn real_server(pod: u8, weight: u32) -> RealServer {
    RealServer { address: IpAddr::from([10, 244, 0, pod]), port: 8080, weight }
}

fn socket(pod: u8) -> SocketAddr {
    real_server(pod, 1).socket()
}

fn removal(pod: u8) -> Op {
    Op::RemoveRealServer(tcp(), socket(pod))
}

fn server() -> VirtualServer {
    VirtualServer { scheduler: SchedulerName::default(), persistence: None, scheduler_flags: 0 }
}

fn mk_found(
    real_servers: impl IntoIterator<Item = (u8, u32, Option<Deadline>, u64)>,
) -> ActualVirtualServer {
    let real_servers = real_servers.into_iter().map(|(pod, weight, deadline, connections)| {
        (socket(pod), ActualRealServer { weight, plain: true, deadline, connections })
    });
    ActualVirtualServer { server: Some(server()), real_servers: real_servers.collect() }
}

/// Pod 1, with weight 0 and so many connections.
fn quiet(connections: u64) -> ActualVirtualServer {
    mk_found([(1, 0, None, connections)])
}

fn planned(drain: &mut Drain, ops: Vec<Op>, now: Instant) -> Vec<Op> {
    drain.rewrite(ops, Known::Nothing, &|_| within(LONGEST), now)
}

fn compared(drain: &mut Drain, ops: Vec<Op>, found: &ActualVirtualServer, now: Instant) -> Vec<Op> {
    drain.rewrite(ops, Known::Compared(tcp(), Some(found)), &|_| within(LONGEST), now)
}

/// The deadline in the operation that drains pod 1.
#[track_caller]
fn deadline(ops: &[Op]) -> Deadline {
    match ops {
        [Op::DrainRealServer(frontend, at, deadline)] if (*frontend, *at) == (tcp(), socket(1)) => {
            *deadline
        }
        other => panic!("{other:?}"),
    }
}

/// Pod 1 drains since `now`.
fn drained(now: Instant) -> (Drain, Deadline) {
    let mut drain = Drain::new();
    let ops = planned(&mut drain, vec![removal(1)], now);
    (drain, deadline(&ops))
}

#[test]
fn a_tcp_real_server_stays_until_its_last_connection_has_ended() {
    let now = Instant::now();
    let (mut drain, _) = drained(now);
    assert!(drain.due(now).is_empty());
    let later = drain.next_due().unwrap();
    assert_eq!(drain.due(later), [tcp()]);
    assert!(drain.check(tcp(), Some(&quiet(3)), within(LONGEST), later).is_empty());
    assert_eq!(drain.check(tcp(), Some(&quiet(0)), within(LONGEST), later), [removal(1)]);
    assert!(drain.is_empty() && drain.next_due().is_none());
}

#[test]
fn its_time_may_run_out() {
    let now = Instant::now();
    let (mut drain, noted) = drained(now);
    let end = drain.clock.instant(noted);
    assert!(end - now >= LONGEST && end - now <= LONGEST + SECOND);
    assert!(drain.check(tcp(), Some(&quiet(3)), within(LONGEST), now + LONGEST / 2).is_empty());
    assert_eq!(drain.check(tcp(), Some(&quiet(3)), within(LONGEST), end), [removal(1)]);
}

#[test]
fn no_time_means_at_once() {
    let mut drain = Drain::new();
    let both = vec![removal(1), Op::RemoveVirtualServerWhenDrained(tcp())];
    let ops = drain.rewrite(both, Known::Nothing, &|_| within(Duration::ZERO), Instant::now());
    assert_eq!(ops, [removal(1), Op::RemoveVirtualServer(tcp())]);
    assert!(drain.is_empty());
}

#[test]
fn less_time_chosen_later_counts_from_then_on_and_more_does_not() {
    let now = Instant::now();
    let (mut drain, noted) = drained(now);
    assert!(drain.check(tcp(), Some(&quiet(3)), within(LONGEST * 2), now + SECOND).is_empty());
    let ops = drain.check(tcp(), Some(&quiet(3)), within(10 * SECOND), now + 3 * SECOND);
    let sooner = deadline(&ops);
    assert!(noted.second() - sooner.second() > 880);
    let end = drain.next_due().unwrap().max(drain.clock.instant(sooner));
    assert_eq!(drain.check(tcp(), Some(&quiet(3)), within(LONGEST), end), [removal(1)]);
    let (mut drain, _) = drained(now);
    let ops = drain.check(tcp(), Some(&quiet(3)), within(Duration::ZERO), now + SECOND);
    assert_eq!(ops, [removal(1)]);
}

#[test]
fn a_virtual_server_that_balances_otherwise_from_now_on_is_checked_at_once() {
    let now = Instant::now();
    let (mut drain, _) = drained(now);
    for _ in 0..6 {
        let check = drain.next_due().unwrap();
        drain.check(tcp(), Some(&quiet(3)), within(LONGEST), check);
    }
    let later = now + 31 * SECOND;
    let change = vec![Op::ChangeVirtualServer(tcp(), server())];
    assert_eq!(planned(&mut drain, change.clone(), later), change);
    assert_eq!(drain.due(later), [tcp()]);
    assert_eq!(drain.check(tcp(), Some(&quiet(3)), within(Duration::ZERO), later), [removal(1)]);
}

#[test]
fn checks_come_at_growing_distances_up_to_a_quarter_of_a_minute_and_at_the_deadline() {
    let start = Instant::now();
    let mut drain = Drain::new();
    let ops = drain.rewrite(vec![removal(1)], Known::Nothing, &|_| within(60 * SECOND), start);
    let end = drain.clock.instant(deadline(&ops));
    let mut checks = Vec::new();
    while let Some(check) = drain.next_due() {
        drain.check(tcp(), Some(&quiet(3)), within(60 * SECOND), check);
        checks.push(check);
    }
    assert_eq!(checks.pop(), Some(end));
    let seconds: Vec<u64> = checks.iter().map(|check| (*check - start).as_secs()).collect();
    assert_eq!(seconds, [1, 3, 7, 15, 30, 45, 60][..seconds.len()]);
    assert!(seconds.len() >= 6, "{seconds:?}");
}

#[test]
fn another_one_that_begins_to_drain_is_checked_soon() {
    let start = Instant::now();
    let (mut drain, _) = drained(start);
    for _ in 0..6 {
        let check = drain.next_due().unwrap();
        drain.check(tcp(), Some(&quiet(3)), within(LONGEST), check);
    }
    let now = start + 50 * SECOND;
    planned(&mut drain, vec![removal(2)], now);
    assert_eq!(drain.next_due(), Some(now + FIRST_PAUSE));
    planned(&mut drain, vec![removal(3)], now + FIRST_PAUSE / 2);
    assert_eq!(drain.next_due(), Some(now + FIRST_PAUSE), "the others are not put off");
}

#[test]
fn many_are_checked_in_portions() {
    let now = Instant::now();
    let mut drain = Drain::new();
    let frontends = (1..=1_000).map(|port| Frontend { port, ..tcp() });
    let ops = frontends.map(|frontend| Op::RemoveRealServer(frontend, socket(1))).collect();
    planned(&mut drain, ops, now);
    let later = now + SECOND;
    let mut checks = 0;
    while drain.next_due().is_some_and(|check| check <= later) {
        let due = drain.due(later);
        assert!((1..=CHECKS_AT_ONCE).contains(&due.len()));
        checks += due.len();
        for frontend in due {
            drain.check(frontend, Some(&quiet(1)), within(LONGEST), later);
        }
    }
    assert_eq!((checks, drain.len()), (1_000, 1_000));
    drain.postpone_due(later, later + 5 * SECOND);
    assert_eq!(drain.next_due(), Some(later + 2 * FIRST_PAUSE), "none was due");
    drain.postpone_due(later + 2 * FIRST_PAUSE, later + 7 * SECOND);
    assert_eq!(drain.next_due(), Some(later + 7 * SECOND));
    assert_eq!(drain.due(later + 7 * SECOND).len(), CHECKS_AT_ONCE);
}

#[test]
fn one_that_comes_back_gets_its_weight_back() {
    let now = Instant::now();
    let (mut drain, _) = drained(now);
    let back = Op::AddRealServer(tcp(), real_server(1, 4));
    assert_eq!(
        planned(&mut drain, vec![back], now),
        [Op::ChangeRealServer(tcp(), real_server(1, 4))]
    );
    assert!(drain.is_empty() && drain.next_due().is_none());
}

#[test]
fn a_comparison_changes_nothing_about_what_drains() {
    let now = Instant::now();
    let (mut drain, noted) = drained(now);
    let found = mk_found([(1, 0, Some(noted), 3)]);
    for passed in [30, 60, 900, 1_000] {
        let now = now + passed * SECOND;
        assert!(compared(&mut drain, vec![removal(1)], &found, now).is_empty(), "{passed}");
    }
    assert_eq!(
        drain.check(tcp(), Some(&found), within(LONGEST), now + 1_000 * SECOND),
        [removal(1)]
    );
}

#[test]
fn what_others_wrote_over_it_is_repaired_with_the_same_deadline() {
    let now = Instant::now();
    let (mut drain, noted) = drained(now);
    for strange in [(1, 1, None, 3), (1, 1, Some(noted), 3), (1, 0, None, 3)] {
        let later = now + 60 * SECOND;
        let ops = compared(&mut drain, vec![removal(1)], &mk_found([strange]), later);
        assert_eq!(deadline(&ops), noted, "{strange:?}");
    }
    let mut threshold = mk_found([(1, 0, None, 3)]);
    threshold.real_servers.get_mut(&socket(1)).unwrap().plain = false;
    assert_eq!(deadline(&compared(&mut drain, vec![removal(1)], &threshold, now)), noted);
}

#[test]
fn after_a_restart_the_noted_deadline_holds() {
    let now = Instant::now();
    let (drain, noted) = drained(now);
    let end = drain.clock.instant(noted);
    let found = mk_found([(1, 0, Some(noted), 3)]);
    let mut restarted = Drain::new();
    assert!(compared(&mut restarted, vec![removal(1)], &found, now + 600 * SECOND).is_empty());
    assert_eq!(restarted.len(), 1);
    let check = now + 800 * SECOND;
    assert!(restarted.check(tcp(), Some(&found), within(LONGEST), check).is_empty());
    assert_eq!(restarted.check(tcp(), Some(&found), within(LONGEST), end + SECOND), [removal(1)]);
    // The deadline passed while no process ran.
    let mut late = Drain::new();
    assert_eq!(compared(&mut late, vec![removal(1)], &found, end + SECOND), [removal(1)]);
    assert!(late.is_empty());
}

#[test]
fn after_a_restart_a_deadline_that_is_none_of_ours_is_not_believed() {
    let now = Instant::now();
    let mut drain = Drain::new();
    // None noted, as kube-proxy leaves it; and one that is further away than any we would choose.
    let ours = drain.clock.deadline(now + LONGEST);
    for noted in [None, Some(Deadline::LAST)] {
        let found = mk_found([(1, 0, noted, 2)]);
        let mut restarted = Drain::new();
        let written = deadline(&compared(&mut restarted, vec![removal(1)], &found, now));
        assert!(written.second().abs_diff(ours.second()) <= 1, "{noted:?}");
    }
    // One without connections needs no time.
    assert_eq!(compared(&mut drain, vec![removal(1)], &quiet(0), now), [removal(1)]);
}

#[test]
fn a_virtual_server_without_endpoints_goes_with_its_last_connection() {
    let now = Instant::now();
    let mut drain = Drain::new();
    let last_ones = || vec![removal(1), removal(2), Op::RemoveVirtualServerWhenDrained(tcp())];
    let ops = planned(&mut drain, last_ones(), now);
    let [Op::DrainRealServer(_, _, noted), Op::DrainRealServer(..)] = ops[..] else {
        panic!("{ops:?}")
    };
    let found = |connections| {
        mk_found([(1, 0, Some(noted), connections), (2, 0, Some(noted), 5 * connections)])
    };
    assert!(compared(&mut drain, last_ones(), &found(1), now + 30 * SECOND).is_empty());
    let one_left = mk_found([(1, 0, Some(noted), 0), (2, 0, Some(noted), 1)]);
    assert_eq!(
        drain.check(tcp(), Some(&one_left), within(LONGEST), now + 40 * SECOND),
        [removal(1)]
    );
    let last = mk_found([(2, 0, Some(noted), 0)]);
    assert_eq!(
        drain.check(tcp(), Some(&last), within(LONGEST), now + 50 * SECOND),
        [Op::RemoveVirtualServer(tcp())]
    );
    assert!(drain.is_empty());
}

#[test]
fn a_virtual_server_that_comes_back_while_it_drains_is_changed_and_stays() {
    let now = Instant::now();
    let mut drain = Drain::new();
    let last_ones = vec![removal(1), removal(2), Op::RemoveVirtualServerWhenDrained(tcp())];
    planned(&mut drain, last_ones, now);
    let back = vec![
        Op::CreateVirtualServer(tcp(), server()),
        Op::AddRealServer(tcp(), real_server(1, 1)),
        Op::AddRealServer(tcp(), real_server(3, 1)),
    ];
    assert_eq!(
        planned(&mut drain, back, now),
        [
            Op::ChangeVirtualServer(tcp(), server()),
            Op::ChangeRealServer(tcp(), real_server(1, 1)),
            Op::AddRealServer(tcp(), real_server(3, 1)),
        ]
    );
    // Pod 2 goes on draining, and goes alone.
    let found = mk_found([(1, 1, None, 4), (2, 0, None, 0), (3, 1, None, 4)]);
    assert_eq!(drain.check(tcp(), Some(&found), within(LONGEST), now + SECOND), [removal(2)]);
}

#[test]
fn what_nobody_claims_goes_at_once_also_while_it_drains() {
    let now = Instant::now();
    let (mut drain, _) = drained(now);
    let whole = Op::RemoveVirtualServer(tcp());
    assert_eq!(planned(&mut drain, vec![whole.clone()], now), [whole]);
    assert!(drain.is_empty() && drain.next_due().is_none());
}

#[test]
fn udp_and_what_has_no_time_is_removed_at_once() {
    let mut drain = Drain::new();
    for (protocol, time) in [(Protocol::Udp, LONGEST), (Protocol::Sctp, Duration::ZERO)] {
        let gone = Op::RemoveRealServer(frontend(protocol), socket(1));
        let ops = vec![gone.clone(), Op::RemoveVirtualServerWhenDrained(frontend(protocol))];
        assert_eq!(
            drain.rewrite(ops, Known::Nothing, &|_| within(time), Instant::now()),
            [gone, Op::RemoveVirtualServer(frontend(protocol))]
        );
    }
    assert!(drain.is_empty());
}

#[test]
fn a_reading_that_wants_it_or_misses_it_ends_the_draining() {
    let now = Instant::now();
    let (mut drain, _) = drained(now);
    assert!(compared(&mut drain, Vec::new(), &mk_found([(1, 1, None, 2)]), now).is_empty());
    assert!(drain.is_empty());
    // It drains, and another program has removed it: to be added, not to be changed.
    let (mut drain, _) = drained(now);
    let back = Op::AddRealServer(tcp(), real_server(1, 1));
    assert_eq!(compared(&mut drain, vec![back.clone()], &mk_found([]), now), [back]);
    assert!(drain.is_empty());
    // The whole virtual server has gone.
    let (mut drain, _) = drained(now);
    assert!(drain.check(tcp(), None, within(LONGEST), now + SECOND).is_empty() && drain.is_empty());
}

#[test]
fn a_removal_that_failed_is_tried_again_and_not_drained_once_more() {
    let now = Instant::now();
    let (mut drain, noted) = drained(now);
    let end = drain.clock.instant(noted);
    let found = mk_found([(1, 0, Some(noted), 3)]);
    assert_eq!(drain.check(tcp(), Some(&found), within(LONGEST), end), [removal(1)]);
    // The kernel said no.
    let known = Known::One(tcp(), Some(&found));
    let ops = drain.rewrite(vec![removal(1)], known, &|_| within(LONGEST), end + SECOND);
    assert_eq!(ops, [removal(1)]);
    // The same for one whose writing of weight 0 failed: the deadline is that of the first time.
    let (mut drain, noted) = drained(now);
    let unwritten = mk_found([(1, 1, None, 3)]);
    let known = Known::One(tcp(), Some(&unwritten));
    let ops = drain.rewrite(vec![removal(1)], known, &|_| within(LONGEST), now + 5 * SECOND);
    assert_eq!(deadline(&ops), noted);
}

#[test]
fn a_family_that_is_held_keeps_what_has_drained_until_then_or_the_deadline() {
    let now = Instant::now();
    let mut drain = Drain::new();
    drain.hold(Family::V4, now + 10 * SECOND);
    // Weight 0 and no connection, as after a restart.
    let ops = compared(&mut drain, vec![removal(1)], &quiet(0), now);
    let noted = deadline(&ops);
    let found = mk_found([(1, 0, Some(noted), 0)]);
    let mut last = now;
    while let Some(due) = drain.next_due() {
        last = due;
        let ops = drain.check(tcp(), Some(&found), within(LONGEST), due);
        assert_eq!(ops.is_empty(), due < now + 10 * SECOND, "{:?}", due - now);
    }
    assert_eq!(last, now + 10 * SECOND);
    // Time that is up is up.
    drain.hold(Family::V4, now + 60 * SECOND);
    let noted = deadline(&compared(&mut drain, vec![removal(1)], &quiet(1), now));
    let end = drain.clock.instant(noted).min(now + 30 * SECOND);
    assert_eq!(drain.check(tcp(), Some(&quiet(1)), within(Duration::ZERO), end), [removal(1)]);
    // The other family goes on as always.
    drain.hold(Family::V6, now + 600 * SECOND);
    let later = now + 70 * SECOND;
    assert_eq!(compared(&mut drain, vec![removal(1)], &quiet(0), later), [removal(1)]);
}
