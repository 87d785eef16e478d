//! The same properties of mode userspace, with a relay that answers.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::net::SocketAddr;

use plan::actual::Actual;
use plan::chains::{ActualChains, ChainId};
use plan::event::Event;
use plan::memory::MemoryKernel;
use plan::mode::Mode;
use plan::model::ServiceName;
use plan::op::Op;
use plan::planner::{Planner, RoundLimit};
use plan::settings::Settings;
use plan::userspace::{ProxyPortId, ProxyPortState, RelayPort};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::world::{World, groups};
use crate::{Pair, carry_out, limit};

/// A relay: what it is asked for, and its answers that are not taken yet.
#[derive(Debug, Default)]
struct Relay {
    asked: BTreeMap<ServiceName, Vec<RelayPort>>,
    open: BTreeMap<ProxyPortId, SocketAddr>,
    answers: Vec<Event>,
}

impl Relay {
    fn set(&mut self, changes: Vec<(ServiceName, Vec<RelayPort>)>) {
        for (service, ports) in changes {
            let former = self.asked.remove(&service).unwrap_or_default();
            assert_ne!(former, ports, "asked again for what it has");
            let ids = |ports: &[RelayPort]| -> BTreeMap<ProxyPortId, SocketAddr> {
                let each = ports.iter().flat_map(|port| {
                    let ids = port.proxy_ports(&service).map(|(id, _)| id);
                    ids.map(|id| (SocketAddr::new(port.address, number(&id)), id))
                });
                each.map(|(socket, id)| (id, socket)).collect()
            };
            let (before, after) = (ids(&former), ids(&ports));
            for id in before.keys().filter(|id| !after.contains_key(id)) {
                self.open.remove(id);
                self.answer(id, ProxyPortState::Closed);
            }
            for (id, socket) in after {
                let state = if fails(&id) {
                    ProxyPortState::Failed
                } else {
                    self.open.insert(id.clone(), socket);
                    ProxyPortState::Listening(socket)
                };
                self.answer(&id, state);
            }
            if !ports.is_empty() {
                self.asked.insert(service, ports);
            }
        }
    }

    fn answer(&mut self, id: &ProxyPortId, state: ProxyPortState) {
        self.answers.push(Event::ProxyPort(Box::new(id.clone()), state));
    }
}

fn hash(id: &ProxyPortId) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// A port that depends on nothing but what it is for.
fn number(id: &ProxyPortId) -> u16 {
    40_000 + u16::try_from(hash(id) % 20_000).unwrap()
}

fn fails(id: &ProxyPortId) -> bool {
    (hash(id) >> 32).is_multiple_of(8)
}

fn settings() -> impl Strategy<Value = Settings> {
    crate::world::settings().prop_map(|settings| Settings { mode: Mode::Userspace, ..settings })
}

/// Plans until nothing is to be done. Wherever the kernel is between two operations, rules lead to
/// open ports, unless `is_moving`.
fn run(pair: &mut Pair, relay: &mut Relay, events: &[Event], limit: RoundLimit, is_moving: bool) {
    pair.apply(events);
    loop {
        while pair.planner.is_dirty() {
            let plan = pair.round(limit);
            for op in &plan.ops {
                carry_out(&mut pair.kernel, std::slice::from_ref(op));
                let led = led_to(&pair.kernel);
                let open: BTreeSet<SocketAddr> = relay.open.values().copied().collect();
                assert!(is_moving || led.is_subset(&open), "{op}: {led:?}, {open:?}");
            }
            assert_eq!(pair.planner.diff(pair.kernel.actual()), []);
            relay.set(plan.relay);
        }
        if relay.answers.is_empty() {
            return;
        }
        pair.apply(&std::mem::take(&mut relay.answers));
    }
}

fn from_scratch(settings: &Settings, world: &World) -> (Pair, Relay) {
    let (mut pair, mut relay) = (Pair::new(settings), Relay::default());
    run(&mut pair, &mut relay, &world.events(), RoundLimit::NONE, true);
    (pair, relay)
}

/// The sockets that rules lead to.
fn led_to(kernel: &MemoryKernel) -> BTreeSet<SocketAddr> {
    let rules = kernel.actual().chains.values().flatten();
    let sockets = rules.filter_map(|rule| rule.split_once("--to-destination "));
    sockets.map(|(_, socket)| socket.parse().unwrap()).collect()
}

/// The chains without an order of rules, which has no meaning but in the rules of one frontend.
fn normal(kernel: &MemoryKernel) -> BTreeMap<ChainId, Vec<String>> {
    let each = kernel.actual().chains.iter().map(|(chain, rules)| {
        let mut rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
        rules.sort_unstable();
        (*chain, rules)
    });
    each.collect()
}

fn is_moving(events: &[Event]) -> bool {
    let moves = |event: &Event| matches!(event, Event::LocalAddresses(_) | Event::NodeApplied(_));
    events.iter().any(moves)
}

proptest! {
    /// Operations computed change by change are never refused, never lead to a closed port, and
    /// lead to what is computed at once.
    #[test]
    fn portals_change_by_change_equal_those_from_scratch(
        settings in settings(),
        groups in groups(),
        limit in limit(),
    ) {
        let (mut pair, mut relay) = (Pair::new(&settings), Relay::default());
        for group in &groups {
            run(&mut pair, &mut relay, group, limit, is_moving(group));
            prop_assert_eq!(pair.planner.n_awaited_proxy_ports(), 0);
            // What it moved to is open.
            let open: BTreeSet<SocketAddr> = relay.open.values().copied().collect();
            prop_assert!(led_to(&pair.kernel).is_subset(&open));
        }
        let world = World::after(groups.iter().flatten());
        let (scratch, asked) = from_scratch(&settings, &world);
        prop_assert_eq!(normal(&pair.kernel), normal(&scratch.kernel));
        prop_assert_eq!(pair.problems, scratch.problems);
        prop_assert_eq!(relay.asked, asked.asked);
        prop_assert_eq!(relay.open, asked.open);
    }

    /// Objects may come in any order and be planned in any grouping, also before the relay's answers
    /// to what came before.
    #[test]
    fn the_order_of_objects_does_not_matter_to_portals(
        settings in settings(),
        groups in groups(),
        order in proptest::collection::vec(any::<Index>(), 64),
        cuts in proptest::collection::vec(any::<bool>(), 64),
        limit in limit(),
    ) {
        let world = World::after(groups.iter().flatten());
        let mut events = world.events();
        let (mut pair, mut relay) = (Pair::new(&settings), Relay::default());
        let mut waiting = Vec::new();
        for (which, cut) in order.iter().zip(cuts) {
            if !events.is_empty() {
                waiting.push(events.swap_remove(which.index(events.len())));
            }
            if cut {
                pair.apply(&waiting);
                let plan = pair.round(limit);
                carry_out(&mut pair.kernel, &plan.ops);
                relay.set(plan.relay);
                waiting.clear();
                // Some answers come late.
                let now = relay.answers.len() / 2;
                let answers: Vec<Event> = relay.answers.drain(..now).collect();
                pair.apply(&answers);
            }
        }
        waiting.append(&mut events);
        run(&mut pair, &mut relay, &waiting, limit, true);
        let (scratch, asked) = from_scratch(&settings, &world);
        prop_assert_eq!(normal(&pair.kernel), normal(&scratch.kernel));
        prop_assert_eq!(pair.problems, scratch.problems);
        prop_assert_eq!(relay.asked, asked.asked);
    }

    /// A takeover takes the portals of a process that has ended away before anything else, and leads
    /// to the desired chains.
    #[test]
    fn a_takeover_forgets_former_portals(
        (settings, mut former) in (settings(), settings()),
        (groups, former_groups) in (groups(), groups()),
        limit in limit(),
    ) {
        former.families.clone_from(&settings.families);
        let mut kernel =
            from_scratch(&former, &World::after(former_groups.iter().flatten())).0.kernel;
        let world = World::after(groups.iter().flatten());
        let (desired, _) = from_scratch(&settings, &world);

        let mut planner = Planner::new(settings.clone());
        world.events().into_iter().for_each(|event| planner.apply(event));
        drop(planner.plan_round(RoundLimit { services: 0, ..RoundLimit::NONE }));
        let chains = &kernel.actual().chains;
        let families = settings.families.iter();
        let found: Vec<_> =
            families.map(|family| ActualChains::of(Mode::Userspace, *family, chains)).collect();
        let write = |kernel: &mut MemoryKernel, mut ops: Vec<Op>| {
            ops.sort_by_key(Op::phase);
            carry_out(kernel, &ops);
        };
        let prerequisites = planner.prerequisites(kernel.actual());
        let mut found = planner.take_over(Actual::default(), Vec::new()).with_chains(found);
        write(&mut kernel, prerequisites);
        prop_assert_eq!(led_to(&kernel), BTreeSet::new());
        let mut relay = Relay::default();
        while planner.is_dirty() {
            let plan = planner.plan_round(limit);
            let adopted = found.adopt(plan.ops);
            write(&mut kernel, adopted.lacking);
            relay.set(plan.relay);
            for answer in std::mem::take(&mut relay.answers) {
                planner.apply(answer);
            }
        }
        prop_assert_eq!(planner.n_awaited_proxy_ports(), 0);
        write(&mut kernel, found.excess_chains(planner.desired_chains()));
        prop_assert_eq!(normal(&kernel), normal(&desired.kernel));
        prop_assert_eq!(planner.diff(kernel.actual()), vec![]);
    }
}
