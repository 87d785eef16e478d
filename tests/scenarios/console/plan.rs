//! What `plan` says is what applying the manifests then writes.

use console::answers::plan::{Manifest, PlanRequest, plan};
use console::rehearsal::{RehearsalError, rehearse};
use console::words::Effect;
use plan::event::Event;
use plan::model::Protocol;
use plan::op::Op;
use plan::scheduler::SchedulerName;

use crate::closing::without_closings;
use crate::world::{World, frontend, node_port_service, service, slice, tcp, udp};

/// Operations in words, in order, without the difference between removing and draining.
fn normal<'a>(ops: impl Iterator<Item = &'a Op>) -> Vec<String> {
    let mut words: Vec<String> = ops
        .map(|op| match op {
            Op::DrainRealServer(frontend, server, _) => {
                Op::RemoveRealServer(*frontend, *server).to_string()
            }
            Op::RemoveVirtualServerWhenDrained(frontend) => {
                Op::RemoveVirtualServer(*frontend).to_string()
            }
            op => op.to_string(),
        })
        .collect();
    words.sort();
    words
}

fn changes() -> Vec<Vec<Event>> {
    let applied = |service: plan::model::Service| Event::ServiceApplied(Box::new(service));
    let with = |service: &plan::model::Service, pods: &[u8]| {
        Event::SliceApplied(Box::new(slice(service, pods)))
    };
    let first = service(1, Protocol::Udp);
    let mut shared = service(3, Protocol::Udp);
    // Both have this address, on other ports.
    shared.external = vec![[203, 0, 113, 7].into()];
    let mut other = service(4, Protocol::Udp);
    other.external.clone_from(&shared.external);
    other.ports[0].port = std::num::NonZeroU16::new(53).unwrap();
    // It claims what the first one has.
    let mut later = service(5, Protocol::Udp);
    later.cluster_v4 = first.cluster_v4;
    later.created = 9;
    vec![
        vec![with(&first, &[1, 3])],
        vec![applied(shared.clone()), with(&shared, &[2])],
        vec![applied(other.clone()), with(&other, &[2])],
        vec![applied(later.clone()), with(&later, &[7])],
        vec![Event::ServiceRemoved(shared.name)],
        vec![Event::ServiceRemoved(first.name.clone())],
        vec![applied(first), applied(node_port_service(6, 30_006))],
        vec![Event::ServiceRemoved(other.name), Event::SliceRemoved(later.name)],
    ]
}

#[tokio::test(start_paused = true)]
async fn what_plan_says_is_what_the_loop_then_writes() {
    let mut world = World::in_sync(&[udp(1, &[1, 2]), tcp(2, &[3])]).await;
    for (number, events) in changes().into_iter().enumerate() {
        let before = world.fake.actual();
        let rehearsed = rehearse(&world.inquiries, events.clone()).await.unwrap();
        assert_eq!(
            (world.fake.actual(), world.fake.take_log()),
            (before, vec![]),
            "nothing is written"
        );
        let foretold = normal(rehearsed.operations.iter().map(|it| &it.op));
        // A claim to what another Service has waits.
        let is_waiting = rehearsed.problems.iter().any(|problem| problem.starts_with("ns/s5: "));
        assert_eq!(
            (foretold.is_empty(), is_waiting),
            (number == 3, number == 3),
            "change {number}"
        );
        for event in events {
            world.send(event).await;
        }
        world.compared().await;
        let written = without_closings(world.fake.take_log());
        assert_eq!(foretold, normal(written.iter()), "change {number}");
    }
    world.assert_converged(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_manifest_changes_what_it_says_and_keeps_what_the_cluster_gave() {
    let world = World::in_sync(&[tcp(1, &[1, 2]), tcp(2, &[3])]).await;
    let text = "{apiVersion: v1, kind: Service, metadata: {name: s1, namespace: ns}, \
                spec: {sessionAffinity: ClientIP, ports: [{name: p, port: 80}]}}";
    let manifest = Manifest { name: "s1.yaml".to_owned(), text: text.to_owned() };
    let mut request = PlanRequest { manifests: vec![manifest], delete: false };
    let scheduler = SchedulerName::default();
    let planned = plan(&world.inquiries, &scheduler, &request).await.unwrap();
    assert_eq!(planned.services, ["ns/s1"]);
    assert_eq!(planned.notes, ["ns/s1: keeps its cluster address 10.96.0.1"]);
    let [operation] = &*planned.operations else { panic!("{planned:?}") };
    assert_eq!(operation.effect, Effect::Change);
    assert_eq!(operation.object, format!("virtual server {}", frontend(1, Protocol::Tcp)));
    assert_eq!(operation.found.as_deref(), Some("rr"));
    assert_eq!(operation.desired.as_deref(), Some("rr persistent 10800"));
    assert_eq!(operation.services, ["ns/s1"]);

    request.delete = true;
    let planned = plan(&world.inquiries, &scheduler, &request).await.unwrap();
    assert!(planned.operations.iter().all(|it| it.effect == Effect::Remove), "{planned:?}");
    assert!(planned.operations.iter().any(|it| it.object == "address 10.96.0.1 on kube-ipvs0"));
    assert!(world.fake.take_log().is_empty());

    request.manifests[0].text = "kind: [".to_owned();
    let refused = plan(&world.inquiries, &scheduler, &request).await.unwrap_err();
    assert!(refused.message.starts_with("s1.yaml: "), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn before_the_takeover_nothing_can_be_planned() {
    let world = World::new();
    let rehearsed = rehearse(&world.inquiries, Vec::new()).await;
    assert_eq!(rehearsed, Err(RehearsalError::NotInSync));
}
