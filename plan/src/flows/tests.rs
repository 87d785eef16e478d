use super::*;

const NOWHERE: Option<[SocketAddr; 0]> = None;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn frontend(protocol: Protocol, text: &str) -> Frontend {
    let socket = at(text);
    Frontend { address: socket.ip(), protocol, port: socket.port() }
}

fn udp(destination: &str, reply_source: &str) -> Flow {
    Flow { protocol: Protocol::Udp, destination: at(destination), reply_source: at(reply_source) }
}

/// Makes flow targets: a DNS service of two endpoints, one without any, and one that went.
fn targets() -> FlowTargets {
    let mut targets = FlowTargets::default();
    let dns = [at("10.244.2.5:53"), at("10.244.1.5:53")];
    targets.insert(frontend(Protocol::Udp, "10.96.0.10:53"), Some(dns));
    targets.insert(frontend(Protocol::Udp, "10.96.0.20:53"), Some([]));
    targets.insert(frontend(Protocol::Udp, "10.96.0.30:53"), NOWHERE);
    targets
}

#[test]
fn a_flow_is_stale_when_it_leads_nowhere_and_is_ours() {
    let rows = [
        ("leads to an endpoint", udp("10.96.0.10:53", "10.244.1.5:53"), false),
        ("leads to the other endpoint", udp("10.96.0.10:53", "10.244.2.5:53"), false),
        ("leads to an endpoint that is gone", udp("10.96.0.10:53", "10.244.3.5:53"), true),
        ("leads to another port", udp("10.96.0.10:53", "10.244.1.5:5353"), true),
        ("went out before there was anybody", udp("10.96.0.10:53", "10.96.0.10:53"), true),
        ("the last endpoint is gone", udp("10.96.0.20:53", "10.244.1.5:53"), true),
        ("there was never an endpoint", udp("10.96.0.20:53", "10.96.0.20:53"), true),
        ("the Service is gone", udp("10.96.0.30:53", "10.244.1.5:53"), true),
        ("not redirected, nobody's any more", udp("10.96.0.30:53", "10.96.0.30:53"), false),
        ("another port of the address", udp("10.96.0.10:54", "10.244.3.5:53"), false),
        ("another host, same port", udp("192.0.2.99:53", "10.244.3.5:53"), false),
        ("not redirected, another host", udp("192.0.2.99:53", "192.0.2.99:53"), false),
    ];
    for (what, flow, expected) in rows {
        assert_eq!(targets().is_stale(&flow), expected, "{what}");
    }
}

#[test]
fn the_protocol_is_part_of_what_a_flow_leads_to() {
    let sctp = Flow { protocol: Protocol::Sctp, ..udp("10.96.0.10:53", "10.244.3.5:53") };
    assert!(!targets().is_stale(&sctp));
}

#[test]
fn flows_of_tcp_are_left_alone() {
    let mut targets = FlowTargets::default();
    targets.insert(frontend(Protocol::Tcp, "10.96.0.10:53"), NOWHERE);
    assert!(targets.is_empty());
    let flow = Flow { protocol: Protocol::Tcp, ..udp("10.96.0.10:53", "10.244.1.5:53") };
    assert!(!targets.is_stale(&flow));
}

#[test]
fn families_are_told_apart() {
    assert!(targets().has(Family::V4) && !targets().has(Family::V6));
    let mut targets = targets();
    let six = frontend(Protocol::Udp, "[fd00:96::10]:53");
    targets.insert(six, Some([at("[fd00:244::5]:53")]));
    assert!(targets.has(Family::V6));
    assert!(targets.is_stale(&udp("[fd00:96::10]:53", "[fd00:244::6]:53")));
    assert!(!targets.is_stale(&udp("[fd00:96::10]:53", "[fd00:244::5]:53")));
}

#[test]
fn only_flows_to_an_endpoint_whose_time_is_over_go_of_tcp() {
    let tcp = |destination: &str, reply_source: &str| Flow {
        protocol: Protocol::Tcp,
        ..udp(destination, reply_source)
    };
    let mut targets = targets();
    let web = frontend(Protocol::Tcp, "10.96.0.10:80");
    targets.insert(web, NOWHERE);
    targets.insert_over(web, at("10.244.1.5:8080"));
    assert!(targets.is_stale(&tcp("10.96.0.10:80", "10.244.1.5:8080")));
    for going_on in [
        tcp("10.96.0.10:80", "10.244.2.5:8080"),
        tcp("10.96.0.10:80", "10.96.0.10:80"),
        tcp("10.96.0.11:80", "10.244.1.5:8080"),
        udp("10.96.0.10:80", "10.244.1.5:8080"),
    ] {
        assert!(!targets.is_stale(&going_on), "{going_on:?}");
    }
    assert!(
        targets.frontends().any(|it| *it == web) && !targets.with_targets().any(|it| *it == web)
    );
    let mut over = FlowTargets::default();
    over.insert_over(web, at("10.244.1.5:8080"));
    assert!(over.has(Family::V4) && !over.has(Family::V6) && !over.is_empty());
}
