//! The thread that owns the kernel's handles.
//!
//! ```text
//!   reconciler ──closure──▶ worker thread ──netlink, iptables──▶ kernel
//!              ◀──oneshot──
//! ```
//!
//! Netlink calls block, for milliseconds when a whole cluster is written; the event loop stays
//! awake meanwhile and gathers what comes in, which the next batch then carries. Repairs of the
//! constant rules run beside the worker, since programs may take seconds, and so do removals and counts of
//! flows and readings of large sets, since the kernel lists a whole table or set for them.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use plan::actual::ActualSet;
use plan::flows::FlowTargets;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::model::Family;
use plan::op::{Op, PartKind};
use plan::sets::SetId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::conntrack::TrackedCounts;
use super::{
    Kernel, KernelRead, ReadError, Refusal, RuleRepairer, SetReader, Stopwatch, TrackedFlows,
};

/// The event loop's end: sends work to the worker and waits for the answers.
#[derive(Clone)]
pub struct KernelHandle {
    jobs: mpsc::Sender<Job>,
    repairer: Arc<dyn RuleRepairer>,
    flows: Arc<dyn TrackedFlows>,
    sets: Arc<dyn SetReader>,
    stopwatch: Arc<dyn Stopwatch>,
    /// Dropped when the worker and all that runs beside it have ended.
    token: Arc<dyn Any + Send + Sync>,
}

/// Repair of a family's constant rules under way, beside the worker.
pub type RuleRepairUnderWay = JoinHandle<Result<RuleRepair, ReadError>>;

/// Removal of stale flows under way, beside the worker.
pub type FlowRemovalUnderWay = JoinHandle<Vec<FlowRemoval>>;

/// Count of tracked connections under way, beside the worker.
pub type TrackedCountUnderWay = JoinHandle<TrackedCount>;

/// Reading of a set under way, beside the worker.
pub type SetReadingUnderWay = JoinHandle<SetReading>;

/// A removal of a family's stale flows.
#[derive(Debug)]
pub struct FlowRemoval {
    pub family: Family,
    /// Number of flows that were removed.
    pub result: Result<u64, Refusal>,
    pub took: Duration,
}

/// A count of the connections that connection tracking carries.
#[derive(Debug)]
pub struct TrackedCount {
    pub counts: Result<TrackedCounts, ReadError>,
    pub took: Duration,
}

/// A repair of a family's constant rules.
#[derive(Debug)]
pub struct RuleRepair {
    /// Result of writing them; none if they were complete.
    pub written: Option<Result<(), Refusal>>,
    pub took: Duration,
}

/// A reading of a set.
#[derive(Debug)]
pub struct SetReading {
    /// The set; none if there is none of this name.
    pub found: Result<Option<ActualSet>, ReadError>,
    pub took: Duration,
}

/// The worker is gone: it panicked, which a supervisor must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel worker thread has ended; this is a bug, please report the log above")]
pub struct WorkerGone;

/// Reason for which a read has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadFailure {
    /// No other call will have a result, either.
    #[error(transparent)]
    WorkerGone(#[from] WorkerGone),
    /// The read can be retried.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
}

/// Work that the worker carries out.
type Job = Box<dyn FnOnce(&mut dyn Kernel, &dyn Stopwatch) + Send>;

impl ReadFailure {
    /// Returns the error of a read that can be retried.
    pub fn retryable(self) -> Result<ReadError, WorkerGone> {
        match self {
            Self::WorkerGone(gone) => Err(gone),
            Self::Unreadable(error) => Ok(error),
        }
    }
}

impl KernelHandle {
    /// Starts the worker. It ends when the last handle is dropped.
    pub fn start(
        kernel: impl Kernel + 'static,
        stopwatch: impl Stopwatch + 'static,
    ) -> std::io::Result<Self> {
        Self::start_holding(kernel, stopwatch, ())
    }

    /// Starts the worker, which drops the token when it has ended and closed the kernel's handles:
    /// a job may still be under way when the last handle is dropped.
    pub fn start_holding(
        mut kernel: impl Kernel + 'static,
        stopwatch: impl Stopwatch + 'static,
        token: impl Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, mut inbox) = mpsc::channel::<Job>(1);
        let (repairer, flows) = (kernel.rule_repairer(), kernel.tracked_flows());
        let sets = kernel.set_reader();
        let stopwatch: Arc<dyn Stopwatch> = Arc::new(stopwatch);
        let token: Arc<dyn Any + Send + Sync> = Arc::new(token);
        let (clock, held) = (Arc::clone(&stopwatch), Arc::clone(&token));
        let handle = Self { jobs, repairer, flows, sets, stopwatch: clock, token: held };
        thread::Builder::new().name("kernel".into()).spawn(move || {
            while let Some(job) = inbox.blocking_recv() {
                job(&mut kernel, &*stopwatch);
            }
            drop(kernel);
            drop(token);
        })?;
        Ok(handle)
    }

    /// Begins to repair a family's constant rules, on a thread of the runtime's pool.
    pub fn repair_rules(&self, family: Family) -> RuleRepairUnderWay {
        let Self { repairer, stopwatch, token, .. } = self.clone();
        tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let read = repairer.read_rule_set(family);
            stopwatch.read(PartKind::Rules.into(), started.elapsed());
            let written = (!read?.is_complete).then(|| {
                let started = Instant::now();
                let written = repairer.write_rule_set(family);
                stopwatch.wrote(PartKind::Rules, started.elapsed());
                written
            });
            drop(repairer);
            drop(token);
            Ok(RuleRepair { written, took: started.elapsed() })
        })
    }

    /// Begins to remove stale flows of each family that has some, on a thread of the runtime's pool.
    pub fn remove_flows(&self, targets: Arc<FlowTargets>) -> FlowRemovalUnderWay {
        let Self { flows, token, .. } = self.clone();
        tokio::task::spawn_blocking(move || {
            let families = Family::BOTH.into_iter().filter(|family| targets.has(*family));
            let removals = families.map(|family| {
                let started = Instant::now();
                let result = flows.remove_flows(family, &targets);
                FlowRemoval { family, result, took: started.elapsed() }
            });
            let removals = removals.collect();
            drop(flows);
            drop(token);
            removals
        })
    }

    /// Begins to count the connections to these frontends that connection tracking carries, on a thread of the
    /// runtime's pool.
    pub fn count_flows(&self, frontends: HashSet<Frontend>) -> TrackedCountUnderWay {
        let Self { flows, token, .. } = self.clone();
        tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let counts = flows.count_flows(&frontends);
            drop(flows);
            drop(token);
            TrackedCount { counts, took: started.elapsed() }
        })
    }

    /// Begins to read a set, on a thread of the runtime's pool.
    pub fn begin_reading(&self, set: SetId) -> SetReadingUnderWay {
        let Self { sets, stopwatch, token, .. } = self.clone();
        tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let found = sets.read_set(set);
            let took = started.elapsed();
            stopwatch.read(PartKind::Sets.into(), took);
            drop(sets);
            drop(token);
            SetReading { found, took }
        })
    }

    /// Makes a call to the kernel, or several.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn Kernel) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.run(|kernel, _| call(kernel)).await
    }

    /// Reads from the kernel, and measures how long that takes.
    ///
    /// # Errors
    /// [`ReadFailure::Unreadable`] if the kernel refuses, [`ReadFailure::WorkerGone`].
    pub async fn read<T: Send + 'static>(
        &self,
        what: impl Into<KernelRead>,
        read: impl FnOnce(&mut dyn Kernel) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadFailure> {
        let what = what.into();
        let found = self.run(move |kernel, stopwatch| {
            let started = Instant::now();
            let found = read(kernel);
            stopwatch.read(what, started.elapsed());
            found
        });
        Ok(found.await??)
    }

    /// See [`Kernel::apply`]. Measures each part of the kernel, and returns the operations beside
    /// their results.
    pub async fn apply(
        &self,
        ops: Vec<Op>,
    ) -> Result<(Vec<Op>, Vec<Result<(), Refusal>>), WorkerGone> {
        self.run(move |kernel, stopwatch| {
            let mut results = Vec::with_capacity(ops.len());
            // Neighbours for the same part go together, as they go to the kernel.
            for part in ops.chunk_by(|one, next| one.kind() == next.kind()) {
                let started = Instant::now();
                results.extend(kernel.apply(part));
                if let Some(op) = part.first() {
                    stopwatch.wrote(op.kind(), started.elapsed());
                }
            }
            (ops, results)
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Kernel, &dyn Stopwatch) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |kernel, stopwatch| {
            // A reply that cannot be sent is no loss: its caller is gone.
            drop(reply.send(work(kernel, stopwatch)));
        });
        self.jobs.send(job).await.map_err(|_| WorkerGone)?;
        answer.await.map_err(|_| WorkerGone)
    }
}

impl fmt::Debug for KernelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelHandle").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::fake::Fake;
    use crate::{Listing, RuleSetReading};

    /// Reads and parts that were reported.
    #[derive(Debug, Clone, Default)]
    struct Reported(Arc<Mutex<Vec<String>>>);

    impl Stopwatch for Reported {
        fn read(&self, what: KernelRead, _: Duration) {
            self.0.lock().unwrap().push(format!("{what:?}"));
        }

        fn wrote(&self, part: PartKind, _: Duration) {
            self.0.lock().unwrap().push(format!("{part:?}"));
        }
    }

    fn bind(last: u8) -> Op {
        Op::BindAddress([10, 96, 0, last].into())
    }

    #[tokio::test]
    async fn every_reading_and_every_part_is_timed_and_passed_on() {
        let reported = Reported::default();
        let kernel = KernelHandle::start(Fake::default(), reported.clone()).unwrap();
        let ops = vec![Op::CreateLink, bind(1), bind(1), bind(2), Op::CreateLink];
        let results = vec![Ok(()); ops.len()];
        assert_eq!(kernel.apply(ops.clone()).await, Ok((ops, results)));
        let signs = kernel.read(KernelRead::DriftCheck, |kernel| kernel.drift_check()).await;
        assert!(signs.unwrap().link);
        let listed = kernel.read(KernelRead::Frontends, |kernel| kernel.list_virtual_servers());
        assert_eq!(listed.await, Ok(Listing::default()));
        let found =
            kernel.read(PartKind::VirtualServers, |kernel| kernel.read_virtual_servers(&[])).await;
        assert_eq!(found, Ok(Vec::new()));
        let set = SetId::all(Family::V4).next().unwrap();
        let found = kernel.read(PartKind::Sets, move |kernel| kernel.read_set(set)).await;
        assert_eq!(found, Ok(None));
        assert_eq!(kernel.begin_reading(set).await.unwrap().found, Ok(None));
        let found = kernel.read(PartKind::Addresses, |kernel| kernel.read_addresses()).await;
        assert_eq!(found.unwrap().bound.len(), 2);
        let read = PartKind::Rules;
        let found = kernel.read(read, |kernel| kernel.read_rule_set(Family::V4)).await;
        assert_eq!(found, Ok(RuleSetReading::default()));
        let repaired = kernel.repair_rules(Family::V4).await.unwrap().unwrap();
        assert_eq!(repaired.written, Some(Ok(())));
        let again = kernel.repair_rules(Family::V4).await.unwrap().unwrap();
        assert_eq!(again.written, None);
        let reported = reported.0.lock().unwrap();
        let expected = "Link Addresses Link DriftCheck Frontends Part(VirtualServers) Part(Sets) \
                        Part(Sets) Part(Addresses) Part(Rules) Part(Rules) Rules Part(Rules)";
        assert_eq!(reported.join(" "), expected);
    }

    #[tokio::test]
    async fn a_token_is_dropped_after_the_last_job() {
        let token = Arc::new(());
        let held = Arc::clone(&token);
        let kernel = KernelHandle::start_holding(Fake::default(), (), held).unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let job = kernel.call(move |_| ended.recv().is_err());
        // The caller does not wait, as a loop that is dropped.
        assert!(tokio::time::timeout(Duration::from_millis(20), job).await.is_err());
        drop(kernel);
        assert_eq!(Arc::strong_count(&token), 2);
        drop(end);
        while Arc::strong_count(&token) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_read_that_fails_can_be_retried() {
        let (fake, reported) = (Fake::default(), Reported::default());
        let kernel = KernelHandle::start(fake.clone(), reported.clone()).unwrap();
        fake.fail_readings(1);
        let read = || kernel.read(PartKind::Addresses, |kernel| kernel.read_addresses());
        assert!(matches!(read().await.unwrap_err().retryable(), Ok(ReadError { .. })));
        assert!(read().await.is_ok());
        assert_eq!(*reported.0.lock().unwrap(), ["Part(Addresses)", "Part(Addresses)"]);
    }

    #[tokio::test]
    async fn after_a_panic_of_the_worker_every_call_says_that_it_is_gone() {
        let kernel = KernelHandle::start(Fake::default(), ()).unwrap();
        assert_eq!(kernel.call(|_| -> () { panic!("on purpose") }).await, Err(WorkerGone));
        assert_eq!(kernel.call(|_| ()).await, Err(WorkerGone));
        assert_eq!(kernel.apply(vec![Op::CreateLink]).await, Err(WorkerGone));
        let read = kernel.read(PartKind::Addresses, |kernel| kernel.read_addresses()).await;
        assert_eq!(read.unwrap_err().retryable(), Err(WorkerGone));
    }
}
