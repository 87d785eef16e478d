//! A preview of a change is what the change then writes.

use std::collections::BTreeSet;

use plan::chains::ChainOp;
use plan::event::Event;
use plan::mode::Mode;
use plan::model::ServiceName;
use plan::op::Op;
use plan::planner::Planner;
use plan::preview::{Preview, Previewed};
use plan::settings::Settings;
use proptest::prelude::*;
use proptest::sample::select;

use crate::world::{groups, settings};

/// Previews a change as the console does: asks a planner for what the preview lacks.
fn preview(planner: &Planner, events: &[Event]) -> (Preview, Previewed) {
    let mut preview = Preview::new(planner.excerpt(), events.to_vec());
    let concerned = events.iter().filter_map(|event| planner.concerned_by(event));
    let mut missing: BTreeSet<ServiceName> = concerned.flatten().collect();
    loop {
        for name in std::mem::take(&mut missing) {
            let input = planner.input_of(&name);
            preview.take(name, input);
        }
        let previewed = preview.plan();
        let claimants = previewed.claimed(&preview).into_iter();
        let claimants = claimants.flat_map(|frontend| planner.claimants_of(&frontend));
        missing.extend(claimants.filter(|name| !preview.has(name)));
        if missing.is_empty() {
            return (preview, previewed);
        }
    }
}

/// Operations as text, in order. A shared chain that is written as a whole has the rules of all
/// Services.
fn normal(ops: impl Iterator<Item = Op>) -> Vec<String> {
    let text = |op| match op {
        Op::Chain(ChainOp::Write(chain, _)) if chain.name.is_shared() => format!("write {chain:?}"),
        op => format!("{op:?}"),
    };
    let mut ops: Vec<String> = ops.map(text).collect();
    ops.sort();
    ops
}

fn is_about_services(event: &Event) -> bool {
    matches!(
        event,
        Event::ServiceApplied(_)
            | Event::ServiceRemoved(_)
            | Event::SliceApplied(_)
            | Event::SliceRemoved(_)
    )
}

fn settings_of_modes() -> impl Strategy<Value = Settings> {
    (settings(), select(vec![Mode::Ipvs, Mode::Ipvs, Mode::Iptables]))
        .prop_map(|(settings, mode)| Settings { mode, ..settings })
}

proptest! {
    #[test]
    fn a_preview_is_what_the_change_then_writes(
        settings in settings_of_modes(),
        groups in groups(),
        change in groups(),
    ) {
        let mut planner = Planner::new(settings);
        groups.into_iter().flatten().for_each(|event| planner.apply(event));
        drop(planner.plan());
        for events in change {
            let events: Vec<Event> = events.into_iter().filter(is_about_services).collect();
            let (_, previewed) = preview(&planner, &events);
            let foretold = previewed.plan.ops.iter().filter(|op| {
                !previewed.is_needed_elsewhere(op, planner.n_users(&op.subject()))
            });
            let foretold = normal(foretold.cloned());
            events.into_iter().for_each(|event| planner.apply(event));
            prop_assert_eq!(foretold, normal(planner.plan().ops.into_iter()));
        }
    }

    #[test]
    fn a_preview_leaves_the_planner_alone(settings in settings_of_modes(), groups in groups()) {
        let mut planner = Planner::new(settings);
        groups.iter().flatten().for_each(|event| planner.apply(event.clone()));
        drop(planner.plan());
        let events: Vec<Event> = groups.into_iter().flatten().filter(is_about_services).collect();
        let (preview, _) = preview(&planner, &events);
        prop_assert!(!planner.is_dirty() && planner.plan().ops.is_empty());
        prop_assert!(preview.n_services() <= 4);
    }
}
