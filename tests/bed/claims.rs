//! Several frontends that are the same, or have the same internal frontend.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use bed::{Connection, Namespace, Protocol, Question, Service};

use crate::fixture::{Bed, PATIENCE, TARGET, assert_shares, ip};

/// Asks without a pause until this server answers. Every question gets an answer.
fn changes_without_a_gap(from: &Namespace, target: (IpAddr, u16), server: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = bed::ask(from, Question::tcp(target));
        let answer = answer.unwrap_or_else(|error| panic!("{target:?}: {error}"));
        if answer.server == server {
            return;
        }
        assert!(Instant::now() < deadline, "{} still answers at {target:?}", answer.server);
    }
}

/// A tenant's Service names, as its external addresses, a cluster address and the node's own with
/// a node port, long before they are anybody's. Of two that are as old, the first name wins.
#[test]
fn what_the_api_server_gives_cannot_be_taken_by_an_external_address() {
    let bed = Bed::new();
    let targets = [(ip("10.96.0.10"), 53), (ip("192.168.0.11"), 30_080)];
    let mut tenant = Service::new("attic", ip("10.96.0.66"))
        .port(Protocol::Tcp, 53, TARGET)
        .port(Protocol::Udp, 53, TARGET)
        .port(Protocol::Tcp, 30_080, TARGET)
        .pods([bed.pod(1, 2)]);
    tenant.external = targets.map(|(address, _)| address).to_vec();
    let dns = Service::new("kube-dns", ip("10.96.0.10"))
        .node_port(Protocol::Tcp, 53, TARGET, 30_080)
        .port(Protocol::Udp, 53, TARGET)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    bed.manifests.apply(&tenant).unwrap();
    bed.manifests.apply(&dns).unwrap();
    let _proxy = bed.start(&[]);
    let all_clients_ask = || {
        for target in targets {
            let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
            assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
        }
    };
    all_clients_ask();

    bed.manifests.remove("kube-dns").unwrap();
    for target in targets {
        bed.wait_until("the tenant has what no other Service wants", || {
            bed::ask(bed.client(), Question::tcp(target)).is_ok_and(|it| it.server == "pod1-2")
        });
    }
    // One that goes on asking from the same port.
    let question = Question::udp(targets[0]).within(Duration::from_secs(1));
    let mut connection = Connection::open(bed.client(), question).unwrap();
    assert_eq!(connection.say().unwrap().server, "pod1-2");
    let only_one = Service { endpoints: Vec::new(), ..dns.clone() }.pods([bed.pod(1, 1)]);
    bed.manifests.apply(&only_one).unwrap();
    for target in targets {
        changes_without_a_gap(bed.client(), target, "pod1-1");
    }
    bed.wait_until("its flow moves", || {
        connection.say().is_ok_and(|answer| answer.server == "pod1-1")
    });
    bed.manifests.apply(&dns).unwrap();
    bed.wait_until("both endpoints are there", || {
        bed.virtual_servers().matches("10.244.2.11:8080").count() >= 4
    });
    all_clients_ask();
}

/// Addresses that differ in the first four bits only, and one whose internal frontend would be the
/// broadcast address (255.255.255.255): the first has what the policy promises, with and without an
/// endpoint here, and the others serve local clients as they serve clients outside.
#[test]
fn a_frontend_has_an_internal_frontend_of_its_own_or_goes_without() {
    let bed = Bed::new();
    let local = |name: &str, cluster: &str, address: &str| {
        let mut service = Service::new(name, ip(cluster)).port(Protocol::Tcp, 80, TARGET);
        service.load_balancer = vec![ip(address)];
        service.more = vec!["externalTrafficPolicy: Local".into()];
        service
    };
    let services = [
        (local("a", "10.96.0.21", "203.0.113.5"), [bed.pod(1, 1), bed.pod(2, 1)]),
        (local("b", "10.96.0.22", "219.0.113.5"), [bed.pod(1, 2), bed.pod(2, 2)]),
        (local("c", "10.96.0.23", "15.255.255.255"), [bed.pod(1, 1), bed.pod(2, 2)]),
    ];
    for (service, pods) in &services {
        bed.manifests.apply(&service.clone().pods(*pods)).unwrap();
        let address = service.load_balancer[0].to_string();
        bed.client().command("ip", &["route", "replace", &address, "via", "192.168.0.11"]).unwrap();
    }
    let _proxy = bed.start(&["--cluster-cidr", "10.244.0.0/16"]);
    let outside: IpAddr = bed.cluster.client(1).unwrap().ipv4.into();
    for (service, [here, away]) in &services {
        let target = (service.load_balancer[0], 80);
        for from in [&bed.pod(1, 2).namespace, bed.node()] {
            let tally = bed.ask(from, Protocol::Tcp, target, 4);
            if service.name == "a" {
                assert_shares(&tally, &[(&here.name, 2), (&away.name, 2)]);
            } else {
                assert_shares(&tally, &[(&here.name, 4)]);
            }
        }
        let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
        assert_shares(&tally, &[(&here.name, 4)]);
        let answer = bed::ask(bed.client(), Question::tcp(target)).unwrap();
        assert_eq!(answer.seen_source.ip(), outside, "{}", service.name);
    }
    let bound = bed.bound();
    assert!(!bound.contains(&"255.255.255.255/32".to_owned()), "{bound:?}");

    for (service, [_, away]) in &services {
        bed.manifests.apply(&service.clone().pods([*away])).unwrap();
        let target = (service.load_balancer[0], 80);
        bed.wait_until("clients outside hear nothing", || {
            let question = Question::tcp(target).within(Duration::from_millis(300));
            bed::ask(bed.client(), question).is_err()
        });
        for from in [&bed.pod(1, 2).namespace, bed.node()] {
            if service.name == "a" {
                let tally = bed.ask(from, Protocol::Tcp, target, 4);
                assert_shares(&tally, &[(&away.name, 4)]);
            } else {
                let question = Question::tcp(target).within(Duration::from_millis(300));
                assert!(bed::ask(from, question).is_err(), "{}", service.name);
            }
        }
    }
}
