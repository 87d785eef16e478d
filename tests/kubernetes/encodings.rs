use apiserver::{Fault, On, Options, Release, Resource, Verb};

use crate::world::{
    JSON, LIST, NODE, WATCH, World, as_of, node, on_each_release, service, service_at, slice,
};

/// The requests for what is followed so far: the header `Accept`, and true if the answer was Protobuf.
fn accepted(world: &World) -> Vec<(String, bool)> {
    world.server.requests().into_iter().map(|it| (it.accept, it.is_protobuf)).collect()
}

/// A server with an object of each kind, that is followed through a change and a deletion.
async fn followed(options: Options, before: impl FnOnce(&World)) -> World {
    let mut world = World::new(options);
    world.server.apply(node(NODE)).unwrap();
    world.server.apply(service("a")).unwrap();
    world.server.apply(slice("x")).unwrap();
    before(&world);
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
        for (accept, is_protobuf) in accepted(&world) {
            assert!([LIST, WATCH].contains(&accept.as_str()) && !is_protobuf, "{accept}");
        }
    });
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
