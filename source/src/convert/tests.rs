use std::net::IpAddr;

use plan::model::{Family, Hints, Service, ServiceKind, ServicePort, TrafficPolicy};
use serde_json::json;

use super::*;

fn service_of(spec: &str) -> (Option<Service>, Vec<String>) {
    convert_service(&format!(
        "metadata: {{name: web, namespace: shop}}\nspec: {{ports: [{{port: 80}}], {spec}}}"
    ))
}

fn convert_service(text: &str) -> (Option<Service>, Vec<String>) {
    let object: object::Service = serde_saphyr::from_str(text).unwrap();
    let converted = Converter::default().service(&object).unwrap();
    let warnings = converted.warnings.iter().map(ToString::to_string).collect();
    match converted.event {
        Event::ServiceApplied(service) => (Some(*service), warnings),
        Event::ServiceRemoved(name) => {
            assert_eq!(name, ObjectName::new("shop", "web"));
            (None, warnings)
        }
        other => panic!("{other:?}"),
    }
}

/// A Service that is fine.
fn fine(spec: &str) -> Service {
    let (service, warnings) = service_of(spec);
    assert_eq!(warnings, Vec::<String>::new(), "{spec}");
    service.unwrap_or_else(|| panic!("not balanced: {spec}"))
}

/// A Service that is balanced, and has one thing wrong with it.
fn faulty(spec: &str) -> (Service, String) {
    let (service, warnings) = service_of(spec);
    let [warning] = warnings.as_slice() else { panic!("{spec}: {warnings:?}") };
    (service.unwrap_or_else(|| panic!("not balanced: {spec}")), warning.clone())
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn services_that_are_not_balanced() {
    for spec in [
        "clusterIP: None",
        "clusterIP: None, clusterIPs: [None]",
        "clusterIP: ''",
        "type: ClusterIP",
        "type: ExternalName, externalName: example.org",
        "type: ExternalName, clusterIP: 10.96.0.10",
        "type: LoadBalancer, externalIPs: [192.0.2.1]",
    ] {
        assert_eq!(service_of(spec), (None, vec![]), "{spec}");
    }
    let left_to_another = "metadata: {name: web, namespace: shop, \
         labels: {service.kubernetes.io/service-proxy-name: ''}}\nspec: {clusterIP: 10.96.0.10}";
    assert_eq!(convert_service(left_to_another), (None, vec![]));
}

#[test]
fn cluster_addresses_by_family() {
    let v4 = Some("10.96.0.10");
    let v6 = Some("fd00:96::10");
    let cases = [
        ("clusterIP: 10.96.0.10", v4, None),
        ("clusterIP: 'fd00:96::10'", None, v6),
        ("clusterIP: 010.096.000.010", v4, None),
        ("clusterIP: '::ffff:10.96.0.10'", v4, None),
        ("clusterIPs: [10.96.0.10, 'fd00:96::10']", v4, v6),
        ("clusterIP: 10.96.0.10, ipFamilies: [IPv4]", v4, None),
        (
            "clusterIP: 'fd00:96::10', clusterIPs: ['fd00:96::10', 10.96.0.10], \
             ipFamilies: [IPv6, IPv4]",
            v4,
            v6,
        ),
        (
            "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd00:96::10'], ipFamilies: [IPv4]",
            v4,
            None,
        ),
        ("clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4, IPv6]", v4, None),
    ];
    for (spec, v4, v6) in cases {
        let service = fine(spec);
        let expected = |text: Option<&str>| text.map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(service.cluster_address(Family::V4), expected(v4), "{spec}");
        assert_eq!(service.cluster_address(Family::V6), expected(v6), "{spec}");
    }
}

#[test]
fn cluster_addresses_that_contradict_themselves() {
    let (service, warnings) = service_of("clusterIP: 10.96.0.300");
    assert_eq!(service, None);
    let expected = "Service shop/web: spec.clusterIPs[0]: \"10.96.0.300\" is not an IP address; \
                    left out";
    assert_eq!(warnings, [expected]);
    let (service, warnings) = service_of("clusterIP: 10.96.0.1, ipFamilies: [IPv6]");
    assert_eq!(service, None);
    assert!(warnings[0].contains("is not of spec.ipFamilies[0] (\"IPv6\")"), "{warnings:?}");
    let (service, _) = faulty("clusterIPs: [10.96.0.1, nonsense]");
    assert_eq!((service.cluster_v4.is_some(), service.cluster_v6), (true, None));
}

#[test]
fn a_service_in_full() {
    let (service, warnings) = convert_service(
        "metadata: {name: web, namespace: shop, creationTimestamp: '2024-02-29T12:00:01Z'}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  externalIPs: [192.0.2.1, '2001:db8::1', 192.0.2.1, 127.0.0.1]
  loadBalancerSourceRanges: [' 10.1.2.3/8', '2001:db8::5/64 ']
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 31000
  ports:
  - {name: http, port: 80, nodePort: 30080, targetPort: http}
  - {name: dns, port: 53, protocol: UDP}
  - {name: sig, port: 53, protocol: SCTP}
status:
  loadBalancer:
    ingress:
    - {ip: 203.0.113.1}
    - {ip: 203.0.113.2, ipMode: VIP}
    - {ip: 203.0.113.3, ipMode: Proxy}
    - {ip: 203.0.113.4, ipMode: Other}
    - {hostname: lb.example.org}
    - {ip: '2001:db8::2'}
",
    );
    assert_eq!(warnings, Vec::<String>::new());
    let port = |name: &str, protocol, port: u16, node_port| ServicePort {
        name: name.into(),
        protocol,
        port: NonZeroU16::new(port).unwrap(),
        node_port: NonZeroU16::new(node_port),
    };
    let expected = Service {
        name: ObjectName::new("shop", "web"),
        created: 1_709_208_001,
        kind: ServiceKind::LoadBalancer,
        cluster_v4: Some("10.96.0.10".parse().unwrap()),
        cluster_v6: None,
        external: addresses(&["192.0.2.1", "2001:db8::1", "127.0.0.1"]),
        load_balancer: addresses(&["203.0.113.1", "203.0.113.2", "2001:db8::2"]),
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/64".parse().unwrap()],
        affinity: Some(60),
        external_policy: TrafficPolicy::Local,
        internal_policy: TrafficPolicy::Local,
        health_check_node_port: NonZeroU16::new(31000),
        ports: vec![
            port("http", Protocol::Tcp, 80, 30080),
            port("dns", Protocol::Udp, 53, 0),
            port("sig", Protocol::Sctp, 53, 0),
        ],
        overrides: None,
    };
    assert_eq!(service, Some(expected));
}

#[test]
fn external_policy_means_something_only_from_outside() {
    let local = "clusterIP: 10.96.0.1, externalTrafficPolicy: Local";
    for (rest, expected) in [
        ("type: ClusterIP", TrafficPolicy::Cluster),
        ("type: ClusterIP, externalIPs: ['2001:db8::1']", TrafficPolicy::Local),
        ("type: NodePort", TrafficPolicy::Local),
        ("type: LoadBalancer, healthCheckNodePort: 31000", TrafficPolicy::Local),
    ] {
        assert_eq!(fine(&format!("{local}, {rest}")).external_policy, expected, "{rest}");
    }
    let (service, warning) =
        faulty("clusterIP: 10.96.0.1, type: NodePort, externalTrafficPolicy: local");
    assert_eq!(service.external_policy, TrafficPolicy::Cluster);
    assert!(warning.contains("spec.externalTrafficPolicy: \"local\""), "{warning}");
}

#[test]
fn health_check_node_port_only_where_it_is_asked_for() {
    let spec = "clusterIP: 10.96.0.1, healthCheckNodePort: 31000";
    assert_eq!(fine(&format!("{spec}, type: LoadBalancer")).health_check_node_port, None);
    let local = "externalTrafficPolicy: Local";
    assert_eq!(fine(&format!("{spec}, {local}, type: NodePort")).health_check_node_port, None);
    let (service, warning) = faulty(&format!("clusterIP: 10.96.0.1, {local}, type: LoadBalancer"));
    assert_eq!(service.health_check_node_port, None);
    assert!(warning.contains("spec.healthCheckNodePort: none"), "{warning}");
}

#[test]
fn affinity() {
    let cases = [
        ("sessionAffinity: None", None),
        ("sessionAffinity: ClientIP", Some(10_800)),
        ("sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: ~}", Some(10_800)),
        (
            "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86400}}",
            Some(86_400),
        ),
        ("sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}", None),
    ];
    for (spec, expected) in cases {
        assert_eq!(fine(&format!("clusterIP: 10.96.0.1, {spec}")).affinity, expected, "{spec}");
    }
    for seconds in [0, -1, 86_401, i64::MAX] {
        let (service, warning) = faulty(&format!(
            "clusterIP: 10.96.0.1, sessionAffinity: ClientIP, \
             sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}"
        ));
        assert_eq!(service.affinity, Some(10_800));
        assert!(warning.contains("clientIP.timeoutSeconds"), "{warning}");
    }
}

#[test]
fn source_ranges() {
    let ranges = |list: &str| {
        let (service, warnings) =
            service_of(&format!("clusterIP: 10.96.0.1, loadBalancerSourceRanges: [{list}]"));
        let ranges = service.unwrap().source_ranges.iter().map(ToString::to_string).collect();
        (ranges, warnings.len())
    };
    let cases: [(&str, &[&str], usize); 6] = [
        ("10.0.0.1/24, 10.0.0.2/24", &["10.0.0.0/24"], 0),
        ("10.0.0.0/8, 0.0.0.0/0", &[], 0),
        ("10.0.0.0/8, 0.0.0.0/0, 'fd00::/8'", &["fd00::/8"], 0),
        ("'::/0', 10.0.0.0/8", &["10.0.0.0/8"], 0),
        ("nonsense, 10.0.0.0/8", &["10.0.0.0/8"], 1),
        ("nonsense", &[], 2),
    ];
    for (list, expected, warnings) in cases {
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(ranges(list), (expected, warnings), "{list}");
    }
}

#[test]
fn bad_fields_are_left_out_and_named() {
    let cases = [
        ("externalIPs: [192.0.2.1, foo]", "spec.externalIPs[1]: \"foo\""),
        ("type: Magic", "spec.type: \"Magic\""),
        ("sessionAffinity: Cookie", "spec.sessionAffinity: \"Cookie\""),
        ("internalTrafficPolicy: Node", "spec.internalTrafficPolicy: \"Node\""),
    ];
    for (spec, expected) in cases {
        let (service, warning) = faulty(&format!("clusterIP: 10.96.0.1, {spec}"));
        assert!(warning.contains(expected), "{warning}");
        assert_eq!(service.ports.len(), 1);
        assert!(service.external.len() <= 1);
    }
}

#[test]
fn bad_ports_are_left_out_and_named() {
    let ports = |list: &str| {
        let (service, warnings) = convert_service(&format!(
            "metadata: {{name: web, namespace: shop}}\n\
             spec: {{clusterIP: 10.96.0.1, ports: [{list}]}}"
        ));
        (service.unwrap().ports.len(), warnings.join("\n"))
    };
    let cases = [
        ("{name: a}", 0, "spec.ports[0].port: there is none"),
        ("{port: 0}", 0, "spec.ports[0].port: there is none"),
        ("{port: 65536}", 0, "spec.ports[0].port: 65536 is not a port"),
        ("{port: 80, protocol: ICMP}", 0, "spec.ports[0].protocol: \"ICMP\""),
        ("{port: 80, nodePort: -1}", 1, "spec.ports[0].nodePort: -1"),
        ("{port: 80}, {port: 81}", 1, "spec.ports[1]: has the name or the number"),
        ("{port: 80, name: a}, {port: 80, name: b}", 1, "spec.ports[1]: has the name or"),
        ("{port: 80, name: a}, {port: 80, name: a, protocol: UDP}", 2, ""),
        ("", 0, ""),
    ];
    for (list, n_ports, warning) in cases {
        let (converted, warnings) = ports(list);
        assert_eq!(converted, n_ports, "{list}");
        assert!(warnings.contains(warning), "{list}: {warnings}");
        assert_eq!(warnings.is_empty(), warning.is_empty(), "{list}: {warnings}");
    }
}

#[test]
fn very_many_problems_are_counted() {
    let (_, warnings) =
        service_of(&format!("clusterIP: 10.96.0.1, externalIPs: [{}]", "x, ".repeat(1000)));
    assert_eq!(warnings.len(), WARNINGS_PER_OBJECT + 1);
    assert!(warnings.last().unwrap().ends_with("and 990 more problems"), "{warnings:?}");
}

#[test]
fn names() {
    let mut converter = Converter::default();
    let mut object = object::Service::default();
    assert_eq!(converter.service(&object), Err(Nameless { kind: "Service" }));
    object.metadata.name = Some(String::new());
    assert_eq!(converter.service(&object), Err(Nameless { kind: "Service" }));
    object.metadata.name = Some("web".to_owned());
    let event = Event::ServiceRemoved(ObjectName::new("default", "web"));
    assert_eq!(converter.service(&object).unwrap().event, event);
    assert_eq!(
        converter.slice(&object::EndpointSlice::default()).unwrap_err().kind,
        "EndpointSlice"
    );
    assert_eq!(converter.node(&object::Node::default()).unwrap_err().kind, "Node");
}

fn slice_of(rest: &str) -> (Option<plan::model::EndpointSlice>, Vec<String>) {
    convert_slice(&format!(
        "metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         {rest}"
    ))
}

fn convert_slice(text: &str) -> (Option<plan::model::EndpointSlice>, Vec<String>) {
    converted_slice(&serde_saphyr::from_str(text).unwrap())
}

fn converted_slice(
    object: &object::EndpointSlice,
) -> (Option<plan::model::EndpointSlice>, Vec<String>) {
    let converted = Converter::default().slice(object).unwrap();
    let warnings = converted.warnings.iter().map(ToString::to_string).collect();
    match converted.event {
        Event::SliceApplied(slice) => (Some(*slice), warnings),
        Event::SliceRemoved(name) => {
            assert_eq!(name, ObjectName::new("shop", "web-1"));
            (None, warnings)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn slices_that_belong_to_no_service() {
    let unlinked = "metadata: {name: web-1, namespace: shop}\naddressType: IPv4";
    let empty = "metadata: {name: web-1, namespace: shop, \
                 labels: {kubernetes.io/service-name: ''}}\naddressType: IPv4";
    for text in [unlinked, empty] {
        assert_eq!(convert_slice(text), (None, vec![]), "nothing is wrong with it");
    }
    let headless = "metadata: {name: web-1, namespace: shop, labels: \
         {kubernetes.io/service-name: web, service.kubernetes.io/headless: ''}}\naddressType: IPv4";
    assert_eq!(convert_slice(headless), (None, vec![]));
    assert_eq!(slice_of("addressType: FQDN"), (None, vec![]));
    for (rest, named) in [("addressType: IPv5", "\"IPv5\""), ("ports: []", "\"\"")] {
        let (slice, warnings) = slice_of(rest);
        assert_eq!(slice, None);
        let expected =
            format!("EndpointSlice shop/web-1: addressType: {named} is neither IPv4 nor IPv6");
        assert_eq!(warnings, [expected]);
    }
}

/// Since Kubernetes 1.36 the API's schema says, too, that `endpoints` need not be there (kubernetes/kubernetes#136111).
#[test]
fn a_slice_may_have_no_endpoints_and_no_ports() {
    for rest in ["", "endpoints: []\nports: []", "endpoints:\nports:"] {
        let (slice, warnings) = slice_of(&format!("addressType: IPv4\n{rest}"));
        let slice = slice.unwrap();
        assert_eq!((slice.endpoints.len(), slice.ports.len()), (0, 0), "{rest:?}");
        assert_eq!(warnings, Vec::<String>::new(), "{rest:?}");
    }
}

/// By default since Kubernetes 1.36, always since 1.37 (KEP-5311). YAML reads some of them as numbers unless they are
/// quoted, as the API server's answers are.
#[test]
fn a_services_name_may_begin_with_a_digit_or_be_a_number() {
    for name in ["3scale", "0", "1e3", "0x10", "10-96-0-10"] {
        let (service, warnings) = convert_service(&format!(
            "metadata: {{name: '{name}', namespace: shop}}\nspec: {{clusterIP: 10.96.0.10}}"
        ));
        assert_eq!(service.unwrap().name, ObjectName::new("shop", name));
        assert_eq!(warnings, Vec::<String>::new(), "{name}");
        let (slice, warnings) = convert_slice(&format!(
            "metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: '{name}'}}}}\n\
             addressType: IPv4"
        ));
        assert_eq!(slice.unwrap().service, ObjectName::new("shop", name));
        assert_eq!(warnings, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn a_slice_in_full() {
    let (slice, warnings) = slice_of(
        "addressType: IPv4
ports:
- {name: http, port: 8080, protocol: TCP}
- {port: 5353, protocol: UDP}
- {name: all}
- {name: none, port: 0}
endpoints:
- addresses: [10.244.1.11, 10.244.9.9]
  nodeName: node1
  zone: a
- addresses: [010.244.001.012]
  conditions: {ready: false}
  nodeName: node1
  zone: ''
- addresses: [10.244.2.11]
  conditions: {ready: false, serving: true, terminating: true}
  hints: {forZones: [{name: a}, {name: b}], forNodes: [{name: node1}]}
- addresses: [10.244.2.12]
  conditions: {serving: false}
  hints: {forZones: []}
",
    );
    let slice = slice.unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(slice.service, ObjectName::new("shop", "web"));
    assert_eq!(slice.family, Family::V4);
    let ports: Vec<_> =
        slice.ports.iter().map(|port| (&*port.name, port.protocol, port.port.get())).collect();
    assert_eq!(ports, [("http", Protocol::Tcp, 8080), ("", Protocol::Udp, 5353)]);
    let endpoints: Vec<_> = slice
        .endpoints
        .iter()
        .map(|endpoint| {
            let conditions = endpoint.conditions;
            (
                endpoint.address.to_string(),
                (conditions.ready, conditions.serving, conditions.terminating),
                endpoint.node.as_deref(),
            )
        })
        .collect();
    let expected = [
        ("10.244.1.11".to_owned(), (true, true, false), Some("node1")),
        ("10.244.1.12".to_owned(), (false, true, false), Some("node1")),
        ("10.244.2.11".to_owned(), (false, true, true), None),
        ("10.244.2.12".to_owned(), (true, false, false), None),
    ];
    assert_eq!(endpoints, expected);
    let hints = Hints { zones: vec!["a".into(), "b".into()], nodes: vec!["node1".into()] };
    let found: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.hints.clone()).collect();
    assert_eq!(found, [None, None, Some(Arc::new(hints)), None]);
    let zones: Vec<_> = slice.endpoints.iter().map(|endpoint| endpoint.zone.as_deref()).collect();
    assert_eq!(zones, [Some("a"), None, None, None]);
    let [first, second, ..] = slice.endpoints.as_slice() else { panic!("{slice:?}") };
    assert!(Arc::ptr_eq(first.node.as_ref().unwrap(), second.node.as_ref().unwrap()));
}

fn slice_from(rest: serde_json::Value) -> (Option<plan::model::EndpointSlice>, Vec<String>) {
    let mut object: object::EndpointSlice = serde_json::from_value(rest).unwrap();
    object.address_type = Some("IPv4".to_owned());
    object.metadata.name = Some("web-1".to_owned());
    object.metadata.namespace = Some("shop".to_owned());
    object.metadata.labels.service_name.get_or_insert_with(|| "web".to_owned());
    converted_slice(&object)
}

/// The API server does not check an endpoint's zone.
#[test]
fn texts_of_endpoints_that_are_too_long_are_not_kept() {
    let long = "x".repeat(1 << 20);
    let named = |name: &str| json!({"name": name});
    let (slice, warnings) = slice_from(json!({
        "ports": [{"name": long, "port": 80}, {"name": "http", "port": 81}],
        "endpoints": [
            {
                "addresses": ["10.244.1.11"], "nodeName": long, "zone": long,
                "hints": {
                    "forZones": [named(&long), named("a"), named(&format!("{long}b"))],
                    "forNodes": [named(&long)],
                },
            },
            {"addresses": ["10.244.1.12"], "hints": {"forZones": [named(&long)]}},
        ],
    }));
    let slice = slice.unwrap();
    let [warning] = warnings.as_slice() else { panic!("{}", warnings.len()) };
    assert!(warning.contains("ports[0].name") && warning.len() < 300, "{warning}");
    assert_eq!(slice.ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["http"]);
    let [first, second] = slice.endpoints.as_slice() else { panic!("not two endpoints") };
    assert!(first.node.is_none() && first.zone.is_none());
    // An endpoint stays hinted if it is for a zone that no Node can be in.
    let hints = Hints { zones: vec!["…".into(), "a".into()], nodes: vec!["…".into()] };
    assert!(first.hints.as_deref() == Some(&hints));
    assert!(second.hints.as_ref().unwrap().zones == ["…".into()]);
}

#[test]
fn the_longest_zone_and_the_longest_name_of_a_node_are_kept() {
    let (zone, node) = ("z".repeat(63), "n".repeat(253));
    let endpoint = json!({"addresses": ["10.244.1.11"], "zone": zone, "nodeName": node});
    let (slice, warnings) = slice_from(json!({"endpoints": [endpoint]}));
    let slice = slice.unwrap();
    let [endpoint] = slice.endpoints.as_slice() else { panic!("{slice:?}") };
    assert_eq!(endpoint.zone.as_deref(), Some(zone.as_str()));
    assert_eq!(endpoint.node.as_deref(), Some(node.as_str()));
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn names_of_services_and_ports_that_are_too_long_are_left_out() {
    let long = "x".repeat(64);
    let labels = json!({"metadata": {"labels": {"kubernetes.io/service-name": long}}});
    assert_eq!(slice_from(labels), (None, vec![]));
    let (service, warnings) = convert_service(&format!(
        "metadata: {{name: web, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.0.10, ports: [{{name: {long}, port: 80}}]}}"
    ));
    assert_eq!(service.unwrap().ports, []);
    assert!(warnings[0].contains("spec.ports[0].name: "), "{warnings:?}");
}

#[test]
fn a_node_is_in_no_zone_of_too_long_a_name() {
    let zone = "x".repeat(64);
    let text = format!("metadata: {{name: n, labels: {{topology.kubernetes.io/zone: {zone}}}}}");
    let object: object::Node = serde_saphyr::from_str(&text).unwrap();
    let event = Converter::default().node(&object).unwrap().event;
    let Event::NodeApplied(node) = event else { panic!("{event:?}") };
    assert_eq!(node.zone, None);
}

#[test]
fn endpoints_of_a_slice_share_their_hints() {
    let endpoint = |last: u8, zone: &str| {
        format!("- {{addresses: [10.244.1.{last}], hints: {{forZones: [{{name: {zone}}}]}}}}\n")
    };
    let endpoints = [endpoint(1, "a"), endpoint(2, "b"), endpoint(3, "a")].concat();
    let (slice, _) = slice_of(&format!("addressType: IPv4\nendpoints:\n{endpoints}"));
    let hints = slice.unwrap().endpoints.into_iter().map(|endpoint| endpoint.hints.unwrap());
    let [first, second, third] = hints.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(*second.zones, ["b".into()]);
    assert!(Arc::ptr_eq(&first, &third));
}

#[test]
fn bad_endpoints_are_left_out_and_named() {
    let cases = [
        ("endpoints: [{}]", "endpoints[0].addresses: there is none"),
        ("endpoints: [{addresses: [x]}]", "endpoints[0].addresses: \"x\" is not an IP address"),
        ("endpoints: [{addresses: ['fd00::1']}]", "is not an IPv4 address"),
        ("ports: [{port: 70000}]", "ports[0].port: 70000"),
        ("ports: [{port: 80, protocol: X}]", "ports[0].protocol: \"X\""),
    ];
    for (rest, expected) in cases {
        let (slice, warnings) = slice_of(&format!("addressType: IPv4\n{rest}"));
        let slice = slice.unwrap();
        assert_eq!((slice.endpoints.len(), slice.ports.len()), (0, 0), "{rest}");
        assert!(warnings.join("\n").contains(expected), "{warnings:?}");
    }
    let (slice, warnings) =
        slice_of("addressType: IPv6\nendpoints: [{addresses: ['::ffff:10.0.0.1']}]");
    assert_eq!(slice.unwrap().endpoints, []);
    assert_eq!(warnings.len(), 1);
}

#[test]
fn a_node() {
    let object: object::Node = serde_saphyr::from_str(
        "metadata: {name: node1, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.5/24, 'fd00:244:1::/64', nonsense]}
status:
  addresses:
  - {type: Hostname, address: node1}
  - {type: ExternalIP, address: 198.51.100.1}
  - {type: InternalIP, address: 192.0.2.11}
  - {type: InternalIP, address: 'fd00::11'}
  - {type: InternalIP, address: nonsense}
",
    )
    .unwrap();
    let converted = Converter::default().node(&object).unwrap();
    let expected = Node {
        zone: Some("a".into()),
        addresses: addresses(&["192.0.2.11", "fd00::11", "198.51.100.1"]),
        pod_cidrs: vec!["10.244.1.0/24".parse().unwrap(), "fd00:244:1::/64".parse().unwrap()],
    };
    assert_eq!(converted.event, Event::NodeApplied(Box::new(expected)));
    let warnings: Vec<_> = converted.warnings.iter().map(ToString::to_string).collect();
    let expected = [
        "Node node1: status.addresses[4].address: \"nonsense\" is not an IP address; left out",
        "Node node1: spec.podCIDRs[2]: \"nonsense\" is not a network such as 10.0.0.0/8; left out",
    ];
    assert_eq!(warnings, expected);
}
