use std::collections::BTreeSet;
use std::time::Duration;

use plan::model::Family;
use proptest::prelude::*;

use super::*;
use crate::object::Metadata;

const START: SystemTime = SystemTime::UNIX_EPOCH;

fn at(seconds: u64) -> SystemTime {
    START + Duration::from_secs(seconds)
}

fn inventory() -> Inventory {
    Inventory::new(&Options::new("this"), at(1_000))
}

fn service(name: &str) -> Item {
    let text = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n"}},
            "spec":{{"clusterIP":"10.96.0.1","ports":[{{"port":80}}]}}}}"#
    );
    Item::Service(serde_json::from_str(&text).unwrap())
}

fn slice(name: &str, trigger: &str) -> Item {
    let text = format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n",
            "labels":{{"kubernetes.io/service-name":"s"}},
            "annotations":{{"endpoints.kubernetes.io/last-change-trigger-time":"{trigger}"}}}},
            "addressType":"IPv6"}}"#
    );
    Item::EndpointSlice(serde_json::from_str(&text).unwrap())
}

/// A slice whose endpoints changed because of what happened this many seconds after 1970.
fn triggered(name: &str, seconds: u64) -> Item {
    let time = jiff::Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap();
    slice(name, &time.to_string())
}

fn node(name: &str, taint: &str) -> Item {
    let text =
        format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"taints":[{{"key":"{taint}"}}]}}}}"#);
    Item::Node(serde_json::from_str(&text).unwrap())
}

fn bad(kind: ResourceKind, name: Option<&str>) -> Item {
    let metadata = Metadata {
        name: name.map(str::to_owned),
        namespace: Some("n".to_owned()),
        ..Metadata::default()
    };
    let problem = "spec: odd".to_owned();
    Item::Undecodable(Box::new(Undecodable { kind, metadata, problem }))
}

impl Inventory {
    /// A step's events, in short.
    fn texts(&mut self, kind: ResourceKind, step: WatchStep) -> Vec<String> {
        let events = self.take(kind, step, at(5_000));
        events.into_iter().map(|event| short(&event)).collect()
    }

    fn list(&mut self, kind: ResourceKind, items: impl IntoIterator<Item = Item>) -> Vec<String> {
        let mut texts = self.texts(kind, WatchStep::ListBegins);
        for item in items {
            texts.extend(self.texts(kind, WatchStep::Listed(item)));
        }
        texts.extend(self.texts(kind, WatchStep::ListEnds));
        texts
    }
}

fn short(event: &SourceEvent) -> String {
    match event {
        SourceEvent::Change(Event::ServiceApplied(service)) => format!("+{}", service.name),
        SourceEvent::Change(Event::ServiceRemoved(name)) => format!("-{name}"),
        SourceEvent::Change(Event::SliceApplied(slice)) => format!("+{}", slice.name),
        SourceEvent::Change(Event::SliceRemoved(name)) => format!("-{name}"),
        SourceEvent::Change(Event::NodeApplied(_)) => "node".to_owned(),
        SourceEvent::Change(Event::LocalAddresses(_)) => "addresses".to_owned(),
        SourceEvent::Change(Event::OtherNodeApplied(name, _)) => format!("+other {name}"),
        SourceEvent::Change(Event::OtherNodeRemoved(name)) => format!("-other {name}"),
        SourceEvent::Change(Event::ApiServerAddresses(_)) => "the API server".to_owned(),
        SourceEvent::Change(Event::SchedulerMissing(name)) => format!("no {name}"),
        SourceEvent::Change(Event::SchedulerLoaded(name)) => format!("{name} is back"),
        SourceEvent::Change(Event::ProxyPort(id, _)) => format!("proxy port of {}", id.service),
        SourceEvent::Change(Event::HandDrainBegan(drain) | Event::HandDrainEnded(drain)) => {
            format!("by hand: {drain}")
        }
        SourceEvent::Triggered(Family::V6, time) => {
            format!("triggered {}", time.duration_since(START).unwrap().as_secs())
        }
        SourceEvent::Triggered(Family::V4, _) => "the wrong family".to_owned(),
        SourceEvent::NodeLeaving(leaving) => format!("leaving {leaving}"),
        SourceEvent::Complete => "complete".to_owned(),
        SourceEvent::Warning(warning) => warning.to_string(),
        SourceEvent::RepeatedWarning(warning) => format!("still: {warning}"),
    }
}

#[test]
fn complete_once_when_every_kind_has_been_listed() {
    let mut inventory = inventory();
    assert_eq!(inventory.list(ResourceKind::Service, [service("a")]), ["+n/a"]);
    assert_eq!(inventory.list(ResourceKind::Service, [service("a")]), ["+n/a"]);
    assert_eq!(inventory.list(ResourceKind::Node, [node("this", "x")]), ["node", "leaving false"]);
    assert_eq!(inventory.list(ResourceKind::EndpointSlice, []), ["complete"]);
    assert_eq!(inventory.list(ResourceKind::EndpointSlice, []), Vec::<String>::new());
    assert_eq!(inventory.list(ResourceKind::Service, []), ["-n/a"]);
}

#[test]
fn a_list_removes_what_it_does_not_have_and_nothing_before_its_end() {
    let mut inventory = inventory();
    inventory.list(ResourceKind::Service, ["a", "b", "c"].map(service));
    inventory.texts(ResourceKind::Service, WatchStep::Applied(service("d")));
    assert_eq!(inventory.texts(ResourceKind::Service, WatchStep::Deleted(service("c"))), ["-n/c"]);
    // One that fails half-way, twice.
    for _ in 0..2 {
        assert_eq!(
            inventory.texts(ResourceKind::Service, WatchStep::ListBegins),
            Vec::<String>::new()
        );
        assert_eq!(
            inventory.texts(ResourceKind::Service, WatchStep::Listed(service("b"))),
            ["+n/b"]
        );
    }
    assert_eq!(
        inventory.list(ResourceKind::Service, ["a", "e"].map(service)),
        ["+n/a", "+n/e", "-n/b", "-n/d"]
    );
    assert_eq!(inventory.names(), ["Service n/a", "Service n/e"]);
    assert_eq!(
        inventory.texts(ResourceKind::Service, WatchStep::Deleted(service("d"))),
        Vec::<String>::new()
    );
}

#[test]
fn a_bad_object_stays_as_it_was() {
    let mut inventory = inventory();
    inventory.list(ResourceKind::Service, ["a", "b"].map(service));
    assert_eq!(
        inventory.texts(
            ResourceKind::Service,
            WatchStep::Applied(bad(ResourceKind::Service, Some("a")))
        ),
        ["Service n/a: spec: odd; it stays in force as it was before"]
    );
    assert_eq!(
        inventory.list(
            ResourceKind::Service,
            [bad(ResourceKind::Service, Some("a")), bad(ResourceKind::Service, Some("x"))]
        ),
        ["Service n/x: spec: odd; it is left out", "-n/b"]
    );
    assert_eq!(inventory.names(), ["Service n/a"]);
    assert_eq!(
        inventory.texts(
            ResourceKind::Service,
            WatchStep::Deleted(bad(ResourceKind::Service, Some("a")))
        ),
        ["-n/a"]
    );
    assert_eq!(
        inventory.texts(
            ResourceKind::EndpointSlice,
            WatchStep::Applied(bad(ResourceKind::EndpointSlice, None))
        ),
        ["EndpointSlice (without a name): has no metadata.name; left out"]
    );
    assert_eq!(
        inventory
            .texts(ResourceKind::Node, WatchStep::Applied(bad(ResourceKind::Node, Some("this")))),
        ["Node this: spec: odd; it stays in force as it was before"]
    );
}

#[test]
fn a_service_that_is_no_longer_balanced_is_removed_once() {
    let mut inventory = inventory();
    let headless: object::Service = serde_json::from_str(
        r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"clusterIP":"None"}}"#,
    )
    .unwrap();
    let headless = || Item::Service(Box::new(headless.clone()));
    assert_eq!(inventory.list(ResourceKind::Service, [headless()]), Vec::<String>::new());
    inventory.texts(ResourceKind::Service, WatchStep::Applied(service("a")));
    assert_eq!(inventory.texts(ResourceKind::Service, WatchStep::Applied(headless())), ["-n/a"]);
    assert_eq!(
        inventory.texts(ResourceKind::Service, WatchStep::Applied(headless())),
        Vec::<String>::new()
    );
}

#[test]
fn this_node_and_no_other() {
    let mut inventory = inventory();
    assert_eq!(
        inventory.list(ResourceKind::Node, [node("other", "x"), node("this", "x")]),
        ["node", "leaving false"]
    );
    let leaving = node("this", "ToBeDeletedByClusterAutoscaler");
    assert_eq!(
        inventory.texts(ResourceKind::Node, WatchStep::Applied(leaving)),
        ["node", "leaving true"]
    );
    assert_eq!(
        inventory.texts(ResourceKind::Node, WatchStep::Deleted(node("this", "x"))),
        Vec::<String>::new()
    );
    assert_eq!(inventory.list(ResourceKind::Node, []), Vec::<String>::new());
}

#[test]
fn a_node_that_is_not_there_is_missed_once() {
    let mut inventory = inventory();
    let texts = inventory.list(ResourceKind::Node, [node("other", "x")]);
    assert!(texts[0].starts_with("Node this: Node not found"), "{texts:?}");
    assert!(texts[0].contains("--hostname-override"), "{texts:?}");
    assert_eq!(inventory.list(ResourceKind::Node, []), Vec::<String>::new());
    assert_eq!(inventory.list(ResourceKind::Node, [node("this", "x")]), ["node", "leaving false"]);
    assert_eq!(inventory.list(ResourceKind::Node, []), Vec::<String>::new());
}

#[test]
fn a_warning_is_repeated_only_when_it_is_different() {
    let mut inventory = inventory();
    let odd = |port: u32| {
        let text = format!(
            r#"{{"metadata":{{"name":"a","namespace":"n"}},
                "spec":{{"clusterIP":"10.96.0.1","ports":[{{"port":{port}}}]}}}}"#
        );
        Item::Service(serde_json::from_str(&text).unwrap())
    };
    let kind = ResourceKind::Service;
    let warning = |port: u32| {
        format!(
            "Service n/a: spec.ports[0].port: {port} is not a port number (1 to 65535); left out"
        )
    };
    assert_eq!(inventory.list(kind, [odd(70_000)]), [warning(70_000), "+n/a".to_owned()]);
    for _ in 0..3 {
        assert_eq!(inventory.list(kind, [odd(70_000)]), ["+n/a"]);
        assert_eq!(inventory.texts(kind, WatchStep::Applied(odd(70_000))), ["+n/a"]);
    }
    let texts = inventory.texts(kind, WatchStep::Applied(odd(70_001)));
    assert_eq!(texts, [warning(70_001), "+n/a".to_owned()]);
    // Repaired, gone, or not on a list: it is a new mistake the next time.
    let again = [warning(70_001), "+n/a".to_owned()];
    inventory.texts(kind, WatchStep::Applied(service("a")));
    assert!(inventory.warnings.is_empty());
    assert_eq!(inventory.texts(kind, WatchStep::Applied(odd(70_001))), again);
    inventory.texts(kind, WatchStep::Deleted(odd(70_001)));
    assert!(inventory.warnings.is_empty());
    assert_eq!(inventory.texts(kind, WatchStep::Applied(odd(70_001))), again);
    inventory.list(ResourceKind::EndpointSlice, []);
    assert!(!inventory.warnings.is_empty());
    inventory.list(kind, []);
    assert!(inventory.warnings.is_empty());
}

#[test]
fn triggers_count_once() {
    let mut inventory = inventory();
    let kind = ResourceKind::EndpointSlice;
    // Before the start, at it, and after it. What triggered a change is texts before the change.
    let listed = [triggered("a", 900), triggered("b", 1_000), triggered("c", 1_001)];
    assert_eq!(inventory.list(kind, listed), ["+n/a", "+n/b", "triggered 1001", "+n/c"]);
    // What a watch sends has changed, in whatever order it happened.
    for seconds in [1_200, 1_100] {
        let texts = inventory.texts(kind, WatchStep::Applied(triggered("a", seconds)));
        assert_eq!(texts, [format!("triggered {seconds}"), "+n/a".to_owned()]);
    }
    assert_eq!(inventory.texts(kind, WatchStep::Applied(triggered("a", 999))), ["+n/a"]);
    // A new list: nothing counts again, and what happened meanwhile does, in any order.
    let listed = || {
        [triggered("a", 1_100), triggered("b", 1_400), triggered("c", 1_300), triggered("d", 1_200)]
    };
    assert_eq!(
        inventory.list(kind, listed()),
        ["+n/a", "triggered 1400", "+n/b", "triggered 1300", "+n/c", "+n/d"]
    );
    assert_eq!(inventory.list(kind, listed()), ["+n/a", "+n/b", "+n/c", "+n/d"]);
    // A time that lies ahead counts, and does not keep others from it.
    assert_eq!(inventory.list(kind, [triggered("a", 9_999)]).last().unwrap(), "-n/d");
    inventory.texts(kind, WatchStep::Applied(triggered("a", 9_999)));
    assert_eq!(inventory.texts(kind, WatchStep::ListBegins), Vec::<String>::new());
    let later = inventory.take(kind, WatchStep::Listed(triggered("b", 5_100)), at(6_000));
    assert_eq!(short(later.first().unwrap()), "triggered 5100");
    // No time at all.
    assert_eq!(inventory.texts(kind, WatchStep::Applied(slice("a", "yesterday"))), ["+n/a"]);
}

#[test]
fn one_copy_of_a_name() {
    let mut inventory = inventory();
    let name = |events: Vec<SourceEvent>| match &events[0] {
        SourceEvent::Change(Event::SliceApplied(slice)) => slice.name.clone(),
        other => panic!("{other:?}"),
    };
    let kind = ResourceKind::EndpointSlice;
    let first = name(inventory.take(kind, WatchStep::Applied(triggered("a", 1)), at(2)));
    let second = name(inventory.take(kind, WatchStep::Applied(triggered("a", 1)), at(2)));
    assert!(std::ptr::eq(&*first, &*second));
}

/// Changes that may happen, with the objects as small numbers.
#[derive(Debug, Clone)]
enum Happening {
    Applied(u8),
    Deleted(u8),
    /// The cluster changes unseen, then a list comes: complete, or up to somewhere.
    List {
        objects: BTreeSet<u8>,
        complete: bool,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    let objects = proptest::collection::btree_set(0..8_u8, 0..8);
    prop_oneof![
        (0..8_u8).prop_map(Happening::Applied),
        (0..8_u8).prop_map(Happening::Deleted),
        (objects, any::<bool>())
            .prop_map(|(objects, complete)| Happening::List { objects, complete }),
    ]
}

proptest! {
    /// A receiver that heeds the events has, after every complete list, what the list had; a list
    /// that fails removes nothing; and nothing is removed that is not in force.
    #[test]
    fn heeding_the_events_leads_to_what_is_there(
        happenings in proptest::collection::vec(happening(), 0..40)
    ) {
        let mut inventory = inventory();
        let mut in_force = BTreeSet::new();
        let take = |inventory: &mut Inventory, in_force: &mut BTreeSet<String>, step| {
            for texts in inventory.texts(ResourceKind::Service, step) {
                match texts.split_at(1) {
                    ("+", name) => _ = in_force.insert(name.to_owned()),
                    ("-", name) => assert!(in_force.remove(name), "{name}"),
                    other => panic!("{other:?}"),
                }
            }
        };
        for happening in happenings {
            match happening {
                Happening::Applied(object) => {
                    let item = service(&object.to_string());
                    take(&mut inventory, &mut in_force, WatchStep::Applied(item));
                    assert!(in_force.contains(&format!("n/{object}")));
                }
                Happening::Deleted(object) => {
                    let item = service(&object.to_string());
                    take(&mut inventory, &mut in_force, WatchStep::Deleted(item));
                    assert!(!in_force.contains(&format!("n/{object}")));
                }
                Happening::List { objects, complete } => {
                    let before = in_force.clone();
                    let listed: BTreeSet<_> =
                        objects.iter().map(|object| format!("n/{object}")).collect();
                    take(&mut inventory, &mut in_force, WatchStep::ListBegins);
                    for object in objects {
                        let item = service(&object.to_string());
                        take(&mut inventory, &mut in_force, WatchStep::Listed(item));
                    }
                    if complete {
                        take(&mut inventory, &mut in_force, WatchStep::ListEnds);
                    }
                    let expected =
                        if complete { listed } else { before.union(&listed).cloned().collect() };
                    prop_assert_eq!(&in_force, &expected);
                }
            }
        }
    }
}

fn other(name: &str, address: &str) -> Item {
    let text = format!(
        r#"{{"metadata":{{"name":"{name}"}},
            "status":{{"addresses":[{{"type":"InternalIP","address":"{address}"}}]}}}}"#
    );
    Item::OtherNode(serde_json::from_str(&text).unwrap())
}

#[test]
fn other_nodes_are_reported_when_their_addresses_change() {
    let mut inventory = inventory();
    // A server that does not know the field sends this node's Node too.
    let all = [other("this", "192.0.2.1"), other("b", "192.0.2.2"), other("c", "192.0.2.3")];
    assert_eq!(inventory.list(ResourceKind::OtherNode, all), ["+other b", "+other c"]);
    let nothing = Vec::<String>::new();
    let mut say = |step| inventory.texts(ResourceKind::OtherNode, step);
    assert_eq!(say(WatchStep::Applied(other("b", "192.0.2.2"))), nothing);
    assert_eq!(say(WatchStep::Applied(other("b", "192.0.2.22"))), ["+other b"]);
    assert_eq!(say(WatchStep::Applied(other("d", ""))), nothing, "no address");
    assert_eq!(say(WatchStep::Deleted(other("d", ""))), nothing);
    assert_eq!(say(WatchStep::Deleted(other("this", "192.0.2.1"))), nothing);
    assert_eq!(say(WatchStep::Applied(bad(ResourceKind::OtherNode, Some("b")))), nothing);
    // A list that fails half-way, and one that does not: only that one shows which are gone.
    assert_eq!(say(WatchStep::ListBegins), nothing);
    assert_eq!(say(WatchStep::Listed(other("b", "192.0.2.22"))), nothing);
    let list = [bad(ResourceKind::OtherNode, Some("b")), other("e", "192.0.2.5")];
    assert_eq!(inventory.list(ResourceKind::OtherNode, list), ["+other e", "-other c"]);
    assert_eq!(
        inventory.texts(ResourceKind::OtherNode, WatchStep::Deleted(other("b", "x"))),
        ["-other b"]
    );
    assert!(!inventory.unlisted.is_empty(), "nothing is complete because of other nodes");
}
