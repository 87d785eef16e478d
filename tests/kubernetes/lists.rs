use apiserver::{Fault, On, Options, Resource, Verb, WatchList};

use crate::world::{NODE, World, node, service, slice};

fn paged() -> Options {
    Options { watch_list: WatchList::GateOff, managed_fields: true, ..Options::default() }
}

#[tokio::test]
async fn a_list_as_a_stream() {
    let mut world = World::new(Options { managed_fields: true, ..Options::default() });
    for name in ["a", "b"] {
        world.server.apply(service(name)).unwrap();
        world.server.apply(slice(name)).unwrap();
    }
    for name in [NODE, "another"] {
        world.server.apply(node(name)).unwrap();
    }
    world.follow().await;
    world.until_complete().await;
    let in_force: Vec<_> = world.said.applied.keys().map(String::as_str).collect();
    assert_eq!(
        in_force,
        [
            "EndpointSlice default/a",
            "EndpointSlice default/b",
            "Node",
            "Service default/a",
            "Service default/b",
        ]
    );
    assert_eq!(world.said.applied["Node"], 1);
    assert_eq!(world.said.leaving, [false]);
    assert_eq!(world.said.complaints, Vec::<String>::new());
    let requests = world.server.requests();
    assert_eq!(requests.len(), 3, "{requests:?}");
    for request in requests {
        let parameter = |name| request.parameter(name).unwrap_or_default();
        assert_eq!(request.verb, Verb::Watch);
        assert_eq!(request.user_agent, "kube-ipvs/test");
        assert_eq!(parameter("sendInitialEvents"), "true");
        assert_eq!(parameter("allowWatchBookmarks"), "true");
        let selectors = (parameter("labelSelector"), parameter("fieldSelector"));
        let (labels, fields) = match request.resource {
            Some(Resource::Services) => {
                ("!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None")
            }
            Some(Resource::EndpointSlices) => ("!service.kubernetes.io/headless", ""),
            _ => ("", "metadata.name=node-1"),
        };
        assert_eq!(selectors, (labels.to_owned(), fields.to_owned()));
    }
    world.stop().await;
}

#[tokio::test]
async fn complete_without_a_node() {
    let mut world = World::new(Options::default());
    world.follow().await;
    world.until_complete().await;
    assert!(world.said.applied.is_empty() && world.said.leaving.is_empty());
    world.server.apply(node(NODE)).unwrap();
    world.until_applied("Node").await;
}

#[tokio::test]
async fn a_server_without_streams_is_listed_in_pages_from_then_on() {
    for watch_list in [WatchList::GateOff, WatchList::Unknown] {
        let mut world = World::new(Options { watch_list, ..Options::default() });
        for index in 0..1_100 {
            world.server.apply(service(&format!("s{index}"))).unwrap();
        }
        world.follow().await;
        world.until_complete().await;
        assert_eq!(world.said.applied.len(), 1_100);
        let lists = world.requests(Verb::List);
        let limits: Vec<_> = lists.iter().map(|list| list.parameter("limit")).collect();
        assert_eq!(limits, vec![Some("500".to_owned()); 3]);
        // The fault below is for the second watch, so the first one has to be there.
        world.until("a watch", |_, server| server.watches(Resource::Services) == 1).await;
        // It is not asked for a stream again.
        world.delete("s7");
        let expired = world.server.inject(Fault::Expired, On::watch(Resource::Services).times(1));
        world.server.disconnect();
        world.until("a 410", |_, _| expired.hits() == 1).await;
        world.until("another list", |said, _| said.applied["Service default/s0"] == 2).await;
        world.catch_up().await;
        assert_eq!(world.said.removed, ["Service default/s7"]);
        let streams = world.requests(Verb::Watch);
        let streams = streams.iter().filter(|watch| watch.parameter("sendInitialEvents").is_some());
        assert_eq!(streams.count(), 1);
    }
}

#[tokio::test]
async fn a_page_whose_token_has_expired() {
    let mut world = World::new(paged());
    for index in 0..600 {
        world.server.apply(service(&format!("s{index}"))).unwrap();
    }
    world.server.inject(Fault::Expired, On::list(Resource::Services).times(1));
    world.follow().await;
    world.until_complete().await;
    assert_eq!(world.said.applied.len(), 600);
    let lists = world.requests(Verb::List);
    let [first, second, whole] = lists.as_slice() else { panic!("{lists:?}") };
    assert_eq!((first.status, second.status, whole.status), (200, 410, 200));
    assert_eq!(whole.parameter("limit"), None);
    world.catch_up().await;
    assert_eq!(world.said.removed, Vec::<String>::new());
}

#[tokio::test]
async fn a_list_that_fails_removes_nothing_and_the_next_one_exactly_what_is_gone() {
    for options in [paged(), Options::default()] {
        let streamed = options.watch_list == WatchList::On;
        let mut world = World::new(options);
        for index in 0..20 {
            world.server.apply(service(&format!("s{index}"))).unwrap();
        }
        world.follow().await;
        world.until_complete().await;
        world.server.close();
        world.delete("s3");
        world.delete("s4");
        world.server.apply(service("new")).unwrap();
        world.server.compact();
        let on = if streamed { On::watch } else { On::list };
        let broken = on(Resource::Services).times(2);
        let reset = world.server.inject(Fault::Reset { after: 2_000 }, broken);
        let garbage = world.server.inject(Fault::NotJson, on(Resource::Services).times(1));
        world.server.reopen().unwrap();
        world.until("the lists fail", |_, _| reset.hits() == 2 && garbage.hits() == 1).await;
        assert_eq!(world.said.removed, Vec::<String>::new());
        world.until("a good list", |said, _| !said.removed.is_empty()).await;
        world.catch_up().await;
        assert_eq!(world.said.removed, ["Service default/s3", "Service default/s4"]);
        assert!(world.said.applied.contains_key("Service default/new"));
        assert_eq!(world.said.complete, 1);
    }
}

#[tokio::test]
async fn a_slow_answer_is_waited_for() {
    let mut world = World::new(paged());
    for index in 0..60 {
        world.server.apply(service(&format!("s{index}"))).unwrap();
    }
    let slow = Fault::Slow { bytes_per_second: 20_000 };
    world.server.inject(slow, On::resource(Resource::Services));
    world.follow().await;
    world.until_complete().await;
    assert_eq!(world.said.applied.len(), 60);
    assert_eq!(world.requests(Verb::List).len(), 1);
}

#[tokio::test]
async fn a_stream_whose_end_never_comes() {
    let mut world = World::new(Options::default());
    world.server.apply(service("a")).unwrap();
    let silence = world.server.inject(Fault::Silence, On::watch(Resource::Services).times(1));
    world.follow().await;
    world.until_complete().await;
    assert_eq!(silence.hits(), 1);
    assert_eq!(world.requests(Verb::List).len(), 1, "in pages instead");
    world.catch_up().await;
    assert_eq!(world.said.removed, Vec::<String>::new());
}
