//! Metrics of a server that is followed, and of one that cannot be.

use std::time::{SystemTime, UNIX_EPOCH};

use apiserver::{Fault, On, Options, Resource};

use crate::world::{World, service};

const KINDS: [&str; 3] = ["Service", "EndpointSlice", "Node"];

fn lists(world: &World, reason: &str) -> Option<f64> {
    world.metric("kube_ipvs_api_lists_total", &["Service", reason])
}

async fn until_following(world: &mut World, is: bool) {
    for kind in KINDS {
        world.until_following(kind, is).await;
    }
}

#[tokio::test]
async fn a_node_that_no_longer_follows_says_so() {
    let mut world = World::new(Options::default());
    world.server.apply(service("a")).unwrap();
    world.follow().await;
    world.until_complete().await;
    until_following(&mut world, true).await;
    assert_eq!((lists(&world, "start"), lists(&world, "expired")), (Some(1.0), Some(0.0)));
    let heard = world.metric("kube_ipvs_api_last_heard_timestamp_seconds", &["Service"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!(heard.is_some_and(|heard| (now - 60.0..=now).contains(&heard)), "{heard:?}");

    let page = world.following_page();
    let lines: Vec<&str> = page.lines().collect();
    let [server, services, slices, node] = lines[..] else { panic!("{page}") };
    assert_eq!(server, format!("server {}", world.server.address()));
    assert!(services.starts_with("Service: following; last heard 20"), "{page}");
    assert!(slices.ends_with("Z; lists: start 1"), "{page}");
    assert!(node.starts_with("Node: following"), "{page}");

    world.server.close();
    until_following(&mut world, false).await;
    assert!(world.following_page().contains("\nService: NOT following; last heard 20"));
    world.server.reopen().unwrap();
    until_following(&mut world, true).await;
    assert_eq!(lists(&world, "expired"), Some(0.0), "the watch goes on where it was");

    world.server.inject(Fault::Expired, On::watch(Resource::Services).times(1));
    world.server.disconnect();
    world.until("another list", |said, _| said.applied["Service default/a"] == 2).await;
    assert_eq!((lists(&world, "start"), lists(&world, "expired")), (Some(1.0), Some(1.0)));
    let page = world.following_page();
    assert!(page.contains("lists: expired 1, start 1\n"), "{page}");
}

#[tokio::test]
async fn requests_are_counted_as_client_go_counts_them() {
    let mut world = World::new(Options::default());
    let busy = Fault::Status { code: 503, retry_after: None };
    world.server.inject(busy, On::watch(Resource::Services).times(1));
    world.follow().await;
    world.until_complete().await;
    let host = world.server.address().to_string();
    let count =
        |code: &str| world.metric("rest_client_requests_total", &[code, host.as_str(), "GET"]);
    assert_eq!((count("200"), count("503"), count("<error>")), (Some(3.0), Some(1.0), None));
    let timed = world.metric("rest_client_request_duration_seconds", &[host.as_str(), "GET"]);
    assert_eq!(timed, Some(4.0));
}
