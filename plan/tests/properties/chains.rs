//! The same properties of iptables mode, and those that it alone has.

use std::collections::{BTreeMap, BTreeSet};

use plan::actual::Actual;
use plan::chains::{ActualChains, ChainId, ChainName, ChainOp, PortChain, SharedChain};
use plan::hash::HashMap;
use plan::memory::MemoryKernel;
use plan::mode::Mode;
use plan::model::Family;
use plan::op::Op;
use plan::planner::{Plan, Planner, RoundLimit};
use plan::rule_set::{Table, words};
use plan::settings::Settings;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::world::{World, every_local_address, groups};
use crate::{Pair, carry_out, from_scratch, limit};

type Chains = HashMap<ChainId, Vec<Box<str>>>;

/// Change that another program made to our chains.
#[derive(Debug, Clone)]
enum Damage {
    ChainGone(Index),
    TableGone(Family, Table),
    RuleGone(Index, Index),
    RuleTwice(Index, Index),
    RuleAdded(Index, Index),
    ChainAdded(Index),
    Reordered(Index, Index),
    Rewritten(Index),
}

impl Damage {
    fn inflict(&self, actual: &mut Actual) {
        let chains = &mut actual.chains;
        let mut sorted: Vec<ChainId> = chains.keys().copied().collect();
        sorted.sort_unstable();
        if sorted.is_empty() {
            return;
        }
        match self {
            Self::ChainGone(which) => remove(actual, *which.get(&sorted)),
            Self::TableGone(family, table) => {
                chains.retain(|chain, _| (chain.family, chain.table) != (*family, *table));
                actual.rule_sets.remove(family);
            }
            Self::RuleGone(which, at) => change(chains, *which.get(&sorted), |rules| {
                if !rules.is_empty() {
                    rules.remove(at.index(rules.len()));
                }
            }),
            Self::RuleTwice(which, at) => change(chains, *which.get(&sorted), |rules| {
                if !rules.is_empty() {
                    let rule = rules[at.index(rules.len())].clone();
                    rules.push(rule);
                }
            }),
            Self::RuleAdded(which, at) => change(chains, *which.get(&sorted), |rules| {
                let at = at.index(rules.len() + 1);
                rules.insert(at, "-s 172.16.0.0/12 -j DROP".into());
            }),
            Self::ChainAdded(beside) => {
                let family = beside.get(&sorted).family;
                let name = ChainName::parse(Table::Nat, "KUBE-SVC-AAAAAAAAAAAAAAAA").unwrap();
                let chain = ChainId { family, table: Table::Nat, name };
                chains.insert(chain, vec!["-j KUBE-SEP-AAAAAAAAAAAAAAAA".into()]);
                let name = ChainName::parse(Table::Nat, "KUBE-SEP-AAAAAAAAAAAAAAAA").unwrap();
                chains.insert(ChainId { name, ..chain }, Vec::new());
            }
            Self::Reordered(which, at) => change(chains, *which.get(&sorted), |rules| {
                if !rules.is_empty() {
                    let at = at.index(rules.len());
                    rules.rotate_left(at);
                }
            }),
            // By an iptables that prints the same otherwise.
            Self::Rewritten(which) => change(chains, *which.get(&sorted), |rules| {
                for rule in rules {
                    if let Some((matches, target)) = rule.split_once("-j ") {
                        *rule = format!("-j {target} {matches}").trim_end().into();
                    }
                }
            }),
        }
    }
}

/// Removes a chain, and the rules that lead to it.
fn remove(actual: &mut Actual, gone: ChainId) {
    actual.chains.remove(&gone);
    let name = gone.name.to_string();
    let of_table = |it: &ChainId| (it.family, it.table) == (gone.family, gone.table);
    for (_, rules) in actual.chains.iter_mut().filter(|(chain, _)| of_table(chain)) {
        rules.retain(|rule| !words(rule).contains(&name));
    }
    if gone.name.is_shared() {
        actual.rule_sets.remove(&gone.family);
    }
}

fn change(chains: &mut Chains, which: ChainId, how: impl FnOnce(&mut Vec<Box<str>>)) {
    how(chains.get_mut(&which).unwrap());
}

fn damage() -> impl Strategy<Value = Damage> {
    let which = any::<Index>;
    let family = select(Family::BOTH.to_vec());
    let table = select(vec![Table::Nat, Table::Filter]);
    prop_oneof![
        3 => which().prop_map(Damage::ChainGone),
        1 => (family, table).prop_map(|(family, table)| Damage::TableGone(family, table)),
        3 => (which(), which()).prop_map(|(chain, at)| Damage::RuleGone(chain, at)),
        2 => (which(), which()).prop_map(|(chain, at)| Damage::RuleTwice(chain, at)),
        2 => (which(), which()).prop_map(|(chain, at)| Damage::RuleAdded(chain, at)),
        1 => which().prop_map(Damage::ChainAdded),
        3 => (which(), which()).prop_map(|(chain, at)| Damage::Reordered(chain, at)),
        2 => which().prop_map(Damage::Rewritten),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    (crate::world::settings(), any::<bool>()).prop_map(|(settings, localhost)| Settings {
        mode: Mode::Iptables,
        iptables_localhost_node_ports: localhost,
        localhost_node_ports: false,
        ..settings
    })
}

/// The chains without an order of rules where it says nothing: before the last rules of a shared
/// chain.
fn normal(chains: &Chains) -> BTreeMap<ChainId, Vec<Vec<String>>> {
    let each = chains.iter().map(|(chain, rules)| {
        let mut rules: Vec<Vec<String>> = rules.iter().map(|rule| meaning(rule)).collect();
        if chain.name.is_shared() {
            let is_last = |rule: &Vec<String>| rule.contains(&"KUBE-NODEPORTS".to_owned());
            let n_last = rules.iter().rev().take_while(|rule| is_last(rule)).count();
            let n_first = rules.len() - n_last;
            rules[..n_first].sort_unstable();
        }
        (*chain, rules)
    });
    each.collect()
}

/// The words of a rule in any order: enough to tell ours apart.
fn meaning(rule: &str) -> Vec<String> {
    let mut words = words(rule);
    words.sort_unstable();
    words
}

/// Takes over what a kernel has, in rounds, as the event loop does at its start. Returns what had
/// to be written.
fn take_over(planner: &mut Planner, kernel: &mut MemoryKernel, limit: RoundLimit) -> Vec<Op> {
    let mut log = Vec::new();
    let settings = planner.settings().clone();
    let families = || settings.families.iter();
    let chains = &kernel.actual().chains;
    let found: Vec<_> =
        families().map(|family| ActualChains::of(Mode::Iptables, *family, chains)).collect();
    let prerequisites = planner.prerequisites(kernel.actual());
    let found = planner.take_over(Actual::default(), Vec::new()).with_chains(found);
    let mut found = found;
    let mut write = |kernel: &mut MemoryKernel, mut ops: Vec<Op>| {
        ops.sort_by_key(Op::phase);
        carry_out(kernel, &ops);
        log.extend(ops);
    };
    write(kernel, prerequisites);
    while planner.is_dirty() {
        let adopted = found.adopt(planner.plan_round(limit).ops);
        write(kernel, adopted.lacking);
    }
    write(kernel, found.excess_chains(planner.desired_chains()));
    log
}

/// Frontend by what a rule matches: address, protocol, port. None: it matches none.
fn matched(rule: &str) -> Option<(Option<String>, String, String)> {
    let words = words(rule);
    let after = |option: &str| {
        let at = words.iter().position(|word| word == option)?;
        words.get(at + 1).cloned()
    };
    Some((after("-d"), after("-p")?, after("--dport")?))
}

/// Frontends that lead somewhere, and those that are refused, in one family.
fn frontends(
    chains: &Chains,
    family: Family,
    table: Table,
) -> BTreeSet<(Option<String>, String, String)> {
    let of_table = match table {
        Table::Nat => [SharedChain::Services, SharedChain::NodePorts],
        _ => [SharedChain::Services, SharedChain::ExternalServices],
    };
    let of_table = of_table.map(|chain| ChainId::shared(family, table, chain));
    let rules = of_table.iter().filter_map(|chain| chains.get(chain)).flatten();
    rules.filter_map(|rule| matched(rule)).collect()
}

proptest! {
    /// Operations computed change by change are never refused, lead to what is computed at once,
    /// and leave nothing to repair.
    #[test]
    fn chains_change_by_change_equal_those_from_scratch(
        settings in settings(),
        groups in groups(),
        limit in limit(),
    ) {
        let mut pair = Pair::new(&settings);
        for group in &groups {
            pair.run_in_rounds(group, limit);
            prop_assert!(!pair.planner.is_dirty());
        }
        let scratch = from_scratch(&settings, &World::after(groups.iter().flatten()));
        let (found, expected) = (&pair.kernel.actual().chains, &scratch.kernel.actual().chains);
        prop_assert_eq!(normal(found), normal(expected));
        prop_assert_eq!(pair.problems, scratch.problems);
        for family in &settings.families {
            for table in [Table::Nat, Table::Filter] {
                let n_rules = pair.planner.desired_chains().n_rules(*family, table);
                let there = found.iter();
                let there = there.filter(|(it, _)| (it.family, it.table) == (*family, table));
                prop_assert_eq!(n_rules, there.map(|(_, rules)| rules.len()).sum::<usize>());
            }
        }
    }

    /// Objects may come in any order and be planned in any grouping.
    #[test]
    fn the_order_of_objects_does_not_matter_to_chains(
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
                pair.apply(&waiting);
                let plan = pair.round(limit);
                carry_out(&mut pair.kernel, &plan.ops);
                waiting.clear();
            }
        }
        waiting.append(&mut events);
        pair.run_in_rounds(&waiting, limit);
        let scratch = from_scratch(&settings, &world);
        prop_assert_eq!(
            normal(&pair.kernel.actual().chains),
            normal(&scratch.kernel.actual().chains)
        );
        prop_assert_eq!(pair.problems, scratch.problems);
    }

    /// The same events give the same operations in the same order.
    #[test]
    fn planning_of_chains_is_deterministic(settings in settings(), groups in groups()) {
        let (mut one, mut other) = (Pair::new(&settings), Pair::new(&settings));
        for group in &groups {
            prop_assert_eq!(one.take(group), other.take(group));
        }
        let nothing = Actual::default();
        prop_assert_eq!(one.planner.diff(&nothing), other.planner.diff(&nothing));
    }

    /// Objects that come again as they are change nothing, and another address of the node changes
    /// no more than the last rules.
    #[test]
    fn what_is_known_leaves_chains_alone(settings in settings(), groups in groups()) {
        let world = World::after(groups.iter().flatten());
        let mut pair = from_scratch(&settings, &world);
        for event in world.events() {
            pair.planner.apply(event);
        }
        prop_assert!(!pair.planner.is_dirty());
        prop_assert_eq!(pair.planner.plan(), Plan::default());
        pair.planner.apply(plan::event::Event::LocalAddresses(every_local_address()));
        // A port of an API server on another node is left alone, and one of this node is not.
        let follows_api_server = world.has_api_server_at(&every_local_address());
        for op in pair.planner.plan().ops {
            let is_tail = matches!(
                &op,
                Op::Chain(ChainOp::Write(chain, _))
                    if chain.name == ChainName::Shared(SharedChain::Services)
            );
            let follows_network = settings.local_detection != plan::settings::LocalDetection::None;
            prop_assert!(is_tail || follows_network || follows_api_server, "{}", op);
        }
    }

    /// A frontend that leads somewhere or is refused, before a plan and after it, does one of both
    /// at every moment between.
    #[test]
    fn frontends_lead_somewhere_or_are_refused(settings in settings(), groups in groups()) {
        let mut pair = Pair::new(&settings);
        let open = |kernel: &MemoryKernel, family| {
            let chains = &kernel.actual().chains;
            let mut open = frontends(chains, family, Table::Nat);
            open.append(&mut frontends(chains, family, Table::Filter));
            open
        };
        for group in &groups {
            let plan = pair.take(group);
            prop_assert!(plan.ops.is_sorted_by_key(Op::phase));
            let mut after = pair.kernel.clone();
            carry_out(&mut after, &plan.ops);
            for family in Family::BOTH {
                let (before, after) = (open(&pair.kernel, family), open(&after, family));
                let mut kernel = pair.kernel.clone();
                for op in &plan.ops {
                    carry_out(&mut kernel, std::slice::from_ref(op));
                    let now = open(&kernel, family);
                    let lost: Vec<_> =
                        before.intersection(&after).filter(|it| !now.contains(*it)).collect();
                    prop_assert!(lost.is_empty(), "{}: {:?}; {:#?}", op, lost, plan.ops);
                }
            }
            pair.kernel = after;
        }
    }

    /// Wherever a plan is cut off, a comparison finishes it.
    #[test]
    fn a_comparison_of_chains_finishes_what_was_cut_off(
        settings in settings(),
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
        prop_assert_eq!(
            normal(&pair.kernel.actual().chains),
            normal(&scratch.kernel.actual().chains)
        );
    }

    /// From anything that another planner left and that other programs did to it, a comparison and
    /// a takeover in rounds lead to the desired chains. What is there already costs nothing.
    #[test]
    fn a_takeover_repairs_chains(
        (settings, mut former) in (settings(), settings()),
        (groups, former_groups) in (groups(), groups()),
        damages in proptest::collection::vec(damage(), 0..12),
        limit in limit(),
    ) {
        // The chains of another family are not ours.
        former.families.clone_from(&settings.families);
        let mut found = from_scratch(&former, &World::after(former_groups.iter().flatten()));
        for damage in &damages {
            damage.inflict(found.kernel.actual_mut());
        }
        let world = World::after(groups.iter().flatten());
        let desired = from_scratch(&settings, &world);
        let expected = normal(&desired.kernel.actual().chains);

        let mut compared = found.kernel.clone();
        let ops = desired.planner.diff(compared.actual());
        carry_out(&mut compared, &ops);
        prop_assert_eq!(normal(&compared.actual().chains), expected.clone());
        prop_assert_eq!(desired.planner.diff(compared.actual()), vec![]);

        let mut kernel = found.kernel;
        for is_complete in [false, true] {
            let mut planner = Planner::new(settings.clone());
            world.events().into_iter().for_each(|event| planner.apply(event));
            planner.plan_round(RoundLimit { services: 0, ..RoundLimit::NONE });
            let log = take_over(&mut planner, &mut kernel, limit);
            prop_assert!(!is_complete || log.is_empty(), "{:?}", log);
            prop_assert_eq!(normal(&kernel.actual().chains), expected.clone());
            prop_assert_eq!(planner.diff(kernel.actual()), vec![]);
        }
    }

    /// If one chain or rule of kube-ipvs is lost, a repair of it alone restores everything.
    #[test]
    fn a_repair_brings_back_one_subject(
        settings in settings(),
        groups in groups(),
        which in any::<Index>(),
    ) {
        let mut pair = Pair::new(&settings);
        groups.iter().for_each(|group| pair.run(group));
        let expected = normal(&pair.kernel.actual().chains);
        let mut chains: Vec<ChainId> = pair.kernel.actual().chains.keys().copied().collect();
        chains.sort_unstable();
        let chain = *which.get(&chains);
        let rules = pair.kernel.actual_mut().chains.get_mut(&chain).unwrap();
        let gone = if rules.is_empty() { None } else { Some(rules.remove(which.index(rules.len()))) };
        let subject = match gone {
            Some(rule) if chain.name.is_shared() => ChainOp::Delete(chain, (*rule).into()).subject(),
            _ => ChainOp::Remove(chain).subject(),
        };
        prop_assert!(pair.planner.desired_chains().has(&subject));
        let repair = pair.planner.repair_chain(subject).unwrap();
        prop_assert_eq!(repair.subject() == plan::op::Subject::Chain(subject), matches!(&repair, Op::Chain(ChainOp::Insert(..))) || !chain.name.is_shared() || subject == ChainOp::Remove(chain).subject());
        carry_out(&mut pair.kernel, &[repair]);
        prop_assert_eq!(normal(&pair.kernel.actual().chains), expected);
    }
}

#[test]
fn undesired_chains_are_removed_by_a_repair_too() {
    let planner = Planner::new(Settings { mode: Mode::Iptables, ..Settings::new("this-node") });
    let name = ChainName::parse(Table::Nat, "KUBE-SEP-AAAAAAAAAAAAAAAA").unwrap();
    assert!(matches!(name, ChainName::OfPort(PortChain::Endpoint, _)));
    let chain = ChainId { family: Family::V4, table: Table::Nat, name };
    let remove = ChainOp::Remove(chain);
    assert_eq!(planner.repair_chain(remove.subject()), Some(Op::Chain(remove)));
}
