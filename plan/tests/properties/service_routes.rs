//! Changes from addresses to local routes and back, in the middle of other changes.

use std::net::IpAddr;

use ipnet::IpNet;
use plan::actual::Actual;
use plan::event::Event;
use plan::model::Family;
use plan::settings::{FastPath, RuleForm, Settings};
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::world::{ROUTES, World, groups, settings};
use crate::{Pair, carry_out, from_scratch};

fn is_local(actual: &Actual, address: IpAddr) -> bool {
    actual.addresses.contains(&address) || actual.routes.iter().any(|net| net.contains(&address))
}

/// Plans events, and carries out what is planned: an address that is local before and after is local in
/// between. Nothing is left to repair.
fn run(pair: &mut Pair, events: &[Event]) {
    pair.apply(events);
    while pair.planner.is_dirty() {
        let mut stages = vec![pair.kernel.actual().clone()];
        for op in pair.take(&[]).ops {
            carry_out(&mut pair.kernel, &[op]);
            stages.push(pair.kernel.actual().clone());
        }
        let [first, .., last] = &stages[..] else { continue };
        let bound = stages.iter().flat_map(|stage| &stage.addresses).copied();
        for address in bound.filter(|it| is_local(first, *it) && is_local(last, *it)) {
            assert!(stages.iter().all(|stage| is_local(stage, address)), "{address}");
        }
        assert_eq!(pair.planner.diff(pair.kernel.actual()), []);
    }
}

/// Changes a family, and takes a group of events at each step.
fn change<'a>(
    pair: &mut Pair,
    family: Family,
    wanted: &[IpNet],
    groups: &mut impl Iterator<Item = &'a Vec<Event>>,
) {
    let former = pair.planner.service_routes(family);
    let excess = |net: &IpNet, than: &[IpNet]| !than.contains(net);
    let new: Vec<IpNet> = wanted.iter().filter(|net| excess(net, &former)).copied().collect();
    let all = [former, new.clone()].concat();
    pair.planner.set_service_routes(family, all.clone(), new);
    run(pair, groups.next().map_or(&[][..], Vec::as_slice));
    let bound = all.iter().filter(|net| excess(net, wanted)).copied().collect();
    pair.planner.set_service_routes(family, all, bound);
    let mut after = None;
    loop {
        (_, after) = pair.planner.plan_outdated(family, after.as_ref(), 1);
        run(pair, groups.next().map_or(&[][..], Vec::as_slice));
        if after.is_none() {
            break;
        }
    }
    pair.planner.set_service_routes(family, wanted.to_vec(), Vec::new());
    run(pair, &[]);
}

proptest! {
    #[test]
    fn a_change_ends_as_if_it_had_begun_so(
        settings in settings(),
        is_fast in any::<bool>(),
        groups in groups(),
        orders in proptest::collection::vec(subsequence(ROUTES.to_vec(), 0..=ROUTES.len()), 1..4),
    ) {
        let (rule_form, fast_path) =
            if is_fast { (RuleForm::Nftables, FastPath::Conntrack) } else { Default::default() };
        let settings = Settings { rule_form, fast_path, ..settings };
        let mut pair = Pair::new(&settings);
        let mut events = groups.iter();
        run(&mut pair, events.next().map_or(&[], Vec::as_slice));
        let mut service_routes = settings.service_routes.clone();
        for order in orders {
            service_routes = order.iter().map(|text| text.parse().unwrap()).collect();
            for family in Family::BOTH {
                let mut wanted = service_routes.clone();
                wanted.retain(|net| Family::of_net(net) == family);
                change(&mut pair, family, &wanted, &mut events);
            }
        }
        events.for_each(|group| run(&mut pair, group));
        let settings = Settings { service_routes, ..settings };
        let scratch = from_scratch(&settings, &World::after(groups.iter().flatten()));
        prop_assert_eq!(pair.kernel.actual(), scratch.kernel.actual());
        prop_assert_eq!(pair.problems, scratch.problems);
    }
}
