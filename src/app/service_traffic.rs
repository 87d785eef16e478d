//! Readings of the traffic of single Services, for their metrics: `serviceMetrics`.
//!
//! They are a slow cycle beside everything else: on the servers' thread and the runtime's pool, with a
//! socket of their own. The event loop is asked for the owners of frontends, a few at a time.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::ServiceName;
use plan::op::PartKind;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use config::Configuration;
use kernel::conntrack::{self, ConntrackClient};
use kernel::traffic::{TrackedTraffic, TrafficReader};
use kernel::{CurrentConnections, ReadError, TrafficCounters, estimators, sysctl};
use reconcile::inquiry::{CHUNK, Inquiries, LoopGone};
use serve::metrics::Metrics;
use serve::metrics::services::{
    Accounts, FrontendTraffic, MeasuredServices, ServiceMetrics, ServiceReading,
};

/// Pause between two readings.
const PERIOD: Duration = Duration::from_secs(15);

/// Part of the time that readings may take, as its reciprocal: one fiftieth.
const SHARE: u32 = 50;

/// Virtual servers whose real servers are read without a pause.
const READ_AT_ONCE: usize = 64;

/// Cycle of readings.
pub(super) struct ServiceTrafficCycle {
    selection: MeasuredServices,
    inquiries: Inquiries,
    /// None: none are wanted, or the mode has no counters.
    metrics: Option<ServiceMetrics>,
    at_work: TaskTracker,
}

/// The kernel's socket, and what it was used for.
struct TimedReader {
    reader: Option<TrafficReader>,
    at_work: TaskTracker,
    /// Time of the readings since [`TimedReader::begin`].
    took: Duration,
    /// Time of the last count among them.
    counting: Duration,
}

/// Failure of a reading.
#[derive(Debug)]
enum Failure {
    /// The kernel gave no answer that can be read.
    Kernel(anyhow::Error),
    /// The event loop has ended.
    Loop(LoopGone),
}

impl ServiceTrafficCycle {
    /// Adds the metrics, if the operator wants them. Only mode ipvs has the counters.
    pub(super) fn new(
        configuration: &Configuration,
        mode: Mode,
        measured: &Metrics,
        inquiries: Inquiries,
        at_work: &TaskTracker,
    ) -> Result<Self, prometheus::Error> {
        let selection = configuration.measured_services.clone();
        let is_wanted = mode.uses(PartKind::VirtualServers) && selection != MeasuredServices::Off;
        let metrics = is_wanted.then(|| measured.add_services()).transpose()?;
        Ok(Self { selection, inquiries, metrics, at_work: at_work.clone() })
    }

    /// Reads until the event loop has ended.
    pub(super) async fn run(self) {
        let Some(metrics) = &self.metrics else { return };
        let mut accounts = Accounts::new(self.selection.clone());
        let mut reader = TimedReader::new(self.at_work.clone());
        let (mut last, mut has_failed) = (Instant::now(), false);
        loop {
            reader.begin();
            let now = Instant::now();
            match self.read(&mut reader, &mut accounts, now.duration_since(last)).await {
                Ok(reading) => {
                    metrics.set(reading);
                    last = now;
                    if has_failed {
                        info!("reading the traffic of Services works again");
                    }
                    has_failed = false;
                }
                Err(Failure::Loop(LoopGone)) => return,
                Err(Failure::Kernel(error)) => {
                    metrics.failed();
                    reader.close();
                    if !has_failed {
                        warn!(
                            "cannot read the traffic of Services: {error:#}; the metrics \
                             kube_ipvs_service_* keep their values; next attempt in {PERIOD:?}"
                        );
                    }
                    has_failed = true;
                }
            }
            let rest = reader.counting.saturating_mul(conntrack::REST);
            sleep(PERIOD.max(reader.took.saturating_mul(SHARE)).max(rest)).await;
        }
    }

    async fn read(
        &self,
        reader: &mut TimedReader,
        accounts: &mut Accounts,
        elapsed: Duration,
    ) -> Result<ServiceReading, Failure> {
        let counters = reader.run(TrafficReader::counters).await?;
        let traffic = self.with_owners(counters).await?;
        let shown = accounts.add(traffic, elapsed);
        let frontends: Vec<Frontend> =
            shown.services.iter().flat_map(|(_, frontends)| frontends).copied().collect();
        let led_to = self.led_to(&frontends).await?;
        let asked = |it: &Frontend| led_to.as_ref().and_then(|all| all.get(it)).copied();
        let asked: Vec<Frontend> = frontends.iter().map(|it| asked(it).unwrap_or(*it)).collect();
        let mut tracked = match led_to {
            Some(led_to) => reader.count(&asked, led_to).await?,
            None => TrackedTraffic::default(),
        };
        let mut frontends = frontends.into_iter();
        let mut connections = Vec::new();
        loop {
            let some: Vec<Frontend> = frontends.by_ref().take(READ_AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            let before = reader.took;
            let read;
            (read, tracked) = reader
                .run(move |reader| Ok((reader.connections(&some, &mut tracked)?, tracked)))
                .await?;
            connections.extend(read);
            // Others that need the kernel or the processor get as much time.
            sleep(reader.took.saturating_sub(before)).await;
        }
        // The first virtual server of several that clients are led to from a frontend has its connections.
        let mut by_frontend = tracked.by_frontend();
        let tracked = |asked: &Frontend| by_frontend.remove(asked).unwrap_or_default();
        let tracked: Vec<CurrentConnections> = asked.iter().map(tracked).collect();
        let connections = connections.into_iter().zip(tracked);
        let mut connections = connections.map(|(by_ipvs, tracked)| by_ipvs.plus(tracked));
        let of_services = shown.services.into_iter().map(|(service, frontends)| {
            let of_service = connections.by_ref().take(frontends.len());
            (service, of_service.fold(CurrentConnections::default(), CurrentConnections::plus))
        });
        Ok(ServiceReading {
            services: accounts.traffic(of_services),
            n_omitted: shown.n_omitted,
            statistics_running: estimators::are_running(Path::new(sysctl::ROOT)),
            took: reader.took,
            at: SystemTime::now(),
        })
    }

    /// Asks the event loop for the internal frontends among these frontends, each with the frontend that clients ask. None: the
    /// fast path is not in force, and IPVS knows all connections.
    async fn led_to(
        &self,
        frontends: &[Frontend],
    ) -> Result<Option<HashMap<Frontend, Frontend>>, Failure> {
        let mut led_to = HashMap::default();
        for chunk in frontends.chunks(CHUNK) {
            let chunk = chunk.to_vec();
            let of_chunk = self.inquiries.ask(move |view| {
                let asked = |it: Frontend| (it, view.planner.as_seen_by_clients(it));
                let of_chunk = chunk.into_iter().map(asked).filter(|(it, asked)| it != asked);
                view.planner.settings().has_fast_path().then(|| of_chunk.collect::<Vec<_>>())
            });
            match of_chunk.await.map_err(Failure::Loop)? {
                Some(of_chunk) => led_to.extend(of_chunk),
                None => return Ok(None),
            }
        }
        Ok(Some(led_to))
    }

    /// Asks the event loop which Service each frontend belongs to.
    async fn with_owners(
        &self,
        counters: Vec<(Frontend, TrafficCounters)>,
    ) -> Result<Vec<FrontendTraffic>, Failure> {
        let mut traffic = Vec::with_capacity(counters.len());
        for chunk in counters.chunks(CHUNK) {
            let frontends: Vec<Frontend> = chunk.iter().map(|(frontend, _)| *frontend).collect();
            let owners: Vec<Option<ServiceName>> = self
                .inquiries
                .ask(move |view| {
                    let desired = view.planner.desired();
                    frontends.iter().map(|frontend| desired.owner(frontend).cloned()).collect()
                })
                .await
                .map_err(Failure::Loop)?;
            let with_owners = chunk.iter().zip(owners);
            traffic.extend(with_owners.map(|((frontend, counters), owner)| FrontendTraffic {
                frontend: *frontend,
                owner,
                counters: *counters,
            }));
        }
        Ok(traffic)
    }
}

impl TimedReader {
    fn new(at_work: TaskTracker) -> Self {
        Self { reader: None, at_work, took: Duration::ZERO, counting: Duration::ZERO }
    }

    /// Begins to measure a reading.
    fn begin(&mut self) {
        (self.took, self.counting) = (Duration::ZERO, Duration::ZERO);
    }

    /// Closes the socket, of which it is not known what comes next.
    fn close(&mut self) {
        self.reader = None;
    }

    /// Counts the connections that conntrack carries to frontends, as clients see them.
    async fn count(
        &mut self,
        frontends: &[Frontend],
        led_to: HashMap<Frontend, Frontend>,
    ) -> Result<TrackedTraffic, Failure> {
        let frontends: HashSet<Frontend> = frontends.iter().copied().collect();
        let before = self.took;
        let count = move |_: &mut TrafficReader| {
            let counts = ConntrackClient::open().and_then(|mut client| client.count(&frontends));
            counts.map_err(|error| ReadError::new("conntrack entries", error))
        };
        let counts = self.run(count).await?;
        self.counting = self.took.saturating_sub(before);
        Ok(TrackedTraffic::new(counts, led_to))
    }

    /// Reads on a thread of the runtime's pool.
    async fn run<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(&mut TrafficReader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Failure> {
        let reader = self.reader.take();
        let done = self.at_work.spawn_blocking(move || {
            let began = Instant::now();
            let mut reader = reader.map_or_else(TrafficReader::open, Ok)?;
            let found = read(&mut reader)?;
            Ok::<_, ReadError>((reader, found, began.elapsed()))
        });
        let done = done.await.context("read on the runtime's pool");
        let done = done.and_then(|done| done.map_err(anyhow::Error::from));
        let (reader, found, took) = done.map_err(Failure::Kernel)?;
        self.reader = Some(reader);
        self.took += took;
        Ok(found)
    }
}
