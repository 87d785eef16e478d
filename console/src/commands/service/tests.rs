use super::*;

fn mk_endpoint(at: &str, used: Use) -> EndpointState {
    EndpointState {
        endpoint: at.parse().unwrap(),
        node: Some("n1".to_owned()),
        zone: None,
        hints: None,
        used,
        weight: None,
        active: None,
        inactive: None,
        draining_seconds: None,
        traffic: None,
    }
}

fn mk_state() -> ServiceState {
    let traffic = Traffic {
        connections: 30,
        connections_per_second: 2,
        incoming_bytes: 2048,
        outgoing_bytes_per_second: 100,
        ..Traffic::default()
    };
    let used = EndpointState {
        weight: Some(1),
        active: Some(3),
        inactive: Some(0),
        traffic: Some(traffic),
        ..mk_endpoint("10.244.1.11:8080", Use::Used)
    };
    let hinted = EndpointState {
        hints: Some("zones b".to_owned()),
        ..mk_endpoint("10.244.2.11:8080", Use::ForOtherZones)
    };
    let leaving = EndpointState {
        node: None,
        weight: Some(0),
        active: Some(1),
        inactive: Some(0),
        draining_seconds: Some(184.0),
        ..mk_endpoint("10.244.2.12:8080", Use::Gone)
    };
    ServiceState {
        namespace: "shop".to_owned(),
        name: "cart".to_owned(),
        service_type: "ClusterIP".to_owned(),
        mode: "ipvs".to_owned(),
        internal_traffic_policy: "Cluster".to_owned(),
        external_traffic_policy: "Cluster".to_owned(),
        affinity_seconds: None,
        source_ranges: Vec::new(),
        health_check: None,
        is_waiting: false,
        warnings: Vec::new(),
        frontends: vec![FrontendState {
            protocol: "TCP".to_owned(),
            address: Some("10.96.0.10".parse().unwrap()),
            port: 80,
            port_name: "http".to_owned(),
            kind: FrontendKind::ClusterAddress,
            traffic_policy: "Cluster".to_owned(),
            hints: Hints::Zone,
            internal_frontend_of: None,
            taken_by: None,
            scheduler: Some("rr".to_owned()),
            persistence_seconds: None,
            is_in_kernel: Some(true),
            more_endpoints: 0,
            traffic: Some(traffic),
            endpoints: vec![used, hinted, leaving],
        }],
        more_frontends: 0,
        uncounted: None,
    }
}

fn plain(state: &ServiceState) -> String {
    anstream::adapter::strip_str(&text(state)).to_string()
}

#[test]
fn a_service_is_shown_with_the_reasons_of_endpoints_that_are_not_used() {
    let expected = "\
Service            shop/cart, ClusterIP, in IPVS mode
Traffic policies   internal Cluster, external Cluster

TCP 10.96.0.10:80: cluster IP, port http, policy Cluster, scheduler rr, topology hints select endpoints for this zone
30 connections so far, 2/s; from clients 2.0 KiB, 0 B/s; to clients 0 B, 100 B/s
ENDPOINT           NODE   ZONE   WEIGHT   ACTIVE   INACTIVE   CONNECTIONS   CONN/S   IN/S   OUT/S   STATE
10.244.1.11:8080   n1     -      1        3        0          30            2        0 B    100 B   used
10.244.2.11:8080   n1     -      -        -        -          -             -        -      -       not used: its hints are for other zones (zones b)
10.244.2.12:8080   -      -      0        1        0          -             -        -      -       not used: no longer an endpoint of the Service; drains, 3m4s left
";
    assert_eq!(plain(&mk_state()), expected);
    assert!(is_whole(&mk_state()));
}

#[test]
fn what_is_wrong_is_said_and_told_by_the_exit_code() {
    let changed = |change: fn(&mut ServiceState)| {
        let mut state = mk_state();
        change(&mut state);
        assert!(!is_whole(&state), "{state:?}");
        plain(&state)
    };
    let warned = changed(|it| it.warnings.push("two ports are one".to_owned()));
    assert!(warned.contains("Warning            two ports are one\n"), "{warned}");
    let taken = changed(|it| it.frontends[0].taken_by = Some("shop/old".to_owned()));
    assert!(taken.contains("\nService shop/old has it\n"), "{taken}");
    let missing = changed(|it| it.frontends[0].is_in_kernel = Some(false));
    assert!(missing.contains("\nnot in the kernel: no virtual server\n"), "{missing}");
    let empty = changed(|it| it.frontends[0].endpoints.clear());
    assert!(empty.contains("\nno endpoints\n"), "{empty}");
}

#[test]
fn without_counters_there_are_no_columns_for_them() {
    let mut state = mk_state();
    state.uncounted = Some("iptables mode counts no connections".to_owned());
    let frontend = &mut state.frontends[0];
    (frontend.traffic, frontend.scheduler, frontend.is_in_kernel) = (None, None, None);
    let text = plain(&state);
    assert!(text.contains("Counters           iptables mode counts no connections\n"), "{text}");
    assert!(text.contains("\nENDPOINT           NODE   ZONE   STATE\n"), "{text}");
}

#[test]
fn bytes_are_as_people_write_them() {
    let texts = [0, 1023, 1024, 1_572_864, 5 << 40].map(bytes);
    assert_eq!(texts, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 TiB"]);
}

#[test]
fn a_name_without_a_namespace_is_in_the_namespace_default() {
    assert_eq!(full_name("web"), "default/web");
    assert_eq!(full_name("shop/cart"), "shop/cart");
}
