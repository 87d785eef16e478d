use std::time::Duration;

use apiserver::{Fault, LoggedRequest, On, Options, Release, Resource, Verb};

use crate::world::{
    JSON, LIST, NODE, WATCH, World, as_of, node, on_each_release, service, service_at, slice,
};

/// The requests for what is followed so far: the header `Accept`, and true if the answer was Protobuf.
fn accepted(world: &World) -> Vec<(String, bool)> {
    world.server.requests().into_iter().map(|it| (it.accept, it.is_protobuf)).collect()
}

/// A server with an object of each kind, that is followed through a change and a deletion.
async fn followed(options: Options, before: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(options);
    world.server.apply(node(NODE)).unwrap();
    world.server.apply(service("a")).unwrap();
    world.server.apply(slice("x")).unwrap();
    before(&mut world);
    world.follow().await;
    world.until_complete().await;
    world.server.apply(service_at("a", 81)).unwrap();
    world.until("another port", |said, _| said.ports == [81]).await;
    world.delete("a");
    world.until("a deletion", |said, _| said.removed == ["Service default/a"]).await;
    assert!(world.said.applied.contains_key("EndpointSlice default/x"));
    assert_eq!((world.said.applied.get("Node"), world.said.warnings.len()), (Some(&1), 0));
    world
}

#[test]
fn lists_and_watches_are_in_protobuf() {
    on_each_release(async |release| {
        let world = followed(as_of(release), |_| {}).await;
        for request in world.server.requests() {
            let wanted = if request.verb == Verb::Watch { WATCH } else { LIST };
            assert_eq!(
                (request.accept.as_str(), request.is_protobuf),
                (wanted, true),
                "{request:?}"
            );
        }
    });
}

#[test]
fn a_server_that_has_only_json_answers_so() {
    on_each_release(async |release| {
        let world = followed(Options { protobuf: false, ..as_of(release) }, |_| {}).await;
        // What is refused with 400 is asked for in JSON as well, and refused again.
        for request in world.server.requests().into_iter().filter(|it| it.status == 200) {
            assert!(!request.is_protobuf, "{request:?}");
            assert!([LIST, WATCH].contains(&request.accept.as_str()), "{request:?}");
        }
    });
}

#[test]
fn answers_without_a_content_type_are_read_as_what_they_are() {
    on_each_release(async |release| {
        for protobuf in [true, false] {
            let options = Options { protobuf, content_type: false, ..as_of(release) };
            let world = followed(options, |_| {}).await;
            let requests = world.server.requests();
            assert!(requests.iter().all(|it| it.is_protobuf == protobuf), "{requests:?}");
        }
    });
}

#[test]
fn json_alone_is_asked_for_if_it_is_configured() {
    on_each_release(async |release| {
        let world = followed(as_of(release), |world| world.only_json = true).await;
        let accepted = accepted(&world);
        assert!(accepted.iter().all(|(accept, _)| accept == JSON), "{accepted:?}");
    });
}

/// A gateway may take the header for a mistake.
#[test]
fn after_a_400_that_no_api_server_sent_json_is_tried() {
    on_each_release(async |release| {
        let mut world = followed(as_of(release), |world| {
            for resource in [Resource::Services, Resource::EndpointSlices, Resource::Nodes] {
                let refused = Fault::ProtobufRefused { code: 400 };
                world.server.inject(refused, On::resource(resource));
            }
        })
        .await;
        world.server.clear_requests();
        world.server.disconnect();
        world.until("another watch", |_, server| !server.requests().is_empty()).await;
        world.catch_up().await;
        let accepted = accepted(&world);
        assert!(accepted.iter().all(|(it, _)| it == JSON), "{accepted:?}");
    });
}

/// It is about rights, from a gateway too.
#[tokio::test]
async fn after_a_403_protobuf_is_still_asked_for() {
    let world = followed(as_of(Release::V1_36), |world| {
        let refused = Fault::ProtobufRefused { code: 403 };
        world.server.inject(refused, On::resource(Resource::Services).times(2));
    })
    .await;
    let accepted = accepted(&world);
    assert!(accepted.iter().all(|(accept, _)| accept != JSON), "{accepted:?}");
}

#[tokio::test]
async fn protobuf_is_asked_for_again_by_a_list_an_hour_later() {
    let mut world = followed(as_of(Release::V1_36), |world| {
        let refused = Fault::ProtobufRefused { code: 406 };
        world.server.inject(refused, On::resource(Resource::EndpointSlices).times(1));
    })
    .await;
    // Services are listed again, by a 410 for their watch.
    let lists_again = async |world: &mut World| {
        let expired = On::watch(Resource::Services).times(1);
        let expired = world.server.inject(Fault::Status { code: 410, retry_after: None }, expired);
        world.server.clear_requests();
        world.server.disconnect();
        world.until("a list", |_, server| is_list_answered(server)).await;
        assert_eq!(expired.hits(), 1);
        let is_list = |it: &LoggedRequest| it.parameter("sendInitialEvents").is_some();
        let requests = world.server.requests();
        let list = requests.into_iter().rfind(is_list).unwrap();
        (list.accept, list.is_protobuf)
    };
    world.pass(Duration::from_secs(3_500)).await;
    assert_eq!(lists_again(&mut world).await, (JSON.to_owned(), false));
    world.pass(Duration::from_secs(101)).await;
    // A watch that goes on is still one of JSON.
    world.server.clear_requests();
    world.server.disconnect();
    world.until("a watch", |_, server| !server.requests().is_empty()).await;
    assert!(accepted(&world).iter().all(|(accept, _)| accept == JSON));
    assert_eq!(lists_again(&mut world).await, (WATCH.to_owned(), true));
}

fn is_list_answered(server: &apiserver::Server) -> bool {
    let lists =
        |it: &LoggedRequest| it.status == 200 && it.parameter("sendInitialEvents").is_some();
    server.requests().iter().any(lists)
}

#[test]
fn a_server_that_refuses_protobuf_is_asked_for_json_from_then_on() {
    on_each_release(async |release| {
        for code in [406, 415] {
            let options = as_of(release);
            let mut world = followed(options, |world| {
                for resource in [Resource::Services, Resource::EndpointSlices, Resource::Nodes] {
                    world.server.inject(Fault::ProtobufRefused { code }, On::resource(resource));
                }
            })
            .await;
            // The three that begin at the same time, each once.
            let n_refused = accepted(&world).iter().filter(|(accept, _)| accept != JSON).count();
            assert!((1..=3).contains(&n_refused), "{:?}", accepted(&world));
            world.server.clear_requests();
            world.server.disconnect();
            world.until("another watch", |_, server| !server.requests().is_empty()).await;
            world.catch_up().await;
            let accepted = accepted(&world);
            assert!(
                !accepted.is_empty() && accepted.iter().all(|(it, _)| it == JSON),
                "{accepted:?}"
            );
            // Of what a refusal of streams costs, there is nothing.
            let streams = world.server.requests().iter().filter(|it| it.status >= 400).count();
            assert_eq!(streams, 0);
        }
    });
}

/// A proxy that begins to refuse it when a watch is to go on.
#[tokio::test]
async fn a_refusal_costs_no_list() {
    let mut world = World::new(as_of(Release::V1_36));
    world.server.apply(service("a")).unwrap();
    world.follow().await;
    world.until_complete().await;
    world.until_following("Service", true).await;
    let refused = Fault::ProtobufRefused { code: 406 };
    let refused = world.server.inject(refused, On::resource(Resource::Services).times(1));
    world.server.clear_requests();
    world.server.disconnect();
    world.until("a refusal", |_, _| refused.hits() == 1).await;
    world.catch_up().await;
    assert_eq!((refused.hits(), world.requests(Verb::List).len()), (1, 0));
    let watches = world.requests(Verb::Watch);
    assert!(
        watches.iter().all(|watch| watch.parameter("sendInitialEvents").is_none()),
        "{watches:?}"
    );
    assert_eq!(world.said.applied["Service default/a"], 1);
}
