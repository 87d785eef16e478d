//! A node under test: a planner with a kernel that does what it says, and the kernel in words.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use plan::actual::{Actual, ActualVirtualServer};
use plan::event::Event;
use plan::kernel_objects::{Frontend, RealServer, VirtualServer};
use plan::memory::{MemoryKernel, MemoryRefusal};
use plan::model::Protocol;
use plan::op::Op;
use plan::planner::{Plan, Planner};
use plan::sets::SetId;
use plan::settings::Settings;

use crate::words::{ip, ips};

/// The node's name.
pub(crate) const THIS: &str = "n1";

/// A node under test, named [`THIS`].
pub(crate) struct Node {
    pub(crate) planner: Planner,
    pub(crate) kernel: MemoryKernel,
}

impl Node {
    /// A node whose interfaces have the addresses 127.0.0.1, 192.0.2.10, `::1` and 2001:db8::10.
    pub(crate) fn new(settings: Settings) -> Self {
        Self::with_addresses(settings, &["127.0.0.1", "192.0.2.10", "::1", "2001:db8::10"])
    }

    pub(crate) fn with_addresses(settings: Settings, addresses: &[&str]) -> Self {
        let addresses = ips(addresses);
        let local_addresses = addresses.iter().copied().collect();
        let empty = Actual { local_addresses, ..Actual::default() };
        let mut node = Self { planner: Planner::new(settings), kernel: MemoryKernel::new(empty) };
        node.compare();
        node.run([Event::LocalAddresses(addresses)]);
        node
    }

    /// A node with everything as it is by default, after these events.
    pub(crate) fn after(events: impl IntoIterator<Item = Event>) -> Self {
        let mut node = Self::new(Settings::new(THIS));
        node.run(events);
        node
    }

    /// Plans these events together and carries out the plan, which must leave nothing to repair.
    pub(crate) fn run(&mut self, events: impl IntoIterator<Item = Event>) -> Plan {
        for event in events {
            self.planner.apply(event);
        }
        let plan = self.planner.plan();
        let mut ops = plan.ops.clone();
        self.planner.insert_growth(&mut ops);
        self.carry_out(&ops);
        let left = self.planner.diff(self.kernel.actual());
        assert_eq!(said(&left), [""; 0], "left over by {:#?}", said(&plan.ops));
        plan
    }

    /// Compares the kernel with what is desired, as at the start, and repairs it.
    pub(crate) fn compare(&mut self) -> Vec<String> {
        drop(self.planner.take_over(self.kernel.actual().clone(), Vec::new()));
        let ops = self.planner.diff(self.kernel.actual());
        self.carry_out(&ops);
        said(&ops)
    }

    fn carry_out(&mut self, ops: &[Op]) {
        for op in ops {
            match (op, self.kernel.apply(op)) {
                // One without endpoints had none, unless its connections are still ending.
                (_, Ok(())) => self.planner.carried_out(op),
                (Op::RemoveVirtualServer(_), Err(MemoryRefusal::NoVirtualServer)) => {}
                (_, Err(refusal)) => panic!("{op}: {refusal}; all of it: {:#?}", said(ops)),
            }
        }
    }

    /// Everything: virtual servers, addresses, entries.
    pub(crate) fn state(&self) -> BTreeSet<String> {
        let mut state = self.virtual_servers();
        state.extend(self.addresses());
        state.extend(self.entries(""));
        state
    }

    /// `TCP 10.96.0.1:80 rr: 10.244.0.2:8080, 10.244.1.2:8080 weight 3`, without the weight 1.
    pub(crate) fn virtual_servers(&self) -> BTreeSet<String> {
        let servers = self.kernel.actual().virtual_servers.iter();
        servers.map(|(frontend, server)| virtual_server(frontend, server)).collect()
    }

    /// `kube-ipvs0 10.96.0.1`
    pub(crate) fn addresses(&self) -> BTreeSet<String> {
        let addresses = self.kernel.actual().addresses.iter();
        addresses.map(|address| format!("kube-ipvs0 {address}")).collect()
    }

    /// `KUBE-CLUSTER-IP 10.96.0.1,tcp:80`, of the sets whose names begin so.
    pub(crate) fn entries(&self, prefix: &str) -> BTreeSet<String> {
        let sets = self.kernel.actual().sets.iter();
        let sets = sets.filter(|(set, _)| set.name().starts_with(prefix));
        sets.flat_map(|(set, there)| {
            there.entries.iter().map(move |entry| format!("{set} {entry}"))
        })
        .collect()
    }

    /// The entries of exactly this set.
    pub(crate) fn set(&self, name: &str) -> BTreeSet<String> {
        let set = SetId::by_name(name).unwrap();
        let entries = self.kernel.actual().sets.get(&set);
        entries.into_iter().flat_map(|set| &set.entries).map(ToString::to_string).collect()
    }

    /// The real servers of a frontend such as `TCP 10.96.0.1:80`, none without a virtual server.
    pub(crate) fn real_servers(&self, frontend: &str) -> Option<String> {
        let mut servers = self.kernel.actual().virtual_servers.iter();
        let found = servers.find(|(there, _)| there.to_string() == frontend);
        found.map(|(_, server)| real_servers(server))
    }
}

/// Operations in words.
pub(crate) fn said(ops: &[Op]) -> Vec<String> {
    ops.iter().map(ToString::to_string).collect()
}

/// Asserts that exactly these lines are there, in whatever order.
#[track_caller]
pub(crate) fn check(row: &str, found: &BTreeSet<String>, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|line| (*line).to_owned()).collect();
    let missing: Vec<_> = expected.difference(found).collect();
    let extra: Vec<_> = found.difference(&expected).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{row}: missing {missing:#?}, extra {extra:#?}"
    );
}

/// A virtual server as it is found in the kernel, with real servers of these weights, each with
/// connections.
pub(crate) fn made(server: &VirtualServer, real_servers: &[(&str, u32)]) -> ActualVirtualServer {
    let frontend = Frontend { address: ip("192.0.2.1"), protocol: Protocol::Tcp, port: 1 };
    let mut kernel = MemoryKernel::default();
    kernel.apply(&Op::CreateVirtualServer(frontend, server.clone())).unwrap();
    for (socket, weight) in real_servers {
        let socket: SocketAddr = socket.parse().unwrap();
        let real = RealServer { address: socket.ip(), port: socket.port(), weight: *weight };
        kernel.apply(&Op::AddRealServer(frontend, real)).unwrap();
    }
    let mut made = kernel.actual_mut().virtual_servers.remove(&frontend).unwrap();
    for real in made.real_servers.values_mut() {
        real.connections = 3;
    }
    made
}

fn virtual_server(frontend: &Frontend, found: &ActualVirtualServer) -> String {
    let server = found.server.as_ref().map_or_else(|| "strange".to_owned(), ToString::to_string);
    format!("{frontend} {server}: {}", real_servers(found)).trim_end().to_owned()
}

fn real_servers(found: &ActualVirtualServer) -> String {
    let mut sockets: Vec<_> = found.real_servers.iter().collect();
    sockets.sort_unstable_by_key(|(socket, _)| **socket);
    let words = sockets.into_iter().map(|(socket, real)| match real.weight {
        1 => socket.to_string(),
        weight => format!("{socket} weight {weight}"),
    });
    words.collect::<Vec<_>>().join(", ")
}
