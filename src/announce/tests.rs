use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::pace::{Pace, Turn};
use super::publish::event;
use super::*;

fn announcement(extent: Extent, note: &str) -> Announcement {
    Announcement {
        regarding: Regarding::Service(ServiceName::new("ns", "web")),
        severity: Severity::Warning,
        reason: "FrontendTaken",
        action: "ProgramService",
        note: note.into(),
        extent,
    }
}

fn name(announcement: &Announcement, node: &str, second: i64) -> String {
    let identity =
        Identity { controller: "kube-proxy", node_name: node.into(), host_name: node.into() };
    let regarding = ObjectReference {
        name: Some("web".into()),
        namespace: Some("ns".into()),
        uid: Some("1".into()),
        ..ObjectReference::default()
    };
    let event = event(&identity, announcement, regarding, Timestamp::from_second(second).unwrap());
    assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(event.reporting_instance, Some(format!("kube-proxy-{node}")));
    event.metadata.name.unwrap()
}

#[test]
fn what_all_nodes_say_has_one_name_and_what_one_says_has_its_own() {
    let cluster = announcement(Extent::Cluster, "taken");
    assert_eq!(name(&cluster, "n1", 1), name(&cluster, "n2", 2));
    assert_ne!(name(&cluster, "n1", 1), name(&announcement(Extent::Cluster, "other"), "n1", 1));
    let local = announcement(Extent::ThisNode, "taken");
    assert_ne!(name(&local, "n1", 1), name(&local, "n1", 2));
    assert!(name(&local, "n1", 1).starts_with("web."));
}

#[test]
fn a_long_note_is_cut_between_characters() {
    let note = "ü".repeat(600);
    let announcement = announcement(Extent::Cluster, &note);
    assert_eq!(announcement.short_note().len(), LONGEST_NOTE);
}

#[test]
fn a_burst_goes_through_and_then_one_at_a_time() {
    let start = Instant::now();
    let mut pace = Pace::new(start);
    assert_eq!((0..100).filter(|_| pace.take(start)).count(), 25);
    let later = start + Duration::from_secs(5);
    assert_eq!((0..100).filter(|_| pace.take(later)).count(), 2);
    let much_later = start + Duration::from_secs(3_600);
    assert_eq!((0..100).filter(|_| pace.take(much_later)).count(), 25);
}

fn turns(n_nodes: usize, what: &str) -> impl Iterator<Item = Turn> {
    (0..n_nodes).map(move |node| Turn::of(&format!("n{node}"), what, 0))
}

#[test]
fn nodes_do_not_come_all_at_once() {
    let delays: std::collections::BTreeSet<Duration> =
        turns(100, "taken").map(Turn::delay).collect();
    assert!(delays.len() > 90, "{delays:?}");
    assert!(delays.iter().all(|delay| *delay < Duration::from_secs(20)));
}

#[test]
fn all_of_few_nodes_try_and_few_of_many() {
    for known in [0, 1, 100] {
        assert!(turns(1_000, "taken").all(|turn| turn.tries(known)), "{known}");
    }
    for what in ["taken", "twice", "impossible"] {
        let n = turns(5_000, what).filter(|turn| turn.tries(5_000)).count();
        assert!((4..40).contains(&n), "{n} try to say {what}");
    }
    // Another node has its turn another time.
    let times = (0..100).filter(|time| Turn::of("n1", "taken", *time).tries(160)).count();
    assert!((1..50).contains(&times), "{times} of 100 times");
}

#[test]
fn what_is_solved_does_not_stand() {
    let (announcer, outlet) = Announcer::new();
    let (one, other) = (ServiceName::new("ns", "one"), ServiceName::new("ns", "other"));
    let problems = [Problem::More { count: 3 }];
    announcer.stand(&one, &problems);
    announcer.stand(&other, &problems);
    announcer.stand(&one, &[]);
    // It concerns this node alone.
    let missing = Problem::SchedulerMissing { scheduler: "mh".to_owned() };
    announcer.stand(&ServiceName::new("ns", "missing"), &[missing]);
    let standing = outlet.standing();
    let [announcement] = &standing[..] else { panic!("{standing:?}") };
    assert_eq!(announcement.regarding, Regarding::Service(other));
    assert_eq!(announcement.note, problems[0].to_string());
}
