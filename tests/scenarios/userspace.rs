//! The event loop in mode userspace, with a relay that answers what it is told.

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::RefusalClass;
use kernel::fake::{Fake, FakeAnswer, KernelCall};
use plan::actual::Actual;
use plan::chains::ChainId;
use plan::event::Event;
use plan::mode::Mode;
use plan::model::{EndpointSlice, Service, ServiceName};
use plan::op::Op;
use plan::userspace::{ProxyPortId, ProxyPortState, RelayPort};
use reconcile::observer::{Observer, Report, RoundKind};
use reconcile::{Input, Pace};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::reports::Reports;
use crate::world::{NODE_ADDRESS, World, settings_in, slice, tcp, udp};

/// A relay on no sockets: it has a new port for each that it is asked for.
#[derive(Debug)]
struct Relay {
    fake: Fake,
    planned: BTreeMap<ServiceName, Vec<RelayPort>>,
    open: BTreeMap<ProxyPortId, SocketAddr>,
    next: u16,
    answers: mpsc::UnboundedSender<Event>,
}

/// The answers that the loop has heard.
type Answers = Arc<Mutex<Vec<Event>>>;

impl Relay {
    fn set(&mut self, service: &ServiceName, ports: &[RelayPort]) {
        let ids: Vec<(ProxyPortId, IpAddr)> = ports
            .iter()
            .flat_map(|port| port.proxy_ports(service).map(|(id, _)| (id, port.address)))
            .collect();
        let is_gone = |id: &ProxyPortId, _: &mut SocketAddr| {
            id.service == *service && !ids.iter().any(|(of, _)| of == id)
        };
        let gone: Vec<_> = self.open.extract_if(.., is_gone).collect();
        for (id, socket) in gone {
            assert!(!is_led_to(&self.fake.actual(), socket), "{id} is closed before its rules go");
            self.answer(id, ProxyPortState::Closed);
        }
        for (id, address) in ids {
            let next = &mut self.next;
            let socket = *self.open.entry(id.clone()).or_insert_with(|| {
                *next += 1;
                SocketAddr::new(address, *next)
            });
            self.answer(id, ProxyPortState::Listening(socket));
        }
    }

    fn answer(&self, id: ProxyPortId, state: ProxyPortState) {
        // The loop may have ended.
        drop(self.answers.send(Event::ProxyPort(Box::new(id), state)));
    }
}

impl Observer for Relay {
    fn report(&mut self, report: &Report<'_>) {
        match report {
            Report::Planned { plan, .. } => self.planned.extend(plan.relay.iter().cloned()),
            Report::RoundEnded(round) if round.kind != RoundKind::Retry => {
                for (service, ports) in mem::take(&mut self.planned) {
                    self.set(&service, &ports);
                }
            }
            _ => {}
        }
    }
}

/// A node in mode userspace with its relay.
struct Node {
    world: World,
    answers: Answers,
    /// One permit for each answer that may pass.
    passing: Arc<Semaphore>,
}

impl Node {
    /// With a relay whose first port is `first`, all of whose answers pass.
    fn on(fake: Fake, pace: Pace, first: u16) -> Self {
        let node = Self::silent(fake, pace, first);
        node.passing.add_permits(10_000);
        node
    }

    /// The same, none of whose answers pass yet.
    fn silent(fake: Fake, pace: Pace, first: u16) -> Self {
        let (answers, mut answered) = mpsc::unbounded_channel();
        let relay = Relay {
            fake: fake.clone(),
            planned: BTreeMap::new(),
            open: BTreeMap::new(),
            next: first - 1,
            answers,
        };
        let settings = settings_in(Mode::Userspace);
        let world = World::observed(settings, fake, pace, Box::new(relay), Reports::default());
        let (heard, passing) = (Answers::default(), Arc::new(Semaphore::new(0)));
        let (log, permits, inputs) = (Arc::clone(&heard), Arc::clone(&passing), world.sender());
        tokio::spawn(async move {
            while let Some(event) = answered.recv().await {
                permits.acquire().await.unwrap().forget();
                log.lock().unwrap().push(event.clone());
                if inputs.send(Input::Change(event)).await.is_err() {
                    return;
                }
            }
        });
        Self { world, answers: heard, passing }
    }

    async fn in_sync(services: &[(Service, EndpointSlice)]) -> Self {
        let mut node = Self::on(empty(), Pace::default(), 40_001);
        node.world.feed(services).await;
        node.world.complete().await;
        node.settle().await;
        node.world.fake.take_log();
        node
    }

    async fn settle(&mut self) {
        self.world.taken().await;
        for _ in 0..3 {
            self.world.until("settled", |it, _| it.pending == 0 && it.flows_pending == 0).await;
            self.world.compared().await;
        }
    }

    fn assert_converged(&mut self) {
        for event in mem::take(&mut *self.answers.lock().unwrap()) {
            self.world.heard(event);
        }
        self.world.assert_converged(&[]);
    }

    async fn stop(self) -> Fake {
        let fake = self.world.stop().await;
        while fake.is_shared() {
            tokio::task::yield_now().await;
        }
        fake
    }
}

fn empty() -> Fake {
    let local_addresses =
        [IpAddr::from(NODE_ADDRESS), IpAddr::from([127, 0, 0, 1])].into_iter().collect();
    Fake::new(Actual { local_addresses, ..Actual::default() })
}

fn is_led_to(actual: &Actual, socket: SocketAddr) -> bool {
    let to = format!("--to-destination {socket}");
    actual.chains.values().flatten().any(|rule| rule.ends_with(&to))
}

/// The ports that rules of a chain lead to.
fn ports(actual: &Actual, chain: &str) -> Vec<u16> {
    let is_it = |id: &ChainId| id.name.to_string() == chain;
    let rules = actual.chains.iter().filter(|(id, _)| is_it(id)).flat_map(|(_, rules)| rules);
    let mut ports: Vec<u16> =
        rules.filter_map(|rule| rule.rsplit_once(':')?.1.parse().ok()).collect();
    ports.sort_unstable();
    ports
}

const CONTAINER: &str = "KUBE-PORTALS-CONTAINER";

#[tokio::test(start_paused = true)]
async fn a_service_is_led_to_the_relay_and_its_endpoints_are_no_rules() {
    let (service, endpoints) = tcp(1, &[1, 2]);
    let mut node = Node::in_sync(&[(service.clone(), endpoints)]).await;
    assert_eq!(ports(&node.world.fake.actual(), CONTAINER), [40_001]);
    assert_eq!(ports(&node.world.fake.actual(), "KUBE-PORTALS-HOST"), [40_001]);
    node.world.apply_slice(slice(&service, &[2, 3])).await;
    node.settle().await;
    assert_eq!(node.world.fake.take_log(), []);
    node.assert_converged();

    // Without endpoints it is refused, and the port goes, after its rules.
    node.world.apply_slice(slice(&service, &[])).await;
    node.settle().await;
    let actual = node.world.fake.actual();
    assert!(ports(&actual, CONTAINER).is_empty());
    assert!(actual.chains.values().flatten().any(|rule| rule.contains("has no endpoints")));
    node.world.apply_slice(slice(&service, &[1])).await;
    node.settle().await;
    assert_eq!(ports(&node.world.fake.actual(), CONTAINER), [40_002]);
    node.assert_converged();
    let removed = Event::ServiceRemoved(service.name.clone());
    node.world.send(removed).await;
    node.settle().await;
    assert!(node.world.fake.actual().chains.values().all(Vec::is_empty));
    node.assert_converged();
}

#[tokio::test(start_paused = true)]
async fn the_node_is_in_sync_when_the_relay_listens_for_all_services() {
    let mut node = Node::silent(empty(), Pace::default(), 40_001);
    node.world.feed(&[tcp(1, &[1]), tcp(2, &[1]), tcp(3, &[1])]).await;
    node.world.say_complete().await;
    node.world.taken().await;
    node.passing.add_permits(2);
    node.world.until("led", |_, actual| ports(actual, CONTAINER).len() == 2).await;
    let started = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!node.world.now().in_sync_once, "another mode's rules are still needed");
    node.passing.add_permits(1);
    node.world.until("in sync", |status, _| status.in_sync_once).await;
    assert!(started.elapsed() < Duration::from_secs(6));
    assert_eq!(ports(&node.world.fake.actual(), CONTAINER), [40_001, 40_002, 40_003]);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_does_not_answer_is_not_waited_for_without_end() {
    let mut node = Node::silent(empty(), Pace::default(), 40_001);
    node.world.feed(&[tcp(1, &[1])]).await;
    let started = Instant::now();
    node.world.complete().await;
    assert!((30..32).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert!(ports(&node.world.fake.actual(), CONTAINER).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_takes_the_portals_of_the_former_process_away_first() {
    let services = [tcp(1, &[1]), udp(2, &[1])];
    let node = Node::in_sync(&services).await;
    let fake = node.stop().await;
    let mut node = Node::silent(fake, Pace::default(), 50_001);
    node.world.feed(&services).await;
    node.world.say_complete().await;
    node.world.until("empty", |_, actual| ports(actual, CONTAINER).is_empty()).await;
    node.passing.add_permits(10_000);
    node.world.until("in sync", |status, _| status.in_sync_once).await;
    node.settle().await;
    assert_eq!(ports(&node.world.fake.actual(), CONTAINER), [50_001, 50_002]);
    node.assert_converged();
}

#[tokio::test(start_paused = true)]
async fn the_relays_answer_does_not_wait_for_the_minimum_period() {
    let pace = Pace { min_sync_period: Duration::from_secs(1), ..Pace::default() };
    let mut node = Node::on(empty(), pace, 40_001);
    node.world.complete().await;
    node.settle().await;
    let started = Instant::now();
    node.world.feed(&[tcp(1, &[1])]).await;
    node.world.until("led", |_, actual| ports(actual, CONTAINER) == [40_001]).await;
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn portals_that_another_program_removes_come_back() {
    let mut node = Node::in_sync(&[tcp(1, &[1]), tcp(2, &[1])]).await;
    node.world.fake.disturb(|actual| {
        let of_portals = |(id, _): &(&ChainId, &mut Vec<Box<str>>)| id.has_portals();
        for (_, rules) in actual.chains.iter_mut().filter(of_portals) {
            rules.pop();
        }
    });
    node.settle().await;
    assert_eq!(ports(&node.world.fake.actual(), CONTAINER), [40_001, 40_002]);
    assert!(node.world.now().drift_repaired > 0);
    node.assert_converged();
}

#[tokio::test(start_paused = true)]
async fn from_iptables_the_other_modes_rules_lead_until_the_relay_does() {
    let services = [tcp(1, &[1, 2]), tcp(2, &[])];
    let mut world = World::with(settings_in(Mode::Iptables), empty(), Pace::default());
    world.feed(&services).await;
    world.complete().await;
    let fake = world.stop().await;
    while fake.is_shared() {
        tokio::task::yield_now().await;
    }
    let before = fake.actual();
    fake.take_log();
    let mut node = Node::on(fake, Pace::default(), 40_001);
    node.world.feed(&services).await;
    node.world.complete().await;
    let changed = node.world.fake.take_log();
    let is_about_portals = |op: &Op| match op {
        Op::Chain(change) => change.chain().has_portals(),
        Op::WriteRuleSet(_) => true,
        _ => false,
    };
    assert!(changed.iter().all(is_about_portals), "{changed:#?}");
    let after = node.world.fake.actual();
    for (chain, rules) in &before.chains {
        assert_eq!(after.chains.get(chain), Some(rules), "{chain}");
    }
    assert_eq!(ports(&after, CONTAINER), [40_001]);
}

/// Portals come before the rules of iptables mode, also if the cleanup of other modes fails.
#[tokio::test(start_paused = true)]
async fn to_iptables_the_portals_lead_until_the_chains_are_there_and_then_go() {
    let services = [tcp(1, &[1, 2]), tcp(2, &[])];
    for is_refused in [false, true] {
        let fake = Node::in_sync(&services).await.stop().await;
        let refuses = Arc::new(AtomicBool::new(is_refused));
        let goes_on = Arc::clone(&refuses);
        fake.interfere(move |call, _| match call {
            KernelCall::Writing(Op::Chain(_)) if goes_on.load(Ordering::Relaxed) => {
                FakeAnswer::refused(RefusalClass::Exhausted)
            }
            _ => FakeAnswer::Honest,
        });
        let mut world = World::with(settings_in(Mode::Iptables), fake, Pace::default());
        world.feed(&services).await;
        world.say_complete().await;
        if is_refused {
            world.until("held up", |status, _| status.is_held_up).await;
            assert_eq!(ports(&world.fake.actual(), CONTAINER), [40_001]);
            refuses.store(false, Ordering::Relaxed);
        }
        world.until("carried", |status, _| status.is_carried && status.pending == 0).await;
        let actual = world.fake.actual();
        assert!(ports(&actual, CONTAINER).is_empty(), "no jump leads there");
        let of_nat = actual.chains.iter().filter(|(id, _)| id.name.to_string() == "KUBE-SERVICES");
        assert!(of_nat.flat_map(|(_, rules)| rules).any(|rule| rule.contains("-j KUBE-SVC-")));
        let log = world.fake.take_log();
        let last = |is_it: fn(&Op) -> bool| log.iter().rposition(is_it).unwrap();
        let rules = last(|op| matches!(op, Op::WriteRuleSet(_)));
        assert!(last(|op| matches!(op, Op::Chain(_))) < rules, "{log:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn flows_of_udp_are_cleaned_when_their_proxy_port_changes() {
    let (service, endpoints) = udp(1, &[1]);
    let mut node = Node::in_sync(&[(service.clone(), endpoints)]).await;
    node.world.fake.take_cleanings();
    node.world.apply_slice(slice(&service, &[2])).await;
    node.settle().await;
    assert_eq!(node.world.fake.take_cleanings().len(), 0, "the relay moves them by itself");
    node.world.apply_slice(slice(&service, &[])).await;
    node.settle().await;
    assert!(!node.world.fake.take_cleanings().is_empty());
    node.world.apply_slice(slice(&service, &[2])).await;
    node.settle().await;
    assert!(!node.world.fake.take_cleanings().is_empty());
}
