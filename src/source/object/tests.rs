use super::*;

#[test]
fn null_is_the_same_as_absent() {
    let slice: EndpointSlice = serde_json::from_str(
        r#"{"metadata":{"name":"a","creationTimestamp":null,"labels":null},"addressType":"IPv4",
            "endpoints":null,"ports":null}"#,
    )
    .unwrap();
    assert_eq!(slice.endpoints, []);
    assert_eq!(slice.metadata.name.as_deref(), Some("a"));
    let service: Service =
        serde_json::from_str(r#"{"spec":{"externalIPs":null,"sessionAffinityConfig":null}}"#)
            .unwrap();
    assert_eq!(service, Service::default());
}

#[test]
fn some_labels_mean_something_whatever_their_value() {
    for value in ["\"\"", "null", "\"x\""] {
        let text = format!(
            r#"{{"labels":{{"service.kubernetes.io/headless":{value},
                "service.kubernetes.io/service-proxy-name":{value}}}}}"#
        );
        let metadata: Metadata = serde_json::from_str(&text).unwrap();
        assert!(metadata.labels.headless && metadata.labels.service_proxy_name, "{text}");
    }
    assert_eq!(Metadata::default().labels, Labels::default());
}

#[test]
fn a_node_that_is_leaving() {
    let node = |text| serde_json::from_str::<Node>(text).unwrap();
    assert!(!node(r#"{"spec":{"taints":[{"key":"other","effect":"NoSchedule"}]}}"#).is_leaving());
    assert!(node(r#"{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler"}]}}"#).is_leaving());
    assert!(node(r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}"#).is_leaving());
}
