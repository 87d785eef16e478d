//! A node whose way to the API server was left bound.

use std::net::SocketAddr;

use kernel::fake::Fake;
use plan::actual::{Actual, ActualSet};
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::op::Op;
use plan::sets::{SetId, SetKind};
use reconcile::Pace;

use crate::world::{NODE_ADDRESS, World, tcp};

/// Operations of a start on a kernel in which the API server's address is bound, and that has the set of
/// cluster addresses with these entries. Its Service is 10.96.0.1:80.
async fn started(server: SocketAddr, cluster: Option<&[Entry]>) -> Vec<Op> {
    let mut actual = Actual { link: true, ..Actual::default() };
    actual.local_addresses.insert(NODE_ADDRESS.into());
    actual.addresses.insert(server.ip());
    let id = SetId { kind: SetKind::ClusterIp, family: Family::of(server.ip()) };
    actual.sets.extend(cluster.map(|entries| (id, entries.iter().copied().collect::<ActualSet>())));
    let mut world = World::on(Fake::new(actual), Pace::default());
    world.send(Event::ApiServerAddresses(vec![server])).await;
    world.taken().await;
    world.feed(&[tcp(1, &[1])]).await;
    world.complete().await;
    world.fake.take_log()
}

/// Lists cannot come before that, so nothing else would take it away.
#[tokio::test(start_paused = true)]
async fn the_api_servers_address_is_given_up_before_there_is_a_list() {
    for server in ["192.0.2.200:6443", "[2001:db8::200]:6443"] {
        let server: SocketAddr = server.parse().unwrap();
        let ops = started(server, Some(&[])).await;
        let given_up = ops.iter().position(|op| *op == Op::UnbindAddress(server.ip()));
        let made = ops.iter().position(|op| matches!(op, Op::CreateVirtualServer(..)));
        assert!(given_up.is_some() && given_up < made, "{ops:?}");
    }
}

/// A pod reaches the API server by its Service's cluster IP, which is not given up.
#[tokio::test(start_paused = true)]
async fn a_cluster_address_is_not_given_up() {
    let server: SocketAddr = "10.96.0.1:80".parse().unwrap();
    let frontend = Frontend { address: server.ip(), protocol: Protocol::Tcp, port: 80 };
    let entries = [Entry::AddressPort(frontend)];
    for cluster in [Some(&entries[..]), None] {
        let ops = started(server, cluster).await;
        assert!(!ops.contains(&Op::UnbindAddress(server.ip())), "{ops:?}");
    }
}
