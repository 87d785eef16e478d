use std::net::IpAddr;
use std::time::{Duration, Instant};

use apiserver::{Fault, LoggedRequest, On, Options, Resource, Verb};
use serde_json::{Value, json};
use source::FollowNodes;

use crate::world::{LIST, NODE, World, node, service};

/// Longest and least time between two lists of the other nodes.
const PERIOD: Duration = Duration::from_secs(1_080);
const LEAST_PERIOD: Duration = Duration::from_secs(720);

fn other(name: &str, addresses: &[(&str, &str)]) -> Value {
    let addresses = addresses.iter().map(|(kind, text)| json!({"type": kind, "address": text}));
    let addresses: Vec<Value> = addresses.collect();
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"addresses": addresses},
    })
}

fn internal(name: &str, address: &str) -> Value {
    other(name, &[("InternalIP", address)])
}

/// A Service that has an address which could be another node's.
fn outer(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.1"],
            "ports": [{"port": 80, "protocol": "TCP"}],
        },
    })
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl World {
    /// The requests for other Nodes.
    fn for_others(&self) -> Vec<LoggedRequest> {
        let mut requests = self.server.requests();
        requests.retain(|request| {
            request.resource == Some(Resource::Nodes)
                && request.parameter("fieldSelector").as_deref() != Some("metadata.name=node-1")
        });
        requests
    }

    /// Listens until this is what is known of another node.
    async fn until_other(&mut self, name: &str, addresses: &[&str]) {
        let addresses = ips(addresses);
        self.until(name, |said, _| said.others.get(name) == Some(&addresses)).await;
    }
}

/// This node, another one with two addresses, and a Service that could have one of them.
async fn followed(options: Options) -> World {
    let mut world = World::new(options);
    world.server.apply(node(NODE)).unwrap();
    world.server.apply(internal("b", "192.0.2.2")).unwrap();
    world.server.apply(outer("a")).unwrap();
    world.follow().await;
    world.until_complete().await;
    world
}

#[tokio::test]
async fn other_nodes_are_not_listed_until_a_service_could_have_their_addresses() {
    let mut world = World::new(Options::default());
    for name in [NODE, "b", "c"] {
        world.server.apply(node(name)).unwrap();
    }
    for name in ["a", "b"] {
        world.server.apply(service(name)).unwrap();
    }
    world.follow().await;
    world.until_complete().await;
    world.server.apply(node("d")).unwrap();
    world.catch_up().await;
    assert!(world.for_others().is_empty(), "{:?}", world.for_others());
    assert!(world.said.others.is_empty());
    // A load balancer IP is one.
    let mut balanced = service("lb");
    balanced["spec"]["type"] = json!("LoadBalancer");
    balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}});
    world.server.apply(balanced).unwrap();
    world.until_applied("Service default/lb").await;
    assert_eq!(world.said.others.keys().collect::<Vec<_>>(), ["b", "c", "d"]);
    let requests = world.for_others();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(request.parameter("fieldSelector").as_deref(), Some("metadata.name!=node-1"));
    // One more Service asks for nothing more, and neither does the last one's end.
    world.server.apply(outer("a")).unwrap();
    world.until("the Service", |said, _| said.order.last().unwrap() == "default/a").await;
    world.delete("a");
    world.delete("lb");
    world.catch_up().await;
    assert_eq!(world.for_others().len(), 1);
    // A Table costs the server's cache some bytes for each node, and etcd nothing.
    assert_eq!(request.accept, "application/json;as=Table;v=v1;g=meta.k8s.io");
    assert_eq!(request.parameter("includeObject").as_deref(), Some("None"));
    assert_eq!(request.parameter("resourceVersion").as_deref(), Some("0"));
    assert_eq!((request.parameter("limit"), request.verb), (None, Verb::List));
    // They are listed again after a while, whatever Services there are.
    world.server.apply(internal("d", "192.0.2.99")).unwrap();
    world.listen(Duration::from_millis(200)).await;
    assert_eq!(world.said.others["d"], ips(&["192.0.2.1"]));
    world.pass(LEAST_PERIOD / 2).await;
    world.listen(Duration::from_millis(200)).await;
    assert_eq!(world.for_others().len(), 1);
    world.pass(PERIOD).await;
    world.until_other("d", &["192.0.2.99"]).await;
    assert_eq!(world.for_others().len(), 2);
    assert_eq!(world.metric("kube_ipvs_api_lists_total", &["OtherNode", "period"]), Some(1.0));
    world.until_following("OtherNode", true).await;
}

#[tokio::test]
async fn a_service_comes_after_the_addresses_that_it_could_have() {
    let mut world = World::new(Options::default());
    world.server.apply(node(NODE)).unwrap();
    let addresses = [
        ("Hostname", "b"),
        ("ExternalIP", "198.51.100.2"),
        ("InternalIP", "192.0.2.2"),
        ("InternalIP", "192.0.2.3"),
        ("InternalDNS", "b.example.org"),
    ];
    world.server.apply(other("b", &addresses)).unwrap();
    world.server.apply(other("without", &[("Hostname", "without")])).unwrap();
    world.server.apply(internal("wrong", "nonsense")).unwrap();
    world.server.apply(outer("a")).unwrap();
    world.follow().await;
    world.until_complete().await;
    assert_eq!(world.said.order, ["b", "default/a"]);
    assert_eq!(world.said.others["b"], ips(&["192.0.2.2", "198.51.100.2"]));
    assert_eq!(world.said.warnings, Vec::<String>::new(), "it is that node's to complain");
    assert_eq!((world.said.complete, world.said.applied["Node"]), (1, 1));
}

#[tokio::test]
async fn nodes_that_join_change_and_leave() {
    let mut world = followed(Options::default()).await;
    assert!(world.server.delete(Resource::Nodes, "", "b"));
    world.server.apply(internal("c", "192.0.2.3")).unwrap();
    world.server.apply(internal("d", "192.0.2.4")).unwrap();
    world.pass(PERIOD).await;
    world.until_other("d", &["192.0.2.4"]).await;
    world.until("b leaves", |said, _| said.removed == ["other node b"]).await;
    // A kubelet's report every few minutes is no news; a Node without addresses counts as gone.
    let mut same = internal("c", "192.0.2.3");
    same["status"]["conditions"] = json!([{"type": "Ready", "reason": "another"}]);
    world.server.apply(same).unwrap();
    world.server.apply(other("d", &[])).unwrap();
    world.pass(PERIOD).await;
    world.until("d leaves", |said, _| said.removed == ["other node b", "other node d"]).await;
    world.listen(Duration::from_millis(100)).await;
    assert_eq!(world.said.applied["other node c"], 1);
    assert_eq!(world.said.applied["Node"], 1, "this node is not another one");
    let watched = world.for_others().iter().any(|request| request.verb == Verb::Watch);
    assert!(!watched, "{:?}", world.for_others());
}

/// A node of two families, and so of two InternalIPs.
fn dual(name: &str, number: usize) -> Value {
    let (first, second) = (format!("192.0.2.{number}"), format!("fd00::{number}"));
    other(name, &[("InternalIP", &first), ("InternalIP", &second)])
}

#[tokio::test]
async fn second_addresses_are_known_where_this_node_has_one() {
    let mut world = World::new(Options::default());
    world.server.apply(dual(NODE, 1)).unwrap();
    world.server.apply(dual("b", 2)).unwrap();
    world.server.apply(outer("a")).unwrap();
    world.follow().await;
    world.until_other("b", &["192.0.2.2", "fd00::2"]).await;
    // A node that cannot be read keeps its addresses.
    let wrong = world.server.inject(Fault::WrongSchema, On::list(Resource::Nodes).times(2));
    world.server.apply(internal("b", "192.0.2.22")).unwrap();
    world.server.apply(internal("c", "192.0.2.3")).unwrap();
    world.pass(PERIOD).await;
    world.until_other("c", &["192.0.2.3"]).await;
    assert_eq!((wrong.hits(), world.said.removed.len()), (2, 0));
    assert_eq!(world.said.others["b"], ips(&["192.0.2.2", "fd00::2"]));
}

/// Whole Nodes that cannot be had are no reason to know nothing of them, nor less than before.
#[tokio::test]
async fn first_addresses_are_known_where_the_others_cannot_be_had() {
    let mut world = World::new(Options::default());
    world.server.apply(dual(NODE, 1)).unwrap();
    world.server.apply(dual("b", 2)).unwrap();
    world.follow().await;
    world.until_complete().await;
    let busy = || Fault::Status { code: 503, retry_after: None };
    let on = || On::list(Resource::Nodes).after(1).times(1);
    let first = world.server.inject(busy(), on());
    world.server.apply(outer("a")).unwrap();
    world.until_other("b", &["192.0.2.2"]).await;
    world.until_other("b", &["192.0.2.2", "fd00::2"]).await;
    let later = world.server.inject(busy(), on());
    world.server.apply(internal("c", "192.0.2.3")).unwrap();
    world.pass(PERIOD).await;
    world.until_other("c", &["192.0.2.3"]).await;
    assert_eq!((first.hits(), later.hits()), (1, 1));
    assert_eq!(world.said.applied["other node b"], 2, "its second address was never unknown again");
}

#[tokio::test]
async fn an_answer_that_is_no_table_changes_nothing() {
    let mut world = followed(Options::default()).await;
    let not_found = Fault::Status { code: 406, retry_after: None };
    for fault in [Fault::NotJson, not_found, Fault::Reset { after: 900 }] {
        let fault = world.server.inject(fault, On::list(Resource::Nodes));
        world.pass(PERIOD).await;
        world.until("it was answered", |_, _| fault.hits() > 0).await;
        world.until_following("OtherNode", false).await;
        fault.lift();
        world.pass(Duration::from_secs(60)).await;
        world.until_following("OtherNode", true).await;
    }
    assert_eq!(world.said.others["b"], ips(&["192.0.2.2"]));
    assert_eq!(world.said.removed, Vec::<String>::new());
}

#[tokio::test]
async fn a_second_address_of_this_node_is_noticed_when_it_comes() {
    let mut world = World::new(Options::default());
    world.server.apply(node(NODE)).unwrap();
    world.server.apply(dual("b", 2)).unwrap();
    world.server.apply(outer("a")).unwrap();
    world.follow().await;
    world.until_other("b", &["192.0.2.2"]).await;
    world.server.apply(dual(NODE, 1)).unwrap();
    world.until_other("b", &["192.0.2.2", "fd00::2"]).await;
}

#[tokio::test]
async fn many_nodes_are_never_listed_whole() {
    let mut world = World::new(Options::default());
    world.server.apply(dual(NODE, 1)).unwrap();
    for number in 0..501 {
        world.server.apply(dual(&format!("other-{number}"), number % 200 + 2)).unwrap();
    }
    world.server.apply(outer("a")).unwrap();
    world.follow().await;
    world.until_applied("Service default/a").await;
    assert_eq!(world.said.others["other-7"], ips(&["192.0.2.9"]));
    let requests = world.for_others();
    assert!(requests.iter().all(|request| request.accept.contains("as=Table")), "{requests:?}");
}

/// A Service that may have internal frontends, which are not where pods are.
fn local(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterIP": "10.96.0.11", "type": "NodePort", "externalTrafficPolicy": "Local",
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30_080}],
        },
    })
}

#[tokio::test]
async fn networks_of_pods_are_read_once_of_each_node_where_they_matter() {
    let mut world = followed(Options::default()).await;
    let with_pods = |name: &str, address: &str, network: &str| {
        let mut node = internal(name, address);
        node["spec"] = json!({"podCIDR": network, "podCIDRs": [network]});
        node
    };
    let whole = |world: &World| {
        let requests = world.for_others();
        requests.iter().filter(|request| request.accept == LIST).count()
    };
    assert_eq!((world.for_others().len(), whole(&world)), (1, 0));
    world.server.apply(with_pods("b", "192.0.2.2", "240.10.2.0/24")).unwrap();
    world.server.apply(local("c")).unwrap();
    let network = |text: &str| vec![text.parse().unwrap()];
    let pods = network("240.10.2.0/24");
    world.until("b's pods", |said, _| said.other_pods.get("b") == Some(&pods)).await;
    assert_eq!((world.for_others().len(), whole(&world)), (3, 1));
    // What a Table does not say is still known.
    world.server.apply(with_pods("b", "192.0.2.22", "240.10.2.0/24")).unwrap();
    world.pass(PERIOD).await;
    world.until_other("b", &["192.0.2.22"]).await;
    assert_eq!((world.for_others().len(), whole(&world)), (4, 1));
    assert_eq!(world.said.other_pods["b"], pods);
    world.server.apply(with_pods("d", "192.0.2.4", "240.10.4.0/24")).unwrap();
    world.pass(PERIOD).await;
    let pods = network("240.10.4.0/24");
    world.until("d's pods", |said, _| said.other_pods.get("d") == Some(&pods)).await;
    assert_eq!((world.for_others().len(), whole(&world)), (6, 2));
    // One that joins has them a moment later.
    world.server.apply(internal("e", "192.0.2.5")).unwrap();
    world.pass(PERIOD).await;
    world.until_other("e", &["192.0.2.5"]).await;
    world.server.apply(with_pods("e", "192.0.2.5", "240.10.5.0/24")).unwrap();
    world.pass(PERIOD).await;
    let pods = network("240.10.5.0/24");
    world.until("e's pods", |said, _| said.other_pods.get("e") == Some(&pods)).await;
    assert_eq!((world.for_others().len(), whole(&world)), (10, 4));
}

#[tokio::test]
async fn nodes_that_may_not_be_listed_are_done_without_and_tried_again_after_a_while() {
    let mut world = World::new(Options::default());
    world.server.apply(node(NODE)).unwrap();
    world.server.apply(internal("b", "192.0.2.2")).unwrap();
    world.follow().await;
    world.until_complete().await;
    let forbidden = world.server.inject(Fault::Forbidden, On::resource(Resource::Nodes));
    world.server.apply(outer("a")).unwrap();
    let asked = Instant::now();
    world.until_applied("Service default/a").await;
    assert!(asked.elapsed() < Duration::from_secs(4), "it waits for what it does not get");
    assert_eq!(world.said.order, ["default/a"]);
    // As often as a server that is starting may refuse, and then no more.
    for refused in 1..=6 {
        world.until("a refusal", |_, _| forbidden.hits() >= refused).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.pass(Duration::from_secs(14)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.for_others().len(), 6, "{:?}", world.for_others());
    assert_eq!(world.said.warnings, Vec::<String>::new());
    forbidden.lift();
    world.pass(Duration::from_secs(301)).await;
    world.until_other("b", &["192.0.2.2"]).await;
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_not_waited_for_for_long() {
    let mut world = World::new(Options::default());
    world.server.apply(node(NODE)).unwrap();
    world.server.apply(internal("b", "192.0.2.2")).unwrap();
    world.follow().await;
    world.until_complete().await;
    // A Table of one node is some 1,200 bytes.
    let slow = Fault::Slow { bytes_per_second: 150 };
    world.server.inject(slow, On::list(Resource::Nodes).times(1));
    world.server.apply(outer("a")).unwrap();
    world.server.apply(service("later")).unwrap();
    let asked = Instant::now();
    world.until_applied("Service default/later").await;
    assert!(asked.elapsed() >= Duration::from_secs(4), "{:?}", asked.elapsed());
    assert_eq!(world.said.order, ["default/a", "default/later"]);
    world.until_other("b", &["192.0.2.2"]).await;
}

#[tokio::test]
async fn always_is_from_the_start_and_never_is_never() {
    let mut world = World::new(Options::default());
    world.options.follow_nodes = FollowNodes::Always;
    world.server.apply(internal("b", "192.0.2.2")).unwrap();
    world.follow().await;
    world.until_other("b", &["192.0.2.2"]).await;
    world.stop().await;

    let mut world = World::new(Options::default());
    world.options.follow_nodes = FollowNodes::Never;
    world.server.apply(internal("b", "192.0.2.2")).unwrap();
    world.server.apply(outer("a")).unwrap();
    world.follow().await;
    world.until_complete().await;
    world.server.apply(outer("c")).unwrap();
    world.until_applied("Service default/c").await;
    world.catch_up().await;
    assert!(world.for_others().is_empty() && world.said.others.is_empty());
    world.stop().await;
}
