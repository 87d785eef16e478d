//! Flows that lead nowhere, in connection tracking.

use std::net::{IpAddr, SocketAddr};

use kernel::RefusalClass;
use plan::chains::ChainOp;
use plan::event::Event;
use plan::flows::Flow;
use plan::model::Protocol;
use plan::op::Op;

use super::{SERVICES, in_sync, settle};
use crate::world::{NODE_ADDRESS, World, frontend, node_port_service, slice, udp};

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

fn put(world: &World, flows: &[Flow]) {
    world.fake.with_flows(|all| all.extend(flows));
}

fn left(world: &World) -> Vec<Flow> {
    world.fake.with_flows(|flows| flows.clone())
}

#[tokio::test(start_paused = true)]
async fn flows_to_an_endpoint_that_is_gone_are_removed_and_no_others() {
    let (service, endpoints) = udp(1, &[1, 2]);
    let mut world = in_sync(&[(service.clone(), endpoints), udp(2, &[1])]).await;
    put(&world, &[to_pod(1, 1), to_pod(1, 2), to_pod(2, 1), to_pod(3, 1), to_nobody(3)]);
    world.apply_slice(slice(&service, &[2, 3])).await;
    settle(&mut world).await;
    assert_eq!(left(&world), [to_pod(1, 2), to_pod(2, 1), to_pod(3, 1), to_nobody(3)]);
    world.send(Event::ServiceRemoved(service.name)).await;
    settle(&mut world).await;
    assert_eq!(left(&world), [to_pod(2, 1), to_pod(3, 1), to_nobody(3)]);
}

#[tokio::test(start_paused = true)]
async fn flows_to_a_node_port_are_removed_at_every_address_of_the_node() {
    let mut service = node_port_service(1, 30_080);
    service.ports[0].protocol = Protocol::Udp;
    let mut world = in_sync(&[(service.clone(), slice(&service, &[1, 2]))]).await;
    let at = |address: [u8; 4], pod| Flow {
        protocol: Protocol::Udp,
        destination: (IpAddr::from(address), 30_080).into(),
        reply_source: (IpAddr::from([10, 244, 0, pod]), 8080).into(),
    };
    let elsewhere = [198, 51, 100, 1];
    put(&world, &[at(NODE_ADDRESS, 1), at(NODE_ADDRESS, 2), at(elsewhere, 1)]);
    world.apply_slice(slice(&service, &[2])).await;
    settle(&mut world).await;
    assert_eq!(left(&world), [at(NODE_ADDRESS, 2), at(elsewhere, 1)]);
}

#[tokio::test(start_paused = true)]
async fn flows_stay_until_the_chains_that_lead_there_have_been_written() {
    let (service, endpoints) = udp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), endpoints), udp(2, &[1])]).await;
    put(&world, &[to_pod(1, 1), to_pod(2, 1)]);
    let writes = |op: &Op| matches!(op, Op::Chain(ChainOp::Write(..)));
    world.fake.refuse(2, RefusalClass::Other, writes);
    world.apply_slice(slice(&service, &[2])).await;
    world.until("refused", |status, _| status.pending > 0).await;
    assert_eq!(left(&world).len(), 2, "its next packet would be led there again");
    settle(&mut world).await;
    assert_eq!(left(&world), [to_pod(2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn flows_stay_until_the_rule_of_a_removed_service_is_gone() {
    let (service, endpoints) = udp(1, &[1]);
    let mut world = in_sync(&[(service.clone(), endpoints)]).await;
    put(&world, &[to_pod(1, 1)]);
    let deletes = |op: &Op| matches!(op, Op::Chain(ChainOp::Delete(..)));
    world.fake.refuse(3, RefusalClass::Other, deletes);
    world.send(Event::ServiceRemoved(service.name)).await;
    world.until("refused", |status, _| status.pending > 0).await;
    assert_eq!(left(&world).len(), 1);
    settle(&mut world).await;
    assert_eq!(left(&world), []);
}

#[tokio::test(start_paused = true)]
async fn flows_that_began_while_the_rules_were_gone_are_removed() {
    let mut world = in_sync(&[udp(1, &[1]), udp(2, &[1])]).await;
    world.fake.disturb(|actual| {
        actual.chains.get_mut(&SERVICES).unwrap().remove(0);
    });
    put(&world, &[to_nobody(1), to_nobody(2)]);
    settle(&mut world).await;
    let left = left(&world);
    assert_eq!(left.len(), 1, "only those of the frontend that was repaired: {left:?}");
}
