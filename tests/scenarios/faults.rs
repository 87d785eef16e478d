//! One fault of every kind at every step of a node's life, then random storms of them: whatever
//! the kernel answers, in the end it is exactly as desired.
//!
//! The usual run takes a sample that differs from kind to kind. With `KUBE_IPVS_SOAK` set, as
//! `cargo xtask soak` does, nothing is left out.

mod fault;
mod life;
mod refused_all;
mod storm;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use kernel::RefusalClass;
use plan::chains::ChainOp;
use plan::mode::Mode;
use plan::op::Op;
use plan::routes::RouteOp;

use fault::{Case, Fault, Seen};
use life::Life;

/// The modes in which every life is lived.
const MODES: [Mode; 2] = [Mode::Ipvs, Mode::Iptables];

/// True if nothing is to be left out.
pub(crate) fn is_soak() -> bool {
    std::env::var_os("KUBE_IPVS_SOAK").is_some()
}

/// For how long there must be nothing to write when all is over: longer than the longest pause
/// between two attempts.
fn quiet_time(fault: Fault) -> Duration {
    Duration::from_secs(match fault {
        Fault::None => 3_600,
        _ if is_soak() => 600,
        _ => 70,
    })
}

/// Runs with the clock paused.
fn with_paused_clock<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
}

/// Lives through the whole life with this fault in it.
fn live(case: Case) -> Seen {
    with_paused_clock(async move {
        let life = Life::begin(case).await;
        life.through().await
    })
}

fn live_without_fault(mode: Mode) -> Seen {
    live(Case { mode, fault: Fault::None, at: 0, times: 0, dies: false })
}

/// Tries the cases and tells of all that went wrong.
fn try_all(cases: impl Iterator<Item = Case>) {
    let mut tried = 0;
    let mut wrong = Vec::new();
    for case in cases {
        tried += 1;
        eprintln!("{case}");
        match catch_unwind(AssertUnwindSafe(|| live(case))) {
            Ok(seen) if !seen.struck => eprintln!("it did not come to that: {case}"),
            Ok(_) => {}
            Err(_) => wrong.push(case.to_string()),
        }
    }
    eprintln!("{tried} cases");
    assert!(tried > 0);
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Some of the numbers below `end`, others for each `kind`; all of them in a soak.
fn sample(end: usize, kind: usize, most: usize) -> impl Iterator<Item = usize> {
    let stride = if is_soak() { 1 } else { end.div_ceil(most).max(1) };
    (kind % stride..end).step_by(stride)
}

fn at_every_writing(faults: &[Fault], times: usize) {
    for mode in MODES {
        try_all(cases_at_every_writing(mode, faults, times).into_iter());
    }
}

fn cases_at_every_writing(mode: Mode, faults: &[Fault], times: usize) -> Vec<Case> {
    let seen = live_without_fault(mode);
    let cases = faults.iter().enumerate().flat_map(|(kind, fault)| {
        let possible: Vec<usize> =
            (0..seen.writings.len()).filter(|at| fault.concerns(&seen.writings[*at])).collect();
        let chosen = sample(possible.len(), kind, 4).map(move |index| possible[index]);
        let case = move |at, dies| Case { mode, fault: *fault, at, times, dies };
        chosen.flat_map(move |at| [case(at, false), case(at, true)]).collect::<Vec<Case>>()
    });
    cases.collect()
}

#[test]
fn the_life_has_every_kind_of_operation_and_ends_as_desired() {
    let seen = live_without_fault(Mode::Ipvs);
    let has = |like: fn(&Op) -> bool| seen.writings.iter().any(like);
    assert!(has(|op| matches!(op, Op::CreateLink)));
    assert!(has(|op| matches!(op, Op::CreateSet(..))));
    assert!(has(|op| matches!(op, Op::GrowSet(..))));
    assert!(has(|op| matches!(op, Op::WriteRuleSet(_))));
    assert!(has(|op| matches!(op, Op::AddEntry(..))));
    assert!(has(|op| matches!(op, Op::RemoveEntry(..))));
    assert!(has(|op| matches!(op, Op::CreateVirtualServer(..))));
    assert!(has(|op| matches!(op, Op::ChangeVirtualServer(..))));
    assert!(has(|op| matches!(op, Op::RemoveVirtualServer(_))));
    assert!(has(|op| matches!(op, Op::AddRealServer(..))));
    assert!(has(|op| matches!(op, Op::ChangeRealServer(..))));
    assert!(has(|op| matches!(op, Op::DrainRealServer(..))));
    assert!(has(|op| matches!(op, Op::RemoveRealServer(..))));
    assert!(has(|op| matches!(op, Op::BindAddress(_))));
    assert!(has(|op| matches!(op, Op::UnbindAddress(_))));
    assert!(has(|op| matches!(op, Op::Route(RouteOp::Add(_)))));
    assert!(has(|op| matches!(op, Op::Route(RouteOp::Remove(_)))));
    assert!(seen.flows > 0);
    eprintln!("{} operations, readings: {:?}", seen.writings.len(), seen.readings);
}

#[test]
fn the_same_life_has_every_kind_of_operation_of_iptables_mode() {
    let seen = live_without_fault(Mode::Iptables);
    let has = |like: fn(&ChainOp) -> bool| {
        seen.writings.iter().any(|op| matches!(op, Op::Chain(change) if like(change)))
    };
    assert!(has(|op| matches!(op, ChainOp::Write(..))));
    assert!(has(|op| matches!(op, ChainOp::Insert(..))));
    assert!(has(|op| matches!(op, ChainOp::Delete(..))));
    assert!(has(|op| matches!(op, ChainOp::Remove(_))));
    let of_this_mode = |op: &Op| matches!(op, Op::Chain(_) | Op::WriteRuleSet(_));
    assert!(seen.writings.iter().all(of_this_mode));
    assert!(seen.flows > 0);
    eprintln!("{} operations, readings: {:?}", seen.writings.len(), seen.readings);
}

#[test]
fn every_refusal_at_every_operation() {
    let classes = [
        RefusalClass::Conflict,
        RefusalClass::SetFull,
        RefusalClass::Exhausted,
        RefusalClass::NotPermitted,
        RefusalClass::NotSupported,
        RefusalClass::NoScheduler,
        RefusalClass::Other,
    ];
    at_every_writing(&classes.map(Fault::Refused), 1);
}

#[test]
fn refusals_in_a_row_at_every_operation() {
    let faults = [
        Fault::Refused(RefusalClass::Conflict),
        Fault::Refused(RefusalClass::Exhausted),
        Fault::NotDone,
        Fault::NotAnswered,
    ];
    at_every_writing(&faults, 5);
    at_every_writing(&faults, 60);
}

#[test]
fn a_lost_answer_at_every_operation() {
    at_every_writing(&[Fault::NotDone, Fault::NotAnswered], 1);
}

#[test]
fn somebody_else_at_every_operation() {
    at_every_writing(&[Fault::TheirsFirst, Fault::Undermined, Fault::Undone], 1);
}

#[test]
fn a_closed_socket_at_every_operation() {
    at_every_writing(&[Fault::Closed], 1);
    at_every_writing(&[Fault::Closed], 20);
}

#[test]
fn every_reading_fails_or_misses_something() {
    for mode in MODES {
        every_reading_of(mode);
    }
}

fn every_reading_of(mode: Mode) {
    let seen = live_without_fault(mode);
    let cases = seen.readings.into_iter().enumerate().flat_map(|(kind, (reading, end))| {
        let faults = [(Fault::Unread(reading), 1), (Fault::Unread(reading), 5)];
        let misses = Fault::can_miss(reading).then_some((Fault::Missed(reading), 1));
        faults.into_iter().chain(misses).flat_map(move |(fault, times)| {
            let case = move |at, dies| Case { mode, fault, at, times, dies };
            sample(end, kind, 4).flat_map(move |at| [case(at, false), case(at, true)])
        })
    });
    try_all(cases);
}

#[test]
fn flows_cannot_be_removed() {
    for mode in MODES {
        let seen = live_without_fault(mode);
        let case = |at, times, dies| Case { mode, fault: Fault::FlowsKept, at, times, dies };
        let cases = sample(seen.flows, 0, 4);
        try_all(cases.flat_map(|at| [case(at, 1, false), case(at, 5, false), case(at, 1, true)]));
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, fault, at, times, dies } = self;
        write!(f, "{mode}: {fault:?} at {at}, {times} times")?;
        if *dies { f.write_str(", and is killed") } else { Ok(()) }
    }
}
