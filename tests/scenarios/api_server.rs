//! A node whose way to the API server was left bound.

use std::net::SocketAddr;

use kube_ipvs::kernel::fake::Fake;
use kube_ipvs::reconcile::Pace;
use plan::actual::{Actual, ActualSet};
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol};
use plan::sets::{SetId, SetKind};

use crate::world::{NODE_ADDRESS, World, tcp};

/// A kernel in which an address is bound, and that has the set of cluster addresses with these entries.
fn bound(server: SocketAddr, cluster: Option<&[Entry]>) -> Fake {
    let mut actual = Actual { link: true, ..Actual::default() };
    actual.local_addresses.insert(NODE_ADDRESS.into());
    actual.addresses.insert(server.ip());
    let id = SetId { kind: SetKind::ClusterIp, family: Family::of(server.ip()) };
    actual.sets.extend(cluster.map(|entries| (id, entries.iter().copied().collect::<ActualSet>())));
    Fake::new(actual)
}

/// Lists cannot come before that, so nothing else would take it away.
#[tokio::test(start_paused = true)]
async fn the_api_servers_address_is_given_up_before_there_is_a_list() {
    for server in ["192.0.2.200:6443", "[2001:db8::200]:6443"] {
        let server: SocketAddr = server.parse().unwrap();
        let fake = bound(server, Some(&[]));
        let mut world = World::on(fake, Pace::default());
        world.send(Event::ApiServerAddresses(vec![server])).await;
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
            std::thread::sleep(std::time::Duration::from_millis(1));
            if world.fake.actual().addresses.is_empty() {
                break;
            }
        }
        assert!(world.fake.actual().addresses.is_empty(), "{server}");
        world.feed(&[tcp(1, &[1])]).await;
        world.complete().await;
        world.assert_converged(&[]);
    }
}

/// That of its own Service is how a pod reaches it.
#[tokio::test(start_paused = true)]
async fn a_cluster_address_is_not_given_up() {
    let server: SocketAddr = "10.96.0.1:443".parse().unwrap();
    let frontend = Frontend { address: server.ip(), protocol: Protocol::Tcp, port: 443 };
    let entries = [Entry::AddressPort(frontend)];
    for cluster in [Some(&entries[..]), None] {
        let mut world = World::on(bound(server, cluster), Pace::default());
        world.send(Event::ApiServerAddresses(vec![server])).await;
        world.taken().await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(world.fake.actual().addresses.contains(&server.ip()));
    }
}
