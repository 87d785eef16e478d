//! A node with a kernel in memory, the running event loop, and objects to feed it with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use kernel::address_monitor::{self, Reporter};
use kernel::fake::Fake;
use kernel::worker::KernelHandle;
use plan::actual::{Actual, ActualRealServer};
use plan::event::Event;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServiceKind,
    ServicePort, SlicePort,
};
use plan::op::Op;
use plan::planner::Planner;
use plan::settings::{InternalFrontendNetworks, Settings};
use plan::virtual_server::DesiredFrontend;
use reconcile::inquiry::{Inquiries, inquiries};
use reconcile::observer::Observer;
use reconcile::{Input, Pace, Reconciler, Status};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::reports::Reports;

/// Time limit of a wait on the paused clock. Passes move it on, so that every wait ends.
const PATIENCE: Duration = Duration::from_secs(48 * 3_600);

pub(crate) const NODE_ADDRESS: [u8; 4] = [192, 0, 2, 11];

pub(crate) struct World {
    pub(crate) fake: Fake,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) reports: Reports,
    pub(crate) addresses: Reporter,
    pub(crate) inquiries: Inquiries,
    inputs: Option<mpsc::Sender<Input>>,
    running: AbortHandle,
    /// The same input, for a planner that never saw a kernel.
    shadow: Planner,
}

impl World {
    /// A node with an empty kernel.
    pub(crate) fn new() -> Self {
        let local_addresses =
            [IpAddr::from(NODE_ADDRESS), IpAddr::from([127, 0, 0, 1])].into_iter().collect();
        Self::on(Fake::new(Actual { local_addresses, ..Actual::default() }), Pace::default())
    }

    /// The event loop on this kernel; it knows no input yet.
    pub(crate) fn on(fake: Fake, pace: Pace) -> Self {
        Self::with(settings(), fake, pace)
    }

    /// The same with other settings.
    pub(crate) fn with(settings: Settings, fake: Fake, pace: Pace) -> Self {
        let reports = Reports::default();
        Self::observed(settings, fake, pace, Box::new(reports.clone()), reports)
    }

    /// The same with an observer in the place of the reports, which stay empty unless it makes them.
    pub(crate) fn observed(
        settings: Settings,
        fake: Fake,
        pace: Pace,
        observer: Box<dyn Observer>,
        reports: Reports,
    ) -> Self {
        let kernel = KernelHandle::start(fake.clone(), ()).unwrap();
        let (inquiries, questions) = inquiries();
        let reconciler = Reconciler::new(Planner::new(settings.clone()), kernel, pace)
            .unwrap()
            .observed_by(vec![observer])
            .answering(questions);
        let (inputs, inbox) = mpsc::channel(16);
        let (addresses, changes) = address_monitor::channel();
        let status = reconciler.status();
        let run = reconciler.run(inbox, Some(changes), std::future::pending());
        let running = tokio::spawn(run).abort_handle();
        let inputs = Some(inputs);
        let shadow = Planner::new(settings);
        Self { fake, status, reports, addresses, inquiries, inputs, running, shadow }
    }

    /// A node in sync with these Services, each with these endpoints; the log is empty.
    pub(crate) async fn in_sync(services: &[(Service, EndpointSlice)]) -> Self {
        let mut world = Self::new();
        world.feed(services).await;
        world.complete().await;
        world.fake.take_log();
        world
    }

    pub(crate) async fn feed(&mut self, services: &[(Service, EndpointSlice)]) {
        for (service, slice) in services {
            self.send(Event::ServiceApplied(Box::new(service.clone()))).await;
            self.send(Event::SliceApplied(Box::new(slice.clone()))).await;
        }
    }

    pub(crate) async fn send(&mut self, event: Event) {
        self.shadow.apply(event.clone());
        let inputs = self.inputs.as_ref().unwrap();
        inputs.send(Input::Change(event)).await.unwrap();
    }

    /// Orders that a family's addresses become local by these routes, and by an address each elsewhere.
    pub(crate) async fn order_routes(&mut self, family: Family, routes: &[&str]) {
        let routes: Vec<IpNet> = routes.iter().map(|text| text.parse().unwrap()).collect();
        let former = self.shadow.service_routes(family);
        let excess = former.iter().filter(|net| !routes.contains(net)).copied().collect();
        let all = [&former[..], &routes].concat();
        self.shadow.set_service_routes(family, all, excess);
        self.shadow.plan();
        let mut after = None;
        loop {
            (_, after) = self.shadow.plan_outdated(family, after.as_ref(), usize::MAX);
            if after.is_none() {
                break;
            }
        }
        self.shadow.plan();
        self.shadow.set_service_routes(family, routes.clone(), Vec::new());
        self.inquiries.order(Input::ServiceRoutes(family, routes)).await.unwrap();
    }

    /// Tells the planner that never saw a kernel what the loop has heard from elsewhere.
    pub(crate) fn heard(&mut self, event: Event) {
        self.shadow.apply(event);
    }

    /// Returns the sender that the source says things into.
    pub(crate) fn sender(&self) -> mpsc::Sender<Input> {
        self.inputs.clone().unwrap()
    }

    pub(crate) async fn triggered(&self, family: Family, at: SystemTime) {
        self.inputs.as_ref().unwrap().send(Input::Triggered(family, at)).await.unwrap();
    }

    pub(crate) async fn apply_slice(&mut self, slice: EndpointSlice) {
        self.send(Event::SliceApplied(Box::new(slice))).await;
    }

    /// Says that the source is complete, without waiting.
    pub(crate) async fn say_complete(&self) {
        self.inputs.as_ref().unwrap().send(Input::Complete).await.unwrap();
    }

    /// Says that the source is complete, and waits for the first comparison.
    pub(crate) async fn complete(&mut self) {
        self.say_complete().await;
        self.until("in sync", |status, _| status.in_sync_once).await;
    }

    /// Ends the loop; the kernel's state stays.
    pub(crate) async fn stop(self) -> Fake {
        self.running.abort();
        while !self.running.is_finished() {
            tokio::task::yield_now().await;
        }
        self.fake.clone()
    }

    pub(crate) fn end_source(&mut self) {
        self.inputs = None;
    }

    /// Waits until everything that was sent has been taken by the loop.
    pub(crate) async fn taken(&self) {
        let inputs = self.inputs.as_ref().unwrap();
        while inputs.capacity() < inputs.max_capacity() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the status, or the kernel at a change of the status, is like this. A write may
    /// be half done then: each part of the kernel changes by itself.
    pub(crate) async fn until(&mut self, what: &str, like: impl Fn(&Status, &Actual) -> bool) {
        let started = Instant::now();
        loop {
            let status = *self.status.borrow_and_update();
            if like(&status, &self.fake.actual()) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "still not {what}: {status:?}");
            self.status.changed().await.unwrap();
        }
    }

    /// Waits until everything was compared once that there is now: by then, all that was due was
    /// done. The pass that is under way may have been everywhere already.
    pub(crate) async fn compared(&mut self) {
        let passes = self.now().passes;
        self.until("compared", |status, _| status.passes >= passes + 2).await;
    }

    /// Does this damage, and returns the time until the kernel is again as it was before.
    pub(crate) async fn time_until_whole(&mut self, damage: impl FnOnce(&mut Actual)) -> Duration {
        let before = self.fake.actual();
        let started = Instant::now();
        self.fake.disturb(damage);
        assert_ne!(self.fake.actual(), before);
        self.until("whole", |_, actual| *actual == before).await;
        started.elapsed()
    }

    pub(crate) fn now(&self) -> Status {
        *self.status.borrow()
    }

    /// Asserts that the kernel is as a planner wants it that has seen the input only, and has no
    /// virtual servers but the desired ones and `foreign`.
    pub(crate) fn assert_converged(&mut self, foreign: &[Frontend]) {
        let actual = self.fake.actual();
        let local = actual.local_addresses.iter().copied().collect();
        self.shadow.apply(Event::LocalAddresses(local));
        self.shadow.plan();
        assert_eq!(self.shadow.diff(&actual), []);
        let desired = self.shadow.desired();
        let open =
            desired.frontends().filter(|at| matches!(desired.at(at), DesiredFrontend::Open(..)));
        let mut expected: Vec<_> = open.chain(foreign).collect();
        let mut found: Vec<_> = actual.virtual_servers.keys().collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

impl Drop for World {
    /// A loop that outlived its world would move the clock of the next one.
    fn drop(&mut self) {
        self.running.abort();
    }
}

pub(crate) fn settings() -> Settings {
    Settings { families: vec![Family::V4], ..Settings::new("node-1") }
}

/// The same of a node in this mode, as the configuration makes them: only mode ipvs has internal frontends.
pub(crate) fn settings_in(mode: Mode) -> Settings {
    let internal_frontend_networks = match mode {
        Mode::Ipvs => InternalFrontendNetworks::default(),
        Mode::Iptables | Mode::Userspace => InternalFrontendNetworks::NONE,
    };
    Settings { mode, internal_frontend_networks, ..settings() }
}

/// A Service of type ClusterIP, `10.96.x.y:80`, named after its number.
pub(crate) fn service(number: u16, protocol: Protocol) -> Service {
    Service {
        created: 7,
        cluster_v4: Some(cluster_address(number)),
        ports: vec![ServicePort { name: "p".into(), protocol, port: port(80), node_port: None }],
        ..Service::new(ObjectName::new("ns", format!("s{number}")))
    }
}

/// The same as a NodePort Service.
pub(crate) fn node_port_service(number: u16, node_port: u16) -> Service {
    let mut service = service(number, Protocol::Tcp);
    service.kind = ServiceKind::NodePort;
    service.ports[0].node_port = Some(port(node_port));
    service
}

/// The endpoints of a Service: pods of another node, `10.244.0.x:8080`.
pub(crate) fn slice(service: &Service, pods: &[u8]) -> EndpointSlice {
    let endpoint = |pod: &u8| Endpoint {
        address: IpAddr::from([10, 244, 0, *pod]),
        conditions: Conditions::default(),
        node: Some("node-2".into()),
        zone: None,
        hints: None,
    };
    EndpointSlice {
        name: service.name.clone(),
        service: service.name.clone(),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "p".into(),
            protocol: service.ports[0].protocol,
            port: port(8080),
        }],
        endpoints: pods.iter().map(endpoint).collect(),
    }
}

/// A TCP Service with these endpoints.
pub(crate) fn tcp(number: u16, pods: &[u8]) -> (Service, EndpointSlice) {
    let service = service(number, Protocol::Tcp);
    let slice = slice(&service, pods);
    (service, slice)
}

/// A TCP Service of both families, `10.96.x.y:80` and `[fd00:96::x]:80`, with one endpoint of each: with its
/// slices.
pub(crate) fn dual_stack_tcp(number: u16) -> [(Service, EndpointSlice); 2] {
    let (mut service, of_v4) = tcp(number, &[1]);
    service.cluster_v6 = Some(Ipv6Addr::from([0xfd00, 0x96, 0, 0, 0, 0, 0, number]));
    let mut of_v6 = EndpointSlice {
        name: ObjectName::new("ns", format!("s{number}-v6")),
        family: Family::V6,
        ..of_v4.clone()
    };
    of_v6.endpoints[0].address = Ipv6Addr::from([0xfd00, 0x244, 0, 0, 0, 0, 0, 1]).into();
    [(service.clone(), of_v4), (service, of_v6)]
}

/// A UDP Service with these endpoints.
pub(crate) fn udp(number: u16, pods: &[u8]) -> (Service, EndpointSlice) {
    let service = service(number, Protocol::Udp);
    let slice = slice(&service, pods);
    (service, slice)
}

pub(crate) fn frontend(number: u16, protocol: Protocol) -> Frontend {
    Frontend { address: cluster_address(number).into(), protocol, port: 80 }
}

/// A real server as the kernel has it.
pub(crate) fn real_server(actual: &Actual, of: &Frontend, pod: u8) -> Option<ActualRealServer> {
    let socket = (IpAddr::from([10, 244, 0, pod]), 8080).into();
    actual.virtual_servers.get(of)?.real_servers.get(&socket).copied()
}

/// The operations in words.
pub(crate) fn words(ops: &[Op]) -> Vec<String> {
    ops.iter().map(ToString::to_string).collect()
}

fn cluster_address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    [10, 96, high, low].into()
}

fn port(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}
