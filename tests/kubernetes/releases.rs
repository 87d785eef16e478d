use std::time::Duration;

use apiserver::{Fault, On, Options, Release, Resource, Verb};
use serde_json::json;

use crate::world::{NODE, World, as_of, node, on_each_release, service};

/// The requests for Services so far: the status of each, and true if it has the selector by fields.
fn selectors(world: &World) -> Vec<(u16, bool)> {
    let requests = world.server.requests().into_iter();
    let services = requests.filter(|request| request.resource == Some(Resource::Services));
    services.map(|it| (it.status, it.parameter("fieldSelector").is_some())).collect()
}

#[test]
fn a_server_that_does_not_know_the_selector_is_asked_without_it() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        world.server.apply(node(NODE)).unwrap();
        let mut headless = service("headless");
        headless["spec"] = json!({"clusterIP": "None"});
        world.server.apply(headless.clone()).unwrap();
        world.server.apply(service("a")).unwrap();
        world.follow().await;
        world.until_complete().await;
        world.until("a watch", |_, server| server.watches(Resource::Services) == 1).await;
        let expected: &[_] = match release {
            // The stream is refused for its options, and the list for the field.
            Release::V1_21 | Release::V1_26 | Release::V1_30 => {
                &[(422, true), (400, true), (200, false), (200, false)]
            }
            Release::V1_33 => &[(422, true), (200, true), (200, true)],
            Release::V1_36 => &[(200, true)],
        };
        assert_eq!(selectors(&world), expected, "{release:?}");
        headless["metadata"]["labels"] = json!({"changed": "yes"});
        world.server.apply(headless).unwrap();
        world.catch_up().await;
        assert!(!world.said.applied.contains_key("Service default/headless"));
        assert_eq!(world.said.warnings, Vec::<String>::new());
    });
}

/// A rolling upgrade behind a balancer, in either direction: neither takes a pause or a list.
#[tokio::test]
async fn a_server_that_is_replaced_by_one_of_another_release() {
    let mut world = World::new(Options::default());
    world.server.apply(service("a")).unwrap();
    world.follow().await;
    world.until_complete().await;
    world.until_following("Service", true).await;
    for release in [Release::V1_30, Release::V1_36, Release::V1_21] {
        world.server.set_release(release);
        world.server.clear_requests();
        world.server.disconnect();
        world.catch_up().await;
        assert_eq!(world.requests(Verb::List).len(), 0);
        let expected: &[_] = match release {
            Release::V1_30 => &[(400, true), (200, false)],
            _ => &[(200, false)],
        };
        assert_eq!(selectors(&world), expected, "{release:?}");
        world.until_following("Service", true).await;
    }
    // An hour later it is tried again, and refused again.
    world.server.clear_requests();
    world.pass(Duration::from_secs(3_601)).await;
    world.server.disconnect();
    world.catch_up().await;
    assert_eq!(selectors(&world)[..2], [(400, true), (200, false)]);
    world.server.set_release(Release::V1_36);
    world.pass(Duration::from_secs(3_601)).await;
    world.server.clear_requests();
    world.server.disconnect();
    world.catch_up().await;
    assert!(selectors(&world).iter().all(|request| *request == (200, true)));
    assert_eq!(world.said.applied["Service default/a"], 1, "never listed again");
    assert_eq!(world.said.removed, Vec::<String>::new());
}

/// One of several servers is old: it answers in the middle of a list in pages.
#[tokio::test]
async fn a_page_that_another_release_refuses() {
    let mut world = World::new(as_of(Release::V1_33));
    for index in 0..600 {
        world.server.apply(service(&format!("s{index}"))).unwrap();
    }
    let inject =
        |fault, times| world.server.inject(fault, On::list(Resource::Services).times(times));
    inject(Fault::Status { code: 410, retry_after: None }, 1);
    inject(Fault::Slow { bytes_per_second: 200_000 }, 1);
    world.follow().await;
    world
        .until("the first page", |_, server| {
            let requests = server.requests();
            requests.iter().filter(|request| request.parameter("limit").is_some()).count() == 1
        })
        .await;
    world.server.set_release(Release::V1_30);
    world.until_complete().await;
    assert_eq!(world.said.applied.len(), 600);
    assert_eq!(selectors(&world).iter().filter(|(status, _)| *status == 400).count(), 1);
    assert!(selectors(&world)[4..].iter().all(|request| *request == (200, false)));
}

/// Something between answers in words of its own.
#[tokio::test]
async fn a_refusal_in_other_words() {
    let mut world = World::new(Options::default());
    world.server.apply(service("a")).unwrap();
    let refused = Fault::Status { code: 400, retry_after: None };
    let refused = world.server.inject(refused, On::resource(Resource::Services).times(3));
    world.follow().await;
    world.until_complete().await;
    assert_eq!(refused.hits(), 3);
    assert_eq!(selectors(&world)[..4], [(400, true), (400, true), (400, true), (200, false)]);
}
