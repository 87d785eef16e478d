use std::time::Duration;

use apiserver::{Fault, On, Resource};
use serde_json::json;

use crate::world::{NODE, World, as_of, node, on_each_release, service, service_at};

#[test]
fn a_bad_object_in_a_list_harms_only_itself() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        world.server.apply(node(NODE)).unwrap();
        for name in ["a", "b", "c"] {
            world.server.apply(service(name)).unwrap();
        }
        let listing = if release.streams_lists() { On::watch } else { On::list };
        let on = listing(Resource::Services);
        let wrong = world.server.inject(Fault::WrongSchema, on.times(1));
        world.follow().await;
        world.until_complete().await;
        assert_eq!(wrong.hits(), 1);
        let [warning] = world.said.warnings.as_slice() else { panic!() };
        assert!(warning.starts_with("Service default/a: spec"), "{warning}");
        assert!(warning.ends_with("; it is left out"), "{warning}");
        let in_force = world.said.applied.keys().map(String::as_str);
        let in_force: Vec<_> = in_force.filter(|name| name.starts_with("Service")).collect();
        assert_eq!(in_force, ["Service default/b", "Service default/c"]);
        // It is said again when the Event about it has expired, while it is so.
        world.pass(Duration::from_secs(4_300)).await;
        world.until("it is still wrong", |said, _| said.still_wrong == said.warnings).await;
        // As soon as it is good again, it is there.
        world.server.apply(service_at("a", 81)).unwrap();
        world.until_applied("Service default/a").await;
        world.pass(Duration::from_secs(4_300)).await;
        world.catch_up().await;
        assert_eq!(world.said.still_wrong.len(), 1);
    });
}

#[test]
fn an_object_that_becomes_bad_stays_as_it_was() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        world.server.apply(node(NODE)).unwrap();
        world.server.apply(service("a")).unwrap();
        world.follow().await;
        world.until_complete().await;
        world.server.inject(Fault::WrongSchema, On::watch(Resource::Services).times(1));
        world.server.apply(service_at("a", 81)).unwrap();
        world.until("a warning", |said, _| !said.warnings.is_empty()).await;
        let warning = &world.said.warnings[0];
        assert!(warning.ends_with("; it stays in force as it was before"), "{warning}");
        // Neither a new list nor another object's change removes it, and the warning comes once.
        let listing = if release.streams_lists() { On::watch } else { On::list };
        let on = listing(Resource::Services).times(1);
        let again = world.server.inject(Fault::WrongSchema, on);
        world.server.inject(Fault::Expired, On::watch(Resource::Services).times(1));
        world.server.disconnect();
        world.until("a bad list", |_, _| again.hits() == 1).await;
        world.catch_up().await;
        assert_eq!(world.said.warnings.len(), 1, "{:?}", world.said.warnings);
        assert_eq!(world.said.removed, Vec::<String>::new());
        world.delete("a");
        world.until("a removal", |said, _| said.removed == ["Service default/a"]).await;
    });
}

#[test]
fn this_node_as_it_changes_and_goes() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        world.server.apply(node(NODE)).unwrap();
        world.follow().await;
        world.until_complete().await;
        let mut leaving = node(NODE);
        leaving["spec"] = json!({"taints": [
            {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
        ]});
        world.server.apply(leaving).unwrap();
        world.until("it leaves", |said, _| said.leaving == [false, true]).await;
        world.server.apply(node(NODE)).unwrap();
        world.until("it stays", |said, _| said.leaving == [false, true, false]).await;
        world.server.apply(node("another")).unwrap();
        assert!(world.server.delete(Resource::Nodes, "", NODE));
        world.catch_up().await;
        assert_eq!(world.said.applied["Node"], 3);
        assert_eq!(world.said.leaving.len(), 3);
    });
}

#[test]
fn what_is_not_for_us_is_left_out() {
    on_each_release(async |release| {
        let mut world = World::new(as_of(release));
        let mut headless = service("headless");
        headless["spec"] = json!({"clusterIP": "None"});
        let mut elsewhere = service("elsewhere");
        elsewhere["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
        world.server.apply(headless).unwrap();
        world.server.apply(elsewhere.clone()).unwrap();
        world.server.apply(service("a")).unwrap();
        world.follow().await;
        world.until_complete().await;
        assert_eq!(world.said.applied.keys().collect::<Vec<_>>(), ["Service default/a"]);
        // Another proxy takes it over.
        elsewhere["metadata"]["name"] = json!("a");
        world.server.apply(elsewhere).unwrap();
        world.until("a removal", |said, _| said.removed == ["Service default/a"]).await;
    });
}
