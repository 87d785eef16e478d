//! Any changes, with any faults in between: when they stop, the chains are those that a start on an
//! empty kernel would make.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernel::RefusalClass;
use kernel::fake::{FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::chains::ChainId;
use plan::event::Event;
use plan::model::{EndpointSlice, ObjectName, Protocol, Service, ServiceKind};

use super::{in_any_order, in_sync, restarted, settle};
use crate::faults::is_soak;
use crate::world::{World, node_port_service, service, slice};

const STEPS: usize = 150;
const CLASSES: [RefusalClass; 5] = [
    RefusalClass::Conflict,
    RefusalClass::Exhausted,
    RefusalClass::NotPermitted,
    RefusalClass::NotSupported,
    RefusalClass::Other,
];

type Cluster = BTreeMap<ObjectName, (Service, EndpointSlice)>;

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
}

fn numbered(number: u16, numbers: &mut Numbers) -> Service {
    let mut service = match number {
        1..=3 => service(number, Protocol::Tcp),
        4..=5 => service(number, Protocol::Udp),
        // Some claim the same.
        _ => node_port_service(number, 30_000 + number % 7),
    };
    service.created = i64::from(number);
    if number.is_multiple_of(2) && numbers.below(2) == 0 {
        service.affinity = Some(600);
    }
    if number > 6 && numbers.below(2) == 0 {
        service.kind = ServiceKind::LoadBalancer;
        service.load_balancer = vec![IpAddr::from([203, 0, 113, (number % 2) as u8 + 1])];
        if numbers.below(2) == 0 {
            service.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
        }
    }
    service
}

async fn change(world: &mut World, cluster: &mut Cluster, numbers: &mut Numbers) {
    let number = u16::try_from(1 + numbers.below(10)).unwrap();
    let service = numbered(number, numbers);
    if numbers.below(5) == 0 {
        cluster.remove(&service.name);
        world.send(Event::SliceRemoved(service.name.clone())).await;
        world.send(Event::ServiceRemoved(service.name)).await;
        return;
    }
    let pods: Vec<u8> = (1..=4).filter(|_| numbers.below(2) == 0).collect();
    let slice = slice(&service, &pods);
    world.feed(&[(service.clone(), slice.clone())]).await;
    cluster.insert(service.name.clone(), (service, slice));
}

fn damage(actual: &mut Actual, numbers: &mut Numbers) {
    let mut chains: Vec<ChainId> = actual.chains.keys().copied().collect();
    chains.sort_unstable();
    if chains.is_empty() {
        return;
    }
    let chain = chains[numbers.below(chains.len())];
    let rules = actual.chains.get_mut(&chain).unwrap();
    match numbers.below(5) {
        0 => actual.rule_sets.clear(),
        1 => rules.clear(),
        2 => rules.insert(0, "-j ACCEPT".into()),
        3 => rules.push("-j ACCEPT".into()),
        _ if rules.is_empty() => {}
        _ => {
            let at = numbers.below(rules.len());
            let rule = rules.remove(at);
            rules.insert(0, rule);
        }
    }
}

fn disturb(world: &World, numbers: &mut Numbers, calm: &Arc<AtomicBool>) {
    let (class, one_in) = (CLASSES[numbers.below(CLASSES.len())], 2 + numbers.below(6));
    let (is_calm, lost) = (Arc::clone(calm), numbers.below(3));
    let mut chance = Numbers(1 + numbers.below(1_000_000) as u64);
    world.fake.interfere(move |request, _| {
        if is_calm.load(Ordering::Relaxed) || chance.below(one_in) != 0 {
            return FakeAnswer::Honest;
        }
        match (request, lost) {
            (KernelCall::Writing(_) | KernelCall::Flows(_), 0) => FakeAnswer::refused(class),
            (_, 1) => FakeAnswer::Lost { carried_out: false },
            _ => FakeAnswer::Lost { carried_out: true },
        }
    });
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_the_chains_end_up_as_after_a_fresh_start() {
    for seed in 1..=if is_soak() { 1_000 } else { 24 } {
        let mut numbers = Numbers(seed * 0x9E37_79B9);
        let mut cluster = Cluster::new();
        let mut world = in_sync(&[]).await;
        let calm = Arc::new(AtomicBool::new(true));
        for _ in 0..STEPS {
            match numbers.below(12) {
                0 => {
                    calm.store(false, Ordering::Relaxed);
                    disturb(&world, &mut numbers, &calm);
                }
                1 => calm.store(true, Ordering::Relaxed),
                2 => world.fake.disturb(|actual| damage(actual, &mut numbers)),
                3 => world.taken().await,
                4 if numbers.below(3) == 0 => world.compared().await,
                5 if numbers.below(6) == 0 => {
                    world = restarted(world).await;
                    let cluster: Vec<_> = cluster.values().cloned().collect();
                    world.feed(&cluster).await;
                    world.say_complete().await;
                }
                _ => change(&mut world, &mut cluster, &mut numbers).await,
            }
        }
        calm.store(true, Ordering::Relaxed);
        world.taken().await;
        world.until("in sync", |status, _| status.in_sync_once).await;
        settle(&mut world).await;
        world.assert_converged(&[]);
        let cluster: Vec<_> = cluster.into_values().collect();
        let mut fresh = in_sync(&cluster).await;
        fresh.assert_converged(&[]);
        assert_eq!(
            in_any_order(&world.fake.actual()),
            in_any_order(&fresh.fake.actual()),
            "seed {seed}"
        );
        world.fake.take_log();
        for _ in 0..20 {
            world.compared().await;
        }
        assert_eq!(world.fake.take_log(), [], "seed {seed}: it goes on writing");
        world.stop().await;
        fresh.stop().await;
    }
}
