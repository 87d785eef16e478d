use std::time::{Duration, SystemTime};

use apiserver::{Fault, On, Options, Release, Resource, Server, Verb};
use serde_json::json;

use crate::world::{Said, World, as_of, on_each_release, on_releases, service, service_at, slice};

async fn complete(release: Release, names: &[&str]) -> World {
    let mut world = World::new(as_of(release));
    for name in names {
        world.server.apply(service(name)).unwrap();
    }
    world.follow().await;
    world.until_complete().await;
    world.until("watches", |_, server| server.watches(Resource::Services) == 1).await;
    world.server.clear_requests();
    world
}

/// The Services were listed once only, whatever broke.
fn assert_not_listed_again(world: &World) {
    assert_eq!(world.requests(Verb::List).len(), 0);
    for watch in world.requests(Verb::Watch) {
        assert_eq!(watch.parameter("sendInitialEvents"), None, "{watch:?}");
        assert!(watch.parameter("resourceVersion").is_some_and(|version| !version.is_empty()));
    }
}

#[test]
fn changes_are_followed() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a"]).await;
        world.server.apply(service_at("a", 81)).unwrap();
        world.until("another port", |said, _| said.ports == [81]).await;
        world.server.apply(slice("x")).unwrap();
        world.until_applied("EndpointSlice default/x").await;
        world.delete("a");
        world.until("a deletion", |said, _| said.removed == ["Service default/a"]).await;
        assert!(world.server.delete(Resource::EndpointSlices, "default", "x"));
        world.until("a deletion", |said, _| said.removed.len() == 2).await;
        assert_eq!(world.requests(Verb::Watch).len(), 0);
        assert_eq!((world.said.complete, world.said.applied.len()), (1, 0));
    });
}

#[test]
fn a_connection_that_breaks_in_the_middle_of_an_event() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a"]).await;
        let on = On::watch(Resource::Services).times(1);
        let reset = world.server.inject(Fault::Reset { after: 100 }, on);
        world.server.apply(service_at("a", 81)).unwrap();
        world.until("the change", |said, _| said.ports == [81]).await;
        assert_eq!(reset.hits(), 1);
        assert_eq!(world.requests(Verb::Watch).len(), 1);
        assert_not_listed_again(&world);
    });
}

#[test]
fn connections_that_break_one_after_the_other_lose_nothing() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a"]).await;
        for port in 1_000..1_010 {
            world.server.disconnect();
            world.server.apply(service_at("a", port)).unwrap();
            world.until("the change", |said, _| said.ports == [port]).await;
        }
        assert_not_listed_again(&world);
        assert_eq!(world.said.removed, Vec::<String>::new());
    });
}

#[test]
fn a_watch_that_ends_and_one_that_is_no_json() {
    on_each_release(async |release| {
        for fault in [Fault::End, Fault::NotJson] {
            let mut world = complete(release, &["a"]).await;
            let struck = world.server.inject(fault.clone(), On::watch(Resource::Services).times(2));
            world.server.disconnect();
            world.until("it goes wrong", |_, _| struck.hits() == 2).await;
            world.server.apply(service_at("a", 81)).unwrap();
            world.until("the change", |said, _| said.ports == [81]).await;
            assert_not_listed_again(&world);
            assert_eq!(world.said.removed, Vec::<String>::new(), "{fault:?}");
        }
    });
}

#[test]
fn nonsense_for_a_long_time_leads_to_a_list() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a"]).await;
        let nonsense = world.server.inject(Fault::NotJson, On::watch(Resource::Services));
        world.server.disconnect();
        world
            .until("another list", |_, server| {
                server.requests().iter().any(|request| {
                    request.resource == Some(Resource::Services) && request.verb == Verb::List
                })
            })
            .await;
        world.delete("a");
        nonsense.lift();
        world.until("a removal", |said, _| said.removed == ["Service default/a"]).await;
    });
}

#[test]
fn a_version_that_is_forgotten_leads_to_a_list() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a", "b", "c", "d"]).await;
        world.server.close();
        world.delete("b");
        world.delete("d");
        world.server.apply(service("e")).unwrap();
        world.server.compact();
        world.server.reopen().unwrap();
        world.until("removals", |said, _| said.removed.len() == 2).await;
        world.catch_up().await;
        assert_eq!(world.said.removed, ["Service default/b", "Service default/d"]);
        assert_eq!(world.said.applied["Service default/a"], 2, "listed again");
        assert!(world.said.applied.contains_key("Service default/e"));
        assert_eq!(world.said.complete, 1);
    });
}

#[test]
fn a_410_as_the_answer_to_a_watch() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a", "b"]).await;
        let gone = Fault::Status { code: 410, retry_after: None };
        let gone = world.server.inject(gone, On::watch(Resource::Services).times(1));
        world.server.close();
        world.delete("b");
        world.server.reopen().unwrap();
        world.until("a removal", |said, _| said.removed == ["Service default/b"]).await;
        assert_eq!(gone.hits(), 1);
        world.until("another list", |said, _| said.applied["Service default/a"] == 2).await;
    });
}

#[test]
fn one_connection_carries_everything() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a"]).await;
        // One from the start, and one after each break: no other is made only to be closed again.
        for accepted in 1..=3 {
            world.until("one connection", |_, server| server.connections() == 1).await;
            world.until_following("EndpointSlice", true).await;
            world.until_following("Node", true).await;
            assert_eq!(world.server.accepted(), accepted);
            // An answer of a moment ago would say that there is a connection.
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            world.server.disconnect();
            world.catch_up().await;
        }
        // Watches are renewed after minutes, in which nothing is asked.
        world.until_following("Service", true).await;
        world.pass(Duration::from_secs(120)).await;
        let cut =
            world.server.inject(Fault::Reset { after: 10 }, On::watch(Resource::Services).times(1));
        world.server.apply(service("b")).unwrap();
        world.until_applied("Service default/b").await;
        assert_eq!((cut.hits(), world.server.connections()), (1, 1));
    });
}

/// Pings do not tell: a balancer may answer them.
#[test]
fn a_silent_watch_is_taken_for_dead() {
    on_releases(&[Release::V1_36], async |release| {
        for http2 in [true, false] {
            let mut world = World::new(Options { http2, ..as_of(release) });
            world.follow().await;
            world.until_complete().await;
            world.until("watches", |_, server| server.watches(Resource::Services) == 1).await;
            let wanted = if http2 { 1 } else { 3 };
            world.until("connections", |_, server| server.connections() == wanted).await;
            let silence =
                world.server.inject(Fault::Silence, On::watch(Resource::Services).times(1));
            world.server.apply(service("a")).unwrap();
            world.until("it is silent", |_, _| silence.hits() == 1).await;
            world.server.clear_requests();
            // The server's clock does not jump, so it ends no watch.
            let is_applied =
                |said: &Said, _: &Server| said.applied.contains_key("Service default/a");
            world.pass_until(Duration::from_secs(55), "another watch", is_applied).await;
            assert_not_listed_again(&world);
        }
    });
}

/// A server whose etcd was restored sends nothing before it has come as far as before.
#[test]
fn watches_that_stay_silent_lead_to_a_list() {
    silent_watches_lead_to_a_list(Duration::from_millis(50));
}

/// As behind what buffers answers, which keeps bookmarks as well.
#[test]
fn watches_that_were_never_heard_lead_to_a_list() {
    silent_watches_lead_to_a_list(Duration::from_secs(3_600));
}

fn silent_watches_lead_to_a_list(period: Duration) {
    on_each_release(async |release| {
        let mut world = World::new(Options { bookmark_period: period, ..as_of(release) });
        world.follow().await;
        world.until_complete().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        world.server.clear_requests();
        let silence = world.server.inject(Fault::Silence, On::watch(Resource::Services).times(2));
        world.until("it is silent", |_, _| silence.hits() == 1).await;
        world.server.apply(service("a")).unwrap();
        let is_list = |_: &Said, server: &Server| {
            let mut requests = server.requests().into_iter();
            requests.any(|request| {
                request.verb == Verb::List || request.parameter("sendInitialEvents").is_some()
            })
        };
        world.pass_until(Duration::from_secs(55), "a list", is_list).await;
        assert_eq!(silence.hits(), 2);
        world.until_applied("Service default/a").await;
    });
}

#[test]
fn events_that_come_twice_do_no_harm() {
    on_each_release(async |release| {
        let mut world = complete(release, &["a"]).await;
        world.server.inject(Fault::Duplicate, On::watch(Resource::Services));
        world.delete("a");
        world.server.apply(service("b")).unwrap();
        world.delete("b");
        world.catch_up().await;
        assert_eq!(world.said.removed, ["Service default/a", "Service default/b"]);
    });
}

#[test]
fn bookmarks_move_the_watch_on() {
    on_each_release(async |release| {
        let options =
            Options { bookmark_period: Duration::from_millis(50), history: 5, ..as_of(release) };
        let mut world = World::new(options);
        world.follow().await;
        world.until_complete().await;
        // Far more changes to slices than the server remembers; Services hear of them by bookmarks.
        for index in 0..50 {
            world.server.apply(slice(&format!("x{index}"))).unwrap();
            world.until_applied(&format!("EndpointSlice default/x{index}")).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.server.clear_requests();
        world.server.disconnect();
        world.catch_up().await;
        assert_not_listed_again(&world);
    });
}

#[test]
fn what_triggered_a_change_counts_once() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        let triggered = |name: &str, ago: i64| {
            let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap();
            let then = now - jiff::SignedDuration::from_secs(ago);
            let mut slice = slice(name);
            slice["metadata"]["annotations"] =
                json!({"endpoints.kubernetes.io/last-change-trigger-time": then.to_string()});
            slice
        };
        world.server.apply(triggered("old", 3_600)).unwrap();
        world.follow().await;
        world.until_complete().await;
        assert_eq!(world.said.triggered, 0);
        tokio::time::sleep(Duration::from_millis(10)).await;
        world.server.apply(triggered("new", 0)).unwrap();
        world.until("a trigger", |said, _| said.triggered == 1).await;
        // A new list, in which nothing has changed.
        world.server.inject(Fault::Expired, On::watch(Resource::EndpointSlices).times(1));
        world.server.disconnect();
        for name in ["EndpointSlice default/new", "EndpointSlice default/old"] {
            world.until("another list", |said, _| said.applied.get(name) == Some(&2)).await;
        }
        world.server.apply(slice("marker")).unwrap();
        world.until_applied("EndpointSlice default/marker").await;
        assert_eq!(world.said.triggered, 1);
    });
}
