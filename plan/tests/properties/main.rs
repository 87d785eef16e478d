//! Properties that hold for every input. `PROPTEST_CASES` says how many inputs are tried, 256 if it
//! is not set.

// Clippy takes it for a test only if it says so.
#![cfg(test)]

mod chains;
mod damage;
mod explained;
mod nft;
mod service_routes;
mod userspace;
mod world;

use std::collections::BTreeMap;

use plan::actual::{Actual, ActualVirtualServer, ListedVirtualServer};
use plan::capacity::Capacity;
use plan::event::Event;
use plan::kernel_objects::{Entry, Frontend};
use plan::localhost::LocalhostPort;
use plan::memory::{MemoryKernel, MemoryRefusal};
use plan::model::ServiceName;
use plan::op::{Op, Subject};
use plan::planner::{Plan, Planner, RoundLimit};
use plan::problem::Problem;
use plan::sets::{SetId, SetKind, SetType};
use plan::settings::Settings;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use damage::{Damage, add_foreign, damage, untouchable};
use world::{World, every_local_address, groups, settings};

type Problems = BTreeMap<ServiceName, Vec<Problem>>;

/// A planner with a kernel that does what it says.
struct Pair {
    planner: Planner,
    kernel: MemoryKernel,
    problems: Problems,
    localhost: BTreeMap<ServiceName, Vec<LocalhostPort>>,
}

impl Pair {
    /// With the interface, the sets and the rules, and nothing else.
    fn new(settings: &Settings) -> Self {
        // The node's own addresses are all there all the time: they tell whose a node port's
        // virtual server is.
        let local_addresses = every_local_address().into_iter().collect();
        let empty = Actual { local_addresses, ..Actual::default() };
        let mut pair = Self {
            planner: Planner::new(settings.clone()),
            kernel: MemoryKernel::new(empty).with_mode(settings.mode),
            problems: Problems::new(),
            localhost: BTreeMap::new(),
        };
        let prerequisites = pair.planner.diff(pair.kernel.actual());
        carry_out(&mut pair.kernel, &prerequisites);
        pair
    }

    fn take(&mut self, events: &[Event]) -> Plan {
        self.apply(events);
        self.round(RoundLimit::NONE)
    }

    fn apply(&mut self, events: &[Event]) {
        for event in events {
            self.planner.apply(event.clone());
        }
    }

    fn round(&mut self, limit: RoundLimit) -> Plan {
        let plan = self.planner.plan_round(limit);
        for (service, problems) in &plan.problems {
            let known = self.problems.remove(service).unwrap_or_default();
            assert_ne!(&known, problems, "reported, and nothing new");
            if !problems.is_empty() {
                self.problems.insert(service.clone(), problems.clone());
            }
        }
        for (service, ports) in &plan.localhost {
            let known = self.localhost.remove(service).unwrap_or_default();
            assert_ne!(&known, ports, "reported, and nothing new");
            if !ports.is_empty() {
                self.localhost.insert(service.clone(), ports.clone());
            }
        }
        plan
    }

    fn run(&mut self, events: &[Event]) {
        let plan = self.take(events);
        carry_out(&mut self.kernel, &plan.ops);
    }

    /// The same in rounds, after each of which the kernel is as it should be by then.
    fn run_in_rounds(&mut self, events: &[Event], limit: RoundLimit) {
        self.apply(events);
        while self.planner.is_dirty() {
            let before = self.planner.backlog();
            let plan = self.round(limit);
            assert!(before - self.planner.backlog() <= limit.services);
            carry_out(&mut self.kernel, &plan.ops);
            assert_eq!(self.planner.diff(self.kernel.actual()), []);
        }
    }
}

/// Picks the limit of a round: a number of Services or operations, or a part of each Service.
fn limit() -> impl Strategy<Value = RoundLimit> {
    let limits = whole_services();
    (select(limits.to_vec()), select(vec![usize::MAX, 1, 9]))
        .prop_map(|(limit, operations_per_service)| RoundLimit { operations_per_service, ..limit })
}

fn whole_services() -> [RoundLimit; 4] {
    let (one, three) = (
        RoundLimit { services: 1, ..RoundLimit::NONE },
        RoundLimit { services: 3, ..RoundLimit::NONE },
    );
    [one, three, RoundLimit { operations: 9, ..RoundLimit::NONE }, RoundLimit::NONE]
}

/// Takes over what a kernel has, in rounds, as the event loop does at its start. After each round,
/// every frontend has the Service that owns it as desired. Returns what had to be written.
fn take_over(
    planner: &mut Planner,
    kernel: &mut MemoryKernel,
    limit: RoundLimit,
    desired: &Planner,
) -> Vec<Op> {
    let mut log = Vec::new();
    let mut write = |kernel: &mut MemoryKernel, mut ops: Vec<Op>| {
        ops.sort_by_key(Op::phase);
        carry_out(kernel, &ops);
        log.extend(ops);
    };
    let settings = planner.settings().clone();
    let prerequisites = planner.prerequisites(kernel.actual());
    let there = kernel.actual().virtual_servers.iter();
    let listed = there.map(|(frontend, there)| {
        let (frontend, server) = (*frontend, there.server.clone());
        ListedVirtualServer { frontend, server }
    });
    let mut found = planner.take_over(kernel.actual().clone(), listed.collect());
    let repair = |planner: &Planner, kernel: &MemoryKernel, found: Vec<ListedVirtualServer>| {
        let there = |it: &ListedVirtualServer| {
            let there = kernel.actual().virtual_servers.get(&it.frontend).cloned();
            there.map(|there| ActualVirtualServer { server: it.server.clone(), ..there })
        };
        let each = found.into_iter();
        each.flat_map(|it| planner.repair(&it.frontend, there(&it).as_ref())).collect::<Vec<Op>>()
    };
    write(kernel, prerequisites);
    while planner.is_dirty() {
        let adopted = found.adopt(planner.plan_round(limit).ops);
        for frontend in planner.desired().frontends() {
            let owners = [planner, desired].map(|planner| planner.desired().owner(frontend));
            assert_eq!(owners[0], owners[1], "{frontend}");
        }
        let mut ops = adopted.lacking;
        ops.extend(repair(planner, kernel, adopted.found));
        write(kernel, ops);
    }
    let sets = || settings.families.iter().flat_map(|family| SetId::all(*family));
    let (leading, others): (Vec<SetId>, Vec<SetId>) =
        sets().partition(|set| set.kind.leads_to_internal_frontends());
    for set in leading {
        loop {
            let part = found.excess_entries(set, 2, planner.desired(), &settings);
            if part.is_empty() {
                break;
            }
            write(kernel, part);
        }
    }
    loop {
        let part = found.excess_addresses(2, &settings);
        if part.is_empty() {
            break;
        }
        write(kernel, part);
    }
    loop {
        let part = found.next_virtual_servers(2, planner.desired(), &settings);
        if part.is_empty() {
            break;
        }
        let repairs = repair(planner, kernel, part);
        write(kernel, repairs);
    }
    for set in others {
        loop {
            let part = found.excess_entries(set, 2, planner.desired(), &settings);
            if part.is_empty() {
                break;
            }
            write(kernel, part);
        }
    }
    log
}

fn carry_out(kernel: &mut MemoryKernel, ops: &[Op]) {
    for op in ops {
        match (op, kernel.apply(op)) {
            // One without endpoints had none, unless its connections are still ending.
            (_, Ok(())) | (Op::RemoveVirtualServer(_), Err(MemoryRefusal::NoVirtualServer)) => {}
            (_, Err(refusal)) => panic!("{op}: {refusal}; all of it: {ops:#?}"),
        }
    }
}

/// Plans a world at once, on a kernel of its own.
fn from_scratch(settings: &Settings, world: &World) -> Pair {
    let mut pair = Pair::new(settings);
    pair.run(&world.events());
    pair
}

/// Everything about a virtual server is there and as desired, but for what has to go; and if all
/// of it has to go, the rules refuse new connections.
fn is_complete(planner: &Planner, kernel: &MemoryKernel, address: std::net::IpAddr) -> bool {
    planner.desired().frontends().filter(|frontend| frontend.address == address).all(|frontend| {
        let found = kernel.actual().virtual_servers.get(frontend);
        planner.repair(frontend, found).iter().all(|op| match op {
            Op::RemoveRealServer(..) => true,
            Op::RemoveVirtualServerWhenDrained(_) => is_refused(kernel, frontend),
            _ => false,
        })
    })
}

fn is_refused(kernel: &MemoryKernel, frontend: &Frontend) -> bool {
    let refusing = [SetKind::NoEndpoints, SetKind::NoLocalEndpoints];
    refusing.map(|kind| SetId { kind, family: frontend.family() }).iter().any(|set| {
        let there = kernel.actual().sets.get(set);
        there.is_some_and(|there| there.entries.contains(&Entry::AddressPort(*frontend)))
    })
}

proptest! {
    /// However little room sets had when they were found, none is ever full, and none ever gets
    /// smaller. Each has room left for an eighth of what it may hold.
    #[test]
    fn sets_grow_before_they_are_full(
        settings in settings(),
        groups in groups(),
        capacity in 0_u32..20,
        limit in limit(),
    ) {
        let mut pair = Pair::new(&settings);
        for (set, there) in &mut pair.kernel.actual_mut().sets {
            if set.set_type() != SetType::BitmapPort {
                there.capacity = Capacity::new(capacity);
            }
        }
        drop(pair.planner.take_over(pair.kernel.actual().clone(), Vec::new()));
        for group in &groups {
            pair.apply(group);
            while pair.planner.is_dirty() {
                let mut ops = pair.round(limit).ops;
                pair.planner.insert_growth(&mut ops);
                prop_assert!(ops.is_sorted_by_key(Op::phase));
                for op in &ops {
                    let before = pair.kernel.actual().sets.clone();
                    carry_out(&mut pair.kernel, std::slice::from_ref(op));
                    pair.planner.carried_out(op);
                    for (set, there) in &pair.kernel.actual().sets {
                        prop_assert!(there.capacity >= before[set].capacity, "{}", op);
                    }
                }
            }
            for (set, there) in &pair.kernel.actual().sets {
                prop_assert_eq!(pair.planner.set_sizes().capacity(*set), there.capacity);
                prop_assert_eq!(pair.planner.set_sizes().n_entries(*set), there.n_entries());
                if set.set_type() != SetType::BitmapPort {
                    prop_assert_eq!(there.capacity.grown_for(there.n_entries()), None);
                }
            }
        }
    }

    /// Operations computed change by change are never refused, lead to what is computed at once,
    /// and leave nothing to repair.
    #[test]
    fn incremental_equals_from_scratch(
        settings in settings(),
        groups in groups(),
        limit in limit(),
    ) {
        let mut pair = Pair::new(&settings);
        for group in &groups {
            pair.run_in_rounds(group, limit);
            prop_assert_eq!(pair.planner.diff(pair.kernel.actual()), vec![]);
            prop_assert!(!pair.planner.is_dirty());
        }
        let scratch = from_scratch(&settings, &World::after(groups.iter().flatten()));
        prop_assert_eq!(pair.kernel.actual(), scratch.kernel.actual());
        prop_assert_eq!(pair.problems, scratch.problems);
        prop_assert_eq!(pair.localhost, scratch.localhost);
    }

    /// Objects may come in any order and be planned in any grouping.
    #[test]
    fn the_order_of_objects_does_not_matter(
        settings in settings(),
        groups in groups(),
        order in proptest::collection::vec(any::<Index>(), 64),
        cuts in proptest::collection::vec(any::<bool>(), 64),
        limit in limit(),
    ) {
        let world = World::after(groups.iter().flatten());
        let mut events = world.events();
        let mut pair = Pair::new(&settings);
        let mut waiting = Vec::new();
        for (which, cut) in order.iter().zip(cuts) {
            if !events.is_empty() {
                let at = which.index(events.len());
                waiting.push(events.swap_remove(at));
            }
            if cut {
                // What does not fit waits, and what comes then with it.
                pair.apply(&waiting);
                let plan = pair.round(limit);
                carry_out(&mut pair.kernel, &plan.ops);
                waiting.clear();
            }
        }
        waiting.append(&mut events);
        pair.run_in_rounds(&waiting, limit);
        let scratch = from_scratch(&settings, &world);
        prop_assert_eq!(pair.kernel.actual(), scratch.kernel.actual());
        prop_assert_eq!(pair.problems, scratch.problems);
        prop_assert_eq!(pair.localhost, scratch.localhost);
    }

    /// The same events give the same operations in the same order.
    #[test]
    fn planning_is_deterministic(settings in settings(), groups in groups()) {
        let (mut one, mut other) = (Pair::new(&settings), Pair::new(&settings));
        for group in &groups {
            prop_assert_eq!(one.take(group), other.take(group));
        }
        let nothing = Actual::default();
        prop_assert_eq!(one.planner.diff(&nothing), other.planner.diff(&nothing));
    }

    /// Objects that come again as they are change nothing.
    #[test]
    fn what_is_known_is_not_dirty(settings in settings(), groups in groups()) {
        let world = World::after(groups.iter().flatten());
        let mut pair = from_scratch(&settings, &world);
        for event in world.events() {
            pair.planner.apply(event);
        }
        prop_assert!(!pair.planner.is_dirty());
        prop_assert_eq!(pair.planner.plan(), Plan::default());
    }

    /// No address is bound before everything behind it is complete, and nothing is taken apart
    /// behind an address that is about to go. A subject appears on one side only: it is not made
    /// and unmade in the same plan.
    #[test]
    fn traffic_never_meets_half_a_service(settings in settings(), groups in groups()) {
        let mut pair = Pair::new(&settings);
        for group in &groups {
            let plan = pair.take(group);
            prop_assert!(plan.ops.is_sorted_by_key(Op::phase));
            for op in &plan.ops {
                match op {
                    Op::BindAddress(address) => {
                        prop_assert!(is_complete(&pair.planner, &pair.kernel, *address), "{}", op);
                    }
                    Op::RemoveVirtualServer(frontend) => {
                        let bound = pair.kernel.actual().addresses.contains(&frontend.address);
                        let stays = pair.planner.desired().has_address(frontend.address);
                        prop_assert!(!bound || stays, "{}", op);
                    }
                    _ => {}
                }
                carry_out(&mut pair.kernel, std::slice::from_ref(op));
            }
            let created = plan.ops.iter().filter(|op| matches!(op, Op::CreateVirtualServer(..)));
            for op in created {
                let Subject::VirtualServer(frontend) = op.subject() else { unreachable!() };
                prop_assert!(!plan.ops.contains(&Op::RemoveVirtualServer(frontend)));
            }
        }
    }

    /// Wherever a plan is cut off, a comparison finishes it: whatever is left over can still be
    /// known to be ours. Inside excluded networks, it stays.
    #[test]
    fn a_comparison_finishes_what_was_cut_off(
        settings in settings().prop_map(|settings| Settings { exclude: Vec::new(), ..settings }),
        groups in groups(),
        cut in any::<Index>(),
    ) {
        let (last, before) = groups.split_last().unwrap();
        let mut pair = Pair::new(&settings);
        for group in before {
            pair.run(group);
        }
        let plan = pair.take(last);
        carry_out(&mut pair.kernel, &plan.ops[..cut.index(plan.ops.len() + 1)]);
        let rest = pair.planner.diff(pair.kernel.actual());
        prop_assert!(rest.is_sorted_by_key(Op::phase));
        carry_out(&mut pair.kernel, &rest);
        let scratch = from_scratch(&settings, &World::after(groups.iter().flatten()));
        prop_assert_eq!(pair.kernel.actual(), scratch.kernel.actual());
    }

    /// A comparison leads to the desired state from anything that another planner left and that
    /// other programs did to it. Other programs' own state stays.
    #[test]
    fn a_comparison_repairs_everything_that_is_ours(
        (settings, mut former) in (settings(), settings()),
        (groups, former_groups) in (groups(), groups()),
        damages in proptest::collection::vec(damage(), 0..12),
        limit in limit(),
    ) {
        // Of an internal frontend in other networks, only its address on the interface tells, or inside
        // a route.
        let takes_addresses =
            |damage: &Damage| matches!(damage, Damage::LinkRemoved | Damage::AddressGone(_) | Damage::RoutesGone);
        if damages.iter().any(takes_addresses) {
            former.internal_frontend_networks = settings.internal_frontend_networks;
        }
        let mut found = from_scratch(&former, &World::after(former_groups.iter().flatten()));
        for damage in &damages {
            damage.inflict(found.kernel.actual_mut());
        }
        add_foreign(found.kernel.actual_mut(), &settings);
        let mut kernel = found.kernel;
        let world = World::after(groups.iter().flatten());
        let desired = from_scratch(&settings, &world);
        let frontends = desired.planner.desired().frontends().copied().collect();
        let untouched = untouchable(kernel.actual(), &frontends, &settings);

        let mut taken_over = kernel.clone();
        let repairs = desired.planner.diff(kernel.actual());
        prop_assert!(repairs.is_sorted_by_key(Op::phase));
        carry_out(&mut kernel, &repairs);

        prop_assert_eq!(desired.planner.diff(kernel.actual()), vec![]);
        prop_assert_eq!(normal(kernel.actual()), normal(&sum(desired.kernel.actual(), &untouched)));

        // Rounds lead to the same, and what is complete is adopted as it is.
        for is_complete in [false, true] {
            let mut planner = Planner::new(settings.clone());
            world.events().into_iter().for_each(|event| planner.apply(event));
            planner.plan_round(RoundLimit { services: 0, ..RoundLimit::NONE });
            let log = take_over(&mut planner, &mut taken_over, limit, &desired.planner);
            prop_assert!(!is_complete || log.is_empty(), "{:?}", log);
            prop_assert_eq!(normal(taken_over.actual()), normal(kernel.actual()));
        }
    }
}

/// Adds up what is desired and what must not be touched.
fn sum(desired: &Actual, untouched: &Actual) -> Actual {
    let mut sum = desired.clone();
    sum.addresses.extend(&untouched.addresses);
    sum.routes.extend(&untouched.routes);
    for (frontend, server) in &untouched.virtual_servers {
        sum.virtual_servers.insert(*frontend, server.clone());
    }
    for (set, there) in &untouched.sets {
        sum.sets.entry(*set).or_default().entries.extend(&there.entries);
    }
    sum.rule_sets.extend(&untouched.rule_sets);
    sum
}

/// Without the numbers of connections, which are not ours to decide.
fn normal(actual: &Actual) -> Actual {
    let mut actual = actual.clone();
    for server in actual.virtual_servers.values_mut() {
        for real in server.real_servers.values_mut() {
            real.connections = 0;
        }
    }
    actual
}
