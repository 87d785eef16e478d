//! A node's life from an empty kernel on, with everything in it that can be asked of a kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::RefusalClass;
use kernel::fake::Fake;
use plan::actual::{Actual, ActualRealServer, ActualSet, ActualVirtualServer};
use plan::capacity::Capacity;
use plan::event::Event;
use plan::flows::Flow;
use plan::kernel_objects::Frontend;
use plan::model::{
    EndpointSlice, Family, ObjectName, Overrides, Protocol, Service, ServiceKind, Weights,
};
use plan::scheduler::SchedulerName;
use plan::sets::{SetId, SetKind};
use plan::settings::Settings;
use reconcile::Pace;
use tokio::time::Instant;

use super::fault::{Case, Fault, Seen};
use super::quiet_time;
use crate::internal_frontends::local;
use crate::world::{NODE_ADDRESS, World, frontend, node_port_service, service, settings_in, slice};

const STEPS: usize = 14;

/// Everything is compared often, so that a life is lived quickly.
const PACE: Pace = Pace {
    min_sync_period: Duration::ZERO,
    sync_period: Duration::from_secs(3),
    drain_deadline: Duration::from_secs(900),
};

/// The step in which the node has another address.
const MOVE: usize = 11;

/// The address that the node gets later instead of its first.
const OTHER_NODE_ADDRESS: [u8; 4] = [192, 0, 2, 77];

/// A running node, and what its cluster has now.
pub(super) struct Life {
    world: Option<World>,
    settings: Settings,
    cluster: BTreeMap<ObjectName, (Service, EndpointSlice)>,
    case: Case,
    seen: Arc<Mutex<Seen>>,
    /// True if the program has been killed because of the fault.
    died: bool,
}

impl Life {
    /// A node that knows nothing, and another program's virtual server on it.
    pub(super) async fn begin(case: Case) -> Self {
        let fake = kernel();
        let seen = case.inject(&fake);
        let settings = Settings {
            service_routes: vec!["10.96.0.0/16".parse().unwrap()],
            ..settings_in(case.mode)
        };
        let world = Some(World::with(settings.clone(), fake, PACE));
        let mut life = Self { world, settings, cluster: BTreeMap::new(), case, seen, died: false };
        for (service, pods) in
            [(tcp(1), &[1, 2][..]), (udp(2), &[1]), (node_port_service(3, 30_080), &[3])]
        {
            let slice = slice(&service, pods);
            life.cluster.insert(service.name.clone(), (service, slice));
        }
        life.start().await;
        life
    }

    /// Lives to the end, and asserts that it ends well.
    pub(super) async fn through(mut self) -> Seen {
        self.breathe(self.case.dies).await;
        for number in 1..STEPS {
            self.step(number).await;
            // Nothing tells any more whose a node port's virtual server is when the node has lost
            // the address of it while the program did not run.
            self.breathe(self.case.dies && number != MOVE).await;
        }
        let seen = self.over();
        assert_eq!(seen.misleading, [""; 0], "clients are led to nothing");
        if self.case.fault == Fault::Refused(RefusalClass::NoScheduler) {
            // Who chose it was given another. After a start it is tried again.
            self.settle().await;
            self.restart().await;
        }
        self.settle().await;
        self.assert_well().await;
        self.world.take().unwrap().stop().await;
        seen
    }

    fn over(&self) -> Seen {
        let mut seen = self.seen.lock().unwrap();
        seen.over = true;
        seen.clone()
    }

    async fn step(&mut self, number: usize) {
        match number {
            1 => {
                self.apply(load_balancer(4, 5, "10.0.0.0/8"), &[4]).await;
                self.apply(choosing("mh"), &[5, 7]).await;
                self.apply(local(6, 6), &[6]).await;
            }
            2 => {
                self.apply(tcp(1), &[1, 2, 3]).await;
                self.apply(choosing("mh"), &[5, 6, 7]).await;
            }
            // One goes that has connections, comes back, and goes without any.
            3 => {
                self.set_connections(1, 2);
                self.apply(tcp(1), &[2, 3]).await;
            }
            4 => self.apply(tcp(1), &[1, 2]).await,
            5 => {
                self.set_connections(1, 0);
                self.apply(tcp(1), &[2]).await;
            }
            6 => {
                self.world().fake.with_flows(|flows| flows.push(stale_flow()));
                self.apply(udp(2), &[2]).await;
            }
            7 => {
                self.apply(node_port_service(3, 30_081), &[3]).await;
                self.apply(load_balancer(4, 6, "192.0.2.0/24"), &[4]).await;
                self.apply(local(6, 7), &[6]).await;
            }
            8 => {
                let weights = Some(Weights { node: 9, zone: 5, elsewhere: 3 });
                let overrides = Some(Box::new(Overrides { weights, ..Overrides::default() }));
                self.apply(Service { overrides, ..tcp(1) }, &[2]).await;
                self.apply(Service { affinity: Some(600), ..choosing("mh") }, &[5, 6]).await;
            }
            // No endpoints are left, one of which has connections.
            9 => {
                self.set_connections(2, 1);
                self.apply(tcp(1), &[]).await;
                self.apply(udp(2), &[]).await;
            }
            10 => {
                self.set_connections(2, 0);
                self.apply(udp(2), &[8]).await;
            }
            MOVE => self.move_node().await,
            // What changes while the program does not run. It has other settings then.
            12 => {
                self.settle().await;
                self.settings = settings_in(self.case.mode);
                let removed = node_port_service(3, 30_081).name;
                self.stop().await;
                self.cluster.remove(&removed);
                let (service, _) = self.cluster.get(&tcp(1).name).unwrap();
                let pods = slice(service, &[1]);
                self.cluster.get_mut(&tcp(1).name).unwrap().1 = pods;
                self.start().await;
            }
            _ => {
                for service in [tcp(1), load_balancer(4, 6, "192.0.2.0/24"), local(6, 7)] {
                    self.cluster.remove(&service.name);
                    self.send(Event::ServiceRemoved(service.name.clone())).await;
                    self.send(Event::SliceRemoved(service.name)).await;
                }
            }
        }
    }

    fn world(&mut self) -> &mut World {
        self.world.as_mut().unwrap()
    }

    async fn send(&mut self, event: Event) {
        self.world().send(event).await;
    }

    async fn apply(&mut self, service: Service, pods: &[u8]) {
        let slice = slice(&service, pods);
        self.send(Event::ServiceApplied(Box::new(service.clone()))).await;
        self.send(Event::SliceApplied(Box::new(slice.clone()))).await;
        self.cluster.insert(service.name.clone(), (service, slice));
    }

    fn set_connections(&mut self, pod: u8, connections: u64) {
        let at = (IpAddr::from([10, 244, 0, pod]), 8080).into();
        self.world().fake.disturb(|actual| {
            let servers = actual.virtual_servers.values_mut();
            for real in servers.filter_map(|server| server.real_servers.get_mut(&at)) {
                real.connections = connections;
            }
        });
    }

    async fn move_node(&mut self) {
        let world = self.world();
        world.fake.disturb(|actual| {
            actual.local_addresses.remove(&NODE_ADDRESS.into());
            actual.local_addresses.insert(OTHER_NODE_ADDRESS.into());
        });
        world.addresses.report(|happened| happened.others = true);
    }

    /// Lets time pass until all that can be done now is done; or until it is killed.
    async fn breathe(&mut self, may_die: bool) {
        let seen = Arc::clone(&self.seen);
        if !may_die || self.died {
            return self.world().compared().await;
        }
        let passes = self.world().now().passes;
        let is_over = |it: &Seen| it.struck;
        self.world()
            .until("compared", |status, _| {
                status.passes >= passes + 2 || is_over(&seen.lock().unwrap())
            })
            .await;
        if seen.lock().unwrap().struck {
            self.died = true;
            self.restart().await;
            self.world().compared().await;
        }
    }

    async fn restart(&mut self) {
        self.stop().await;
        self.start().await;
    }

    /// Stops it, at once. What the kernel has been asked for already is carried out.
    async fn stop(&mut self) {
        let fake = self.world.take().unwrap().stop().await;
        while fake.is_shared() {
            tokio::task::yield_now().await;
        }
        self.world = Some(World::with(self.settings.clone(), fake, PACE));
    }

    async fn start(&mut self) {
        let cluster: Vec<_> = self.cluster.values().cloned().collect();
        self.world().feed(&cluster).await;
        self.world().complete().await;
    }

    /// Waits until nothing is pending, nothing drains, and everything has been compared.
    async fn settle(&mut self) {
        for _ in 0..3 {
            let world = self.world();
            world.until("settled", |it, _| it.pending == 0 && it.flows_pending == 0).await;
            world.compared().await;
        }
    }

    async fn assert_well(&mut self) {
        let (disturbs, quiet_time) = (self.case.fault.disturbs(), quiet_time(self.case.fault));
        let (at, theirs) = foreign();
        let world = self.world();
        world.assert_converged(&[at]);
        let actual = world.fake.actual();
        assert_eq!(actual.virtual_servers.get(&at), Some(&theirs), "somebody's virtual server");
        assert_eq!(world.fake.with_flows(|flows| flows.len()), 0, "flows");
        if !disturbs {
            assert_eq!(world.now().drift_repaired, 0, "a write was forgotten: {:?}", world.now());
        }
        world.fake.take_log();
        let before = world.now();
        let started = Instant::now();
        while started.elapsed() < quiet_time {
            world.compared().await;
        }
        assert_eq!(world.fake.take_log(), [], "it goes on writing");
        assert_eq!(world.now().drift_repaired, before.drift_repaired);
        assert_eq!(world.fake.actual(), actual);
    }
}

/// One set is there already, and will be too small.
fn kernel() -> Fake {
    let local_addresses =
        [IpAddr::from(NODE_ADDRESS), IpAddr::from([127, 0, 0, 1])].into_iter().collect();
    let virtual_servers = [foreign()].into_iter().collect();
    let cluster_addresses = SetId { kind: SetKind::ClusterIp, family: Family::V4 };
    let small = ActualSet { capacity: Capacity::new(4), ..ActualSet::default() };
    let sets = [(cluster_addresses, small)].into_iter().collect();
    Fake::new(Actual { local_addresses, virtual_servers, sets, ..Actual::default() })
}

/// Another program's virtual server, which stays as it is.
pub(super) fn foreign() -> (Frontend, ActualVirtualServer) {
    let at = Frontend { address: [172, 16, 0, 1].into(), protocol: Protocol::Tcp, port: 80 };
    let real = ActualRealServer { weight: 3, plain: false, deadline: None, connections: 5 };
    let socket = (IpAddr::from([172, 16, 0, 2]), 80).into();
    let real_servers = [(socket, real)].into_iter().collect();
    (at, ActualVirtualServer { server: None, real_servers })
}

fn tcp(number: u16) -> Service {
    service(number, Protocol::Tcp)
}

fn udp(number: u16) -> Service {
    service(number, Protocol::Udp)
}

/// With an external address, a load balancer's and who may use that.
fn load_balancer(number: u16, last_octet: u8, from: &str) -> Service {
    let mut service = node_port_service(number, 30_084);
    service.kind = ServiceKind::LoadBalancer;
    service.external = vec![[203, 0, 113, 4].into()];
    service.load_balancer = vec![[203, 0, 113, last_octet].into()];
    service.source_ranges = vec![from.parse().unwrap()];
    service
}

/// Returns a Service whose real servers' order matters.
fn choosing(scheduler: &str) -> Service {
    let scheduler = SchedulerName::new(scheduler).ok();
    let overrides = Some(Box::new(Overrides { scheduler, ..Overrides::default() }));
    Service { overrides, ..tcp(5) }
}

/// Returns the flow of a UDP client that talks to a pod that is about to go.
fn stale_flow() -> Flow {
    let of = frontend(2, Protocol::Udp);
    let reply_source = (IpAddr::from([10, 244, 0, 1]), 8080).into();
    Flow { protocol: of.protocol, destination: (of.address, of.port).into(), reply_source }
}
