//! Changes of one virtual server, as operations: from one desired state to another, and from what
//! was found to what is desired.

use std::net::SocketAddr;

use crate::actual::ActualVirtualServer;
use crate::kernel_objects::{Frontend, RealServer, VirtualServer};
use crate::op::Op;
use crate::order;

/// Desired state of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesiredFrontend<'a> {
    /// Nothing: no Service claims it.
    Unclaimed,
    /// No virtual server, because there are no endpoints. What there was takes no new connections,
    /// and goes when the old ones have ended.
    Closed,
    /// A virtual server, with its real servers in the order of address and port.
    Open(&'a VirtualServer, &'a [RealServer]),
}

/// A virtual server that is to be turned into another: one that was desired, or one that was
/// found.
#[derive(Debug, Default)]
struct Before<'a> {
    /// Parameters of balancing. None: such as we never ask for.
    server: Option<&'a VirtualServer>,
    /// Real servers with their weights, in the order of address and port. None: such as we never
    /// make.
    real_servers: Vec<(SocketAddr, Option<u32>)>,
}

impl<'a> From<&'a ActualVirtualServer> for Before<'a> {
    fn from(found: &'a ActualVirtualServer) -> Self {
        let real = found.real_servers.iter();
        let mut real_servers: Vec<_> =
            real.map(|(at, real)| (*at, real.plain.then_some(real.weight))).collect();
        real_servers.sort_unstable();
        Self { server: found.server.as_ref(), real_servers }
    }
}

/// Returns the operations that turn a virtual server, as it was found, into the desired one. None
/// found: it is not there.
pub(crate) fn repair(
    frontend: Frontend,
    actual: Option<&ActualVirtualServer>,
    desired: DesiredFrontend<'_>,
    seed: u64,
) -> Vec<Op> {
    let mut ops = Vec::new();
    turn(frontend, actual.map(Before::from), desired, seed, &mut ops);
    ops
}

/// Adds the operations that turn one desired state of a frontend into another. `seed` differs
/// between nodes.
pub(crate) fn between(
    frontend: Frontend,
    before: DesiredFrontend<'_>,
    after: DesiredFrontend<'_>,
    seed: u64,
    ops: &mut Vec<Op>,
) {
    let before = match before {
        // It may still be there, draining.
        DesiredFrontend::Closed if after == DesiredFrontend::Unclaimed => Some(Before::default()),
        DesiredFrontend::Unclaimed | DesiredFrontend::Closed => None,
        DesiredFrontend::Open(server, real) => {
            let real = real.iter().map(|real| (real.socket(), Some(real.weight)));
            Some(Before { server: Some(server), real_servers: real.collect() })
        }
    };
    turn(frontend, before, after, seed, ops);
}

/// Turns a virtual server, if there is one, into what is desired.
fn turn(
    frontend: Frontend,
    before: Option<Before<'_>>,
    after: DesiredFrontend<'_>,
    seed: u64,
    ops: &mut Vec<Op>,
) {
    match (before, after) {
        (None, DesiredFrontend::Unclaimed | DesiredFrontend::Closed) => {}
        (None, DesiredFrontend::Open(server, real)) => create(frontend, server, real, seed, ops),
        (Some(_), DesiredFrontend::Unclaimed) => ops.push(Op::RemoveVirtualServer(frontend)),
        (Some(before), DesiredFrontend::Closed) => {
            turn_real_servers(frontend, before.real_servers, &[], ops);
            ops.push(Op::RemoveVirtualServerWhenDrained(frontend));
        }
        (Some(before), DesiredFrontend::Open(server, real)) => {
            if before.server != Some(server) {
                ops.push(Op::ChangeVirtualServer(frontend, server.clone()));
            }
            turn_real_servers(frontend, before.real_servers, real, ops);
        }
    }
}

fn turn_real_servers(
    frontend: Frontend,
    before: Vec<(SocketAddr, Option<u32>)>,
    after: &[RealServer],
    ops: &mut Vec<Op>,
) {
    let mut after = after.iter().peekable();
    for (at, weight) in before {
        while let Some(new) = after.next_if(|real| real.socket() < at) {
            ops.push(Op::AddRealServer(frontend, *new));
        }
        match after.next_if(|real| real.socket() == at) {
            None => ops.push(Op::RemoveRealServer(frontend, at)),
            Some(real) if weight != Some(real.weight) => {
                ops.push(Op::ChangeRealServer(frontend, *real));
            }
            Some(_) => {}
        }
    }
    ops.extend(after.map(|real| Op::AddRealServer(frontend, *real)));
}

fn create(
    frontend: Frontend,
    server: &VirtualServer,
    real_servers: &[RealServer],
    seed: u64,
    ops: &mut Vec<Op>,
) {
    ops.push(Op::CreateVirtualServer(frontend, server.clone()));
    let added = order::of_new(&frontend, server, real_servers, seed);
    ops.extend(added.map(|real| Op::AddRealServer(frontend, *real)));
}
