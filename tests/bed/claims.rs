//! Several frontends that are the same, or have the same twin.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use bed::{Connection, Namespace, Protocol, Question, Service};

use crate::fixture::{Bed, PATIENCE, TARGET, assert_shares, ip};

/// Asks without a pause until this server answers. Every question is answered by somebody.
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
    let everybody_asks = || {
        for target in targets {
            let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
            assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
        }
    };
    everybody_asks();

    bed.manifests.remove("kube-dns").unwrap();
    for target in targets {
        bed.wait_until("the tenant has what nobody else wants", || {
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
    everybody_asks();
}
