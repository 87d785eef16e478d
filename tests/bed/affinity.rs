//! Clients come back to the endpoint that they had, for as long as they should.

use std::thread;
use std::time::Duration;

use bed::{ClusterSpec, Protocol, Service};

use crate::fixture::{Bed, TARGET, ip};

const AFFINITY: u32 = 4;

#[test]
fn affinity_sticks_and_expires() {
    let bed = Bed::with(&ClusterSpec { clients: 2, ..ClusterSpec::default() });
    let mut service = Service::new("sticky", ip("10.96.0.30"))
        .port(Protocol::Udp, 53, TARGET)
        .port(Protocol::Tcp, 80, TARGET)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    service.affinity = Some(AFFINITY);
    bed.manifests.apply(&service).unwrap();
    // The kernel keeps a client's template for at least as long as its last flow.
    let _proxy = bed.start(&["--ipvs-udp-timeout", "1s"]);
    assert!(bed.virtual_servers().contains("persistent 4"), "{}", bed.virtual_servers());
    let target = (ip("10.96.0.30"), 53);
    let first = bed.ask(bed.client(), Protocol::Udp, target, 6);
    assert_eq!(first.servers().len(), 1, "{first}");
    // Another client gets the next one: it is the client's address that counts.
    let other_client = &bed.cluster.client(2).unwrap().namespace;
    let other = bed.ask(other_client, Protocol::Udp, target, 6);
    assert_eq!(other.servers().len(), 1, "{other}");
    assert_ne!(first.servers(), other.servers());
    // Round robin goes on where it was, so both clients' memory is over when each gets the other's.
    thread::sleep(Duration::from_secs(u64::from(AFFINITY) + 3));
    let later: Vec<_> = (0..2).map(|_| bed.ask(other_client, Protocol::Udp, target, 1)).collect();
    assert_eq!(later[0].servers(), later[1].servers(), "it sticks again");
    let afterwards = bed.ask(bed.client(), Protocol::Udp, target, 3);
    assert_eq!(afterwards.servers().len(), 1, "{afterwards}");
    assert_ne!(afterwards.servers(), later[0].servers());
    assert_ne!(afterwards.servers(), first.servers(), "the memory of the first time is over");
}

#[test]
fn affinity_holds_for_tcp_in_both_families() {
    let bed = Bed::new();
    let mut service = Service::new("sticky", ip("10.96.0.30"))
        .port(Protocol::Tcp, 80, TARGET)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    service.cluster.push(ip("fd00:96::30"));
    service.affinity = Some(600);
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    for target in ["10.96.0.30", "fd00:96::30"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target), 80), 6);
        assert_eq!(tally.answered(), 6, "{tally}");
        assert_eq!(tally.servers().len(), 1, "{tally}");
    }
}
