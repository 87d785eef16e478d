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

#[test]
fn lists_of_an_object_end() {
    let slice = |n_endpoints: usize| {
        let endpoints = vec!["{}"; n_endpoints].join(",");
        serde_json::from_str::<EndpointSlice>(&format!(r#"{{"endpoints":[{endpoints}]}}"#))
    };
    assert_eq!(slice(MOST_ENDPOINTS).unwrap().endpoints.len(), MOST_ENDPOINTS);
    let error = slice(MOST_ENDPOINTS + 1).unwrap_err().to_string();
    assert!(error.starts_with("more than 10000 items"), "{error}");
    // The most ports that a Service can have: each of three protocols.
    let ports = vec!["{}"; 3 * 65_535].join(",");
    let service: Service =
        serde_json::from_str(&format!(r#"{{"spec":{{"ports":[{ports}]}}}}"#)).unwrap();
    assert_eq!(service.spec.ports.len(), 3 * 65_535);
}
