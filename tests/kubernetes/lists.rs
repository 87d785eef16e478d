use std::time::Duration;

use apiserver::{Fault, LoggedRequest, On, Options, Release, Resource, Server, Verb};
use source::kubernetes::{count_services, service_networks};

use crate::world::{
    JSON, NODE, TOKEN, WATCH, World, as_of, clients_of, node, on_each_release, service, slice,
};

fn paged() -> Options {
    Options { release: Release::V1_33, managed_fields: true, ..Options::default() }
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
    assert_eq!(world.said.api_server, [world.server.address()]);
    assert_eq!(world.said.warnings, Vec::<String>::new());
    let requests = world.server.requests();
    assert_eq!(requests.len(), 3, "{requests:?}");
    for request in requests {
        let parameter = |name| request.parameter(name).unwrap_or_default();
        assert_eq!(request.verb, Verb::Watch);
        assert_eq!(request.user_agent, "kube-ipvs/test");
        // Kubernetes 1.37 compresses watches piece by piece (`WatchListCompression`).
        assert!(!request.takes_gzip);
        assert_eq!(request.accept, WATCH);
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

#[test]
fn complete_without_a_node() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        world.follow().await;
        world.until_complete().await;
        assert!(world.said.applied.is_empty() && world.said.leaving.is_empty());
        world.server.apply(node(NODE)).unwrap();
        world.until_applied("Node").await;
    });
}

/// The parameters of the lists so far that say how to list.
fn how(world: &World) -> Vec<String> {
    let names = ["resourceVersion", "resourceVersionMatch", "limit", "continue"];
    let told = |list: &LoggedRequest| {
        let parameter = |name: &&str| Some(format!("{name}={}", list.parameter(name)?));
        let told: Vec<_> = names.iter().filter_map(parameter).collect();
        format!("{} {}", list.status, told.join("&"))
    };
    let mut lists = world.requests(Verb::List);
    // What it takes to find that a server does not know the selector, once.
    lists.retain(|list| list.status != 400);
    lists.iter().map(told).collect()
}

/// Streams that were asked for.
fn n_streams(world: &World) -> usize {
    let streams = world.requests(Verb::Watch);
    streams.iter().filter(|watch| watch.parameter("sendInitialEvents").is_some()).count()
}

/// Lists as client-go does: nothing that etcd would have to be asked for.
#[test]
fn a_server_without_streams_is_listed_from_its_cache() {
    on_each_release(async |release| {
        if release.streams_lists() {
            return;
        }
        let mut world = World::new(as_of(release));
        for index in 0..1_100 {
            world.server.apply(service(&format!("s{index}"))).unwrap();
        }
        world.follow().await;
        world.until_complete().await;
        assert_eq!(world.said.applied.len(), 1_100);
        assert_eq!(how(&world), ["200 resourceVersion=0"]);
        let lists = world.requests(Verb::List);
        assert!(lists.last().unwrap().takes_gzip, "1,100 Services are 400 kB");
        // The fault below is for the second watch, so the first one has to be there.
        world.until("a watch", |_, server| server.watches(Resource::Services) == 1).await;
        // It is not asked for a stream again, for now.
        let seen = world.server.resource_version();
        world.delete("s7");
        world.until("it is gone", |said, _| !said.removed.is_empty()).await;
        let expired = world.server.inject(Fault::Expired, On::watch(Resource::Services).times(1));
        world.server.disconnect();
        world.until("a 410", |_, _| expired.hits() == 1).await;
        world.until("another list", |said, _| said.applied["Service default/s0"] == 2).await;
        world.catch_up().await;
        assert_eq!(world.said.removed, ["Service default/s7"]);
        let version = seen + 1;
        assert_eq!(
            how(&world)[1..],
            [format!("200 resourceVersion={version}&resourceVersionMatch=NotOlderThan")]
        );
        assert_eq!(n_streams(&world), 1);
    });
}

#[tokio::test]
async fn streams_that_a_bad_hour_made_impossible_are_asked_for_again() {
    let mut world = World::new(Options::default());
    world.server.apply(service("a")).unwrap();
    let busy = Fault::Status { code: 503, retry_after: None };
    let busy = world.server.inject(busy, On::watch(Resource::Services).times(4));
    world.follow().await;
    world.until_complete().await;
    assert_eq!((busy.hits(), n_streams(&world)), (4, 4));
    assert_eq!(how(&world), ["200 resourceVersion=0"]);
    world.catch_up().await;
    world.pass(Duration::from_secs(3_601)).await;
    world.server.inject(Fault::Expired, On::watch(Resource::Services).times(1));
    world.server.disconnect();
    world.until("a stream", |said, _| said.applied["Service default/a"] == 2).await;
    assert_eq!(n_streams(&world), 5);
    assert_eq!(how(&world).len(), 1);
}

/// A server whose cache lacks our version: etcd is asked for.
#[test]
fn a_cache_that_is_of_no_use_is_passed_over() {
    on_each_release(async |release| {
        if release.streams_lists() {
            return;
        }
        let mut world = World::new(as_of(release));
        for index in 0..600 {
            world.server.apply(service(&format!("s{index}"))).unwrap();
        }
        let refused = Fault::Status { code: 410, retry_after: None };
        world.server.inject(refused, On::list(Resource::Services).times(1));
        world.follow().await;
        world.until_complete().await;
        assert_eq!(world.said.applied.len(), 600);
        let lists = how(&world);
        let [cached, first, second] = lists.as_slice() else { panic!("{lists:?}") };
        assert_eq!((cached.as_str(), first.as_str()), ("410 resourceVersion=0", "200 limit=500"));
        assert!(second.starts_with("200 limit=500&continue="), "{second}");
    });
}

/// A server, or a balancer before it, that does not manage: etcd would make it no better.
#[test]
fn a_list_that_takes_too_long_is_asked_of_the_cache_again() {
    on_each_release(async |release| {
        if release.streams_lists() {
            return;
        }
        let mut world = World::new(as_of(release));
        world.server.apply(service("a")).unwrap();
        let timeout = Fault::Status { code: 504, retry_after: None };
        world.server.inject(timeout, On::list(Resource::Services).times(1));
        world.follow().await;
        world.until_complete().await;
        assert_eq!(how(&world), ["504 resourceVersion=0", "200 resourceVersion=0"]);
    });
}

/// A proxy that cuts every answer that does not end.
#[tokio::test]
async fn a_stream_that_always_breaks_off_is_done_without() {
    let mut world = World::new(Options::default());
    world.server.apply(service("a")).unwrap();
    world.server.inject(Fault::Reset { after: 10 }, On::watch(Resource::Services).times(4));
    world.follow().await;
    world.until_complete().await;
    assert_eq!(how(&world), ["200 resourceVersion=0"]);
}

/// Its cache lags, and it does not go to etcd for it (`ConsistentListFromCacheSkipTimeoutFallback`, alpha in
/// Kubernetes 1.37).
#[tokio::test]
async fn a_server_that_is_busy_is_asked_for_the_same_list_again() {
    let mut world = World::new(paged());
    world.server.apply(service("a")).unwrap();
    let busy = Fault::Status { code: 429, retry_after: Some(1) };
    world.server.inject(busy, On::list(Resource::Services).times(4));
    world.follow().await;
    world.until_complete().await;
    let lists = how(&world);
    let expected = ["429", "429", "429", "429", "200"].map(|it| format!("{it} resourceVersion=0"));
    assert_eq!(lists, expected);
}

#[tokio::test]
async fn a_page_that_is_refused_is_asked_for_again_with_its_token() {
    let mut world = World::new(paged());
    for index in 0..600 {
        world.server.apply(service(&format!("s{index}"))).unwrap();
    }
    let inject =
        |fault, times| world.server.inject(fault, On::list(Resource::Services).times(times));
    inject(Fault::Status { code: 410, retry_after: None }, 1);
    // The first page takes a second, in which what strikes the second one is prepared.
    inject(Fault::Slow { bytes_per_second: 200_000 }, 1);
    world.follow().await;
    let lists = |server: &Server| {
        let requests = server.requests();
        let lists = requests.iter().filter(|request| {
            request.resource == Some(Resource::Services) && request.verb == Verb::List
        });
        lists.count()
    };
    world.until("the first page", |_, server| lists(server) == 2).await;
    let busy = Fault::Status { code: 429, retry_after: Some(1) };
    let busy = world.server.inject(busy, On::list(Resource::Services).times(3));
    world.until_complete().await;
    assert_eq!((busy.hits(), world.said.applied.len()), (3, 600));
    let lists = how(&world);
    let statuses: Vec<_> = lists.iter().map(|list| &list[..3]).collect();
    assert_eq!(statuses, ["410", "200", "429", "429", "429", "200"]);
    assert!(lists[2..].iter().all(|list| list.contains("continue=")), "{lists:?}");
    assert!(world.said.applied.values().all(|applied| *applied == 1));
}

#[test]
fn a_page_whose_token_has_expired() {
    on_each_release(async |release| {
        if release.streams_lists() {
            return;
        }
        let mut world = World::new(as_of(release));
        for index in 0..600 {
            world.server.apply(service(&format!("s{index}"))).unwrap();
        }
        let refused = Fault::Status { code: 410, retry_after: None };
        world.server.inject(refused, On::list(Resource::Services).times(1));
        world.server.inject(Fault::Expired, On::list(Resource::Services).times(1));
        world.follow().await;
        world.until_complete().await;
        assert_eq!(world.said.applied.len(), 600);
        let lists = how(&world);
        let [_cached, first, second, whole] = lists.as_slice() else { panic!("{lists:?}") };
        assert_eq!((first.as_str(), whole.as_str()), ("200 limit=500", "200 "));
        assert!(second.starts_with("410 limit=500&continue="), "{second}");
        world.catch_up().await;
        assert_eq!(world.said.removed, Vec::<String>::new());
    });
}

#[test]
fn a_list_that_fails_removes_nothing_and_the_next_one_exactly_what_is_gone() {
    on_each_release(async |release| {
        let streamed = release.streams_lists();
        let mut world = World::new(as_of(release));
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
    });
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
    assert_eq!(how(&world), ["200 resourceVersion=0"], "from the cache instead");
    world.catch_up().await;
    assert_eq!(world.said.removed, Vec::<String>::new());
}

/// Lists that are asked for once: of them, too, only what is read is to be sent.
#[tokio::test]
async fn questions_ask_for_no_managed_fields() {
    let options = Options { tokens: vec![TOKEN.to_owned()], ..Options::default() };
    let server = Server::start(options).unwrap();
    for name in ["a", "b"] {
        server.apply(service(name)).unwrap();
    }
    let client = clients_of(&server).await.questions;
    assert_eq!(count_services(&client).await, Ok(2));
    assert_eq!(service_networks(&client).await, Ok(Vec::new()));
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests.iter().all(|request| request.accept == JSON), "{requests:?}");
}
