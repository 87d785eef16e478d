//! Endpoints come and go while traffic runs, and nobody is cut off.

use std::time::Duration;

use bed::{Connection, Protocol, Question, Stream, StreamPlan};

use crate::fixture::{Bed, assert_shares, ip, web};

#[test]
fn scaling_down_and_up_fails_no_request_and_cuts_no_connection() {
    let bed = Bed::new();
    let both = || web([bed.pod(1, 1), bed.pod(2, 1)]);
    bed.manifests.apply(&both()).unwrap();
    let _proxy = bed.start(&[]);
    let target = (ip("10.96.0.10"), 80);
    assert_shares(
        &bed.ask(bed.client(), Protocol::Tcp, target, 2),
        &[("pod1-1", 1), ("pod2-1", 1)],
    );
    let plan = StreamPlan { interval: Duration::from_millis(50), askers: 2, kept_open: 4 };
    let stream = Stream::start(bed.client(), Question::tcp(target), plan).unwrap();
    stream.wait_for_answers(20, Duration::from_secs(30)).unwrap();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    bed.wait_until("pod2-1 gets no new connections", || {
        let shown = bed.virtual_servers();
        shown.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1) == Some(&"10.244.2.11:8080") && words.get(3) == Some(&"0")
        })
    });
    let so_far = stream.report().answered();
    stream.wait_for_answers(so_far + 40, Duration::from_secs(30)).unwrap();
    bed.manifests.apply(&both()).unwrap();
    bed.wait_until("pod2-1 is back", || {
        let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
        tally.by_server().len() == 2
    });
    let report = stream.stop();
    report.require_no_failure(60).unwrap();
    assert!(report.kept > 20, "{report:?}");
}

#[test]
fn a_removed_endpoint_keeps_the_connections_it_has() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut connection = Connection::open(bed.client(), question).unwrap();
    assert_eq!(connection.say().unwrap().server, "pod2-1");
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    bed.wait_until("new connections go elsewhere", || {
        bed::ask(bed.client(), question).is_ok_and(|answer| answer.server == "pod1-1")
    });
    assert_eq!(connection.say().unwrap().server, "pod2-1", "the old connection lives");
    assert!(bed.virtual_servers().contains("10.244.2.11:8080"));
    // The restart of kube-ipvs changes nothing about it.
    proxy.stop().unwrap();
    let _proxy = bed.start(&[]);
    assert_eq!(connection.say().unwrap().server, "pod2-1");
    assert!(bed.virtual_servers().contains("10.244.2.11:8080"));
}

#[test]
fn an_endpoint_without_connections_leaves_at_once() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    assert!(bed.virtual_servers().contains("10.244.2.11:8080"));
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    bed.wait_until("pod2-1 is gone", || !bed.virtual_servers().contains("10.244.2.11:8080"));
}
