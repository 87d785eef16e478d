use plan::event::Event;
use plan::planner::Planner;
use plan::settings::Settings;

use super::*;
use source::Options;
use source::manifests::{FileChange, Folder};

const MANIFESTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.11], nodeName: n1, zone: a}
- {addresses: [10.244.2.12], nodeName: n2, conditions: {ready: false, serving: false}}
"#;

fn mk_explained() -> ExplainedService {
    let mut planner = Planner::new(Settings::new("n1"));
    let change = FileChange::Read(MANIFESTS.as_bytes().to_vec());
    let scan = Folder::new("/", &Options::new("n1")).apply([("web.yaml".into(), change)]);
    planner.apply(Event::LocalAddresses(vec!["192.0.2.1".parse().unwrap()]));
    scan.events.into_iter().for_each(|event| planner.apply(event));
    planner.plan();
    planner.explain_service(&ServiceName::new("shop", "web")).unwrap()
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn real(at: &str, weight: u32, active: u32) -> CountedRealServer {
    let mut traffic = ipvs::Statistics::default();
    traffic.connections = u64::from(active) * 10;
    CountedRealServer { socket: socket(at), weight, active, inactive: 1, traffic }
}

/// The Service with a virtual server that has a real server too many.
fn mk_state() -> ServiceState {
    let explained = mk_explained();
    let frontend = explained.frontends[0].frontend;
    let there = CountedVirtualServer {
        scheduler: "rr".to_owned(),
        persistence: Some(10_800),
        traffic: ipvs::Statistics::default(),
        real_servers: vec![real("10.244.1.11:8080", 1, 3), real("10.244.9.9:8080", 0, 2)],
    };
    let counted = [(frontend, Some(there))].into();
    let time = Duration::from_secs(60);
    let draining = [((frontend, socket("10.244.9.9:8080")), time)].into();
    ServiceState::of(&explained, Mode::Ipvs, &draining, Some(&counted), None)
}

#[test]
fn endpoints_have_what_the_kernel_has_and_what_it_has_besides_is_shown_too() {
    let state = mk_state();
    assert_eq!(state.affinity_seconds, Some(10_800));
    let [frontend] = &state.frontends[..] else { panic!("{state:?}") };
    assert_eq!((frontend.is_in_kernel, frontend.kind), (Some(true), FrontendKind::ClusterAddress));
    let shown = frontend.endpoints.iter();
    let shown: Vec<_> =
        shown.map(|it| (it.endpoint, it.used, it.weight, it.active, it.draining_seconds)).collect();
    assert_eq!(
        shown,
        [
            (socket("10.244.1.11:8080"), Use::Used, Some(1), Some(3), None),
            (socket("10.244.2.12:8080"), Use::NotReady, None, None, None),
            (socket("10.244.9.9:8080"), Use::Gone, Some(0), Some(2), Some(60.0)),
        ]
    );
    assert_eq!(frontend.endpoints[0].zone.as_deref(), Some("a"));
    assert_eq!(frontend.endpoints[0].traffic.unwrap().connections, 30);
}

#[test]
fn without_counters_nothing_is_zero() {
    let state = ServiceState::of(&mk_explained(), Mode::Iptables, &Draining::new(), None, None);
    let frontend = &state.frontends[0];
    assert_eq!((frontend.is_in_kernel, frontend.traffic), (None, None));
    assert!(frontend.endpoints.iter().all(|it| it.active.is_none() && it.weight.is_none()));
}

#[test]
fn a_virtual_server_that_is_missing_is_missed() {
    let explained = mk_explained();
    let counted = [(explained.frontends[0].frontend, None)].into();
    let state = ServiceState::of(&explained, Mode::Ipvs, &Draining::new(), Some(&counted), None);
    assert_eq!(state.frontends[0].is_in_kernel, Some(false));
}

#[test]
fn a_state_is_the_same_after_it_was_sent() {
    let answer = Answer::new(mk_state());
    let json = serde_json::to_string(&answer).unwrap();
    assert!(json.contains("\"kind\":\"Service\""), "{json}");
    assert_eq!(serde_json::from_str::<Answer<ServiceState>>(&json).unwrap(), answer);
}
