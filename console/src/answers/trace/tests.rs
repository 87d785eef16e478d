use std::num::NonZeroU16;

use plan::event::Event;
use plan::mode::Mode;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, ObjectName, Service, ServicePort, SlicePort,
};
use plan::planner::Planner;
use plan::settings::{LocalDetection, Settings};

use super::*;

const HERE: &str = "10.244.1.11";
const AWAY: [&str; 2] = ["10.244.2.11", "10.244.2.12"];

fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

/// `shop/cart` with three endpoints, on a node of this mode.
fn mk_planner(mode: Mode) -> Planner {
    mk_planner_with(mode, &[HERE, AWAY[0], AWAY[1]].map(|it| it.parse::<IpAddr>().unwrap()))
}

/// `shop/cart` with these endpoints.
fn mk_planner_with(mode: Mode, endpoints: &[IpAddr]) -> Planner {
    let pods = "10.244.0.0/16".parse().unwrap();
    let settings = Settings {
        mode,
        local_detection: LocalDetection::ClusterCidr(vec![pods]),
        ..Settings::new("n1")
    };
    let name = ObjectName::new("shop", "cart");
    let service = Service {
        cluster_v4: Some([10, 96, 0, 10].into()),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: number(80),
            node_port: None,
        }],
        ..Service::new(name.clone())
    };
    let endpoint = |address: &IpAddr| Endpoint {
        address: *address,
        conditions: Conditions { ready: true, serving: true, terminating: false },
        node: Some("n1".into()),
        zone: None,
        hints: None,
    };
    let slice = EndpointSlice {
        name: ObjectName::new("shop", "cart-1"),
        service: name,
        family: Family::V4,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: number(8080) }],
        endpoints: endpoints.iter().map(endpoint).collect(),
    };
    let mut planner = Planner::new(settings);
    planner.apply(Event::LocalAddresses(vec![[192, 0, 2, 1].into()]));
    planner.apply(Event::ServiceApplied(Box::new(service)));
    planner.apply(Event::SliceApplied(Box::new(slice)));
    planner.plan();
    planner
}

fn ways(mode: Mode, source: &str, destination: &str) -> Vec<TracedWay> {
    ways_of(&mk_planner(mode), source, destination)
}

fn ways_of(planner: &Planner, source: &str, destination: &str) -> Vec<TracedWay> {
    let source = SocketAddr::new(source.parse().unwrap(), CLIENT_PORT);
    let origin = Origin::Interface { name: "eth0".into(), is_by_bridge_port: false };
    let destination = destination.parse().unwrap();
    let packet = Packet { protocol: Protocol::Tcp, source, destination, origin };
    ways::merged(&planner.trace(&packet).unwrap())
}

fn endpoints(way: &TracedWay) -> Vec<String> {
    way.endpoints.iter().map(|choice| choice.endpoint.ip().to_string()).collect()
}

#[test]
fn ways_that_differ_in_the_endpoint_alone_are_one() {
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let ways = ways(mode, "198.51.100.7", "10.96.0.10:80");
        assert_eq!(ways.len(), 1, "{mode}: {ways:#?}");
        assert_eq!(endpoints(&ways[0]), [HERE, AWAY[0], AWAY[1]], "{mode}");
        assert!((ways[0].share.unwrap() - 1.0).abs() < 1e-9, "{mode}");
        for choice in &ways[0].endpoints {
            assert!((choice.share.unwrap() - 1.0 / 3.0).abs() < 1e-9, "{mode}: {choice:?}");
            assert!(choice.is_masqueraded && choice.sees.is_none(), "{mode}: {choice:?}");
        }
        assert_eq!(ways::masqueraded(&ways).len(), 3);
    }
}

#[test]
fn of_many_endpoints_the_first_are_shown_and_the_others_counted() {
    let endpoints: Vec<IpAddr> =
        (0..=1_999_u16).map(|n| IpAddr::from((0x0af4_0000 + u32::from(n)).to_be_bytes())).collect();
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let planner = mk_planner_with(mode, &endpoints);
        let ways = ways_of(&planner, "198.51.100.7", "10.96.0.10:80");
        assert_eq!(ways.len(), 1, "{mode}");
        let way = &ways[0];
        assert_eq!((way.endpoints.len(), way.more_endpoints), (500, 1_500), "{mode}");
        assert_eq!(way.endpoints[499].endpoint.ip(), endpoints[499], "{mode}");
        assert!((way.share.unwrap() - 1.0).abs() < 1e-6, "{mode}: {:?}", way.share);
        assert_eq!(ways::masqueraded(&ways).len(), 500, "the kernel is asked for these");
    }
}

#[test]
fn an_endpoint_that_comes_to_itself_has_a_way_of_its_own() {
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let ways = ways(mode, HERE, "10.96.0.10:80");
        assert_eq!(ways.len(), 2, "{mode}: {ways:#?}");
        assert_eq!(endpoints(&ways[0]), AWAY, "{mode}");
        assert_eq!(ways[0].endpoints[0].sees, Some(HERE.parse().unwrap()), "{mode}");
        assert_eq!(endpoints(&ways[1]), [HERE], "{mode}");
        assert!(ways[1].endpoints[0].is_masqueraded, "{mode}");
    }
}

#[test]
fn the_nodes_address_that_an_endpoint_sees_is_set_where_it_is_known() {
    let mut ways = ways(Mode::Ipvs, "198.51.100.7", "10.96.0.10:80");
    let known: SocketAddr = format!("{HERE}:8080").parse().unwrap();
    let own = IpAddr::from([10, 244, 1, 1]);
    ways::set_own_sources(&mut ways, &[(known, own)].into());
    let sees: Vec<Option<IpAddr>> = ways[0].endpoints.iter().map(|choice| choice.sees).collect();
    assert_eq!(sees, [Some(own), None, None]);
}

#[test]
fn a_step_has_the_words_of_the_kernels_tools() {
    let ways = ways(Mode::Ipvs, "198.51.100.7", "10.96.0.10:80");
    let entries: Vec<&String> = ways[0]
        .steps
        .iter()
        .filter_map(|step| match step {
            TracedStep::Rule { entries, .. } => Some(entries),
            _ => None,
        })
        .flatten()
        .collect();
    assert!(entries.contains(&&"KUBE-CLUSTER-IP: 10.96.0.10,tcp:80".to_owned()), "{entries:?}");
    let mark = TracedStep::Mark { mark: "0x4000".to_owned() };
    assert!(ways[0].steps.contains(&mark), "{:#?}", ways[0].steps);
    let json = serde_json::to_value(&ways[0].steps).unwrap();
    let steps = json.as_array().unwrap();
    let server = steps.iter().find(|step| step["step"] == "virtualServer").unwrap();
    assert_eq!(server["address"], "10.96.0.10:80");
    assert_eq!(server["scheduler"], "rr");
    let read: Vec<TracedStep> = serde_json::from_value(json).unwrap();
    assert_eq!(read, ways[0].steps);
}

#[test]
fn a_port_that_no_service_has_is_refused_at_a_service_address() {
    let ways = ways(Mode::Ipvs, "198.51.100.7", "10.96.0.10:81");
    assert_eq!(ways.len(), 1, "{ways:#?}");
    assert_eq!((ways[0].end, ways[0].endpoints.len()), (End::Refused, 0));
    assert_eq!(ways[0].refused_by.as_deref(), Some("icmp-port-unreachable"));
}

#[test]
fn an_unknown_protocol_is_a_mistake_of_the_question() {
    assert_eq!(protocol_named("UDP"), Ok(Protocol::Udp));
    let failure = protocol_named("icmp").unwrap_err();
    assert_eq!(failure.reason, Reason::BadRequest);
    assert!(failure.message.contains("tcp, udp or sctp"), "{failure:?}");
}
