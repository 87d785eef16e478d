//! Questions about Services, which the loop answers between two turns.

use std::net::IpAddr;
use std::time::Duration;

use plan::model::{Protocol, ServiceName};
use reconcile::DEFAULT_DRAIN_DEADLINE;

use crate::world::{World, frontend, real_server, slice, tcp};

#[tokio::test(start_paused = true)]
async fn a_service_is_explained_with_the_time_that_draining_endpoints_have() {
    let (service, endpoints) = tcp(1, &[1, 2]);
    let mut world = World::in_sync(&[(service.clone(), endpoints)]).await;
    let at = frontend(1, Protocol::Tcp);
    let socket = (IpAddr::from([10, 244, 0, 1]), 8080).into();
    world.fake.disturb(|actual| {
        let server = actual.virtual_servers.get_mut(&at).unwrap();
        server.real_servers.get_mut(&socket).unwrap().connections = 3;
    });
    world.apply_slice(slice(&service, &[2])).await;
    let has_weight_0 =
        |it: Option<plan::actual::ActualRealServer>| it.is_some_and(|it| it.weight == 0);
    world.until("draining", |_, actual| has_weight_0(real_server(actual, &at, 1))).await;
    let name = service.name.clone();
    let (explained, draining) = world
        .inquiries
        .ask(move |view| {
            let draining: Vec<_> = view.draining(&at).collect();
            (view.planner.explain_service(&name), draining)
        })
        .await
        .unwrap();
    let explained = explained.unwrap();
    assert!(!explained.is_waiting);
    let used: Vec<_> = explained.ports[0].endpoints.iter().map(|it| it.socket).collect();
    assert_eq!(used, [(IpAddr::from([10, 244, 0, 2]), 8080).into()]);
    let [(found, left)] = draining[..] else { panic!("{draining:?}") };
    assert_eq!(found, socket);
    // The kernel has whole seconds.
    let most = DEFAULT_DRAIN_DEADLINE + Duration::from_secs(1);
    assert!(left > Duration::from_secs(800) && left <= most, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn services_are_walked_in_chunks_while_they_change() {
    let services: Vec<_> = (1..=9).map(|number| tcp(number, &[1])).collect();
    let mut world = World::in_sync(&services).await;
    let mut found: Vec<ServiceName> = Vec::new();
    loop {
        let after = found.last().cloned();
        let chunk = world
            .inquiries
            .ask(move |view| view.planner.summarize_services(after.as_ref(), None, 4))
            .await
            .unwrap();
        assert!(chunk.services.len() <= 4);
        assert!(chunk.services.iter().all(|it| (it.ready, it.used) == (1, 1)));
        found.extend(chunk.services.into_iter().map(|it| it.name));
        if chunk.is_last {
            break;
        }
        // One that was there already has gone, and one that is to come has changed.
        world.send(plan::event::Event::ServiceRemoved(found[0].clone())).await;
        let (last, _) = &services[8];
        world.apply_slice(slice(last, &[2])).await;
        world.taken().await;
    }
    let all: Vec<ServiceName> = services.iter().map(|(service, _)| service.name.clone()).collect();
    assert_eq!(found, all);
}
