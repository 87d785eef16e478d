use std::fs;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use plan::scheduler::SchedulerName;
use tokio::time::Instant;

use super::publish::to_api;
use super::throttle::{Sampling, TokenBucket};
use super::*;

fn mk_event(extent: Extent, note: &str) -> NewEvent {
    NewEvent {
        regarding: Regarding::Service(ServiceName::new("ns", "web")),
        severity: Severity::Warning,
        reason: Reason::FrontendTaken,
        action: "ProgramService",
        note: note.into(),
        extent,
    }
}

fn name(new: &NewEvent, node: &str, second: i64) -> String {
    let reporter =
        EventReporter { controller: "kube-proxy", node_name: node.into(), host_name: node.into() };
    let regarding = ObjectReference {
        name: Some("web".into()),
        namespace: Some("ns".into()),
        uid: Some("1".into()),
        ..ObjectReference::default()
    };
    let event = to_api(&reporter, new, regarding, Timestamp::from_second(second).unwrap());
    assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(event.reporting_instance, Some(format!("kube-proxy-{node}")));
    event.metadata.name.unwrap()
}

#[test]
fn an_event_of_all_nodes_has_one_name_and_that_of_one_node_has_its_own() {
    let cluster = mk_event(Extent::Cluster, "taken");
    assert_eq!(name(&cluster, "n1", 1), name(&cluster, "n2", 2));
    assert_ne!(name(&cluster, "n1", 1), name(&mk_event(Extent::Cluster, "other"), "n1", 1));
    let local = mk_event(Extent::ThisNode, "taken");
    assert_ne!(name(&local, "n1", 1), name(&local, "n1", 2));
    assert!(name(&local, "n1", 1).starts_with("web."));
}

#[test]
fn a_long_note_is_cut_between_characters() {
    let note = "ü".repeat(600);
    let event = mk_event(Extent::Cluster, &note);
    assert_eq!(event.short_note().len(), LONGEST_NOTE);
}

#[test]
fn a_burst_goes_through_and_then_one_at_a_time() {
    let start = Instant::now();
    let mut tokens = TokenBucket::new(start);
    assert_eq!((0..100).filter(|_| tokens.take(start)).count(), 25);
    let later = start + Duration::from_secs(5);
    assert_eq!((0..100).filter(|_| tokens.take(later)).count(), 2);
    let much_later = start + Duration::from_secs(3_600);
    assert_eq!((0..100).filter(|_| tokens.take(much_later)).count(), 25);
}

fn samplings(n_nodes: usize, what: &str) -> impl Iterator<Item = Sampling> {
    (0..n_nodes).map(move |node| Sampling::of(&format!("n{node}"), what, 0))
}

#[test]
fn nodes_publish_at_different_times() {
    let delays: std::collections::BTreeSet<Duration> =
        samplings(100, "taken").map(Sampling::delay).collect();
    assert!(delays.len() > 90, "{delays:?}");
    assert!(delays.iter().all(|delay| *delay < Duration::from_secs(20)));
}

#[test]
fn all_of_few_nodes_are_selected_and_few_of_many() {
    for known in [0, 1, 100] {
        assert!(samplings(1_000, "taken").all(|sampling| sampling.selects(known)), "{known}");
    }
    for what in ["taken", "twice", "impossible"] {
        let n = samplings(5_000, what).filter(|sampling| sampling.selects(5_000)).count();
        assert!((4..40).contains(&n), "{n} are selected for {what}");
    }
    // Another node is selected another time.
    let times = (0..100).filter(|time| Sampling::of("n1", "taken", *time).selects(160)).count();
    assert!((1..50).contains(&times), "{times} of 100 times");
}

#[test]
fn solved_problems_are_not_current() {
    let (recorder, queue) = EventRecorder::new();
    let (one, other) = (ServiceName::new("ns", "one"), ServiceName::new("ns", "other"));
    let problems = [Problem::More { count: 3 }];
    recorder.set_problems(&one, &problems);
    recorder.set_problems(&other, &problems);
    recorder.set_problems(&one, &[]);
    // It concerns this node alone.
    let missing = Problem::SchedulerMissing { scheduler: SchedulerName::new("mh").unwrap() };
    recorder.set_problems(&ServiceName::new("ns", "missing"), &[missing]);
    let events = queue.current();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(event.regarding, Regarding::Service(other));
    assert_eq!(event.note, problems[0].to_string());
}

/// The page of all reasons.
fn page() -> String {
    let mut page = String::from(
        "# Events\n\n\
         kube-ipvs writes Events about Services, EndpointSlices and Nodes. `cargo xtask docs` writes this page.\n\n\
         ```sh\n\
         kubectl get events -A --field-selector source=kube-proxy                            # all of them\n\
         kubectl get events -n default --field-selector involvedObject.kind=Node             # about nodes\n\
         kubectl -n NAMESPACE describe service NAME                                          # about one Service\n\
         kubectl -n kube-system exec POD -- kube-ipvs events --errors                        # what one node keeps itself\n\
         ```\n\n\
         - `source` is `kube-proxy`, so that dashboards and alerts for kube-proxy find the Events.\n\
         - The API server keeps an Event for an hour. A problem of a Service that lasts is published again after that.\n\
         - A problem that every node has is one Event, from one of the nodes.\n\
         - The log of the pod has each message as well. `docs/runbook.md` says how to find the pod of a node.\n\n\
         | Reason | Object | Meaning | What to do |\n| --- | --- | --- | --- |\n",
    );
    for reason in Reason::ALL {
        let (about, meaning, remedy) = reason.described();
        page += &format!("| `{reason}` | {about} | {meaning} | {remedy} |\n");
    }
    page
}

/// `cargo xtask docs` writes it anew.
#[test]
fn the_page_of_events_has_every_reason() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/events.md");
    let page = page();
    if std::env::var_os("KUBE_IPVS_WRITE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        page,
        "docs/events.md is stale: cargo xtask docs"
    );
    assert!(Reason::ALL.is_sorted_by_key(|reason| reason.name()));
}

/// Reasons of kube-proxy that documents name.
const OF_KUBE_PROXY: [&str; 1] = ["IPVSDeprecation"];

#[test]
fn documents_name_reasons_that_there_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut found = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        for line in
            is_page.then(|| fs::read_to_string(&path).unwrap()).iter().flat_map(|it| it.lines())
        {
            for introduction in ["Event `", "Events `", "reason `"] {
                for rest in line.split(introduction).skip(1) {
                    let word = rest.split('`').next().unwrap();
                    let is_ours = Reason::ALL.iter().any(|reason| reason.name() == word);
                    assert!(is_ours || OF_KUBE_PROXY.contains(&word), "{}: {word}", path.display());
                    found += 1;
                }
            }
        }
    }
    assert!(found > 10, "{found}");
}
