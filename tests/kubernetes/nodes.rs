use std::net::IpAddr;
use std::time::{Duration, Instant};

use apiserver::{Fault, On, Options, Request, Resource, WatchList};
use kube_ipvs::source::FollowNodes;
use serde_json::{Value, json};

use crate::world::{NODE, World, node, service};

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
    fn for_others(&self) -> Vec<Request> {
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
async fn nobody_asks_for_other_nodes_as_long_as_no_service_could_have_their_addresses() {
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
    // A load balancer's address is one.
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
    world.server.apply(internal("d", "192.0.2.99")).unwrap();
    world.until_other("d", &["192.0.2.99"]).await;
    assert_eq!(world.for_others().len(), 1);
}

#[tokio::test]
async fn a_service_comes_after_the_addresses_that_it_could_have() {
    for watch_list in [WatchList::On, WatchList::GateOff] {
        let mut world = World::new(Options { watch_list, ..Options::default() });
        world.server.apply(node(NODE)).unwrap();
        let addresses = [
            ("Hostname", "b"),
            ("ExternalIP", "198.51.100.2"),
            ("InternalIP", "192.0.2.2"),
            ("InternalIP", "fd00::2"),
            ("InternalDNS", "b.example.org"),
            ("InternalIP", "nonsense"),
        ];
        world.server.apply(other("b", &addresses)).unwrap();
        world.server.apply(other("without", &[("Hostname", "without")])).unwrap();
        world.server.apply(outer("a")).unwrap();
        world.follow().await;
        world.until_complete().await;
        assert_eq!(world.said.order, ["b", "default/a"], "{watch_list:?}");
        assert_eq!(world.said.others["b"], ips(&["192.0.2.2", "198.51.100.2", "fd00::2"]));
        assert_eq!(world.said.complaints, Vec::<String>::new(), "it is that node's to complain");
        assert_eq!((world.said.complete, world.said.applied["Node"]), (1, 1));
    }
}

#[tokio::test]
async fn nodes_that_join_change_and_leave() {
    let mut world = followed(Options::default()).await;
    world.server.apply(internal("c", "192.0.2.3")).unwrap();
    world.until_other("c", &["192.0.2.3"]).await;
    // What a kubelet reports every few minutes is no news.
    for heartbeat in 0..5 {
        let mut same = internal("c", "192.0.2.3");
        same["status"]["conditions"] = json!([{"type": "Ready", "reason": heartbeat.to_string()}]);
        world.server.apply(same).unwrap();
    }
    world
        .server
        .apply(other("c", &[("InternalIP", "192.0.2.3"), ("ExternalIP", "198.51.100.3")]))
        .unwrap();
    world.until_other("c", &["192.0.2.3", "198.51.100.3"]).await;
    assert_eq!(world.said.applied["other node c"], 2);
    assert!(world.server.delete(Resource::Nodes, "", "b"));
    world.until("b leaves", |said, _| said.removed == ["other node b"]).await;
    // One that has no addresses any more is as good as gone.
    world.server.apply(other("c", &[])).unwrap();
    world.until("c leaves", |said, _| said.removed.len() == 2).await;
    assert!(world.server.delete(Resource::Nodes, "", "c"));
    world.server.apply(internal("d", "192.0.2.4")).unwrap();
    world.until_other("d", &["192.0.2.4"]).await;
    assert_eq!(world.said.removed, ["other node b", "other node c"]);
    assert_eq!(world.said.applied["Node"], 1, "this node is not another one");
}

#[tokio::test]
async fn what_happens_while_the_watch_is_broken_is_not_lost() {
    let mut world = followed(Options::default()).await;
    world.server.apply(internal("c", "192.0.2.3")).unwrap();
    world.until_other("c", &["192.0.2.3"]).await;
    world.server.disconnect();
    world.server.apply(internal("c", "192.0.2.33")).unwrap();
    world.until_other("c", &["192.0.2.33"]).await;
    // And where only a new list helps.
    world.server.close();
    assert!(world.server.delete(Resource::Nodes, "", "b"));
    world.server.apply(internal("d", "192.0.2.4")).unwrap();
    world.server.compact();
    let reset = Fault::Reset { after: 50 };
    world.server.inject(reset, On::watch(Resource::Nodes).times(2));
    world.server.reopen().unwrap();
    world.until_other("d", &["192.0.2.4"]).await;
    world.until("b is gone", |said, _| said.removed == ["other node b"]).await;
    assert_eq!(world.said.applied["other node c"], 2, "it is the same after the list");
}

#[tokio::test]
async fn a_node_that_cannot_be_read_keeps_its_addresses() {
    let mut world = followed(Options::default()).await;
    let wrong = world.server.inject(Fault::WrongSchema, On::watch(Resource::Nodes).times(1));
    world.server.apply(internal("b", "192.0.2.22")).unwrap();
    world.until("it is wrong", |_, _| wrong.hits() == 1).await;
    world.catch_up().await;
    assert_eq!(world.said.others["b"], ips(&["192.0.2.2"]));
    world.server.apply(internal("b", "192.0.2.23")).unwrap();
    world.until_other("b", &["192.0.2.23"]).await;
    assert_eq!(world.said.removed, Vec::<String>::new());
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
    assert_eq!(world.said.complaints, Vec::<String>::new());
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
    let silence = world.server.inject(Fault::Silence, On::watch(Resource::Nodes));
    world.server.apply(outer("a")).unwrap();
    world.server.apply(service("later")).unwrap();
    let asked = Instant::now();
    world.until_applied("Service default/later").await;
    assert!(asked.elapsed() >= Duration::from_secs(4), "{:?}", asked.elapsed());
    assert_eq!(world.said.order, ["default/a", "default/later"]);
    silence.lift();
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
