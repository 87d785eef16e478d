use proptest::prelude::*;

use super::*;
use crate::Options;
use crate::manifests::{FileChange, Folder};

fn error(text: &str) -> String {
    parse(text.as_bytes()).unwrap_err().to_string()
}

fn service_named(name: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n")
}

#[test]
fn any_number_of_documents() {
    let cases = [
        (String::new(), 0),
        ("\u{feff}".to_owned(), 0),
        ("# nothing\n".to_owned(), 0),
        ("---\n---\n# nothing\n...\n".to_owned(), 0),
        (service_named("a"), 1),
        (format!("\u{feff}{}", service_named("a")), 1),
        (format!("---\n{}---\n\n---\n{}---\n", service_named("a"), service_named("b")), 2),
        (service_named("a").replace('\n', "\r\n"), 1),
        (
            r#"{"kind":"List","apiVersion":"v1","items":[
                {"kind":"Node","apiVersion":"v1"},{"kind":"Node","apiVersion":"v1"}]}"#
                .to_owned(),
            2,
        ),
        ("\t{\n\t\"kind\": \"Node\",\n\t\"apiVersion\": \"v1\"\n}\n".to_owned(), 1),
    ];
    for (text, n_objects) in cases {
        let objects = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(objects.len(), n_objects, "{text:?}");
    }
}

#[test]
fn errors_say_where() {
    let wrong_type = format!(
        "{}---\n{}spec:\n  ports:\n  - port: http\n",
        service_named("a"),
        service_named("b")
    );
    let error_text = error(&wrong_type);
    assert!(error_text.starts_with("spec.ports[0].port: "), "{error_text}");
    assert!(error_text.contains("line 12, column 11"), "{error_text}");
    assert!(error("kind: [\n").contains("line "), "{}", error("kind: [\n"));
    assert!(error("just words\n").contains("line 1"), "{}", error("just words\n"));
    let twice = error("kind: A\nkind: B\n");
    assert!(twice.contains("duplicate") && twice.contains("line 2"), "{twice}");
    let binary = parse(b"kind: A\nmetadata:\n  name: \xff\n").unwrap_err().to_string();
    assert_eq!(binary, "not UTF-8 text at line 3");
}

#[test]
fn anchors_are_for_convenience() {
    let text = "apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  ports:
  - &port {port: 80}
  - *port
";
    let objects = parse(text.as_bytes()).unwrap();
    let [Object::Service(service)] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!(service.spec.ports.len(), 2);
}

#[test]
fn aliases_do_not_become_gigabytes() {
    let mut text =
        "apiVersion: v1\nkind: ConfigMap\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    text.push_str("---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n");
    let error = error(&text.replace("ConfigMap", "Service").replace("a11:", "spec:"));
    assert!(error.contains("alias"), "{error}");
    // Aliases in a value that the parser skips are not followed.
    match parse(text.as_bytes()) {
        Ok(objects) => assert_eq!(objects.len(), 2),
        Err(error) => assert!(error.to_string().contains("alias"), "{error}"),
    }
}

#[test]
fn nesting_has_a_limit() {
    for (open, close) in [("[", "]"), ("{a: ", "}")] {
        let text = format!("a: {}{}", open.repeat(100_000), close.repeat(100_000));
        assert!(parse(text.as_bytes()).is_err());
    }
    let within = r#"{"apiVersion":"v1","kind":"List","items":[{"kind":"List","apiVersion":"v1"}]}"#;
    assert!(error(within).contains("a list within a list"), "{}", error(within));
    let lists = r#"{"apiVersion":"v1","kind":"List","items":["#;
    let text = format!("{}{}", lists.repeat(10_000), "]}".repeat(10_000));
    assert!(parse(text.as_bytes()).is_err());
}

/// Pieces that manifests are made of, so that random texts get past the first line.
fn mk_fragment() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        Just("apiVersion"),
        Just("kind"),
        Just("metadata"),
        Just("name"),
        Just("namespace"),
        Just("labels"),
        Just("spec"),
        Just("status"),
        Just("ports"),
        Just("port"),
        Just("clusterIP"),
        Just("clusterIPs"),
        Just("ipFamilies"),
        Just("externalIPs"),
        Just("loadBalancerSourceRanges"),
        Just("items"),
        Just("endpoints"),
        Just("addresses"),
        Just("addressType"),
        Just("kubernetes.io/service-name"),
        Just("conditions"),
        Just("hints"),
        Just("podCIDRs"),
        Just("creationTimestamp"),
        Just("sessionAffinity"),
    ];
    let value = prop_oneof![
        Just("v1".to_owned()),
        Just("discovery.k8s.io/v1".to_owned()),
        Just("Service".to_owned()),
        Just("EndpointSlice".to_owned()),
        Just("Node".to_owned()),
        Just("List".to_owned()),
        Just("ServiceList".to_owned()),
        Just("IPv4".to_owned()),
        Just("IPv6".to_owned()),
        Just("ClientIP".to_owned()),
        Just("~".to_owned()),
        Just("[]".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<std::net::IpAddr>().prop_map(|address| format!("'{address}'")),
        any::<(std::net::IpAddr, u8)>().prop_map(|(address, bits)| format!("'{address}/{bits}'")),
        "\\PC{0,12}",
    ];
    (0..4_usize, any::<bool>(), key, value).prop_map(|(depth, item, key, value)| {
        let dash = if item { "- " } else { "" };
        format!("{}{dash}{key}: {value}\n", "  ".repeat(depth))
    })
}

/// A tree of the same pieces, which always is YAML.
fn mk_tree() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![
            Just("v1".to_owned()),
            Just("Service".to_owned()),
            Just("IPv4".to_owned()),
            any::<std::net::IpAddr>().prop_map(|address| address.to_string()),
            "\\PC{0,8}",
        ]
        .prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("kind".to_owned()),
        Just("metadata".to_owned()),
        Just("name".to_owned()),
        Just("spec".to_owned()),
        Just("status".to_owned()),
        Just("items".to_owned()),
        Just("ports".to_owned()),
        Just("port".to_owned()),
        Just("clusterIP".to_owned()),
        Just("clusterIPs".to_owned()),
        Just("endpoints".to_owned()),
        Just("addresses".to_owned()),
        Just("externalIPs".to_owned()),
        Just("addressType".to_owned()),
        "[a-z]{0,6}",
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn swallow(bytes: Vec<u8>) {
    let mut folder = Folder::new("/manifests", &Options::new("node1"));
    let first = folder.apply([("a.yaml".into(), FileChange::Read(bytes.clone()))]);
    let again = folder.apply([("a.yaml".into(), FileChange::Read(bytes))]);
    assert_eq!(again.events, [], "an unchanged file changes nothing");
    let gone = folder.apply([("a.yaml".into(), FileChange::Gone)]);
    assert!(gone.events.len() <= first.events.len());
}

proptest! {
    #[test]
    fn any_bytes_are_swallowed(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        swallow(bytes);
    }

    #[test]
    fn any_lines_are_swallowed(lines in proptest::collection::vec(mk_fragment(), 0..24)) {
        swallow(lines.concat().into_bytes());
    }

    #[test]
    fn any_fields_are_swallowed(
        (kind, tree) in (0..4_usize, mk_tree()),
        linked in any::<bool>(),
    ) {
        let (api_version, kind) = [
            ("v1", "Service"), ("discovery.k8s.io/v1", "EndpointSlice"), ("v1", "Node"),
            ("v1", "List"),
        ][kind];
        let mut object = match tree {
            serde_json::Value::Object(map) => map,
            other => [("items".to_owned(), other)].into_iter().collect(),
        };
        object.insert("apiVersion".to_owned(), api_version.into());
        object.insert("kind".to_owned(), kind.into());
        if linked {
            let metadata = serde_json::json!({
                "name": "node1", "labels": {"kubernetes.io/service-name": "x"},
            });
            object.insert("metadata".to_owned(), metadata);
        }
        swallow(serde_json::Value::Object(object).to_string().into_bytes());
    }
}
