use super::*;
use crate::event::Event;
use crate::fixtures::{addresses, mk_port, mk_service, mk_slice, number};
use crate::mode::Mode;
use crate::model::{EndpointSlice, Protocol, ServiceKind, SlicePort};
use crate::op::Op;
use crate::planner::{Plan, Planner};

const NODE: &str = "192.0.2.10";

fn mk_planner() -> Planner {
    let pods = crate::settings::LocalDetection::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let settings = Settings { mode: Mode::Userspace, local_detection: pods, ..Settings::new("n1") };
    let mut planner = Planner::new(settings);
    planner.apply(Event::LocalAddresses(addresses(&["127.0.0.1", NODE, "fe80::1"])));
    planner
}

fn applied(service: &Service) -> Event {
    Event::ServiceApplied(Box::new(service.clone()))
}

fn slice(endpoints: &[(&str, &str)]) -> Event {
    Event::SliceApplied(Box::new(mk_slice(Family::V4, endpoints)))
}

/// Says for each proxy port that the relay is asked for that it is listened on, by its place.
fn answer(planner: &mut Planner, plan: &Plan) {
    let mut port = 40_000;
    for (service, ports) in &plan.relay {
        for (id, _) in ports.iter().flat_map(|port| port.proxy_ports(service)) {
            port += 1;
            let socket = SocketAddr::new(NODE.parse().unwrap(), port);
            planner.apply(Event::ProxyPort(Box::new(id), ProxyPortState::Listening(socket)));
        }
    }
}

/// The changes of a plan, each as the chain and a rule, with + or - before them.
fn changes(plan: &Plan) -> Vec<String> {
    let words = |op: &Op| match op {
        Op::Chain(crate::chains::ChainOp::Insert(chain, rule)) => format!("+{} {rule}", chain.name),
        Op::Chain(crate::chains::ChainOp::Delete(chain, rule)) => format!("-{} {rule}", chain.name),
        other => other.to_string(),
    };
    plan.ops.iter().map(words).collect()
}

/// The rules that a Service has when the relay listens, without the names in comments.
fn rules(service: &Service, endpoints: &[(&str, &str)]) -> Vec<String> {
    let mut planner = mk_planner();
    planner.apply(applied(service));
    planner.apply(slice(endpoints));
    let plan = planner.plan();
    let mut all = changes(&plan);
    answer(&mut planner, &plan);
    all.extend(changes(&planner.plan()));
    all.iter().map(|rule| rule.replace("-m comment --comment \"ns/web:http\" ", "")).collect()
}

fn mk_outer(external_policy: TrafficPolicy) -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        external_policy,
        ports: vec![mk_port("http", Protocol::Tcp, 80, Some(30_080))],
        load_balancer: addresses(&["198.51.100.1"]),
        external: addresses(&["203.0.113.1"]),
        source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        ..mk_service()
    }
}

#[test]
fn a_portal_follows_the_relay_and_its_port_goes_after_the_rules() {
    let mut planner = mk_planner();
    planner.apply(applied(&mk_service()));
    planner.apply(slice(&[("10.244.1.2", "n2")]));
    let asked = planner.plan();
    assert_eq!(changes(&asked), [""; 0], "nothing leads anywhere yet, and nothing is refused");
    let [(_, ports)] = &asked.relay[..] else { panic!("{:?}", asked.relay) };
    assert_eq!(ports[0].address, NODE.parse::<IpAddr>().unwrap());
    assert_eq!(*ports[0].endpoints, ["10.244.1.2:8080".parse().unwrap()]);
    assert_eq!(planner.n_awaited_proxy_ports(), 1);

    answer(&mut planner, &asked);
    assert_eq!(planner.n_awaited_proxy_ports(), 0);
    let leading = planner.plan();
    assert_eq!(leading.relay, []);
    let rule = "-d 10.96.0.9/32 -p tcp -m comment --comment \"ns/web:http\" -m tcp --dport 80 -j \
                DNAT --to-destination 192.0.2.10:40001";
    let door = "-d 192.0.2.10/32 -p tcp -m comment --comment \"ns/web:http\" -m tcp --dport 40001 \
                -m conntrack ! --ctstate DNAT -j REJECT --reject-with icmp-port-unreachable";
    let expected = [
        format!("+KUBE-PORTALS-CONTAINER {rule}"),
        format!("+KUBE-PORTALS-HOST {rule}"),
        format!("+KUBE-NODEPORT-NON-LOCAL {door}"),
    ];
    assert_eq!(changes(&leading), expected);

    planner.apply(slice(&[("10.244.1.3", "n2")]));
    let moved = planner.plan();
    assert_eq!(changes(&moved), [""; 0], "endpoints are the relay's business");
    assert_eq!(moved.relay.len(), 1);

    planner.apply(Event::ServiceRemoved(mk_service().name));
    let gone = planner.plan();
    let mut removed = expected.map(|rule| rule.replacen('+', "-", 1));
    // What filter has goes first: see `ChainOp::phase`.
    removed.rotate_right(1);
    assert_eq!(changes(&gone), removed);
    assert_eq!(gone.relay, [(mk_service().name, Vec::new())]);
}

#[test]
fn a_service_without_endpoints_is_refused_and_the_relay_does_not_listen() {
    let mut planner = mk_planner();
    planner.apply(applied(&mk_service()));
    let plan = planner.plan();
    assert_eq!(plan.relay, []);
    let rule = "+KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment \"ns/web:http has no \
                endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable";
    assert_eq!(changes(&plan), [rule]);
}

#[test]
fn a_port_that_cannot_be_listened_on_is_refused_until_it_can() {
    let mut planner = mk_planner();
    planner.apply(applied(&mk_service()));
    planner.apply(slice(&[("10.244.1.2", "n2")]));
    let asked = planner.plan();
    let (service, ports) = &asked.relay[0];
    let (id, _) = ports[0].proxy_ports(service).next().unwrap();
    planner.apply(Event::ProxyPort(Box::new(id.clone()), ProxyPortState::Failed));
    let refused = changes(&planner.plan());
    assert_eq!(refused.len(), 1);
    assert!(refused[0].contains("has no proxy port"), "{refused:?}");
    answer(&mut planner, &asked);
    let led = changes(&planner.plan());
    assert!(led[0].starts_with("+KUBE-PORTALS-CONTAINER"), "{led:?}");
    assert!(led.contains(&refused[0].replacen('+', "-", 1)), "{led:?}");
    planner.apply(Event::ProxyPort(Box::new(id), ProxyPortState::Closed));
    assert_eq!(changes(&planner.plan()).len(), 3, "portals and door go");
}

#[test]
fn outside_clients_get_the_nodes_endpoints_and_its_own_clients_all() {
    let endpoints = [("10.244.0.2", "n1"), ("10.244.1.2", "n2")];
    let (all, here) = ("192.0.2.10:40001", "192.0.2.10:40002");
    let rules = rules(&mk_outer(TrafficPolicy::Local), &endpoints);
    let led = |start: &str| {
        let of_chain = rules.iter().filter(|rule| rule.starts_with(start));
        let words = |rule: &String| {
            let source =
                rule.split_once("-s ").map_or("", |(_, rest)| rest.split_once(' ').unwrap().0);
            format!("{source} {}", rule.rsplit_once(' ').unwrap().1)
        };
        of_chain.map(words).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(led("+KUBE-PORTALS-CONTAINER -d 10.96.0.9"), [format!(" {all}")]);
    let of_node_ports = [format!(" {here}"), format!("10.244.0.0/16 {all}")];
    assert_eq!(led("+KUBE-NODEPORT-CONTAINER"), of_node_ports);
    assert_eq!(led("+KUBE-NODEPORT-HOST"), [format!(" {all}")]);
    let balancer = rules.iter().filter(|rule| rule.contains("-d 198.51.100.1/32"));
    let balancer: Vec<&String> = balancer.collect();
    assert!(balancer.iter().any(|rule| rule.contains("-s 10.0.0.0/8") && rule.ends_with(here)));
    assert!(balancer.iter().any(|rule| rule.contains("-s 10.244.0.0/16") && rule.ends_with(all)));
    let drop = "+KUBE-PROXY-FIREWALL -d 198.51.100.1/32 -p tcp -m comment --comment \"ns/web:http \
                traffic not accepted by KUBE-PORTALS-CONTAINER\" -m tcp --dport 80 -j DROP";
    assert!(rules.iter().any(|rule| rule == drop), "{rules:#?}");
}

#[test]
fn where_the_node_has_no_endpoint_its_own_clients_are_still_led_and_others_dropped() {
    let rules = rules(&mk_outer(TrafficPolicy::Local), &[("10.244.1.2", "n2")]);
    let of_node_ports: Vec<&String> =
        rules.iter().filter(|rule| rule.contains("--dport 30080")).collect();
    let led = of_node_ports.iter().filter(|rule| rule.ends_with("192.0.2.10:40001"));
    assert_eq!(led.count(), 2, "pods of the node, and the node: {of_node_ports:#?}");
    assert!(of_node_ports.iter().any(|rule| rule.starts_with("+KUBE-EXTERNAL-SERVICES")
        && rule.contains("has no local endpoints")
        && rule.ends_with("-j DROP")));
}

#[test]
fn sctp_is_refused_and_a_problem() {
    let ports = vec![mk_port("http", Protocol::Sctp, 80, Some(30_080))];
    let service = Service { kind: ServiceKind::NodePort, ports, ..mk_service() };
    let mut planner = mk_planner();
    planner.apply(applied(&service));
    planner.apply(slice(&[("10.244.1.2", "n2")]));
    let plan = planner.plan();
    assert_eq!(plan.relay, []);
    assert_eq!(plan.problems[0].1, [Problem::NotRelayed { port: number(80) }]);
    let refused = changes(&plan);
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert!(refused.iter().all(|rule| rule.contains("is not relayed") && rule.contains("REJECT")));
}

#[test]
fn udp_flows_lead_to_proxy_ports_and_move_with_them() {
    let ports = vec![mk_port("http", Protocol::Udp, 53, Some(30_053))];
    let service = Service { kind: ServiceKind::NodePort, ports, ..mk_service() };
    let mut planner = mk_planner();
    planner.apply(applied(&service));
    planner.apply(slice(&[("10.244.1.2", "n2")]));
    let asked = planner.plan();
    answer(&mut planner, &asked);
    let frontend = |address: &str, port| crate::kernel_objects::Frontend {
        address: address.parse().unwrap(),
        protocol: Protocol::Udp,
        port,
    };
    let all = ["127.0.0.1", NODE].map(|address| frontend(address, 30_053));
    let all: BTreeSet<_> = all.into_iter().chain([frontend("10.96.0.9", 53)]).collect();
    assert_eq!(planner.plan().flows, all);
    for frontend in &all {
        let targets = planner.flow_targets(frontend);
        assert_eq!(targets, Some(vec!["192.0.2.10:40001".parse().unwrap()]), "{frontend}");
    }
    // The relay moves flows from an endpoint to another by itself.
    planner.apply(slice(&[("10.244.1.3", "n2")]));
    assert_eq!(planner.plan().flows, BTreeSet::new());
}

#[test]
fn affinity_and_the_time_to_drain_are_the_services() {
    let overrides = crate::model::Overrides {
        drain_deadline_seconds: Some(7),
        ..crate::model::Overrides::default()
    };
    let service =
        Service { affinity: Some(90), overrides: Some(Box::new(overrides)), ..mk_service() };
    let mut planner = mk_planner();
    planner.apply(applied(&service));
    planner.apply(slice(&[("10.244.1.2", "n2")]));
    let plan = planner.plan();
    let port = &plan.relay[0].1[0];
    assert_eq!((port.affinity_seconds, port.drain_seconds), (Some(90), Some(7)));
    assert_eq!(plan.problems, []);
}

#[test]
fn all_ports_move_with_the_nodes_address() {
    let mut planner = mk_planner();
    planner.apply(applied(&mk_service()));
    planner.apply(slice(&[("10.244.1.2", "n2")]));
    planner.plan();
    planner.apply(Event::LocalAddresses(addresses(&["127.0.0.1", "192.0.2.11", "192.0.2.12"])));
    let moved = planner.plan().relay;
    assert_eq!(moved[0].1[0].address, "192.0.2.11".parse::<IpAddr>().unwrap());
    planner.apply(Event::LocalAddresses(addresses(&["192.0.2.11", "192.0.2.13"])));
    assert_eq!(planner.plan().relay, []);
}

/// A Service with so many TCP ports, from 1 on, each with a name, and an endpoint of them all.
fn mk_many_ports(n_ports: u16) -> (Service, EndpointSlice) {
    let names: Vec<String> = (1..=n_ports).map(|port| format!("p{port}")).collect();
    let ports = names.iter().zip(1..).map(|(name, port)| mk_port(name, Protocol::Tcp, port, None));
    let service = Service { ports: ports.collect(), ..mk_service() };
    let port = |name: &String| SlicePort {
        name: name.as_str().into(),
        protocol: Protocol::Tcp,
        port: number(8080),
    };
    let ports = names.iter().map(port).collect();
    (service, EndpointSlice { ports, ..mk_slice(Family::V4, &[("10.244.1.2", "n1")]) })
}

#[test]
fn a_service_gets_a_limited_number_of_proxy_ports_and_its_other_ports_are_refused() {
    let most = u16::try_from(MOST_PROXY_PORTS).unwrap();
    for (n_ports, policy, n_served) in [
        (most, TrafficPolicy::Cluster, most),
        (most + 2, TrafficPolicy::Cluster, most),
        // Each port has one for this node's endpoints, too.
        (most, TrafficPolicy::Local, most / 2),
    ] {
        let (mut service, slice) = mk_many_ports(n_ports);
        if policy == TrafficPolicy::Local {
            let kind = ServiceKind::LoadBalancer;
            let load_balancer = addresses(&["198.51.100.1"]);
            service = Service { kind, external_policy: policy, load_balancer, ..service };
        }
        let mut planner = mk_planner();
        planner.apply(applied(&service));
        planner.apply(Event::SliceApplied(Box::new(slice)));
        let plan = planner.plan();
        let [(name, ports)] = &plan.relay[..] else { panic!("{n_ports}") };
        assert_eq!(ports.len(), usize::from(n_served));
        let n_proxy_ports = ports.iter().flat_map(|port| port.proxy_ports(name)).count();
        assert!(n_proxy_ports <= MOST_PROXY_PORTS, "{n_proxy_ports}");
        let left_out = usize::from(n_ports - n_served);
        let refused = changes(&plan).iter().filter(|it| it.contains("is not relayed")).count();
        let n_frontends = if policy == TrafficPolicy::Local { 2 } else { 1 };
        assert_eq!(refused, left_out * n_frontends);
        let problem = Problem::TooManyProxyPorts {
            most: MOST_PROXY_PORTS,
            first: number(n_served + 1),
            left_out,
        };
        let problems: Vec<_> = plan.problems.iter().flat_map(|(_, problems)| problems).collect();
        assert_eq!(problems, if left_out > 0 { vec![&problem] } else { vec![] });
    }
}
