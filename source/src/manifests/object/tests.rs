use super::*;

fn read(text: &str) -> Object {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn the_same_object_in_yaml_and_json_and_in_any_order() {
    let first = read(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {app: web}}\n\
         spec: {clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: http}]}\n",
    );
    let late = read(
        "spec: {clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: http}]}\n\
         metadata: {name: web, labels: {app: web}}\nkind: Service\napiVersion: v1\n",
    );
    let json: Object = serde_json::from_str(
        r#"{"apiVersion":"v1","metadata":{"name":"web","labels":{"app":"web"}},"kind":"Service",
            "spec":{"clusterIP":"10.96.0.1","ports":[{"port":80,"targetPort":"http"}]}}"#,
    )
    .unwrap();
    assert_eq!(first, late);
    assert_eq!(first, json);
    let Object::Service(service) = first else { panic!("{first:?}") };
    assert_eq!(service.spec.ports[0].port, Some(80));
}

#[test]
fn only_the_right_group_counts() {
    for (api_version, kind) in
        [("serving.knative.dev/v1", "Service"), ("v1", "EndpointSlice"), ("apps/v1", "Deployment")]
    {
        let object = read(&format!("apiVersion: {api_version}\nkind: {kind}\nspec: {{ports: x}}"));
        assert_eq!(object, Object::Other { kind: format!("{api_version}/{kind}") });
    }
    assert!(matches!(read("kind: Service\nspec: {}"), Object::Untyped(_)));
}

#[test]
fn lists_with_their_kind_first_or_last() {
    let item = "apiVersion: v1\n  kind: Service\n  metadata: {name: a}";
    for text in [
        format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n"),
        format!("apiVersion: v1\nitems:\n- {item}\nkind: List\n"),
        "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a}\n".to_owned(),
        "items:\n- metadata: {name: a}\nkind: ServiceList\napiVersion: v1\n".to_owned(),
    ] {
        let Object::List(items) = read(&text) else { panic!("{text}") };
        let [Object::Service(service)] = items.as_slice() else { panic!("{items:?}") };
        assert_eq!(service.metadata.name.as_deref(), Some("a"));
    }
    assert_eq!(read("apiVersion: v1\nkind: List\nitems: ~\n"), Object::List(vec![]));
}

#[test]
fn wrong_types_are_refused_with_their_place() {
    let error = |text: &str| {
        let json = &mut serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize::<_, Object>(json).unwrap_err().to_string()
    };
    let first = error(r#"{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":"x"}]}}"#);
    assert!(first.starts_with("spec.ports[0].port: invalid type: string"), "{first}");
    let late = error(r#"{"spec":{"ports":[{"port":"x"}]},"apiVersion":"v1","kind":"Service"}"#);
    assert!(late.contains("spec.ports[0].port: invalid type: string"), "{late}");
    let listed =
        error(r#"{"apiVersion":"v1","kind":"NodeList","items":[{},{"spec":{"podCIDRs":[1]}}]}"#);
    assert!(listed.contains("items[1].spec.podCIDRs[0]: invalid type: integer"), "{listed}");
}
