//! JSON and Protobuf of the same objects: what is decoded is the same.

use std::fs;
use std::path::Path;

use apiserver::protobuf as server;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const KINDS: [ResourceKind; 4] = [
    ResourceKind::Service,
    ResourceKind::EndpointSlice,
    ResourceKind::Node,
    ResourceKind::OtherNode,
];

/// A field of a random object, or nothing.
type RandomField = (&'static str, BoxedStrategy<Option<Value>>);

/// An event as it comes in both encodings; in Protobuf without its length.
fn events(event: &str, object: &Value) -> [(Encoding, Vec<u8>); 2] {
    let json = json!({"type": event, "object": object}).to_string();
    let frame = server::event(event, object).unwrap();
    let (length, event) = frame.split_at(4);
    assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, event.len());
    [(Encoding::Json, json.into_bytes()), (Encoding::Protobuf, event.to_vec())]
}

fn decoded(kind: ResourceKind, event: &str, object: &Value) -> [Event; 2] {
    events(event, object).map(|(encoding, event)| Event::decode(kind, encoding, &event).unwrap())
}

/// Reads a list that comes in chunks of so many bytes. All items are in the end.
fn list(
    kind: ResourceKind,
    encoding: Encoding,
    list: &[u8],
    chunk: usize,
) -> serde_json::Result<PageEnd> {
    let mut reader = ListReader::new(kind, encoding);
    let mut items = Vec::new();
    for chunk in list.chunks(chunk) {
        items.extend(reader.read(chunk)?);
    }
    let end = reader.end()?;
    items.extend(end.items);
    Ok(PageEnd { items, ..end })
}

/// A list of these objects in both encodings.
fn lists(kind: ResourceKind, objects: &[Value]) -> [(Encoding, Vec<u8>); 2] {
    let list = json!({
        "kind": format!("{}List", kind.name()), "apiVersion": "v1",
        "metadata": {"resourceVersion": "7", "continue": "more"}, "items": objects,
    });
    let protobuf = server::object(&list).unwrap();
    [(Encoding::Json, list.to_string().into_bytes()), (Encoding::Protobuf, protobuf)]
}

/// An object with its kind, as the API server sends it.
fn typed(kind: ResourceKind, mut object: Value) -> Value {
    object["kind"] = json!(kind.name());
    object["apiVersion"] = json!("v1");
    object
}

fn object(fields: Vec<RandomField>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    values
        .prop_map(move |values| {
            let named = names.iter().zip(values);
            let named = named.filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
            Value::Object(named.collect())
        })
        .boxed()
}

fn maybe(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Option<Value>> {
    option::of(value).boxed()
}

/// Strategy for a field without `omitempty`.
fn always(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Option<Value>> {
    value.prop_map(Some).boxed()
}

/// With `omitempty`, an empty one is left out.
fn text() -> BoxedStrategy<Option<Value>> {
    maybe("[a-c\"\\\\\n\u{1}ü€./-]{1,9}".prop_map(Value::from))
}

fn any_text() -> impl Strategy<Value = Value> + use<> {
    "[a-c\"\\\\\n\u{1}ü€./-]{0,9}".prop_map(Value::from)
}

fn any_number() -> impl Strategy<Value = Value> + use<> {
    prop_oneof![Just(0), any::<i32>(), 1..=65_535].prop_map(Value::from)
}

fn number() -> BoxedStrategy<Option<Value>> {
    maybe(any_number().prop_filter("it is left out", |number| *number != 0))
}

fn items(item: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Option<Value>> {
    maybe(prop_oneof![Just(Value::Null), vec(item, 0..4).prop_map(Value::from)])
}

/// A time with whole seconds, as Go writes it.
fn time() -> impl Strategy<Value = Value> + use<> {
    let seconds = -62_135_596_799_i64..253_402_000_000;
    let time = seconds.prop_map(|it| json!(jiff::Timestamp::from_second(it).unwrap().to_string()));
    prop_oneof![Just(Value::Null), time]
}

fn map(known: &'static [&'static str]) -> BoxedStrategy<Option<Value>> {
    let key = prop_oneof![
        proptest::sample::select(known).prop_map(str::to_owned),
        "[a-c]{0,3}".prop_map(String::from)
    ];
    let entries = proptest::collection::btree_map(key, any_text(), 0..6);
    maybe(prop_oneof![
        Just(Value::Null),
        entries.prop_map(|entries| Value::Object(entries.into_iter().collect()))
    ])
}

fn metadata() -> RandomField {
    let labels = map(&[
        "service.kubernetes.io/service-proxy-name",
        "service.kubernetes.io/headless",
        "kubernetes.io/service-name",
        "topology.kubernetes.io/zone",
    ]);
    let annotations = map(&[
        "endpoints.kubernetes.io/last-change-trigger-time",
        "kube-ipvs.io/scheduler",
        "kube-ipvs.io/scheduler-flags",
        "kube-ipvs.io/drain-deadline",
        "kube-ipvs.io/weights",
        "kube-ipvs.io/fast-path",
    ]);
    let metadata = object(vec![
        ("name", text()),
        ("namespace", text()),
        ("generation", number()),
        ("creationTimestamp", maybe(time())),
        ("deletionTimestamp", maybe(time())),
        ("resourceVersion", text()),
        ("labels", labels),
        ("annotations", annotations),
        ("finalizers", items(any_text())),
        (
            "managedFields",
            items(object(vec![("manager", text()), ("fieldsV1", maybe(any_text()))])),
        ),
    ]);
    ("metadata", maybe(metadata))
}

fn service() -> BoxedStrategy<Value> {
    let port = object(vec![
        ("name", text()),
        ("protocol", text()),
        ("port", always(any_number())),
        ("nodePort", number()),
        ("targetPort", maybe(prop_oneof![any_text(), any_number()])),
        ("appProtocol", maybe(any_text())),
    ]);
    let client_ip = object(vec![("timeoutSeconds", maybe(any_number()))]);
    let ingress = object(vec![("ip", text()), ("hostname", text()), ("ipMode", maybe(any_text()))]);
    let load_balancer = object(vec![("ingress", items(ingress))]);
    let spec = object(vec![
        ("type", text()),
        ("clusterIP", text()),
        ("clusterIPs", items(any_text())),
        ("ipFamilies", items(any_text())),
        ("ipFamilyPolicy", maybe(any_text())),
        ("externalIPs", items(any_text())),
        ("loadBalancerSourceRanges", items(any_text())),
        ("ports", items(port)),
        ("selector", map(&["app"])),
        ("sessionAffinity", text()),
        ("sessionAffinityConfig", maybe(object(vec![("clientIP", maybe(client_ip))]))),
        ("externalTrafficPolicy", text()),
        ("internalTrafficPolicy", maybe(any_text())),
        ("healthCheckNodePort", number()),
        ("publishNotReadyAddresses", maybe(any::<bool>().prop_map(Value::from))),
    ]);
    let status = object(vec![("loadBalancer", maybe(load_balancer))]);
    object(vec![metadata(), ("spec", maybe(spec)), ("status", maybe(status))])
}

fn slice() -> BoxedStrategy<Value> {
    let truth = || maybe(any::<bool>().prop_map(Value::from));
    let conditions =
        object(vec![("ready", truth()), ("serving", truth()), ("terminating", truth())]);
    let named = || items(object(vec![("name", always(any_text()))]));
    let hints = object(vec![("forZones", named()), ("forNodes", named())]);
    let target = object(vec![("kind", text()), ("name", text()), ("uid", text())]);
    let endpoint = object(vec![
        ("addresses", items(any_text())),
        ("conditions", maybe(conditions)),
        ("hostname", maybe(any_text())),
        ("targetRef", maybe(target)),
        ("nodeName", maybe(any_text())),
        ("zone", maybe(any_text())),
        ("hints", maybe(hints)),
    ]);
    let port = object(vec![
        ("name", maybe(any_text())),
        ("protocol", maybe(any_text())),
        ("port", maybe(any_number())),
    ]);
    object(vec![
        metadata(),
        ("addressType", always(any_text())),
        ("endpoints", items(endpoint)),
        ("ports", items(port)),
    ])
}

fn node() -> BoxedStrategy<Value> {
    let taint = object(vec![
        ("key", always(any_text())),
        ("effect", always(any_text())),
        ("timeAdded", maybe(time())),
    ]);
    let address = object(vec![("type", always(any_text())), ("address", always(any_text()))]);
    let image = object(vec![("names", items(any_text())), ("sizeBytes", number())]);
    let spec = object(vec![
        ("podCIDR", text()),
        ("podCIDRs", items(any_text())),
        ("taints", items(taint)),
        ("unschedulable", maybe(any::<bool>().prop_map(Value::from))),
    ]);
    let status = object(vec![
        ("capacity", map(&["cpu", "memory"])),
        ("addresses", items(address)),
        ("images", items(image)),
    ]);
    object(vec![metadata(), ("spec", maybe(spec)), ("status", maybe(status))])
}

/// A random object, as Go writes one.
fn random() -> BoxedStrategy<(ResourceKind, Value)> {
    proptest::sample::select(&KINDS[..])
        .prop_flat_map(|kind| {
            let object = match kind {
                ResourceKind::Service => service(),
                ResourceKind::EndpointSlice => slice(),
                ResourceKind::Node | ResourceKind::OtherNode => node(),
            };
            object.prop_map(move |object| (kind, typed(kind, object)))
        })
        .boxed()
}

/// Every value of an object, as a pointer to it.
fn pointers(object: &Value, at: &str, found: &mut Vec<String>) {
    match object {
        Value::Object(fields) => {
            for (name, value) in fields {
                let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                pointers(value, &at, found);
                found.push(at);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                pointers(value, &format!("{at}/{index}"), found);
                found.push(format!("{at}/{index}"));
            }
        }
        _ => {}
    }
}

/// Metadata and the wrong field of an undecodable object, without the description of its value.
fn path(item: &Item) -> Option<(&Metadata, &str)> {
    let Item::Undecodable(bad) = item else { return None };
    // In Protobuf, a list is as wrong as its first item: both are the same field.
    Some((&bad.metadata, bad.problem.split(": ").next().unwrap().trim_end_matches("[0]")))
}

proptest! {
    #[test]
    fn objects_are_the_same((kind, object) in random()) {
        for event in ["ADDED", "MODIFIED", "DELETED"] {
            let [json, protobuf] = decoded(kind, event, &object);
            prop_assert!(!format!("{json:?}").contains("Undecodable"), "{object}: {json:?}");
            prop_assert_eq!(json, protobuf, "{}", object);
        }
    }

    #[test]
    fn lists_are_the_same_in_chunks_of_any_size(
        objects in vec(random(), 0..5),
        kind in proptest::sample::select(&KINDS[..]),
        chunk in 1_usize..200,
    ) {
        let objects: Vec<Value> = objects.into_iter().filter(|it| it.0 == kind).map(|it| it.1).collect();
        let [json, protobuf] =
            lists(kind, &objects).map(|(encoding, text)| list(kind, encoding, &text, chunk).unwrap());
        prop_assert_eq!(json.items.len(), objects.len());
        prop_assert_eq!(&json, &protobuf);
        prop_assert_eq!(json.next.as_deref(), Some("more"));
    }

    /// A value of another type is the same problem, and harms its object only.
    #[test]
    fn a_bad_value_harms_its_object_only(
        (kind, object) in random(),
        place in any::<proptest::sample::Index>(),
    ) {
        let mut places = Vec::new();
        pointers(&object, "", &mut places);
        let pointer = place.get(&places);
        prop_assume!(!["/kind", "/apiVersion"].contains(&pointer.as_str()));
        let mut bad = object.clone();
        let value = bad.pointer_mut(pointer).unwrap();
        prop_assume!(!value.is_null());
        *value = if value.is_number() || value.is_boolean() { json!("x") } else { json!(true) };
        let objects = [object.clone(), bad.clone(), object];
        let [json, protobuf] =
            lists(kind, &objects).map(|(encoding, text)| list(kind, encoding, &text, 64).unwrap().items);
        prop_assert_eq!(&json[0], &protobuf[0]);
        prop_assert_eq!(&json[0], &json[2]);
        prop_assert_eq!(&protobuf[0], &protobuf[2]);
        prop_assert_eq!(path(&json[1]), path(&protobuf[1]), "{}: {:?} {:?}", bad, json[1], protobuf[1]);
    }

    /// Random bytes give an error or a bad object, and nothing else.
    #[test]
    fn random_bytes_are_read_to_their_end(bytes in vec(any::<u8>(), 0..300), chunk in 1_usize..40) {
        for kind in KINDS {
            let _ = Event::decode(kind, Encoding::Protobuf, &bytes);
            let _ = Item::decode(kind, Encoded::Protobuf(&bytes));
            let _ = Status::decode(Encoding::Protobuf, &bytes);
            let _ = list(kind, Encoding::Protobuf, &bytes, chunk);
        }
    }

    #[test]
    fn damaged_bytes_are_read_to_their_end(
        (kind, object) in random(),
        places in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        chunk in 1_usize..40,
    ) {
        let [_, (_, mut event)] = events("ADDED", &object);
        let [_, (encoding, mut text)] = lists(kind, &[object]);
        for (place, byte) in places {
            *place.get_mut(&mut event) = byte;
            *place.get_mut(&mut text) = byte;
        }
        let _ = Event::decode(kind, encoding, &event);
        let _ = list(kind, encoding, &text, chunk);
    }

    #[test]
    fn a_list_that_is_cut_off_is_an_error((kind, object) in random(), chunk in 1_usize..40) {
        let [_, (encoding, text)] = lists(kind, &[object]);
        // The empty fields behind the list may be missing.
        for end in 0..text.len() - 4 {
            prop_assert!(list(kind, encoding, &text[..end], chunk).is_err(), "{} of {}", end, text.len());
        }
    }
}

/// Objects as kube-apiserver 1.36.2 gave them.
#[test]
fn objects_of_a_real_cluster_are_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/random-101");
    let mut n_objects = 0;
    for stage in ["stage1", "stage2", "stage3"] {
        for (file, kinds) in [
            ("services.json", &KINDS[..1]),
            ("slices.json", &KINDS[1..2]),
            ("nodes.json", &KINDS[2..]),
        ] {
            let text = fs::read(folder.join(stage).join(file)).unwrap();
            let objects: Value = serde_json::from_slice(&text).unwrap();
            let objects = objects["items"].as_array().unwrap();
            for kind in kinds.iter().copied() {
                let [json, protobuf] = lists(kind, objects)
                    .map(|(encoding, text)| list(kind, encoding, &text, 1_000).unwrap());
                assert_eq!(json.items.len(), objects.len());
                assert_eq!(json, protobuf);
                assert!(json.items.iter().all(|item| path(item).is_none()));
                n_objects += objects.len();
            }
        }
    }
    assert!(n_objects > 100, "{n_objects}");
}

/// A field of a message whose value is bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    [&field, bytes].concat()
}

/// Objects with a value in every field, as Kubernetes' own types write them in both encodings.
#[test]
fn objects_that_go_wrote_are_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/kubernetes-api");
    for (name, kinds) in [
        ("core.v1.Service", &KINDS[..1]),
        ("discovery.k8s.io.v1.EndpointSlice", &KINDS[1..2]),
        ("core.v1.Node", &KINDS[2..]),
    ] {
        let [json, bytes] =
            ["json", "pb"].map(|end| fs::read(folder.join(format!("{name}.{end}"))).unwrap());
        let json: Value = serde_json::from_slice(&json).unwrap();
        for kind in kinds.iter().copied() {
            let event = [field(1, b"MODIFIED"), field(2, &field(1, &bytes))].concat();
            let of_go = Event::decode(kind, Encoding::Protobuf, &event).unwrap();
            assert_eq!(decoded(kind, "MODIFIED", &json), [of_go.clone(), of_go.clone()]);
            let Event::Applied(item) = of_go else { panic!("{of_go:?}") };
            assert_eq!(
                (path(&item), item.resource_version()),
                (None, Some("resourceVersionValue"))
            );
            let message = field(2, protobuf::message(&bytes, kind.name()).unwrap());
            let list_of_two = [field(1, &field(2, b"7")), message.clone(), message].concat();
            let type_meta = field(1, &field(2, format!("{}List", kind.name()).as_bytes()));
            let of_two = [b"k8s\0".to_vec(), type_meta, field(2, &list_of_two)].concat();
            let end = list(kind, Encoding::Protobuf, &of_two, 100).unwrap();
            assert_eq!(end.items, [item.clone(), item]);
        }
    }
}

/// Go writes it into Protobuf as it is, and each of its bytes into JSON as U+FFFD.
#[test]
fn text_that_is_not_utf_8_harms_its_field_only() {
    let slice = |name: &str| {
        json!({
            "kind": "EndpointSlice", "addressType": "IPv4", "metadata": {"name": "a", "labels": {"x": name}},
            "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": name, "zone": "z"}],
        })
    };
    let [_, (encoding, mut bytes)] = events("ADDED", &slice("n-BAD"));
    while let Some(at) = bytes.windows(3).position(|it| it == b"BAD") {
        // The beginning of a character of four bytes.
        bytes[at..at + 3].copy_from_slice(b"\xf0\x9f\x92");
    }
    let decoded = Event::decode(ResourceKind::EndpointSlice, encoding, &bytes).unwrap();
    let [json, _] = events("ADDED", &slice("n-\u{fffd}\u{fffd}\u{fffd}"));
    assert_eq!(decoded, Event::decode(ResourceKind::EndpointSlice, json.0, &json.1).unwrap());
    let Event::Applied(Item::EndpointSlice(slice)) = decoded else { panic!("{decoded:?}") };
    assert_eq!(slice.endpoints[0].zone.as_deref(), Some("z"));
}

/// Nothing in it is cut off, and it would be a list of nothing.
#[test]
fn a_list_without_its_metadata_is_an_error() {
    let type_meta = field(1, &field(2, b"ServiceList"));
    for (message, is_list) in [
        (vec![], false),
        (field(2, b""), false),
        (field(1, b""), true),
        (field(1, &field(2, b"7")), true),
    ] {
        let bytes = [b"k8s\0".to_vec(), type_meta.clone(), field(2, &message)].concat();
        let list = list(ResourceKind::Service, Encoding::Protobuf, &bytes, 100);
        assert_eq!(list.is_ok(), is_list, "{message:?}: {list:?}");
    }
}

#[test]
fn bookmarks_and_errors_are_the_same() {
    for annotations in [json!({}), json!({"k8s.io/initial-events-end": "true", "a": "b"})] {
        let object = json!({
            "kind": "Service", "apiVersion": "v1", "spec": {}, "status": {"loadBalancer": {}},
            "metadata": {"resourceVersion": "9", "creationTimestamp": null, "annotations": annotations},
        });
        let [json, protobuf] = decoded(ResourceKind::Service, "BOOKMARK", &object);
        assert_eq!(json, protobuf);
        let list_ends = annotations != json!({});
        assert_eq!(json, Event::Bookmark { resource_version: "9".to_owned(), list_ends });
    }
    let message = format!("\u{1b}[2J a \"field\"\n{}", "x".repeat(1 << 20));
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410,
        "message": message, "reason": "Expired", "details": {"retryAfterSeconds": 1},
    });
    let [json, protobuf] = decoded(ResourceKind::Node, "ERROR", &status);
    assert_eq!(json, protobuf);
    let Event::Error(error) = json else { panic!("{json:?}") };
    assert!(error.is_expired() && error.code == 410 && error.message.len() <= 300, "{error:?}");
    let refusal = server::object(&status).unwrap();
    assert_eq!(Status::decode(Encoding::Protobuf, &refusal).unwrap(), error);
}

#[test]
fn what_is_of_another_kind_is_no_event_and_no_list() {
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}});
    for kind in ["ADDED", "BOOKMARK", "ERROR", "NEW"] {
        let [_, (encoding, event)] = events(kind, &node);
        let error = Event::decode(ResourceKind::Service, encoding, &event).unwrap_err().to_string();
        assert!(error.starts_with("an object of the kind \"Node\", not S"), "{kind}: {error}");
    }
    let [_, (encoding, event)] = events("NEW", &node);
    let error = Event::decode(ResourceKind::Node, encoding, &event).unwrap_err().to_string();
    assert_eq!(error, "an event of the unknown type \"NEW\"");
    for object in [
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500}),
        json!({"kind": "NodeList", "apiVersion": "v1", "items": []}),
        node,
    ] {
        let bytes = server::object(&object).unwrap();
        let error = list(ResourceKind::Service, encoding, &bytes, 9).unwrap_err().to_string();
        assert!(error.ends_with("not ServiceList"), "{error}");
    }
    let error = list(ResourceKind::Service, encoding, br#"{"items":[]}"#, 9).unwrap_err();
    assert_eq!(error.to_string(), "no object of Kubernetes in Protobuf");
}

#[test]
fn lists_inside_an_object_end_where_they_end_in_json() {
    let slice = |endpoints: Vec<Value>| json!({"kind": "EndpointSlice", "metadata": {"name": "a"}, "addressType": "", "endpoints": endpoints});
    for (fits, object) in [
        (true, slice(vec![json!({}); 10_000])),
        (false, slice(vec![json!({}); 10_001])),
        (true, slice(vec![json!({"addresses": vec!["a"; 100]})])),
        (false, slice(vec![json!({"addresses": vec!["a"; 101]})])),
        (
            false,
            slice(vec![json!({}), json!({"hints": {"forZones": vec![json!({"name": "a"}); 101]}})]),
        ),
    ] {
        let [json, protobuf] = decoded(ResourceKind::EndpointSlice, "ADDED", &object);
        assert_eq!(json, protobuf);
        let Event::Applied(item) = json else { panic!() };
        assert_eq!(path(&item).is_none(), fits, "{item:?}");
    }
}

/// Fields that say they are longer than they may be: none is waited for.
#[test]
fn a_field_that_is_too_long_is_read_no_further_than_its_length() {
    let [_, (encoding, list_of_none)] = lists(ResourceKind::Service, &[]);
    let kind_ends = list_of_none.windows(11).position(|it| it == b"ServiceList").unwrap() + 11;
    let to_kind = &list_of_none[..kind_ends];
    // A number of field, and 4 GiB.
    let far = |number: u8| [number, 0xff, 0xff, 0xff, 0xff, 0x0f].to_vec();
    let in_list = |field: u8| [to_kind, &far(0x12), &far(field)].concat();
    for bytes in
        [[b"k8s\0".to_vec(), far(0x0a)].concat(), in_list(0x0a), in_list(0x12), in_list(0x1a)]
    {
        for chunk in 1..bytes.len() {
            let error =
                list(ResourceKind::Service, encoding, &bytes, chunk).unwrap_err().to_string();
            let is_known = error.contains("not an answer of an API server")
                || error == "an item that is cut off";
            assert!(is_known, "{error}");
        }
    }
    let error = list(ResourceKind::Service, encoding, &[b"k8s\0".to_vec(), far(0x12)].concat(), 3);
    assert_eq!(error.unwrap_err().to_string(), "an object without its kind before it");
    // A number in the list's place is not an empty list.
    let error = list(ResourceKind::Service, encoding, &[to_kind, &[0x10, 0]].concat(), 3);
    assert_eq!(error.unwrap_err().to_string(), "an envelope without an object");
}
