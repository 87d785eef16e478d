//! Large Services are planned in parts, whatever made them wait, and others go between.

use super::*;
use crate::virtual_server::DesiredFrontend;

/// A Service at `10.96.0.1` with this many TCP ports, the first of which is this one.
fn mk_large(created: i64, first: u16, ports: u16) -> Service {
    let ports = first..first + ports;
    Service {
        cluster_v4: Some([10, 96, 0, 1].into()),
        ports: ports.map(|port| mk_port("http", Protocol::Tcp, port, None)).collect(),
        ..mk_named("large", created)
    }
}

fn of_large() -> Event {
    slice(mk_slice_of("large-1", "large", &["10.244.1.1"]))
}

fn of_small() -> Event {
    slice(mk_slice_of("web-1", "web", &["10.244.1.2"]))
}

/// Operations of each round.
fn rounds(planner: &mut Planner, limit: RoundLimit) -> Vec<Vec<Op>> {
    std::iter::from_fn(|| planner.is_dirty().then(|| planner.plan_round(limit).ops)).collect()
}

fn is_about_small(op: &Op) -> bool {
    op.subject() == Subject::VirtualServer(at([10, 96, 0, 9], 80))
}

fn at(address: [u8; 4], port: u16) -> Frontend {
    Frontend { address: address.into(), protocol: Protocol::Tcp, port }
}

const ONE_PART: RoundLimit =
    RoundLimit { services: 1, operations_per_service: 6, ..RoundLimit::NONE };

#[test]
fn at_the_start_others_go_between_the_parts_of_a_large_service() {
    let mut planner = mk_planner([]);
    // The large one is the oldest.
    for event in [service(mk_large(1, 1, 20)), of_large(), service(mk_service()), of_small()] {
        planner.apply(event);
    }
    planner.take_over(Actual::default(), Vec::new());
    let mut rounds_left = vec![planner.n_to_take_over()];
    let (mut ops, mut late) = (Vec::new(), Some(mk_large(9, 1, 1)));
    while planner.is_dirty() {
        ops.push(planner.plan_round(ONE_PART).ops);
        rounds_left.push(planner.n_to_take_over());
        // One that comes meanwhile waits for all that were there.
        if let Some(late) = late.take() {
            let (name, cluster_v4) = (ObjectName::new("ns", "late"), Some([10, 96, 0, 2].into()));
            planner.apply(service(Service { name, cluster_v4, ..late }));
        }
    }
    let small = ops.iter().position(|ops| ops.iter().any(is_about_small)).unwrap();
    assert_eq!(small, 1, "{ops:#?}");
    let bound = Op::BindAddress([10, 96, 0, 1].into());
    let complete = ops.iter().position(|ops| ops.contains(&bound)).unwrap();
    assert_eq!(complete, ops.len() - 2, "then the one that came late: {ops:#?}");
    // A port is three operations, and the address and the entry for it are two.
    assert!(ops.iter().all(|ops| ops.len() <= 3 * 2 + 2), "{ops:#?}");
    assert_eq!((rounds_left[0], rounds_left[1], rounds_left[2]), (2, 2, 1));
    assert_eq!(rounds_left.iter().position(|left| *left == 0), Some(complete + 1));
}

#[test]
fn one_that_changes_again_and_again_is_not_waited_for_at_the_start() {
    let mut planner = mk_planner([]);
    planner.apply(service(mk_large(1, 1, 20)));
    planner.take_over(Actual::default(), Vec::new());
    let turns = (0..200).take_while(|turn| {
        planner.plan_round(ONE_PART);
        let first = if turn % 2 == 0 { 101 } else { 1 };
        planner.apply(service(mk_large(1, first, 20)));
        planner.n_to_take_over() > 0
    });
    assert!((4..100).contains(&turns.count()));
}

#[test]
fn others_go_between_the_parts_of_a_large_service_that_was_made_anew() {
    let large = mk_large(1, 1, 20);
    let mut planner = mk_planner([service(large.clone()), of_large(), service(mk_service())]);
    // It keeps half of its ports.
    let anew = mk_large(2, 11, 20);
    for event in [Event::ServiceRemoved(large.name), service(anew), of_small()] {
        planner.apply(event);
    }
    let ops = rounds(&mut planner, ONE_PART);
    let small = ops.iter().position(|ops| ops.iter().any(is_about_small));
    assert_eq!(small, Some(1), "{ops:#?}");
    assert!(ops.len() > 5 && ops.iter().all(|ops| ops.len() <= 3 * 2), "{ops:#?}");
    let is_kept = |op: &&Op| {
        let mut kept = (11..=20).map(|port| Subject::VirtualServer(at([10, 96, 0, 1], port)));
        kept.any(|kept| kept == op.subject())
    };
    assert_eq!(ops.iter().flatten().find(is_kept), None);
    let mut scratch = mk_planner([service(mk_large(2, 11, 20)), of_large()]);
    plan(&mut scratch, [service(mk_service()), of_small()]);
    let fragment = |planner: &Planner| {
        let name = ObjectName::new("ns", "large");
        planner.desired().fragment(&name).cloned()
    };
    assert_eq!(fragment(&planner), fragment(&scratch));
}

/// Its age counts for each frontend from the part on that has it.
#[test]
fn one_that_was_made_anew_gives_its_frontends_to_older_ones_in_parts() {
    let large = Service { external: addresses(&["203.0.113.1"]), ..mk_large(1, 1, 20) };
    let other = Service {
        cluster_v4: Some([10, 96, 0, 2].into()),
        name: ObjectName::new("ns", "other"),
        created: 2,
        ..large.clone()
    };
    let mut planner = mk_planner([service(large.clone()), service(other.clone()), of_large()]);
    planner.apply(Event::ServiceRemoved(large.name.clone()));
    planner.apply(service(Service { created: 3, ..large.clone() }));
    let mut counts = Vec::new();
    while planner.is_dirty() {
        planner.plan_round(ONE_PART);
        let owners = (1..=20).map(|port| planner.desired().owner(&at([203, 0, 113, 1], port)));
        let owners: Vec<_> = owners.map(Option::unwrap).collect();
        counts.push(owners.iter().filter(|owner| ***owner == other.name).count());
    }
    assert!(counts.is_sorted() && counts.len() > 10, "{counts:?}");
    assert_eq!((counts.first(), counts.last()), (Some(&0), Some(&20)));
}

/// Services that claim the same are planned one after the other, a part in each round, in the order
/// of their reasons: so a frontend is never another one's than in the end.
#[test]
fn services_that_contend_are_planned_in_parts_and_none_has_what_is_anothers() {
    let contender = |number: u8| {
        let outer = || addresses(&["203.0.113.1", "203.0.113.2"]);
        let mut service = mk_large(number.into(), 1, 10);
        service.name = ObjectName::new("ns", format!("contender-{number}"));
        service.cluster_v4 = Some([10, 96, 1, number].into());
        // The oldest ones have no reason but that they say so.
        if number > 4 {
            service.kind = ServiceKind::LoadBalancer;
            service.load_balancer = outer();
        } else {
            service.external = outer();
        }
        service
    };
    let mut planner = mk_planner([]);
    let all = (1..=8).map(contender);
    let mut scratch = mk_planner(all.clone().map(service));
    plan(&mut scratch, [service(mk_service()), of_small()]);
    for event in all.map(service).chain([service(mk_service()), of_small()]) {
        planner.apply(event);
    }
    planner.take_over(Actual::default(), Vec::new());
    let (mut most, mut n_rounds, mut small) = (0, 0, None);
    while planner.is_dirty() {
        let ops = planner.plan_round(ONE_PART).ops;
        n_rounds += 1;
        most = most.max(ops.len());
        if ops.iter().any(is_about_small) {
            small.get_or_insert(n_rounds);
        }
        for frontend in planner.desired().frontends() {
            let owners = [&planner, &scratch].map(|planner| planner.desired().owner(frontend));
            assert_eq!(owners[0], owners[1], "{frontend} in round {n_rounds}");
        }
    }
    assert!(most <= 16 && n_rounds > 8, "{most} {n_rounds}");
    assert!(small.is_some_and(|small| small <= 2), "{small:?}");
    for frontend in scratch.desired().frontends() {
        assert!(planner.desired().owner(frontend).is_some(), "{frontend}");
    }
}

/// Between any two parts, all endpoints change.
#[test]
fn every_claim_of_a_service_that_goes_on_changing_is_a_number_of_parts_behind_at_most() {
    for (ports, endpoints, operations_per_service) in
        [(10, 20, 30), (10, 5, 30), (40, 2, 6), (3, 9, 100)]
    {
        let limit = RoundLimit { operations_per_service, ..ONE_PART };
        let mut planner = mk_planner([]);
        let generation = |number: usize| {
            let address = |it| format!("10.{}.{}.{it}", number / 200 + 1, number % 200);
            let addresses: Vec<String> = (1..=endpoints).map(address).collect();
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            slice(mk_slice_of("large-1", "large", &addresses))
        };
        planner.apply(service(mk_large(1, 1, ports)));
        // An entry, a virtual server, and each endpoint that comes and goes.
        let n_parts = usize::from(ports) * (2 * endpoints + 2) / operations_per_service + 2;
        let n_parts = n_parts.min(usize::from(ports) + 1);
        for number in 0..4 * n_parts {
            planner.apply(generation(number));
            planner.plan_round(limit);
            if number < n_parts {
                continue;
            }
            assert!(planner.desired().has_address([10, 96, 0, 1].into()), "{number}");
            for port in 1..=ports {
                let DesiredFrontend::Open(_, real) =
                    planner.desired().at(&at([10, 96, 0, 1], port))
                else {
                    panic!("port {port} is not there after {number} parts");
                };
                let IpAddr::V4(address) = real[0].address else { panic!("{real:?}") };
                let [_, high, low, _] = address.octets();
                let of = usize::from(high - 1) * 200 + usize::from(low);
                assert!(number - of <= n_parts, "port {port}: {of} after {number} of {n_parts}");
            }
        }
    }
}

#[test]
fn a_change_weighs_what_differs_however_large_the_service_is() {
    let addresses: Vec<String> = (1..=200).map(|it| format!("10.1.0.{it}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let of = |addresses| slice(mk_slice_of("large-1", "large", addresses));
    let mut planner = mk_planner([service(mk_large(1, 1, 10)), of(&addresses[..])]);
    planner.plan();
    planner.apply(of(&addresses[1..]));
    // Each of ten ports loses a real server.
    let limit = RoundLimit { operations_per_service: 20, ..ONE_PART };
    assert_eq!((planner.plan_round(limit).ops.len(), planner.is_dirty()), (10, false));
}

/// The API server's Service is in a round of its own, and what comes after the kernel was read waits for all that waited then.
#[test]
fn the_api_servers_service_is_taken_over_before_the_others_are_put_in_order() {
    let mut planner = Planner::new(Settings::new("n1"));
    let api_server = ServiceName::api_server();
    let events = [mk_named("young", 9), mk_named("old", 3)].map(service);
    events.into_iter().for_each(|event| planner.apply(event));
    planner.apply(service(Service { name: api_server.clone(), ..mk_named("kubernetes", 3) }));
    drop(planner.take_over(Actual::default(), Vec::new()));
    assert_eq!(planner.n_to_take_over(), 3);
    assert_eq!(planner.plan_round(RoundLimit::NONE).services, [api_server]);
    assert_eq!(planner.n_to_take_over(), 2);
    // The oldest by its making, but not there when the kernel was read.
    planner.apply(service(mk_named("late", 1)));
    let one = RoundLimit { services: 1, ..RoundLimit::NONE };
    for (name, left) in [("old", 1), ("young", 0), ("late", 0)] {
        let planned = planner.plan_round(one).services;
        assert_eq!((planned, planner.n_to_take_over()), (vec![ObjectName::new("ns", name)], left));
    }
}
