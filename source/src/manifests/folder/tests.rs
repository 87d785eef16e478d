use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn mk_folder() -> Folder {
    Folder::new("/manifests", &Options::new("node1"))
}

fn mk_service(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n---\n"
    )
}

fn mk_slice(name: &str, service: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {service}}}}}\n\
         endpoints: [{{addresses: [10.244.1.11]}}]\n---\n"
    )
}

fn read(file: &str, text: impl Into<String>) -> (FileName, FileChange) {
    (file.into(), FileChange::Read(text.into().into_bytes()))
}

fn gone(file: &str) -> (FileName, FileChange) {
    (file.into(), FileChange::Gone)
}

/// Events in a few words.
fn words(events: &[Event]) -> Vec<String> {
    let word = |event: &Event| match event {
        Event::ServiceApplied(service) => {
            format!("{} {}", service.name, service.cluster_v4.unwrap())
        }
        Event::ServiceRemoved(name) => format!("-{name}"),
        Event::SliceApplied(slice) => format!("{} of {}", slice.name, slice.service),
        Event::SliceRemoved(name) => format!("-slice {name}"),
        Event::NodeApplied(node) => format!("node in {:?}", node.zone),
        Event::OtherNodeApplied(name, node) => format!("node {name} at {:?}", node.addresses),
        Event::OtherNodeRemoved(name) => format!("-node {name}"),
        Event::LocalAddresses(_)
        | Event::ApiServerAddresses(_)
        | Event::SchedulerMissing(_)
        | Event::SchedulerLoaded(_)
        | Event::ProxyPort(..)
        | Event::HandDrainBegan(_)
        | Event::HandDrainEnded(_) => panic!("not a manifest's"),
    };
    events.iter().map(word).collect()
}

/// Applies changes that nothing is wrong with.
fn apply<const N: usize>(folder: &mut Folder, changes: [(FileName, FileChange); N]) -> Vec<String> {
    let outcome = folder.apply(changes);
    assert_eq!(outcome.warnings, []);
    words(&outcome.events)
}

/// Applies changes that one thing is wrong with.
fn apply_faulty<const N: usize>(
    folder: &mut Folder,
    changes: [(FileName, FileChange); N],
) -> (Vec<String>, String) {
    let outcome = folder.apply(changes);
    let [warning] = outcome.warnings.as_slice() else { panic!("{:?}", outcome.warnings) };
    (words(&outcome.events), warning.to_string())
}

#[test]
fn only_differences_are_events() {
    let mut folder = mk_folder();
    let both = mk_service("a", "10.96.0.1") + &mk_slice("a-1", "a");
    let events = apply(&mut folder, [read("x.yaml", &both)]);
    assert_eq!(events, ["default/a 10.96.0.1", "default/a-1 of default/a"]);
    assert!(apply(&mut folder, [read("x.yaml", &both)]).is_empty());
    assert!(apply(&mut folder, [read("x.yaml", format!("# a comment\n{both}"))]).is_empty());
    let other = mk_service("a", "10.96.0.2") + &mk_slice("a-1", "a");
    assert_eq!(apply(&mut folder, [read("x.yaml", other)]), ["default/a 10.96.0.2"]);
    assert_eq!(apply(&mut folder, [read("x.yaml", mk_slice("a-1", "a"))]), ["-default/a"]);
    assert_eq!(apply(&mut folder, [gone("x.yaml")]), ["-slice default/a-1"]);
    assert!(apply(&mut folder, [gone("x.yaml")]).is_empty());
    assert!(folder.files.is_empty() && folder.holders.is_empty());
}

#[test]
fn an_empty_file_holds_nothing() {
    let mut folder = mk_folder();
    apply(&mut folder, [read("x.yaml", mk_service("a", "10.96.0.1"))]);
    assert_eq!(apply(&mut folder, [read("x.yaml", "")]), ["-default/a"]);
}

#[test]
fn what_does_not_parse_leaves_in_force_what_it_held() {
    let mut folder = mk_folder();
    let (events, warning) = apply_faulty(&mut folder, [read("x.yaml", "kind: [")]);
    assert!(events.is_empty());
    assert!(warning.starts_with("/manifests/x.yaml: does not parse: "), "{warning}");
    assert!(warning.contains("line 1"), "{warning}");
    assert!(warning.ends_with("none of its objects are in use"), "{warning}");

    apply(&mut folder, [read("x.yaml", mk_service("a", "10.96.0.1"))]);
    let broken = mk_service("a", "10.96.0.2") + "apiVersion: v1\nkind: Service\nspec: 5\n";
    let (events, warning) = apply_faulty(
        &mut folder,
        [read("x.yaml", broken), read("y.yaml", mk_service("b", "10.96.0.3"))],
    );
    assert_eq!(events, ["default/b 10.96.0.3"], "the other file goes on");
    assert!(warning.contains("spec: ") && warning.contains("line 8"), "{warning}");
    assert!(warning.ends_with("its former content stays in use"), "{warning}");

    let events = apply(&mut folder, [read("x.yaml", mk_service("a", "10.96.0.2"))]);
    assert_eq!(events, ["default/a 10.96.0.2"]);
    apply_faulty(&mut folder, [read("x.yaml", "kind: [")]);
    assert_eq!(apply(&mut folder, [gone("x.yaml")]), ["-default/a"]);
}

#[test]
fn what_cannot_be_read_leaves_in_force_what_it_held() {
    let mut folder = mk_folder();
    apply(&mut folder, [read("x.yaml", mk_service("a", "10.96.0.1"))]);
    let change = FileChange::Unreadable("permission denied".to_owned());
    let (events, warning) = apply_faulty(&mut folder, [("x.yaml".into(), change)]);
    assert!(events.is_empty());
    let expected = "/manifests/x.yaml: cannot be read: permission denied; its former content stays \
                    in use";
    assert_eq!(warning, expected);
}

#[test]
fn the_first_file_by_name_wins_and_the_next_one_takes_over() {
    let mut folder = mk_folder();
    apply(&mut folder, [read("b.yaml", mk_service("a", "10.96.0.2"))]);
    let (events, warning) =
        apply_faulty(&mut folder, [read("c.yaml", mk_service("a", "10.96.0.3"))]);
    assert!(events.is_empty());
    let expected = "/manifests/c.yaml: Service default/a is also in b.yaml; \
                    that definition is in use";
    assert_eq!(warning, expected);
    // Saved again by the same holders: no new warning.
    assert!(apply(&mut folder, [read("c.yaml", mk_service("a", "10.96.0.4"))]).is_empty());
    let outcome = folder.apply([read("a.yaml", mk_service("a", "10.96.0.1"))]);
    assert_eq!(words(&outcome.events), ["default/a 10.96.0.1"]);
    assert_eq!(outcome.warnings.len(), 2, "b and c are both hidden now");
    let events = folder.apply([gone("a.yaml"), gone("b.yaml")]).events;
    assert_eq!(words(&events), ["default/a 10.96.0.4"]);
    assert_eq!(apply(&mut folder, [read("c.yaml", "")]), ["-default/a"]);
}

#[test]
fn a_headless_service_claims_its_name_too() {
    let mut folder = mk_folder();
    apply(&mut folder, [read("b.yaml", mk_service("a", "10.96.0.2"))]);
    let outcome = folder.apply([read("a.yaml", mk_service("a", "None"))]);
    assert_eq!(words(&outcome.events), ["-default/a"]);
    assert_eq!(outcome.warnings.len(), 1);
    let events = apply(&mut folder, [gone("a.yaml")]);
    assert_eq!(events, ["default/a 10.96.0.2"]);
    let (events, _) = apply_faulty(
        &mut folder,
        [gone("b.yaml"), read("c.yaml", mk_service("a", "None") + &mk_service("a", "10.96.0.9"))],
    );
    assert_eq!(events, ["-default/a"], "twice in one file: the first one counts");
}

#[test]
fn an_object_that_moves_between_files_does_not_change() {
    let mut folder = mk_folder();
    let service = mk_service("a", "10.96.0.1");
    apply(&mut folder, [read("x.yaml", &service)]);
    assert!(apply(&mut folder, [gone("x.yaml"), read("y.yaml", &service)]).is_empty());
    assert!(apply(&mut folder, [read("a.yaml", &service), gone("y.yaml")]).is_empty());
    assert_eq!(apply(&mut folder, [gone("a.yaml")]), ["-default/a"]);
}

#[test]
fn lists_other_kinds_and_other_nodes() {
    let mut folder = mk_folder();
    let text = "apiVersion: v1
kind: List
items:
- {apiVersion: apps/v1, kind: Deployment, spec: {ports: 5}}
- {apiVersion: v1, kind: Node, metadata: {name: node2, labels: {topology.kubernetes.io/zone: b}}}
- {apiVersion: v1, kind: Node, metadata: {name: node1, labels: {topology.kubernetes.io/zone: a}}}
- {apiVersion: v1, kind: Service, metadata: {name: s, namespace: n}, spec: {clusterIP: 10.96.0.1}}
";
    let events = apply(&mut folder, [read("x.yaml", text)]);
    assert_eq!(events, ["node in Some(\"a\")", "n/s 10.96.0.1"]);
    assert_eq!(apply(&mut folder, [gone("x.yaml")]), ["-n/s"], "a Node's removal says nothing");
}

#[test]
fn nameless_and_untyped_objects_harm_only_themselves() {
    let mut folder = mk_folder();
    let text =
        format!("apiVersion: v1\nkind: Service\n---\na: b\n---\n{}", mk_service("a", "10.96.0.1"));
    let outcome = folder.apply([read("x.yaml", text)]);
    assert_eq!(words(&outcome.events), ["default/a 10.96.0.1"]);
    let warnings: Vec<_> = outcome.warnings.iter().map(ToString::to_string).collect();
    let expected = [
        "/manifests/x.yaml: holds a Service without metadata.name; left out",
        "/manifests/x.yaml: holds an object without apiVersion and kind; left out",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn warnings_about_objects_say_the_file() {
    let mut folder = mk_folder();
    let text = mk_service("a", "10.96.0.1").replace("port: 80", "port: 80000");
    let (_, warning) = apply_faulty(&mut folder, [read("x.yaml", text)]);
    let expected = "Service default/a: spec.ports[0].port: 80000 is not a port number \
                    (1 to 65535); left out (in x.yaml)";
    assert_eq!(warning, expected);
}

#[test]
fn ten_thousand_objects() {
    let mut folder = mk_folder();
    let mut text = String::new();
    for index in 0..5_000 {
        let name = format!("s{index}");
        text.push_str(&mk_service(&name, &format!("10.96.{}.{}", index / 250, index % 250 + 1)));
        text.push_str(&mk_slice(&format!("{name}-1"), &name));
    }
    let outcome = folder.apply([read("all.yaml", &text)]);
    assert_eq!((outcome.events.len(), outcome.warnings), (10_000, vec![]));
    let changed = text.replace("clusterIP: 10.96.7.8,", "clusterIP: 10.97.7.8,");
    assert_eq!(apply(&mut folder, [read("all.yaml", changed)]), ["default/s1757 10.97.7.8"]);
}

proptest! {
    /// The events add up to what a fresh look at the files finds, whatever the files went through.
    #[test]
    fn the_events_add_up(
        steps in proptest::collection::vec((0..3_usize, proptest::option::of(
            proptest::collection::btree_map(0..4_u8, 1..4_u8, 0..4))), 1..12),
    ) {
        let mut folder = mk_folder();
        let mut in_force = BTreeMap::new();
        let mut files = BTreeMap::new();
        for (file, contents) in steps {
            let file = ["a.yaml", "b.yaml", "c.yaml"][file];
            let change = match contents {
                None => {
                    files.remove(file);
                    gone(file)
                }
                Some(services) => {
                    let text: String = services
                        .iter()
                        .map(|(name, address)| mk_service(&format!("s{name}"), &format!("10.96.0.{address}")))
                        .collect();
                    files.insert(file, text.clone());
                    read(file, text)
                }
            };
            for event in folder.apply([change]).events {
                match event {
                    Event::ServiceApplied(service) => {
                        let old = in_force.insert(service.name.clone(), service.clone());
                        prop_assert_ne!(old, Some(service));
                    }
                    Event::ServiceRemoved(name) => prop_assert!(in_force.remove(&name).is_some()),
                    other => panic!("{other:?}"),
                }
            }
        }
        let fresh = mk_folder().apply(files.into_iter().map(|(file, text)| read(file, text)));
        let fresh: BTreeMap<_, _> = fresh.events.into_iter().map(|event| match event {
            Event::ServiceApplied(service) => (service.name.clone(), service),
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(in_force, fresh);
    }
}

fn mk_node(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
         status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n---\n"
    )
}

#[test]
fn other_nodes_come_before_services_and_go() {
    let mut folder = mk_folder();
    let both = mk_service("a", "10.96.0.1") + &mk_node("b", "192.0.2.2");
    let events = apply(&mut folder, [read("x.yaml", both), read("b.yaml", mk_node("c", "x"))]);
    assert_eq!(events, ["node b at [192.0.2.2]", "default/a 10.96.0.1"]);
    let moved = [read("x.yaml", ""), read("y.yaml", mk_node("b", "192.0.2.22"))];
    assert_eq!(apply(&mut folder, moved), ["node b at [192.0.2.22]", "-default/a"]);
    assert_eq!(apply(&mut folder, [gone("y.yaml")]), ["-node b"]);
    let twice = mk_node("d", "192.0.2.4") + &mk_node("d", "192.0.2.5");
    let (events, warning) = apply_faulty(&mut folder, [read("z.yaml", twice)]);
    assert_eq!(events, ["node d at [192.0.2.4]"]);
    assert!(warning.contains("holds Node d twice"), "{warning}");
}

#[test]
fn other_nodes_that_are_not_wanted_are_left_alone() {
    let options = Options { follow_nodes: FollowNodes::Never, ..Options::new("node1") };
    let mut folder = Folder::new("/manifests", &options);
    assert!(apply(&mut folder, [read("x.yaml", mk_node("b", "192.0.2.2"))]).is_empty());
}
