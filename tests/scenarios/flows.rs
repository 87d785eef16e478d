//! Flows that lead nowhere, in connection tracking.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use kernel::RefusalClass;
use kernel::fake::Fake;
use plan::event::Event;
use plan::flows::Flow;
use plan::kernel_objects::Frontend;
use plan::model::{EndpointSlice, Protocol, Service};
use plan::op::Op;
use reconcile::Pace;
use tokio::time::Instant;

use crate::world::{World, frontend, real_server, slice, tcp, udp};

/// A flow to a Service of [`udp`] that leads to a pod of [`slice`].
fn to_pod(number: u16, pod: u8) -> Flow {
    leading_to(number, (IpAddr::from([10, 244, 0, pod]), 8080).into())
}

/// A flow that began before there was anything to answer it.
fn to_nobody(number: u16) -> Flow {
    let of = frontend(number, Protocol::Udp);
    leading_to(number, (of.address, of.port).into())
}

fn leading_to(number: u16, reply_source: SocketAddr) -> Flow {
    let of = frontend(number, Protocol::Udp);
    Flow { protocol: of.protocol, destination: (of.address, of.port).into(), reply_source }
}

fn flows(fake: &Fake) -> Vec<Flow> {
    fake.with_flows(|flows| flows.clone())
}

fn put(world: &World, flows: &[Flow]) {
    world.fake.with_flows(|all| all.extend(flows));
}

/// A node in sync with these, whose cleaning at the start is over.
async fn in_sync(services: &[(Service, EndpointSlice)]) -> World {
    let mut world = World::in_sync(services).await;
    world.until("clean", |status, _| status.flows_pending == 0).await;
    world.compared().await;
    world.fake.take_cleanings();
    world
}

async fn removed(world: &mut World, count: u64) {
    world.until("removed", |status, _| status.flows_removed == count).await;
    assert_eq!(world.now().flows_pending, 0);
}

#[tokio::test(start_paused = true)]
async fn flows_to_an_endpoint_that_is_gone_are_removed_and_no_others() {
    let (service, endpoints) = udp(1, &[1, 2]);
    let mut world = in_sync(&[(service.clone(), endpoints), udp(2, &[1])]).await;
    put(&world, &[to_pod(1, 1), to_pod(1, 2), to_pod(2, 1), to_pod(3, 1), to_nobody(3)]);
    world.apply_slice(slice(&service, &[2, 3])).await;
    removed(&mut world, 1).await;
    assert_eq!(flows(&world.fake), [to_pod(1, 2), to_pod(2, 1), to_pod(3, 1), to_nobody(3)]);
    let cleaned = BTreeSet::from([frontend(1, Protocol::Udp)]);
    assert_eq!(world.fake.take_cleanings(), [cleaned], "only that frontend's");
}

#[tokio::test(start_paused = true)]
async fn flows_from_before_the_service_or_its_first_endpoint_are_removed() {
    let mut world = in_sync(&[]).await;
    put(&world, &[to_nobody(1)]);
    let (service, none) = udp(1, &[]);
    world.feed(&[(service.clone(), none)]).await;
    removed(&mut world, 1).await;
    put(&world, &[to_nobody(1)]);
    world.apply_slice(slice(&service, &[1])).await;
    removed(&mut world, 2).await;
    assert_eq!(flows(&world.fake), []);
}

#[tokio::test(start_paused = true)]
async fn of_a_removed_service_only_redirected_flows_are_removed() {
    let (service, endpoints) = udp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), endpoints)]).await;
    put(&world, &[to_pod(1, 1), to_nobody(1)]);
    world.send(Event::ServiceRemoved(service.name)).await;
    removed(&mut world, 1).await;
    assert_eq!(flows(&world.fake), [to_nobody(1)]);
}

#[tokio::test(start_paused = true)]
async fn what_went_while_we_were_down_is_made_good_at_the_start() {
    let world = in_sync(&[udp(1, &[1]), udp(2, &[1])]).await;
    put(&world, &[to_pod(1, 1), to_pod(1, 2), to_pod(2, 1)]);
    let fake = world.stop().await;
    let mut world = World::on(fake, Pace::default());
    // The second Service is gone, and the first one's endpoint is another.
    world.feed(&[udp(1, &[2])]).await;
    world.complete().await;
    removed(&mut world, 2).await;
    assert_eq!(flows(&world.fake), [to_pod(1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn tcp_is_none_of_it() {
    let (service, endpoints) = tcp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), endpoints)]).await;
    world.apply_slice(slice(&service, &[2])).await;
    world.compared().await;
    assert_eq!(world.fake.take_cleanings(), Vec::<BTreeSet<Frontend>>::new());
}

#[tokio::test(start_paused = true)]
async fn a_comparison_without_changes_looks_for_no_flows() {
    let mut world = in_sync(&[udp(1, &[1])]).await;
    world.compared().await;
    world.compared().await;
    assert_eq!(world.fake.take_cleanings(), Vec::<BTreeSet<Frontend>>::new());
}

#[tokio::test(start_paused = true)]
async fn flows_wait_for_the_virtual_server() {
    let (service, endpoints) = udp(1, &[1]);
    let (other, endpoints_of_other) = udp(2, &[1]);
    let services = [(service.clone(), endpoints), (other.clone(), endpoints_of_other)];
    let mut world = in_sync(&services).await;
    put(&world, &[to_pod(1, 1), to_pod(2, 1)]);
    let first = frontend(1, Protocol::Udp);
    world.fake.refuse(
        3,
        RefusalClass::Exhausted,
        move |op| matches!(op, Op::RemoveRealServer(of, _) if *of == first),
    );
    world.apply_slice(slice(&service, &[2])).await;
    world.until("pending", |status, _| status.pending == 1).await;
    world.apply_slice(slice(&other, &[2])).await;
    world.until("the other's", |status, _| status.flows_removed == 1).await;
    assert_eq!((world.now().pending, world.now().flows_pending), (1, 1));
    assert_eq!(flows(&world.fake), [to_pod(1, 1)], "a flow removed now would come back");
    removed(&mut world, 2).await;
    assert_eq!(world.now().pending, 0);
    assert_eq!(flows(&world.fake), []);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_removed_is_tried_again_more_and_more_rarely() {
    let (service, endpoints) = udp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), endpoints)]).await;
    put(&world, &[to_pod(1, 1)]);
    world.fake.keep_flows(4);
    let started = Instant::now();
    world.apply_slice(slice(&service, &[2])).await;
    world.until("pending", |status, _| status.flows_pending == 1).await;
    // The loop goes on meanwhile.
    world.feed(&[tcp(7, &[1])]).await;
    let seventh = frontend(7, Protocol::Tcp);
    world.until("written", |_, actual| actual.virtual_servers.contains_key(&seventh)).await;
    assert_eq!(flows(&world.fake), [to_pod(1, 1)]);
    removed(&mut world, 1).await;
    assert_eq!(started.elapsed().as_secs(), 1 + 2 + 4 + 8);
    assert_eq!(world.fake.take_cleanings().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn flows_are_looked_for_after_what_others_changed_was_repaired() {
    let mut world = in_sync(&[udp(1, &[1])]).await;
    world.fake.disturb(|actual| actual.virtual_servers.clear());
    put(&world, &[to_pod(1, 1), to_nobody(1)]);
    removed(&mut world, 1).await;
    assert_eq!(flows(&world.fake), [to_pod(1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn flows_are_looked_for_once_a_second_at_most() {
    let (service, endpoints) = udp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), endpoints)]).await;
    let (at, started) = (frontend(1, Protocol::Udp), Instant::now());
    for pod in 2..6 {
        put(&world, &[to_pod(1, pod - 1)]);
        world.apply_slice(slice(&service, &[pod])).await;
        world.until("written", |_, actual| real_server(actual, &at, pod).is_some()).await;
    }
    removed(&mut world, 4).await;
    assert_eq!(started.elapsed().as_secs(), 1);
    assert_eq!(world.fake.take_cleanings().len(), 2, "the first at once, the others together");
}
