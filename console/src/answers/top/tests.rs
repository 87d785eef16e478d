use std::net::IpAddr;

use plan::model::Protocol;

use super::*;
use kernel::traffic::TrafficCounters;

fn frontend(last: u8) -> Frontend {
    Frontend { address: IpAddr::from([10, 96, 0, last]), protocol: Protocol::Tcp, port: 80 }
}

fn counted(connections: u64, packets: u64, bytes: u64) -> TrafficCounters {
    TrafficCounters {
        connections,
        incoming_packets: packets,
        outgoing_packets: packets,
        incoming_bytes: bytes,
        outgoing_bytes: 0,
    }
}

fn reading<const N: usize>(at: Instant, servers: [(u8, TrafficCounters); N]) -> Reading {
    let servers = servers.into_iter().map(|(last, counted)| (frontend(last), counted));
    Reading { at, took: Duration::ZERO, servers: servers.collect() }
}

fn real_server(connections: u64, estimate: f64) -> RealServerTraffic {
    RealServerTraffic {
        endpoint: "10.244.1.11:8080".parse().unwrap(),
        counted: counted(connections, 0, 0),
        estimated: Rates { connections: estimate, ..Rates::default() },
        active: 3,
        inactive: 1,
        weight: 1,
    }
}

/// Two readings, 2 s apart: `shop/cart` has two virtual servers, and a foreign program one.
fn kept() -> Kept {
    let now = Instant::now();
    let before = [(1, counted(0, 0, 0)), (2, counted(10, 0, 0)), (9, counted(5, 5, 5))];
    let after = [(1, counted(4, 20, 600)), (2, counted(16, 0, 0)), (9, counted(1, 5, 5))];
    let cart = ServiceName::new("shop", "cart");
    Kept {
        former: Some(reading(now, before)),
        last: Some(reading(now + PERIOD, after)),
        owners: [(frontend(1), cart.clone()), (frontend(2), cart)].into(),
        ..Kept::default()
    }
}

fn names(top: &Top) -> Vec<Option<&str>> {
    top.services.iter().map(|it| it.service.as_deref()).collect()
}

#[test]
fn rates_are_differences_of_all_of_a_services_virtual_servers() {
    let (top, _) = kept().top(&Asked::default());
    assert_eq!(names(&top), [Some("shop/cart"), None]);
    let cart = &top.services[0];
    assert_eq!(cart.virtual_servers, 2);
    assert_eq!((cart.rates.connections, cart.rates.packets_in), (5.0, 10.0));
    assert_eq!((cart.rates.bytes_in, cart.rates.bytes_out), (300.0, 0.0));
    // Counters of a virtual server that was made anew begin at 0.
    assert_eq!(top.services[1].rates.connections, 0.5);
    assert_eq!(top.all.connections, 5.5);
    assert_eq!((top.seconds, top.total), (2.0, 2));
}

#[test]
fn the_order_and_the_filter_are_those_that_were_asked_for() {
    let by_name = Asked { sort: Sort::Name, ..Asked::default() };
    assert_eq!(names(&kept().top(&by_name).0), [None, Some("shop/cart")]);
    let filtered = Asked { filter: "shop/".to_owned(), ..Asked::default() };
    let (top, _) = kept().top(&filtered);
    assert_eq!((names(&top), top.total), (vec![Some("shop/cart")], 1));
    let none = Asked { filter: "x".to_owned(), ..Asked::default() };
    assert!(kept().top(&none).0.services.is_empty());
}

#[test]
fn endpoints_add_up_over_the_frontends_of_their_service() {
    let mut kept = kept();
    let (mut top, frontends) = kept.top(&Asked::default());
    assert_eq!(frontends.len(), 3);
    let first = Asked { limit: Some(1), ..Asked::default() };
    let (cart, frontends) = kept.top(&first);
    assert_eq!((cart.services.len(), cart.total, frontends.len()), (1, 2, 2));
    let of_both =
        vec![(frontend(1), vec![real_server(2, 1.0)]), (frontend(2), vec![real_server(2, 0.5)])];
    kept.real_servers.add(of_both, Instant::now());
    kept.add_endpoints(&mut top, &frontends, Sort::Connections);
    let cart = &top.services[0];
    assert_eq!((cart.active, cart.inactive, cart.endpoints.len()), (6, 2, 1));
    assert_eq!(cart.endpoints[0].rates.connections, 1.5, "as the kernel estimates it");
}

#[test]
fn a_reading_is_due_two_seconds_after_the_last_one_whoever_asks() {
    let mut kept = Kept::default();
    let now = Instant::now();
    assert_eq!(kept.due(now), Due::Both);
    kept.last = Some(reading(now, []));
    // Its asker is gone.
    assert_eq!(kept.due(now + PERIOD / 4), Due::Reading(PERIOD * 3 / 4));
    kept.former = Some(reading(now - PERIOD, []));
    for early in [0, 400, 900, 1_000, 1_999].map(Duration::from_millis) {
        assert_eq!(kept.due(now + early), Due::Nothing, "{early:?}");
    }
    assert_eq!(kept.due(now + PERIOD), Due::Reading(Duration::ZERO));
    assert_eq!(kept.due(now + STALE * 2), Due::Both);
}

#[test]
fn readings_that_take_long_come_less_often() {
    let mut kept = kept();
    let last = kept.last.as_mut().unwrap();
    last.took = Duration::from_secs(1);
    let at = last.at;
    assert_eq!(kept.due(at + Duration::from_secs(99)), Due::Nothing);
    assert_eq!(kept.due(at + Duration::from_secs(100)), Due::Reading(Duration::ZERO));
}

#[test]
fn rates_of_endpoints_are_of_two_seconds_or_more() {
    let mut known = RealServers::default();
    let now = Instant::now();
    let shown = [frontend(1), frontend(2)];
    assert_eq!(known.next_to_read(&shown, now), shown);
    known.add(vec![(frontend(1), vec![real_server(10, 7.0)])], now);
    let rate = |known: &RealServers| -> f64 {
        known.of(&frontend(1)).map(|(_, rates)| rates.connections).sum()
    };
    assert_eq!(rate(&known), 7.0, "as the kernel estimates it");
    // A key is pressed: what is known stays, and what is shown now is read.
    assert_eq!(known.next_to_read(&shown, now + PERIOD / 2), [frontend(2)]);
    assert_eq!(rate(&known), 7.0);
    assert_eq!(known.next_to_read(&shown[..1], now + PERIOD), [frontend(1)]);
    known.add(vec![(frontend(1), vec![real_server(20, 7.0)])], now + PERIOD);
    assert_eq!(rate(&known), 5.0);
    known.next_to_read(&[], now + PERIOD + STALE);
    assert_eq!(known.of(&frontend(1)).count(), 0, "it is no base any more");
}

#[test]
fn connections_that_conntrack_carries_count_once_and_not_as_ipvs_knows_them() {
    let mut kept = kept();
    let (mut top, shown) = kept.top(&Asked::default());
    let now = Instant::now();
    let read = shown.iter().map(|it| (*it, vec![real_server(10, 4.0)])).collect();
    kept.real_servers.add(read, now);
    let gone = "10.244.9.9:8080".parse().unwrap();
    let count = |active, inactive| ConnectionCount { active, inactive };
    let counts = [
        (frontend(1), real_server(0, 0.0).endpoint, count(20, 2)),
        (frontend(1), gone, count(1, 0)),
        (frontend(7), gone, count(9, 9)),
    ];
    // The second virtual server is the internal frontend of the first one.
    let tracked = Some(Tracked::of([(frontend(2), frontend(1))], counts));
    let frontends = shown.iter().copied().collect();
    kept.tracked = Some(TrackedReading { at: now, frontends, tracked });
    kept.add_endpoints(&mut top, &shown, Sort::Name);
    let cart = top.services.iter().find(|it| it.service.is_some()).unwrap();
    assert_eq!((cart.active, cart.inactive), (3 + 20 + 1, 1 + 2));
    let of = |endpoint| cart.endpoints.iter().find(|it| it.endpoint == endpoint).unwrap();
    assert_eq!((of(gone).active, of(gone).weight), (1, 0));
    let there = of(real_server(0, 0.0).endpoint);
    assert_eq!((there.active, there.inactive, there.weight), (23, 3, 1));
}
