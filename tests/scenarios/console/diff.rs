//! What `diff` says is what the loop then writes.

use std::collections::BTreeMap;

use console::answers::diff::{Diff, DifferenceKind, DifferenceState};
use console::comparison::{Compared, Comparison, ComparisonError, Plan};
use kernel::RefusalClass;
use kernel::reader::KernelReader;
use plan::actual::{Actual, ActualRealServer, ActualVirtualServer};
use plan::comparison::Reading;
use plan::kernel_objects::{Entry, Frontend};
use plan::mode::Mode;
use plan::model::{Family, Protocol};
use plan::op::Op;
use plan::sets::{SetId, SetKind};
use reconcile::Pace;
use reconcile::differences::Standing;

use crate::closing::without_closings;
use crate::world::{World, frontend, node_port_service, settings_in, slice, tcp, udp};

fn comparison(world: &World, reader: KernelReader) -> Comparison {
    Comparison::new(Plan::OfLoop(world.inquiries.clone()), reader)
}

/// Compares by a reader of the kernel as it is now.
async fn compare(world: &World) -> Compared {
    let reader = KernelReader::new(world.fake.copy());
    comparison(world, reader).run().await.unwrap()
}

fn diff(compared: Compared) -> Diff {
    Diff::new("ipvs".to_owned(), compared)
}

/// The operations in words, in order. A real server that drains is removed when it has.
fn normal<'a>(ops: impl Iterator<Item = &'a Op>) -> Vec<String> {
    let ops: Vec<&Op> = ops.collect();
    let drained = |frontend: &Frontend, server: &std::net::SocketAddr| {
        ops.iter().any(
            |op| matches!(op, Op::DrainRealServer(at, it, _) if (at, it) == (frontend, server)),
        )
    };
    let mut words: Vec<String> = ops
        .iter()
        .filter_map(|op| match op {
            Op::DrainRealServer(frontend, server, _) => {
                Some(format!("drain {server} of {frontend}"))
            }
            Op::RemoveRealServer(frontend, server) if drained(frontend, server) => None,
            op => Some(op.to_string()),
        })
        .collect();
    words.sort();
    words
}

/// Numbers that look random and are the same for the same seed (xorshift64*, Marsaglia and Vigna).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        usize::try_from((mixed >> 33) % end as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len())) }
    }
}

/// A Service's address that no Service has.
fn foreign() -> Frontend {
    frontend(0x6363, Protocol::Tcp)
}

fn foreign_server() -> ActualVirtualServer {
    ActualVirtualServer { server: None, real_servers: [].into_iter().collect() }
}

fn set(kind: SetKind) -> SetId {
    SetId { kind, family: Family::V4 }
}

fn damage(actual: &mut Actual, numbers: &mut Numbers) {
    let mut frontends: Vec<_> = actual.virtual_servers.keys().copied().collect();
    frontends.sort_unstable();
    let picked = numbers.pick(&frontends).copied();
    let real = |server: &mut ActualVirtualServer, numbers: &mut Numbers| {
        let mut sockets: Vec<_> = server.real_servers.keys().copied().collect();
        sockets.sort_unstable();
        numbers.pick(&sockets).copied()
    };
    match (numbers.below(12), picked.and_then(|it| actual.virtual_servers.get_mut(&it))) {
        (0, Some(_)) => drop(actual.virtual_servers.remove(&picked.unwrap())),
        (1, Some(server)) => server.server = None,
        (2, Some(server)) => {
            let socket = real(server, numbers);
            socket.map(|socket| server.real_servers.remove(&socket));
        }
        (3, Some(server)) => {
            let socket = real(server, numbers);
            let found = socket.and_then(|socket| server.real_servers.get_mut(&socket));
            found.into_iter().for_each(|found| found.weight += 4);
        }
        (4, Some(server)) => {
            let real = ActualRealServer { weight: 1, plain: true, deadline: None, connections: 0 };
            server.real_servers.insert(([10, 244, 9, 9], 9).into(), real);
        }
        (5, _) => {
            let entries = &mut actual.sets.get_mut(&set(SetKind::ClusterIp)).unwrap().entries;
            let mut sorted: Vec<Entry> = entries.iter().copied().collect();
            sorted.sort_unstable();
            if let Some(entry) = numbers.pick(&sorted) {
                entries.remove(entry);
            }
        }
        (6, _) => {
            let entries = &mut actual.sets.get_mut(&set(SetKind::ClusterIp)).unwrap().entries;
            entries.insert(Entry::AddressPort(foreign()));
            actual.virtual_servers.insert(foreign(), foreign_server());
        }
        (7, _) => drop(actual.sets.remove(&set(SetKind::IpvsAddresses))),
        (8, _) => {
            let mut bound: Vec<_> = actual.addresses.iter().copied().collect();
            bound.sort_unstable();
            if let Some(address) = numbers.pick(&bound) {
                actual.addresses.remove(address);
            }
        }
        (9, _) => {
            actual.addresses.insert(foreign().address);
            actual.virtual_servers.insert(foreign(), foreign_server());
        }
        (10, _) => drop(actual.rule_sets.remove(&Family::V4)),
        _ => {
            actual.link = false;
            actual.addresses.clear();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_diff_says_is_what_the_audit_then_repairs() {
    let mut n_differences = 0;
    for seed in 1..=60 {
        let mut numbers = Numbers(seed * 0x9E37_79B9);
        let service = node_port_service(6, 30_006);
        let with_node_port = (service.clone(), slice(&service, &[1, 3]));
        let services =
            [tcp(1, &[1, 2]), tcp(2, &[3]), udp(3, &[1, 4]), tcp(4, &[]), with_node_port];
        let mut world = World::in_sync(&services).await;
        assert_eq!(compare(&world).await, Compared::default());
        world.fake.disturb(|actual| {
            for _ in 0..=numbers.below(4) {
                damage(actual, &mut numbers);
            }
        });
        let compared = compare(&world).await;
        let foretold = normal(compared.differences.iter().map(|found| &found.difference.op));
        n_differences += foretold.len();
        world.compared().await;
        // Rules are repaired beside the passes.
        world.until("rules", |_, actual| actual.rule_sets.contains(&Family::V4)).await;
        let written = without_closings(world.fake.take_log());
        assert_eq!(foretold, normal(written.iter()), "seed {seed}");
        let after = diff(compare(&world).await);
        assert!(after.whole, "seed {seed}: {after:?}");
    }
    assert!(n_differences > 200, "{n_differences}");
}

#[tokio::test(start_paused = true)]
async fn what_diff_says_of_chains_is_what_the_loop_then_repairs() {
    for seed in 1..=30 {
        let mut numbers = Numbers(seed * 0x9E37_79B9);
        let fake = World::new().stop().await;
        let mut world = World::with(settings_in(Mode::Iptables), fake, Pace::default());
        world.feed(&[tcp(1, &[1, 2]), tcp(2, &[3]), udp(3, &[1, 4]), tcp(4, &[])]).await;
        world.complete().await;
        world.compared().await;
        world.fake.take_log();
        assert_eq!(compare(&world).await.differences, []);
        world.fake.disturb(|actual| {
            let mut chains: Vec<_> = actual.chains.keys().copied().collect();
            chains.sort_unstable();
            for _ in 0..=numbers.below(3) {
                let chain = numbers.pick(&chains).unwrap();
                let rules = actual.chains.get_mut(chain).unwrap();
                match numbers.below(3) {
                    0 => drop(rules.pop()),
                    1 => rules.insert(0, "-s 172.16.0.0/12 -j DROP".into()),
                    _ => rules.clear(),
                }
            }
        });
        let compared = compare(&world).await;
        let foretold = normal(compared.differences.iter().map(|found| &found.difference.op));
        world.compared().await;
        let written = world.fake.take_log();
        assert_eq!(foretold, normal(written.iter()), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_difference_names_its_object_and_the_service_that_asks_for_it() {
    let world = World::in_sync(&[tcp(1, &[1])]).await;
    world.fake.disturb(|actual| {
        actual.addresses.clear();
        actual.addresses.insert(foreign().address);
        let server = actual.virtual_servers.get_mut(&frontend(1, Protocol::Tcp)).unwrap();
        server.real_servers.values_mut().for_each(|real| real.weight = 9);
    });
    let diff = diff(compare(&world).await);
    assert!(!diff.whole);
    let lines: Vec<String> = diff
        .differences
        .iter()
        .map(|it| {
            let services = it.services.join(",");
            format!("{:?} {}: {:?} {:?} {services}", it.kind, it.object, it.found, it.desired)
        })
        .collect();
    assert_eq!(
        lines,
        [
            "Missing address 10.96.0.1 on kube-ipvs0: None Some(\"there\") ns/s1",
            "Foreign address 10.96.99.99 on kube-ipvs0: Some(\"there\") None ",
            "Different real server 10.244.0.1:8080 of TCP 10.96.0.1:80: \
             Some(\"weight 9\") Some(\"weight 1\") ns/s1",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_pending_and_no_drift() {
    let mut world = World::in_sync(&[]).await;
    let is_entry = |op: &Op| matches!(op, Op::AddEntry(set, _) if set.kind == SetKind::ClusterIp);
    world.fake.refuse(100, RefusalClass::Exhausted, is_entry);
    world.feed(&[tcp(1, &[1])]).await;
    // The virtual server waits for the entry, and the address for the virtual server.
    world.until("pending", |status, _| status.pending == 3).await;
    let diff = diff(compare(&world).await);
    assert!(!diff.whole);
    let states: BTreeMap<&str, DifferenceState> =
        diff.differences.iter().map(|it| (&*it.object, it.state)).collect();
    assert_eq!(
        states.get("entry 10.96.0.1,tcp:80 of set KUBE-CLUSTER-IP"),
        Some(&DifferenceState::Pending),
        "{states:?}"
    );
    assert!(!states.values().any(|state| *state == DifferenceState::Drift), "{states:?}");
    let entry = diff.differences.iter().find(|it| it.object.starts_with("entry 10.96.0.1,tcp:80"));
    let reason = entry.and_then(|it| it.reason.as_deref());
    assert!(reason.unwrap().contains("injected"), "{reason:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_written_after_the_kernel_had_been_read_is_no_drift() {
    let mut world = World::in_sync(&[tcp(1, &[1]), tcp(2, &[2])]).await;
    // The clock stands still: the takeover was written at this very time.
    tokio::time::advance(std::time::Duration::from_millis(1)).await;
    let began = tokio::time::Instant::now();
    let found: Vec<_> = [1, 2]
        .map(|number| frontend(number, Protocol::Tcp))
        .map(|at| (at, world.fake.actual().virtual_servers.get(&at).cloned()))
        .to_vec();
    tokio::time::advance(std::time::Duration::from_millis(1)).await;
    let (service, _) = tcp(1, &[]);
    world.apply_slice(slice(&service, &[1, 3])).await;
    let has_both = |actual: &Actual| {
        actual.virtual_servers[&frontend(1, Protocol::Tcp)].real_servers.len() == 2
    };
    world.until("it is written", |_, actual| has_both(actual)).await;
    // The other one differs, too, and was not written.
    let mut damaged = found.clone();
    damaged[1].1 = None;
    let compared = world.inquiries.ask(move |view| {
        let compare = |view: &reconcile::inquiry::View<'_>| {
            let readings = damaged.iter().cloned().map(|(at, it)| Reading::VirtualServer(at, it));
            let differences = readings.flat_map(|reading| view.compare(&reading));
            differences.map(|it| (it.service, it.standing)).collect::<Vec<_>>()
        };
        (compare(&view.read_at(began)), compare(view))
    });
    let (with_time, without) = compared.await.unwrap();
    for (service, standing) in with_time {
        let is_of_first = service.is_some_and(|it| &*it.name == "s1");
        let expected = if is_of_first { Standing::BeingWritten } else { Standing::Drift };
        assert_eq!(standing, expected);
    }
    assert!(without.len() >= 2 && without.iter().all(|(_, it)| *it == Standing::Drift));
}

#[tokio::test(start_paused = true)]
async fn every_service_of_many_is_compared() {
    let services: Vec<_> = (1..=600).map(|number| tcp(number, &[1])).collect();
    let world = World::in_sync(&services).await;
    assert_eq!(compare(&world).await, Compared::default());
    let damaged = [1, 255, 256, 257, 511, 513, 600];
    world.fake.disturb(|actual| {
        for number in damaged {
            actual.virtual_servers.remove(&frontend(number, Protocol::Tcp));
        }
    });
    let found = compare(&world).await;
    let missing = found.differences.iter();
    let missing = missing.filter(|it| matches!(it.difference.op, Op::CreateVirtualServer(..)));
    assert_eq!(missing.count(), damaged.len());
}

#[tokio::test(start_paused = true)]
async fn what_drains_is_said_and_no_difference() {
    let mut world = World::in_sync(&[tcp(1, &[1, 2])]).await;
    world.fake.disturb(|actual| {
        let servers = actual.virtual_servers.values_mut();
        for real in servers.flat_map(|server| server.real_servers.values_mut()) {
            real.connections = 3;
        }
    });
    let (service, _) = tcp(1, &[]);
    world.apply_slice(slice(&service, &[1])).await;
    world.taken().await;
    world
        .until("draining", |_, actual| {
            let server = &actual.virtual_servers[&frontend(1, Protocol::Tcp)];
            server.real_servers.values().any(|real| real.weight == 0)
        })
        .await;
    let diff = diff(compare(&world).await);
    assert!(diff.whole, "{diff:?}");
    let [line] = &*diff.differences else { panic!("{diff:?}") };
    assert_eq!((line.kind, line.state), (DifferenceKind::Foreign, DifferenceState::Draining));
    assert_eq!(line.found.as_deref(), Some("weight 0, 3 connections"));
    assert!(line.seconds.is_some_and(|seconds| (800..=900).contains(&seconds)), "{line:?}");
}

#[tokio::test(start_paused = true)]
async fn before_the_takeover_there_is_nothing_to_compare_with() {
    let world = World::new();
    let reader = KernelReader::new(world.fake.copy());
    let compared = comparison(&world, reader).run().await;
    assert_eq!(compared, Err(ComparisonError::NotInSync));
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_cannot_be_read_is_no_whole_one() {
    let world = World::in_sync(&[tcp(1, &[1])]).await;
    let copy = world.fake.copy();
    copy.spoil(frontend(1, Protocol::Tcp));
    let comparison = comparison(&world, KernelReader::new(copy.clone()));
    let with_one_unread = diff(comparison.run().await.unwrap());
    assert!(!with_one_unread.whole && with_one_unread.unread.len() == 1, "{with_one_unread:?}");
    // A part that cannot be read keeps no other from being compared.
    copy.fail_readings(1);
    let with_two = diff(comparison.run().await.unwrap());
    assert!(!with_two.whole && with_two.unread.len() == 2, "{with_two:?}");
    copy.fail_readings(usize::MAX);
    let compared = comparison.run().await;
    assert!(matches!(compared, Err(ComparisonError::Unreadable(_))), "{compared:?}");
}
