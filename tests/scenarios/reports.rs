//! Reports of the event loop to an observer.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use kernel::RefusalClass;
use kernel::fake::{FakeAnswer, KernelCall};
use plan::event::Event;
use plan::model::Family;
use plan::op::Op;
use reconcile::observer::{HandDrainReport, KernelWrite, Observer, Report, RoundKind, RuleCount};

use crate::world::{World, slice, tcp};

/// Keeps what it is reports, in short words.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reports(Arc<Mutex<Vec<String>>>);

const SERVED: &str = "most is served";

impl Reports {
    fn note(&self, words: impl Into<String>) {
        self.0.lock().unwrap().push(words.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Reports {
    fn report(&mut self, report: &Report<'_>) {
        self.note(match report {
            Report::Arrived(Event::ServiceApplied(_)) => "service".to_owned(),
            Report::Arrived(Event::SliceApplied(_)) => "slice".to_owned(),
            Report::Arrived(_) => "other".to_owned(),
            Report::Waiting(_) => "waiting".to_owned(),
            Report::Planned { plan, .. } => format!("planned {}", plan.ops.len()),
            Report::Drifted { repairs, .. } => format!("drifted {}", repairs.len()),
            Report::SysctlWarning(note) => (*note).to_owned(),
            Report::HandDrained(HandDrainReport { note, count, .. }) => {
                format!("{note} ({count} in force)")
            }
            Report::HeldUp(None) => "stalled no more".to_owned(),
            Report::HeldUp(Some(note)) => format!("stalled: {note}"),
            Report::Served => SERVED.to_owned(),
            Report::FullSpeed(true) => "full speed".to_owned(),
            Report::FullSpeed(false) => "full speed is over".to_owned(),
            Report::Written(KernelWrite { ops, results, .. }) => {
                let refused = results.iter().filter(|result| result.is_err()).count();
                format!("written {}, refused {refused}", ops.len())
            }
            Report::RulesCounted(RuleCount { family, table, total, written }) => {
                format!("rules {family} {table} {total}, written {written}")
            }
            Report::RoundEnded(round) => {
                let kind = match round.kind {
                    RoundKind::Changes => "changes",
                    RoundKind::Comparison => "comparison",
                    RoundKind::Retry => "retry",
                };
                let (pending, triggers) = (round.pending.len(), round.triggers.len());
                format!("end of {kind}: {pending} pending, {triggers} triggers")
            }
            _ => return,
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_reported_from_its_arrival_to_the_kernels_answer() {
    let services = [tcp(1, &[1])];
    let mut world = World::in_sync(&services).await;
    let first = world.reports.take();
    let last = ["end of comparison: 0 pending, 0 triggers", SERVED].map(str::to_owned);
    assert!(first.ends_with(&last), "{first:?}");
    assert!(first.contains(&"waiting".to_owned()), "{first:?}");
    let operations = world.now().operations;
    world.triggered(Family::V4, SystemTime::UNIX_EPOCH).await;
    world.taken().await;
    world.apply_slice(slice(&services[0].0, &[1, 2])).await;
    world.until("written", |status, _| status.operations > operations).await;
    world.compared().await;
    assert_eq!(
        world.reports.take(),
        [
            "slice",
            "waiting",
            "planned 1",
            "written 1, refused 0",
            "end of changes: 0 pending, 1 triggers",
            "end of comparison: 0 pending, 0 triggers",
            "end of comparison: 0 pending, 0 triggers",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_reported_and_so_is_its_retry() {
    let services = [tcp(1, &[1])];
    let mut world = World::in_sync(&services).await;
    world.reports.take();
    world.fake.refuse(1, RefusalClass::Exhausted, |_| true);
    world.apply_slice(slice(&services[0].0, &[1, 2])).await;
    world.until("pending", |status, _| status.pending == 1).await;
    world.until("settled", |status, _| status.pending == 0).await;
    assert_eq!(
        world.reports.take()[2..],
        [
            "planned 1",
            "written 1, refused 1",
            "end of changes: 1 pending, 0 triggers",
            "written 1, refused 0",
            "end of retry: 0 pending, 0 triggers",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_refused_most_virtual_servers_does_not_count_as_served() {
    let mut world = World::new();
    world.fake.interfere(|call, _| match call {
        KernelCall::Writing(Op::CreateVirtualServer(..)) => {
            FakeAnswer::refused(RefusalClass::NotSupported)
        }
        _ => FakeAnswer::Honest,
    });
    world.feed(&[tcp(1, &[1]), tcp(2, &[2])]).await;
    world.complete().await;
    world.until("in sync", |status, _| status.in_sync_once).await;
    world.until("retried", |status, _| status.failures > 4).await;
    let served = SERVED.to_owned();
    assert!(!world.reports.take().contains(&served));
    world.fake.interfere(|_, _| FakeAnswer::Honest);
    world.until("in order", |status, _| status.pending == 0).await;
    world.compared().await;
    assert!(world.reports.take().contains(&served));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_for_long_does_not_fill_the_memory() {
    let mut world = World::new();
    for _ in 0..10_050 {
        world.triggered(Family::V4, SystemTime::UNIX_EPOCH).await;
    }
    world.complete().await;
    let reports = world.reports.take();
    assert!(
        reports.contains(&"end of comparison: 0 pending, 10000 triggers".to_owned()),
        "{reports:?}"
    );
}
