mod limits;

use std::collections::BTreeSet;

use super::*;
use crate::fixtures::{Compiled, addresses, compile, mk_port, mk_service, mk_slice, number};
use crate::ipvs::fragment::Claim;
use crate::mode::Mode;
use crate::model::{EndpointSlice, Node, Overrides, ServiceKind};
use crate::problem::AddressField;
use crate::scheduler::SchedulerName;
use crate::settings::{FastPath, Limits, NodePortAddresses, RuleForm};

/// The tables are of text, as the programs print it that show the kernel's state.
fn servers(compiled: &Compiled) -> Vec<String> {
    let server = |claim: &Claim| {
        let real: Vec<String> = claim.real_servers.iter().map(|r| r.socket().to_string()).collect();
        format!("{} -> {}", claim.frontend, real.join(" "))
    };
    claims(compiled).into_iter().map(server).collect()
}

/// But for those that count only where another Service has the first internal frontend.
fn claims(compiled: &Compiled) -> Vec<&Claim> {
    compiled.fragment.claims.iter().collect()
}

fn bound(compiled: &Compiled) -> Vec<String> {
    let of_internal_frontends = claims(compiled).into_iter().filter_map(Claim::bound);
    let bound: BTreeSet<_> =
        compiled.fragment.addresses.iter().copied().chain(of_internal_frontends).collect();
    bound.iter().map(ToString::to_string).collect()
}

/// All entries but those of `KUBE-IPVS-IPS`, which are compared with the addresses.
fn entries(compiled: &Compiled) -> Vec<String> {
    let of_claims = claims(compiled).into_iter().flat_map(|claim| &claim.entries);
    let all: BTreeSet<_> = compiled.fragment.entries.iter().chain(of_claims).collect();
    let is_address = |set: &SetId| set.kind == SetKind::IpvsAddresses;
    let addresses: BTreeSet<String> =
        all.iter().filter(|(set, _)| is_address(set)).map(|(_, entry)| entry.to_string()).collect();
    assert_eq!(addresses, bound(compiled).into_iter().collect());
    let others = all.into_iter().filter(|(set, _)| !is_address(set));
    others.map(|(set, entry)| format!("{set} {entry}")).collect()
}

fn mk_settings() -> Settings {
    Settings::new("n1")
}

fn mk_facts(settings: &Settings) -> NodeFacts {
    let addresses: Vec<IpAddr> =
        ["192.0.2.10", "2001:db8::10"].iter().map(|a| a.parse().unwrap()).collect();
    let local = ["127.0.0.1", "192.0.2.10", "172.17.0.1", "::1", "2001:db8::10", "fe80::10"];
    let node = Node { addresses, ..Node::default() };
    NodeFacts::new(node, local.map(|a| a.parse().unwrap()), settings)
}

fn compile_with(service: &Service, settings: &Settings, slices: &[&EndpointSlice]) -> Compiled {
    compile(service, slices, &mk_facts(settings), settings)
}

fn compile_alone(service: &Service) -> Compiled {
    compile_with(service, &mk_settings(), &[])
}

#[test]
fn a_load_balancer_with_everything() {
    let mut service = mk_service();
    service.kind = ServiceKind::LoadBalancer;
    service.external_policy = TrafficPolicy::Local;
    service.health_check_node_port = Some(number(31000));
    service.external = addresses(&["198.51.100.7"]);
    service.load_balancer = addresses(&["203.0.113.5"]);
    service.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    service.ports = vec![mk_port("http", Protocol::Tcp, 80, Some(30080))];
    let mut settings = mk_settings();
    settings.node_port_addresses =
        NodePortAddresses::Networks(vec!["192.0.2.0/24".parse().unwrap()]);
    let slice = mk_slice(Family::V4, &[("10.244.0.2", "n1"), ("10.244.1.2", "n2")]);
    let compiled = compile_with(&service, &settings, &[&slice]);

    assert_eq!(
        servers(&compiled),
        [
            "TCP 10.96.0.9:80 -> 10.244.0.2:8080 10.244.1.2:8080",
            "TCP 192.0.2.10:30080 -> 10.244.0.2:8080",
            "TCP 198.51.100.7:80 -> 10.244.0.2:8080",
            "TCP 203.0.113.5:80 -> 10.244.0.2:8080",
            // Internal frontends, for the cluster's own clients.
            "TCP 240.0.2.10:30080 -> 10.244.0.2:8080 10.244.1.2:8080",
            "TCP 246.51.100.7:80 -> 10.244.0.2:8080 10.244.1.2:8080",
            "TCP 251.0.113.5:80 -> 10.244.0.2:8080 10.244.1.2:8080",
        ]
    );
    assert_eq!(
        bound(&compiled),
        ["10.96.0.9", "198.51.100.7", "203.0.113.5", "240.0.2.10", "246.51.100.7", "251.0.113.5"]
    );
    assert_eq!(
        entries(&compiled),
        [
            "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            "KUBE-CLUSTER-IP 10.96.0.9,tcp:80",
            "KUBE-EXTERNAL-IP-LOCAL 198.51.100.7,tcp:80",
            "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-FW 203.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-FW 251.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-LOCAL 203.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.5,tcp:80,10.0.0.0/8",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR 251.0.113.5,tcp:80,10.0.0.0/8",
            "KUBE-NODE-PORT-TCP 30080",
            "KUBE-NODE-PORT-LOCAL-TCP 30080",
            "KUBE-HEALTH-CHECK-NODE-PORT 31000",
        ]
    );
    assert_eq!(compiled.problems, []);
    assert!(compiled.fragment.claims.iter().all(|claim| claim.created == 7));
    let claims = claims(&compiled);
    let (of_all, of_node) = (&claims[0].real_servers, &claims[1].real_servers);
    assert!(claims[2..4].iter().all(|claim| Arc::ptr_eq(&claim.real_servers, of_node)));
    assert!(claims[4..].iter().all(|claim| Arc::ptr_eq(&claim.real_servers, of_all)));
    let internal_frontends: Vec<_> =
        claims.iter().map(|claim| claim.internal_frontend_of).collect();
    let expected: Vec<_> = claims[1..4].iter().map(|claim| Some(claim.frontend)).collect();
    assert_eq!(internal_frontends, [vec![None; 4], expected].concat());
}

#[test]
fn frontends_with_the_same_real_servers_share_one_list() {
    let mut service = mk_service();
    service.kind = ServiceKind::LoadBalancer;
    service.load_balancer = addresses(&["203.0.113.5", "203.0.113.6"]);
    service.ports = vec![mk_port("http", Protocol::Tcp, 80, None)];
    let slice = mk_slice(Family::V4, &[("10.244.0.2", "n1"), ("10.244.1.2", "n2")]);
    let compiled = compile_with(&service, &mk_settings(), &[&slice]);
    let first = &compiled.fragment.claims[0].real_servers;
    assert_eq!(first.len(), 2);
    assert!(compiled.fragment.claims.iter().all(|claim| Arc::ptr_eq(&claim.real_servers, first)));
}

#[test]
fn both_families_get_what_is_theirs() {
    let mut service = mk_service();
    service.kind = ServiceKind::NodePort;
    service.cluster_v6 = Some("fd00::9".parse().unwrap());
    service.external = addresses(&["198.51.100.7", "2001:db8::7"]);
    service.ports = vec![mk_port("http", Protocol::Udp, 53, Some(30053))];
    let slices = [
        mk_slice(Family::V4, &[("10.244.0.2", "n2")]),
        mk_slice(Family::V6, &[("fd00:1::2", "n1")]),
    ];
    let slices = [&slices[0], &slices[1]];
    let v4 = [
        "UDP 10.96.0.9:53 -> 10.244.0.2:8080",
        "UDP 172.17.0.1:30053 -> 10.244.0.2:8080",
        "UDP 192.0.2.10:30053 -> 10.244.0.2:8080",
        "UDP 198.51.100.7:53 -> 10.244.0.2:8080",
    ];
    let v6 = [
        "UDP [2001:db8::7]:53 -> [fd00:1::2]:8080",
        "UDP [2001:db8::10]:30053 -> [fd00:1::2]:8080",
        "UDP [fd00::9]:53 -> [fd00:1::2]:8080",
    ];
    let v6_entries = [
        "KUBE-6-LOOP-BACK fd00:1::2,udp:8080,fd00:1::2",
        "KUBE-6-CLUSTER-IP fd00::9,udp:53",
        "KUBE-6-EXTERNAL-IP 2001:db8::7,udp:53",
        "KUBE-6-NODE-PORT-UDP 30053",
    ];
    let mut settings = mk_settings();
    assert_eq!(servers(&compile_with(&service, &settings, &slices)), [&v4[..], &v6[..]].concat());
    settings.families = vec![Family::V6];
    let compiled = compile_with(&service, &settings, &slices);
    assert_eq!(servers(&compiled), v6);
    assert_eq!(entries(&compiled), v6_entries);

    // Without a cluster address of a family there is nothing else of it either.
    service.cluster_v6 = None;
    assert_eq!(compile_with(&service, &settings, &slices).fragment.claims, []);
    settings.families = Family::BOTH.to_vec();
    assert_eq!(servers(&compile_with(&service, &settings, &slices)), v4);
}

#[test]
fn without_endpoints_there_is_a_claim_that_the_rules_refuse() {
    let compiled = compile_alone(&mk_service());
    assert_eq!(servers(&compiled), ["TCP 10.96.0.9:80 -> "]);
    assert_eq!(bound(&compiled), ["10.96.0.9"]);
    assert_eq!(
        entries(&compiled),
        ["KUBE-CLUSTER-IP 10.96.0.9,tcp:80", "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80"]
    );
}

#[test]
fn every_endpoint_of_this_node_may_meet_itself_ready_or_not() {
    let mut slice = mk_slice(Family::V4, &[("10.244.0.2", "n1"), ("10.244.0.3", "N1")]);
    slice.endpoints[0].conditions.ready = false;
    let compiled = compile_with(&mk_service(), &mk_settings(), &[&slice]);
    assert_eq!(servers(&compiled), ["TCP 10.96.0.9:80 -> 10.244.0.3:8080"]);
    assert_eq!(
        entries(&compiled),
        ["KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2", "KUBE-CLUSTER-IP 10.96.0.9,tcp:80",]
    );
}

#[test]
fn node_port_addresses_are_chosen_by_network() {
    let all_v4 = ["172.17.0.1", "192.0.2.10"];
    for (networks, v4, v6) in [
        (&[][..], &all_v4[..], &["2001:db8::10"][..]),
        (&["192.0.2.0/24"], &["192.0.2.10"], &["2001:db8::10"]),
        (&["192.0.2.0/24", "0.0.0.0/0"], &all_v4, &["2001:db8::10"]),
        (&["fe80::/64"], &all_v4, &["fe80::10"]),
        (&["::/0"], &all_v4, &["2001:db8::10"]),
        (&["127.0.0.0/8", "10.0.0.0/8"], &[], &["2001:db8::10"]),
        (&["::1/128"], &all_v4, &[]),
    ] {
        let mut settings = mk_settings();
        let chosen = networks.iter().map(|net| net.parse().unwrap()).collect();
        settings.node_port_addresses = NodePortAddresses::Networks(chosen);
        let facts = mk_facts(&settings);
        let found = |family| -> Vec<String> {
            facts.node_port_addresses(family).map(|address| address.to_string()).collect()
        };
        assert_eq!(found(Family::V4), v4, "{networks:?}");
        assert_eq!(found(Family::V6), v6, "{networks:?}");
    }
}

#[test]
fn node_ports_on_primary_addresses_only() {
    let mut settings = mk_settings();
    settings.node_port_addresses = NodePortAddresses::Primary(Vec::new());
    let found = |facts: &NodeFacts| -> Vec<String> {
        let families = Family::BOTH.into_iter();
        families.flat_map(|f| facts.node_port_addresses(f)).map(|a| a.to_string()).collect()
    };
    let facts = mk_facts(&settings);
    assert_eq!(found(&facts), ["192.0.2.10", "2001:db8::10"]);
    let unknown = facts.clone().with_node(Node::default(), &settings);
    assert!(found(&unknown).is_empty());
    // The first of each family, and only what an interface has.
    let other = ["198.51.100.1", "192.0.2.10", "2001:db8::10"];
    let other = Node { addresses: addresses(&other), ..Node::default() };
    assert_eq!(found(&facts.with_node(other, &settings)), ["2001:db8::10"]);
    // With networks beside them.
    let besides = ["172.16.0.0/12", "127.0.0.0/8", "::/0"].map(|net| net.parse().unwrap());
    settings.node_port_addresses = NodePortAddresses::Primary(besides.into());
    let both = found(&mk_facts(&settings));
    assert_eq!(both, ["172.17.0.1", "192.0.2.10", "2001:db8::10"]);
}

#[test]
fn a_node_port_without_an_address_is_a_problem_and_the_rest_is_served() {
    let mut service = mk_service();
    service.ports = vec![mk_port("http", Protocol::Tcp, 80, Some(30080))];
    let mut settings = mk_settings();
    settings.node_port_addresses = NodePortAddresses::Networks(vec!["10.0.0.0/8".parse().unwrap()]);
    let compiled = compile_with(&service, &settings, &[]);
    assert_eq!(servers(&compiled), ["TCP 10.96.0.9:80 -> "]);
    assert_eq!(
        entries(&compiled),
        ["KUBE-CLUSTER-IP 10.96.0.9,tcp:80", "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80"]
    );
    assert_eq!(compiled.problems, [Problem::NoNodePortAddress { family: Family::V4 }]);
}

#[test]
fn sctp_node_ports_are_entered_with_their_address() {
    let mut service = mk_service();
    service.kind = ServiceKind::NodePort;
    service.external_policy = TrafficPolicy::Local;
    service.ports = vec![mk_port("http", Protocol::Sctp, 99, Some(30099))];
    assert_eq!(
        entries(&compile_alone(&service)),
        [
            "KUBE-CLUSTER-IP 10.96.0.9,sctp:99",
            "KUBE-NODE-PORT-SCTP-HASH 172.17.0.1,sctp:30099",
            "KUBE-NODE-PORT-SCTP-HASH 192.0.2.10,sctp:30099",
            "KUBE-NODE-PORT-LOCAL-SCTP-HASH 172.17.0.1,sctp:30099",
            "KUBE-NODE-PORT-LOCAL-SCTP-HASH 192.0.2.10,sctp:30099",
            "KUBE-NO-ENDPOINTS 10.96.0.9,sctp:99",
            "KUBE-NO-ENDPOINTS 172.17.0.1,sctp:30099",
            "KUBE-NO-ENDPOINTS 192.0.2.10,sctp:30099",
        ]
    );
}

#[test]
fn the_nodes_own_addresses_are_served_but_not_bound() {
    let mut service = mk_service();
    service.external = addresses(&["192.0.2.10"]);
    service.load_balancer = addresses(&["172.17.0.1"]);
    let compiled = compile_alone(&service);
    assert_eq!(
        servers(&compiled),
        ["TCP 10.96.0.9:80 -> ", "TCP 172.17.0.1:80 -> ", "TCP 192.0.2.10:80 -> "]
    );
    assert_eq!(bound(&compiled), ["10.96.0.9"]);
    // A cluster address is bound whatever other interface has it.
    service.cluster_v4 = Some([172, 17, 0, 1].into());
    assert_eq!(bound(&compile_alone(&service)), ["172.17.0.1"]);
}

#[test]
fn source_ranges_guard_load_balancer_addresses() {
    let guarded = |ranges: &[&str]| {
        let mut service = mk_service();
        service.load_balancer = addresses(&["203.0.113.5"]);
        service.source_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let all = entries(&compile_alone(&service)).into_iter();
        let ours = all.filter_map(|e| e.strip_prefix("KUBE-LOAD-BALANCER-").map(str::to_owned));
        ours.collect::<Vec<_>>()
    };
    assert_eq!(guarded(&[]), [""; 0]);
    assert_eq!(
        guarded(&["10.1.2.3/8", "192.0.2.10/32"]),
        [
            "FW 203.0.113.5,tcp:80",
            "SOURCE-IP 203.0.113.5,tcp:80,203.0.113.5",
            "SOURCE-CIDR 203.0.113.5,tcp:80,10.0.0.0/8",
            "SOURCE-CIDR 203.0.113.5,tcp:80,192.0.2.10/32",
        ]
    );
    // One that holds everyone, and those of the other family only, let everyone in.
    assert_eq!(guarded(&["10.0.0.0/8", "0.0.0.0/0"]), [""; 0]);
    assert_eq!(guarded(&["2001:db8::/32"]), [""; 0]);
    assert_eq!(guarded(&["10.0.0.0/8", "::/0"]).len(), 2);
}

#[test]
fn the_external_policy_counts_where_there_is_something_external() {
    let local = |kind, external: &[&str]| {
        let mut service = mk_service();
        service.kind = kind;
        service.external_policy = TrafficPolicy::Local;
        service.external = addresses(external);
        service.is_external_policy_local()
    };
    assert!(local(ServiceKind::LoadBalancer, &[]));
    assert!(local(ServiceKind::NodePort, &[]));
    assert!(local(ServiceKind::ClusterIp, &["2001:db8::7"]));
    assert!(!local(ServiceKind::ClusterIp, &[]));
}

#[test]
fn a_health_check_port_is_a_load_balancers_with_local_policy() {
    for (kind, policy, opened) in [
        (ServiceKind::LoadBalancer, TrafficPolicy::Local, true),
        (ServiceKind::LoadBalancer, TrafficPolicy::Cluster, false),
        (ServiceKind::NodePort, TrafficPolicy::Local, false),
    ] {
        let mut service = mk_service();
        service.kind = kind;
        service.external_policy = policy;
        service.health_check_node_port = Some(number(31000));
        let entries = entries(&compile_alone(&service));
        let found = entries.iter().any(|entry| entry == "KUBE-HEALTH-CHECK-NODE-PORT 31000");
        assert_eq!(found, opened, "{kind:?} {policy:?}");
    }
}

#[test]
fn impossible_addresses_are_left_out_and_told() {
    let wrong = ["0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255"];
    let mut service = mk_service();
    service.external = addresses(&wrong);
    service.external.extend(addresses(&["198.51.100.7"]));
    let compiled = compile_alone(&service);
    assert_eq!(servers(&compiled), ["TCP 10.96.0.9:80 -> ", "TCP 198.51.100.7:80 -> "]);
    let expected: Vec<Problem> = addresses(&wrong)
        .into_iter()
        .map(|address| Problem::ImpossibleAddress { field: AddressField::External, address })
        .collect();
    assert_eq!(compiled.problems, expected);

    service.cluster_v6 = Some("::".parse().unwrap());
    service.external = addresses(&["::1", "ff02::1", "fe80::7"]);
    let compiled = compile_alone(&service);
    assert_eq!(servers(&compiled), ["TCP 10.96.0.9:80 -> "]);
    assert_eq!(compiled.problems.len(), 4);
}

#[test]
fn what_is_excluded_is_served_as_all_else() {
    let mut settings = mk_settings();
    let mut service = mk_service();
    service.external = addresses(&["198.51.100.7", "203.0.113.5"]);
    service.ports = vec![mk_port("http", Protocol::Tcp, 80, Some(30080))];
    let usual = compile_with(&service, &settings, &[]);
    settings.exclude = ["198.51.100.0/24", "10.96.0.9/32", "192.0.2.0/24"]
        .map(|net| net.parse().unwrap())
        .to_vec();
    let compiled = compile_with(&service, &settings, &[]);
    assert!(bound(&compiled).contains(&"198.51.100.7".to_owned()), "{:?}", bound(&compiled));
    assert_eq!(compiled, usual);
}

#[test]
fn an_address_that_is_there_twice_is_served_once_with_all_its_entries() {
    let mut service = mk_service();
    service.external = addresses(&["203.0.113.5", "203.0.113.5", "10.96.0.9"]);
    service.load_balancer = addresses(&["203.0.113.5"]);
    let compiled = compile_alone(&service);
    assert_eq!(servers(&compiled), ["TCP 10.96.0.9:80 -> ", "TCP 203.0.113.5:80 -> "]);
    assert_eq!(
        entries(&compiled),
        [
            "KUBE-CLUSTER-IP 10.96.0.9,tcp:80",
            "KUBE-EXTERNAL-IP 10.96.0.9,tcp:80",
            "KUBE-EXTERNAL-IP 203.0.113.5,tcp:80",
            "KUBE-LOAD-BALANCER 203.0.113.5,tcp:80",
            "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80",
            "KUBE-NO-ENDPOINTS 203.0.113.5,tcp:80",
        ]
    );
    let claims = &compiled.fragment.claims;
    let in_order = |entries: &[_]| entries.is_sorted_by(|one, next| one < next);
    assert!(claims.iter().all(|claim| in_order(&claim.entries)), "{claims:?}");
    assert!(in_order(&compiled.fragment.entries));
    assert_eq!(compiled.problems, []);
}

#[test]
fn of_two_ports_with_the_same_frontend_the_first_has_it() {
    let mut service = mk_service();
    service.ports = vec![
        mk_port("http", Protocol::Tcp, 80, None),
        mk_port("other", Protocol::Tcp, 80, None),
        mk_port("http", Protocol::Udp, 80, None),
    ];
    let slice = mk_slice(Family::V4, &[("10.244.0.2", "n2")]);
    let compiled = compile_with(&service, &mk_settings(), &[&slice]);
    assert_eq!(
        servers(&compiled),
        ["TCP 10.96.0.9:80 -> 10.244.0.2:8080", "UDP 10.96.0.9:80 -> 10.244.0.2:8080"]
    );
    let frontend = compiled.fragment.claims[0].frontend;
    assert_eq!(compiled.problems, [Problem::FrontendTwice { frontend }]);
}

#[test]
fn affinity_and_scheduler_are_the_virtual_servers() {
    let mut service = mk_service();
    let mut settings = mk_settings();
    let text = |service: &Service, settings: &Settings| {
        compile_with(service, settings, &[]).fragment.claims[0].server.to_string()
    };
    assert_eq!(text(&service, &settings), "rr");
    service.affinity = Some(10_800);
    assert_eq!(text(&service, &settings), "rr persistent 10800");
    for (scheduler, expected) in [("sh", "sh flags 0x8"), ("mh", "mh flags 0x18"), ("wlc", "wlc")] {
        settings.scheduler = SchedulerName::new(scheduler).unwrap();
        service.affinity = None;
        assert_eq!(text(&service, &settings), expected);
    }
}

#[test]
fn a_service_may_choose_how_it_balances() {
    let mut service = mk_service();
    let compiled = |service: &Service, facts: &NodeFacts| {
        let compiled = compile(service, &[], facts, &mk_settings());
        let text = compiled.fragment.claims[0].server.to_string();
        (text, compiled.fragment.drain_deadline_seconds, compiled.problems)
    };
    let mut facts = NodeFacts::default();
    service.overrides = Some(Box::new(Overrides {
        scheduler: SchedulerName::new("mh").ok(),
        scheduler_flags: Some(0),
        drain_deadline_seconds: Some(30),
        ..Overrides::default()
    }));
    assert_eq!(compiled(&service, &facts), ("mh flags 0x8".into(), Some(30), vec![]));
    service.overrides.as_mut().unwrap().scheduler_flags = Some(0x10);
    assert_eq!(compiled(&service, &facts).0, "mh flags 0x18");
    // The flags were for the scheduler that is not there.
    facts.note_scheduler(&SchedulerName::new("mh").unwrap(), true);
    let missing = Problem::SchedulerMissing { scheduler: SchedulerName::new("mh").unwrap() };
    assert_eq!(compiled(&service, &facts), ("rr".into(), Some(30), vec![missing]));
    // It refuses those whom it sends to an endpoint that drains.
    service.overrides.as_mut().unwrap().scheduler = SchedulerName::new("dh").ok();
    service.overrides.as_mut().unwrap().scheduler_flags = None;
    assert_eq!(compiled(&service, &facts), ("dh".into(), Some(0), vec![]));
}

#[test]
fn all_clients_of_a_service_that_needs_no_ipvs_later_are_led_to_internal_frontends() {
    let settings = Settings {
        mode: Mode::Ipvs,
        rule_form: RuleForm::Nftables,
        fast_path: FastPath::Offload,
        ..mk_settings()
    };
    let slice = mk_slice(Family::V4, &[("10.244.0.1", "n1"), ("10.244.0.2", "there")]);
    let led = |service: &Service, settings: &Settings| {
        let compiled = compile(service, &[&slice], &NodeFacts::default(), settings);
        let claims = compiled.fragment.claims.iter();
        let led =
            claims.filter_map(|it| Some((it.internal_frontend_of?.address, it.real_servers.len())));
        led.map(|(address, n)| format!("{address} {n}")).collect::<Vec<_>>()
    };
    let mut service = mk_service();
    service.external = addresses(&["203.0.113.5"]);
    assert_eq!(led(&service, &settings), ["10.96.0.9 2", "203.0.113.5 2"]);
    for other in [
        Settings { fast_path: FastPath::Off, ..settings.clone() },
        Settings { rule_form: RuleForm::Iptables, ..settings.clone() },
        Settings { scheduler: SchedulerName::new("lc").unwrap(), ..settings.clone() },
    ] {
        assert!(led(&service, &other).is_empty(), "{:?}", other.fast_path);
    }
    for overrides in [
        Overrides { scheduler: SchedulerName::new("wlc").ok(), ..Overrides::default() },
        Overrides { is_off_fast_path: true, ..Overrides::default() },
    ] {
        service.overrides = Some(Box::new(overrides));
        assert!(led(&service, &settings).is_empty(), "{:?}", service.overrides);
    }
    let timed = Overrides { drain_deadline_seconds: Some(30), ..Overrides::default() };
    service.overrides = Some(Box::new(timed));
    assert_eq!(led(&service, &settings), ["10.96.0.9 2", "203.0.113.5 2"]);
    service.overrides =
        Some(Box::new(Overrides { is_off_fast_path: true, ..Overrides::default() }));
    // What a policy promises to clients in the cluster needs an internal frontend all the same.
    service.external_policy = TrafficPolicy::Local;
    assert_eq!(led(&service, &settings), ["203.0.113.5 2"]);
    // Other clients are led to one with this node's endpoints.
    service.overrides = None;
    assert_eq!(led(&service, &settings), ["203.0.113.5 1", "10.96.0.9 2", "203.0.113.5 2"]);
    let no_room = Limits { frontends: 4, ..settings.limits.clone() };
    let no_room = Settings { limits: no_room, ..settings.clone() };
    assert_eq!(led(&service, &no_room), ["10.96.0.9 2", "203.0.113.5 2"]);
}

#[test]
fn another_nodes_address_is_left_to_it() {
    let mut service = mk_service();
    service.external = addresses(&["192.0.2.77", "203.0.113.5"]);
    service.load_balancer = addresses(&["192.0.2.77"]);
    let mut facts = NodeFacts::default();
    facts.add_other_node(addresses(&["192.0.2.77"])[0], &"n2".into());
    let compiled = compile(&service, &[], &facts, &mk_settings());
    assert_eq!(bound(&compiled), ["10.96.0.9", "203.0.113.5"]);
    assert_eq!(servers(&compiled), ["TCP 10.96.0.9:80 -> ", "TCP 203.0.113.5:80 -> "]);
    let words: Vec<String> = compiled.problems.iter().map(ToString::to_string).collect();
    assert_eq!(words.len(), 2, "{words:?}");
    for (field, said) in ["spec.externalIPs", "status.loadBalancer.ingress"].iter().zip(&words) {
        let beginning = format!("{field}: 192.0.2.77 is in the status of Node n2, so only that");
        assert!(said.starts_with(&beginning), "{said}");
    }
    let cured = |said: &String| said.contains("loadBalancersBeforeNodes");
    assert_eq!(words.iter().map(cured).collect::<Vec<_>>(), [false, true], "{words:?}");
}

#[test]
fn a_load_balancers_address_is_served_whatever_a_node_says_where_load_balancers_go_first() {
    let settings = Settings { load_balancers_before_nodes: true, ..mk_settings() };
    let mut service = mk_service();
    service.external = addresses(&["192.0.2.78"]);
    service.load_balancer = addresses(&["192.0.2.77"]);
    let mut facts = NodeFacts::default();
    for address in addresses(&["192.0.2.77", "192.0.2.78"]) {
        facts.add_other_node(address, &"n2".into());
    }
    let compiled = compile(&service, &[], &facts, &settings);
    assert_eq!(bound(&compiled), ["10.96.0.9", "192.0.2.77"]);
    let [Problem::AddressOfNode { field: AddressField::External, .. }] = compiled.problems[..]
    else {
        panic!("{:?}", compiled.problems)
    };
}

#[test]
fn policies_without_local_endpoints_have_no_virtual_server_and_do_not_fall_back() {
    let mut service = mk_service();
    service.kind = ServiceKind::LoadBalancer;
    service.internal_policy = TrafficPolicy::Local;
    service.external_policy = TrafficPolicy::Local;
    service.load_balancer = addresses(&["203.0.113.5"]);
    let elsewhere = mk_slice(Family::V4, &[("10.244.1.2", "n2")]);
    let compiled = compile_with(&service, &mk_settings(), &[&elsewhere]);
    assert_eq!(
        servers(&compiled),
        ["TCP 10.96.0.9:80 -> ", "TCP 203.0.113.5:80 -> ", "TCP 251.0.113.5:80 -> 10.244.1.2:8080"]
    );
    let refused = |compiled: &Compiled| -> Vec<String> {
        entries(compiled).into_iter().filter(|entry| entry.starts_with("KUBE-NO-")).collect()
    };
    assert_eq!(
        refused(&compiled),
        ["KUBE-NO-LOCAL-ENDPOINTS 10.96.0.9,tcp:80", "KUBE-NO-LOCAL-ENDPOINTS 203.0.113.5,tcp:80"]
    );
    // Without any endpoints there is nothing to wait for, and no internal frontend.
    assert_eq!(
        refused(&compile_alone(&service)),
        ["KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80", "KUBE-NO-ENDPOINTS 203.0.113.5,tcp:80"]
    );
}

#[test]
fn a_service_without_ports_asks_for_nothing() {
    let mut service = mk_service();
    service.ports.clear();
    let compiled = compile_alone(&service);
    assert_eq!(compiled.fragment, Fragment::default());
}
