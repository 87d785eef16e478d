//! The event loop in iptables mode.

mod changes;
mod drift;
mod flows;
mod leaving_ipvs;
mod random;
mod refusals;
mod takeover;

use std::collections::BTreeMap;
use std::net::IpAddr;

use kernel::fake::Fake;
use plan::actual::Actual;
use plan::chains::{ChainId, ChainName, ChainOp, SharedChain};
use plan::mode::Mode;
use plan::model::{EndpointSlice, Family, Service};
use plan::op::Op;
use plan::rule_set::Table;
use reconcile::Pace;

use crate::world::{NODE_ADDRESS, World, settings_in};

pub(crate) const SERVICES: ChainId = ChainId::shared(Family::V4, Table::Nat, SharedChain::Services);

/// A kernel without chains.
fn empty() -> Fake {
    let local_addresses =
        [IpAddr::from(NODE_ADDRESS), IpAddr::from([127, 0, 0, 1])].into_iter().collect();
    Fake::new(Actual { local_addresses, ..Actual::default() })
}

/// The event loop on this kernel; it knows no input yet.
fn on(fake: Fake) -> World {
    World::with(settings_in(Mode::Iptables), fake, Pace::default())
}

/// A node in sync with these Services, each with these endpoints; the log is empty.
async fn in_sync(services: &[(Service, EndpointSlice)]) -> World {
    let mut world = on(empty());
    start(&mut world, services).await;
    world
}

async fn start(world: &mut World, services: &[(Service, EndpointSlice)]) {
    world.feed(services).await;
    world.complete().await;
    world.until("clean", |status, _| status.flows_pending == 0).await;
    world.compared().await;
    world.fake.take_log();
    world.fake.take_cleanings();
}

/// Ends the loop, and starts another one on the same kernel.
async fn restarted(world: World) -> World {
    let fake = world.stop().await;
    while fake.is_shared() {
        tokio::task::yield_now().await;
    }
    on(fake)
}

/// Waits until nothing is pending, and time has passed for a drift check.
async fn settle(world: &mut World) {
    world.taken().await;
    for _ in 0..3 {
        world.until("settled", |it, _| it.pending == 0 && it.flows_pending == 0).await;
        world.compared().await;
    }
}

/// A change of a chain, in short: `write SVC 3`, `insert SERVICES`.
fn short(op: &Op) -> String {
    let Op::Chain(change) = op else { return op.to_string() };
    let name = change.chain().name.to_string();
    let name = match change.chain().name {
        ChainName::OfPort(..) => name.split('-').nth(1).unwrap().to_owned(),
        ChainName::Shared(_) => name.replacen("KUBE-", "", 1),
    };
    match change {
        ChainOp::Write(_, rules) => format!("write {name} {}", rules.len()),
        ChainOp::Insert(..) => format!("insert {name}"),
        ChainOp::Delete(..) => format!("delete {name}"),
        ChainOp::Remove(_) => format!("remove {name}"),
    }
}

/// The changes since the last time, in short.
fn log(world: &World) -> Vec<String> {
    world.fake.take_log().iter().map(short).collect()
}

/// The rules of the shared chain of nat that leads to Services.
fn services(world: &World) -> Vec<Box<str>> {
    world.fake.actual().chains.get(&SERVICES).cloned().unwrap_or_default()
}

/// True for a chain of the endpoints or the ports of Services.
fn is_own(chain: &ChainId) -> bool {
    matches!(chain.name, ChainName::OfPort(..))
}

/// The chains, but for the order of Services in the shared ones.
fn in_any_order(actual: &Actual) -> BTreeMap<ChainId, Vec<Box<str>>> {
    let mut chains: BTreeMap<_, _> = actual.chains.clone().into_iter().collect();
    for (_, rules) in chains.iter_mut().filter(|(chain, _)| !is_own(chain)) {
        rules.sort_unstable();
    }
    chains
}
