//! On a real kernel, each test in a network namespace of its own. They need root and `ip`.

use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::program;
use crate::rules::TIMEOUT;

/// `IPCTNL_MSG_CT_NEW` of `NFNL_SUBSYS_CTNETLINK`, and `CTA_TIMEOUT`.
const NEW: u16 = 1 << 8;
const LIFETIME: u16 = 7;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

/// A network namespace that goes with the test.
struct Host(String);

impl Host {
    /// Runs a test in a new namespace.
    fn run(test: impl FnOnce() + Send) {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let host = Self(format!("conntrack-{}-{number}", process::id()));
        ip(&["netns", "add", &host.0]);
        let path = Path::new("/run/netns").join(&host.0);
        netlink::Namespace::at(&path).unwrap().run(test).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) {
    let finished = program::run("ip", arguments, "", TIMEOUT).unwrap();
    assert!(finished.status.success(), "ip {arguments:?}: {}", finished.stderr);
}

/// Makes an entry for `original`, whose answers come from `endpoint`.
fn push_new(batch: &mut Batch, original: Tuple, endpoint: SocketAddr) {
    let reply = Tuple { source: endpoint, destination: original.source, ..original };
    batch.push(NEW, NLM_F_CREATE | NLM_F_EXCL, |message| {
        write_header(message, Family::of(original.destination.ip()));
        let mut attributes = message.attributes();
        attributes.nested(CTA_TUPLE_ORIG, |tuple| original.write(tuple));
        attributes.nested(CTA_TUPLE_REPLY, |tuple| reply.write(tuple));
        attributes.u32_be(LIFETIME, 600);
    });
}

fn make(conntrack: &mut ConntrackClient, entries: &[(Protocol, &str, &str, &str)]) {
    let mut batch = Batch::new();
    for (protocol, source, destination, endpoint) in entries {
        push_new(&mut batch, mk_tuple(*protocol, source, destination), at(endpoint));
    }
    for result in conntrack.socket.send(&batch).unwrap() {
        result.unwrap();
    }
}

/// All entries with ports of a family, as `PROTOCOL SOURCE DESTINATION ENDPOINT`, in order.
fn shown(conntrack: &mut ConntrackClient, family: Family) -> Vec<String> {
    let listed = |message: &mut MessageWriter<'_>| Filter::all(family).write(message);
    let entries: Vec<ConntrackEntry> = conntrack.socket.dump(GET, listed, decode).unwrap();
    let mut shown: Vec<String> = entries
        .iter()
        .map(|ConntrackEntry { flow, source, .. }| {
            format!("{} {source} {} {}", flow.protocol, flow.destination, flow.reply_source)
        })
        .collect();
    shown.sort();
    shown
}

fn served(frontends: &[(Protocol, &str)], targets: &[&str]) -> FlowTargets {
    let mut all = FlowTargets::default();
    for (protocol, frontend) in frontends {
        let socket = at(frontend);
        let frontend = Frontend { address: socket.ip(), protocol: *protocol, port: socket.port() };
        all.insert(frontend, Some(targets.iter().map(|target| at(target))));
    }
    all
}

#[test]
fn only_what_is_stale_is_removed() {
    use Protocol::{Sctp, Tcp, Udp};
    Host::run(|| {
        let mut conntrack = ConntrackClient::open().unwrap();
        make(
            &mut conntrack,
            &[
                (Udp, "10.0.0.1:1000", "10.96.0.10:53", "10.244.1.5:53"),
                (Udp, "10.0.0.2:1000", "10.96.0.10:53", "10.244.9.9:53"),
                (Udp, "10.0.0.3:1000", "10.96.0.10:53", "10.96.0.10:53"),
                (Udp, "10.0.0.4:1000", "192.0.2.1:53", "192.0.2.1:53"),
                (Udp, "10.0.0.5:1000", "10.96.0.10:54", "10.244.9.9:53"),
                (Tcp, "10.0.0.6:1000", "10.96.0.10:53", "10.244.9.9:53"),
                (Sctp, "10.0.0.7:1000", "10.96.0.10:53", "10.244.9.9:53"),
                (Sctp, "10.0.0.8:1000", "10.96.0.10:53", "10.244.1.5:53"),
                (Sctp, "10.0.0.9:1000", "192.0.2.1:53", "192.0.2.1:53"),
            ],
        );
        let frontends = [(Udp, "10.96.0.10:53"), (Sctp, "10.96.0.10:53")];
        let targets = served(&frontends, &["10.244.1.5:53"]);
        assert_eq!(conntrack.remove_stale(Family::V4, &targets).unwrap(), 3);
        assert_eq!(
            shown(&mut conntrack, Family::V4),
            [
                "SCTP 10.0.0.8:1000 10.96.0.10:53 10.244.1.5:53",
                "SCTP 10.0.0.9:1000 192.0.2.1:53 192.0.2.1:53",
                "TCP 10.0.0.6:1000 10.96.0.10:53 10.244.9.9:53",
                "UDP 10.0.0.1:1000 10.96.0.10:53 10.244.1.5:53",
                "UDP 10.0.0.4:1000 192.0.2.1:53 192.0.2.1:53",
                "UDP 10.0.0.5:1000 10.96.0.10:54 10.244.9.9:53",
            ]
        );
        assert_eq!(conntrack.remove_stale(Family::V4, &targets).unwrap(), 0);
        println!("the kernel heeds filters: {}", conntrack.can_filter);
    });
}

#[test]
fn families_are_cleaned_by_themselves() {
    Host::run(|| {
        let mut conntrack = ConntrackClient::open().unwrap();
        make(
            &mut conntrack,
            &[
                (Protocol::Udp, "[fd00::1]:1000", "[fd00:96::10]:53", "[fd00:244::5]:53"),
                (Protocol::Udp, "[fd00::2]:1000", "[fd00:96::10]:53", "[fd00:244::6]:53"),
                (Protocol::Udp, "10.0.0.2:1000", "10.96.0.10:53", "10.244.9.9:53"),
            ],
        );
        let frontends = [(Protocol::Udp, "[fd00:96::10]:53"), (Protocol::Udp, "10.96.0.10:53")];
        let targets = served(&frontends, &["[fd00:244::5]:53", "10.244.1.5:53"]);
        assert_eq!(conntrack.remove_stale(Family::V6, &targets).unwrap(), 1);
        assert_eq!(
            shown(&mut conntrack, Family::V6),
            ["UDP [fd00::1]:1000 [fd00:96::10]:53 [fd00:244::5]:53"]
        );
        assert_eq!(shown(&mut conntrack, Family::V4).len(), 1);
    });
}

#[test]
fn an_entry_that_took_the_place_of_a_listed_one_stays() {
    Host::run(|| {
        let mut conntrack = ConntrackClient::open().unwrap();
        let flow = (Protocol::Udp, "10.0.0.1:1000", "10.96.0.10:53", "10.244.9.9:53");
        make(&mut conntrack, &[flow]);
        let targets = served(&[(Protocol::Udp, "10.96.0.10:53")], &["10.244.1.5:53"]);
        let mut stale = conntrack.stale(Family::V4, &targets).unwrap();
        stale[0].id ^= 1;
        let mut batch = Batch::new();
        push_delete(&mut batch, &stale[0]);
        let results = conntrack.socket.send(&batch).unwrap();
        assert!(results[0].as_ref().is_err_and(|error| is(error, Errno::NOENT)), "{results:?}");
        assert_eq!(shown(&mut conntrack, Family::V4).len(), 1);
    });
}

/// Many flows, of which one in ten is stale: with a filter, without one, and as an older kernel.
#[test]
fn many_flows_are_cleaned() {
    const FLOWS: u32 = 50_000;
    Host::run(|| {
        let mut conntrack = ConntrackClient::open().unwrap();
        let mut batch = Batch::new();
        for number in 0..FLOWS {
            let [_, a, b, c] = number.to_be_bytes();
            let source = SocketAddr::from(([10, a, b, c], 1000));
            let (port, endpoint) = match number % 10 {
                0 => (53, "10.244.9.9:53"),
                1 => (53, "10.244.1.5:53"),
                _ => (4789, "10.96.0.10:4789"),
            };
            let destination = SocketAddr::from(([10, 96, 0, 10], port));
            let tuple = Tuple { protocol: Protocol::Udp, source, destination };
            push_new(&mut batch, tuple, at(endpoint));
        }
        let make = |conntrack: &mut ConntrackClient, batch: &mut Batch| {
            let made = conntrack.socket.send(batch).unwrap();
            made.into_iter().filter(Result::is_ok).count()
        };
        assert_eq!(make(&mut conntrack, &mut batch), 50_000);
        let few = served(&[(Protocol::Udp, "10.96.0.10:53")], &["10.244.1.5:53"]);
        let mut many = few.clone();
        for port in 1..=20 {
            let address = [10, 96, 0, 99].into();
            many.insert(
                Frontend { address, protocol: Protocol::Udp, port },
                None::<[SocketAddr; 0]>,
            );
        }
        for (how, targets) in [("one port", &few), ("all of UDP", &many)] {
            let started = Instant::now();
            let removed = conntrack.remove_stale(Family::V4, targets).unwrap();
            println!("{how}: {removed} of {FLOWS} removed in {:?}", started.elapsed());
            assert_eq!(removed, 5_000, "{how}");
            let started = Instant::now();
            assert_eq!(conntrack.remove_stale(Family::V4, targets).unwrap(), 0);
            println!("{how}: none in {:?}", started.elapsed());
            assert_eq!(make(&mut conntrack, &mut batch), 5_000, "those that were removed");
        }
        conntrack.can_filter = false;
        let started = Instant::now();
        assert_eq!(conntrack.remove_stale(Family::V4, &few).unwrap(), 5_000);
        println!("without a filter: {:?}", started.elapsed());
    });
}
