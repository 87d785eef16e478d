use plan::event::Event;
use plan::mode::Mode;
use plan::planner::Planner;
use plan::settings::{LocalDetection, Settings};

use super::*;
use crate::answers::Reason;
use source::Options;
use source::manifests::{FileChange, Folder};

/// A Service with an endpoint on this node, one elsewhere, and one that is not ready.
const MANIFESTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  externalTrafficPolicy: POLICY
  healthCheckNodePort: 30999
  loadBalancerSourceRanges: [RANGES]
  ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.11], nodeName: n1}
- {addresses: [10.244.2.11], nodeName: n2}
- {addresses: [10.244.2.12], nodeName: n2, conditions: {ready: false, serving: false}}
"#;

fn mk_planner(mode: Mode, policy: &str, ranges: &str) -> Planner {
    let pods = "10.244.0.0/16".parse().unwrap();
    let settings = Settings {
        mode,
        local_detection: LocalDetection::ClusterCidr(vec![pods]),
        ..Settings::new("n1")
    };
    let mut planner = Planner::new(settings);
    let yaml = MANIFESTS.replace("POLICY", policy).replace("RANGES", ranges);
    let change = FileChange::Read(yaml.into_bytes());
    let scan = Folder::new("/", &Options::new("n1")).apply([("web.yaml".into(), change)]);
    assert!(scan.warnings.is_empty(), "{:?}", scan.warnings);
    let local = ["192.168.0.1", "10.244.1.1"].map(|it| it.parse().unwrap());
    planner.apply(Event::LocalAddresses(local.to_vec()));
    scan.events.into_iter().for_each(|event| planner.apply(event));
    planner.plan();
    planner
}

fn asked(name: &str, port: Option<&str>, from: Option<&str>) -> Asked {
    let text = |text: Option<&str>| text.map(str::to_owned);
    Asked { name: name.to_owned(), port: text(port), from: text(from), pod: None }
}

fn explain_with(planner: &Planner, asked: &Asked) -> Result<Explanation, FailureAnswer> {
    super::explain_with(planner, asked, |_, _| panic!("no pod is named"))
}

fn explained(planner: &Planner, from: Option<&str>) -> Explanation {
    explain_with(planner, &asked("shop/web", Some("http"), from)).unwrap()
}

/// Outcomes of clients at a frontend of this kind, each as `PLACE: OUTCOME`.
fn fates(explanation: &Explanation, kind: FrontendKind) -> Vec<String> {
    let frontend = explanation.frontends.iter().find(|it| it.kind == kind).unwrap();
    let of_client = |client: &ClientExplanation| {
        let outcomes = client.outcomes.iter().map(|outcome| {
            let endpoints: Vec<String> =
                outcome.endpoints.iter().map(|it| it.ip().to_string()).collect();
            let seen = match outcome.seen {
                Some(Seen::Node) => " masqueraded",
                _ => "",
            };
            match outcome.reached {
                Reached::Endpoint => format!("{}{seen}", endpoints.join(" ")),
                ref other => format!("{other:?}"),
            }
        });
        format!("{:?}: {}", client.client, outcomes.collect::<Vec<_>>().join(" or "))
    };
    frontend.clients.iter().map(of_client).collect()
}

#[test]
fn each_kind_of_client_gets_its_endpoints_in_modes_ipvs_and_iptables() {
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let planner = mk_planner(mode, "Local", "");
        let explanation = explained(&planner, None);
        let both = "10.244.1.11 10.244.2.11";
        assert_eq!(
            fates(&explanation, FrontendKind::ClusterAddress),
            [
                format!("Pod: {both}"),
                // Its own source is the address itself where that is at an interface.
                format!("Node: {both} masqueraded"),
                format!("Outside: {both} masqueraded"),
            ],
            "{mode}"
        );
        assert_eq!(
            fates(&explanation, FrontendKind::LoadBalancer),
            [
                format!("Pod: {both}"),
                format!("Node: {both} masqueraded"),
                "Outside: 10.244.1.11".to_owned(),
            ],
            "{mode}"
        );
        let kinds: Vec<_> = explanation.frontends.iter().map(|it| it.kind).collect();
        let all =
            [FrontendKind::ClusterAddress, FrontendKind::NodePort, FrontendKind::LoadBalancer];
        assert_eq!(kinds, all, "{mode}");
    }
}

/// Without a Node object no network of the node's pods is known; slices say where endpoints are.
#[test]
fn an_endpoint_of_another_service_is_a_pod_of_this_node() {
    let settings = Settings {
        local_detection: LocalDetection::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]),
        ..Settings::new("n1")
    };
    let mut planner = Planner::new(settings);
    let (_, services) = MANIFESTS.split_once("---\n").unwrap();
    let services = services.replace("POLICY", "Local").replace("RANGES", "");
    let other = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {name: dns-1, namespace: shop, labels: {kubernetes.io/service-name: dns}}\n\
                 addressType: IPv4\nports: [{port: 53}]\n\
                 endpoints: [{addresses: [10.244.1.12], nodeName: n1}, \
                 {addresses: [10.244.2.13], nodeName: n2}]\n";
    let change = FileChange::Read(format!("{services}{other}").into_bytes());
    let scan = Folder::new("/", &Options::new("n1")).apply([("web.yaml".into(), change)]);
    planner.apply(Event::LocalAddresses(vec!["192.0.2.10".parse().unwrap()]));
    scan.events.into_iter().for_each(|event| planner.apply(event));
    planner.plan();
    for (address, expected) in [("10.244.1.12", "Pod"), ("10.244.2.13", "Outside")] {
        let explanation = explained(&planner, Some(address));
        let fates = fates(&explanation, FrontendKind::ClusterAddress);
        assert!(fates.iter().all(|it| it.starts_with(expected)), "{address}: {fates:?}");
    }
}

#[test]
fn clients_outside_of_source_ranges_are_dropped_by_a_rule_that_is_named() {
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let planner = mk_planner(mode, "Cluster", "172.16.0.0/12");
        let explanation = explained(&planner, Some("outside"));
        let both = "10.244.1.11 10.244.2.11 masqueraded";
        let fates = fates(&explanation, FrontendKind::LoadBalancer);
        assert_eq!(fates, [format!("Outside: {both}"), "Outside: Dropped".to_owned()], "{mode}");
        let balancer = explanation.frontends.last().unwrap();
        let ranges: Vec<_> = balancer.clients.iter().map(|it| it.is_in_source_range).collect();
        assert_eq!(ranges, [Some(true), Some(false)], "{mode}");
        let dropped = balancer.clients[1].outcomes[0].rules.last().unwrap();
        assert!(dropped.rule.ends_with("-j DROP"), "{mode}: {dropped:?}");
    }
}

#[test]
fn an_endpoint_that_may_reach_itself_has_two_outcomes() {
    let planner = mk_planner(Mode::Ipvs, "Cluster", "");
    let explanation = explained(&planner, Some("10.244.1.11"));
    let fates = fates(&explanation, FrontendKind::ClusterAddress);
    assert_eq!(fates, ["Pod: 10.244.1.11 masqueraded or 10.244.2.11"]);
    let cluster = &explanation.frontends[0].clients[0];
    assert!(!cluster.is_example);
    let rules = &cluster.outcomes[0].rules;
    assert!(rules.iter().any(|it| it.rule.contains("KUBE-LOOP-BACK")), "{rules:?}");
}

#[test]
fn endpoints_that_are_not_used_have_the_reason() {
    let planner = mk_planner(Mode::Ipvs, "Local", "");
    let explanation = explained(&planner, Some("node"));
    let unused = |kind| {
        let frontend = explanation.frontends.iter().find(|it| it.kind == kind).unwrap();
        let unused = frontend.unused.iter();
        unused.map(|it| (it.endpoint.ip().to_string(), it.reason)).collect::<Vec<_>>()
    };
    let starting = ("10.244.2.12".to_owned(), Use::NotReady);
    assert_eq!(unused(FrontendKind::ClusterAddress), std::slice::from_ref(&starting));
    let elsewhere = ("10.244.2.11".to_owned(), Use::Elsewhere);
    assert_eq!(unused(FrontendKind::LoadBalancer), [elsewhere, starting]);
}

#[test]
fn a_port_without_endpoints_refuses_and_an_internal_frontend_is_named() {
    let planner = mk_planner(Mode::Ipvs, "Local", "");
    let dns = explain_with(&planner, &asked("shop/web", Some("53"), Some("pod"))).unwrap();
    let outcome = &dns.frontends[0].clients[0].outcomes[0];
    assert!(matches!(&outcome.reached, Reached::Refused(by) if by == "icmp-port-unreachable"));
    let explanation = explained(&planner, Some("pod"));
    let balancer = explanation.frontends.last().unwrap();
    let internal_frontend = balancer.clients[0].outcomes[0].internal_frontend;
    assert_eq!(internal_frontend, Some("251.0.113.10:80".parse().unwrap()));
}

#[test]
fn what_is_not_there_is_said_with_what_is() {
    let planner = mk_planner(Mode::Ipvs, "Cluster", "");
    let refused = |asked: &Asked| explain_with(&planner, asked).unwrap_err();
    let service = refused(&asked("shop/wed", None, None));
    assert_eq!(service.reason, Reason::NotFound);
    assert!(service.message.contains("nearest: shop/web"), "{}", service.message);
    let port = refused(&asked("shop/web", Some("81"), None));
    assert_eq!(port.message, "Service shop/web has no port 81; it has http (80/TCP), dns (53/UDP)");
    let family = refused(&asked("shop/web", None, Some("fd00::1")));
    assert_eq!(family.message, "Service shop/web is not served by IPv6 on this node");
    let client = refused(&asked("shop/web", None, Some("somebody")));
    assert_eq!(client.reason, Reason::BadRequest);
}

#[test]
fn an_explanation_is_the_same_after_it_was_sent() {
    let planner = mk_planner(Mode::Ipvs, "Local", "172.16.0.0/12");
    let answer = Answer::new(explained(&planner, None));
    let json = serde_json::to_string(&answer).unwrap();
    assert_eq!(serde_json::from_str::<Answer<Explanation>>(&json).unwrap(), answer);
}

#[test]
fn what_comes_back_by_this_node_is_told_from_what_is_lost() {
    let at = |number: u16| SocketAddr::from(([10, 244, 2, 1], number));
    let outcome = |reached, endpoints: &[SocketAddr]| Outcome {
        reached,
        endpoints: endpoints.to_vec(),
        more_endpoints: 0,
        seen: None,
        internal_frontend: None,
        rules: Vec::new(),
    };
    let before = vec![
        outcome(Reached::Endpoint, &[at(1)]),
        outcome(Reached::Unanswered, &[at(2), at(3), at(4)]),
    ];
    let expected = vec![
        outcome(Reached::Endpoint, &[at(1)]),
        outcome(Reached::Endpoint, &[at(3)]),
        outcome(Reached::Unanswered, &[at(2), at(4)]),
    ];
    assert_eq!(outcome::corrected(before.clone(), &[at(3), at(1)]), expected);
    assert_eq!(outcome::corrected(before.clone(), &[]), before);
}

/// `shop/web` with so many endpoints that are ready and so many that are not.
fn explained_with_many(n_ready: usize, n_starting: usize) -> Explanation {
    let (before, _) = MANIFESTS.rsplit_once("- {addresses: [10.244.1.11]").unwrap();
    let mut yaml = before.replace("POLICY", "Cluster").replace("RANGES", "");
    for number in 0..n_ready + n_starting {
        let is_ready = number < n_ready;
        yaml += &format!(
            "- {{addresses: [10.{}.{}.{}], nodeName: n2, conditions: {{ready: {is_ready}, serving: {is_ready}}}}}\n",
            100 + number / 62_500,
            number / 250 % 250,
            number % 250,
        );
    }
    let settings = Settings {
        local_detection: LocalDetection::ClusterCidr(vec!["10.0.0.0/8".parse().unwrap()]),
        ..Settings::new("n1")
    };
    let mut planner = Planner::new(settings);
    let change = FileChange::Read(yaml.into_bytes());
    let scan = Folder::new("/", &Options::new("n1")).apply([("web.yaml".into(), change)]);
    planner.apply(Event::LocalAddresses(vec!["192.168.0.1".parse().unwrap()]));
    scan.events.into_iter().for_each(|event| planner.apply(event));
    planner.plan();
    explained(&planner, Some("outside"))
}

#[test]
fn of_many_endpoints_some_are_named_and_the_others_are_counted() {
    let explanation = explained_with_many(700, 800);
    let frontend = &explanation.frontends[0];
    assert_eq!((frontend.unused.len(), frontend.more_unused), (500, 300));
    assert_eq!(frontend.more_endpoints, 0);
    let outcome = &frontend.clients[0].outcomes[0];
    assert_eq!((outcome.endpoints.len(), outcome.more_endpoints), (500, 200));
}
