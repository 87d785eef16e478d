//! Any changes, with any faults in between: when they stop, everything is as it should be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kernel::RefusalClass;
use plan::actual::Actual;
use plan::event::Event;
use plan::model::{Family, Protocol};
use tokio::time::Instant;

use crate::world::{World, node_port_service, service, slice};

const STEPS: usize = 200;
const CLASSES: [RefusalClass; 7] = [
    RefusalClass::Conflict,
    RefusalClass::AnswerLost,
    RefusalClass::SetFull,
    RefusalClass::Exhausted,
    RefusalClass::NotPermitted,
    RefusalClass::NotSupported,
    RefusalClass::Other,
];

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

fn change(numbers: &mut Numbers) -> Event {
    let number = u16::try_from(1 + numbers.below(8)).unwrap();
    let service = match number {
        1..=3 => service(number, Protocol::Tcp),
        4..=5 => service(number, Protocol::Udp),
        _ => node_port_service(number, 30_000 + number),
    };
    match numbers.below(6) {
        0 => Event::ServiceRemoved(service.name),
        1 => Event::SliceRemoved(service.name),
        2 | 3 => Event::ServiceApplied(Box::new(service)),
        _ => {
            let pods: Vec<u8> = (1..=5).filter(|_| numbers.below(2) == 0).collect();
            Event::SliceApplied(Box::new(slice(&service, &pods)))
        }
    }
}

/// Takes away what does not tell whose a virtual server is.
fn damage(actual: &mut Actual, numbers: &mut Numbers) {
    let mut frontends: Vec<_> = actual.virtual_servers.keys().copied().collect();
    frontends.sort_unstable();
    match numbers.below(4) {
        0 => drop(actual.rule_sets.remove(&Family::V4)),
        1 if !frontends.is_empty() => {
            let frontend = frontends[numbers.below(frontends.len())];
            actual.virtual_servers.remove(&frontend);
        }
        2 => {
            let real_servers = actual.virtual_servers.values_mut();
            for real in real_servers.flat_map(|server| server.real_servers.values_mut()) {
                real.connections = numbers.below(2) as u64;
            }
        }
        _ => {
            actual.link = false;
            actual.addresses.clear();
        }
    }
}

async fn step(world: &mut World, numbers: &mut Numbers, faulty: &Arc<AtomicBool>) {
    match numbers.below(10) {
        0 => {
            let (class, one_in) = (CLASSES[numbers.below(CLASSES.len())], 1 + numbers.below(4));
            let (faulty, times) = (faulty.clone(), 1 + numbers.below(8));
            // Any rule will do that picks some operations and not others.
            let kind = move |op: &plan::op::Op| op.to_string().len().is_multiple_of(one_in);
            let concerns = move |op: &plan::op::Op| faulty.load(Ordering::Relaxed) && kind(op);
            if class == RefusalClass::AnswerLost {
                world.fake.lose_answers(times, concerns);
            } else {
                world.fake.refuse(times, class, concerns);
            }
        }
        1 => world.fake.fail_readings(numbers.below(3)),
        2 => world.fake.disturb(|actual| damage(actual, numbers)),
        3 => world.taken().await,
        4 if numbers.below(4) == 0 => world.compared().await,
        _ => world.send(change(numbers)).await,
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_the_kernel_ends_up_as_desired() {
    for seed in 1..=32 {
        let mut numbers = Numbers(seed * 0x9E37_79B9);
        let faulty = Arc::new(AtomicBool::new(true));
        let mut world = World::in_sync(&[]).await;
        for _ in 0..STEPS {
            step(&mut world, &mut numbers, &faulty).await;
        }
        world.taken().await;
        faulty.store(false, Ordering::Relaxed);
        world.fake.fail_readings(0);
        world.fake.disturb(|actual| {
            let servers = actual.virtual_servers.values_mut();
            for real in servers.flat_map(|server| server.real_servers.values_mut()) {
                real.connections = 0;
            }
        });
        // A write that was refused often waits a minute, and others wait for it; draining takes a moment
        // more.
        let stopped = Instant::now();
        world.until("nothing left to write", |status, _| status.pending == 0).await;
        assert!(stopped.elapsed() < Duration::from_secs(120), "seed {seed}: {:?}", world.now());
        for _ in 0..3 {
            world.compared().await;
        }
        world.until("nothing left to write", |status, _| status.pending == 0).await;
        world.assert_converged(&[]);
        world.stop().await;
    }
}
