//! Delays of changes beside what could hold them up: `--held-up`.
//!
//! - A Service of 5,000 endpoints and ten ports, one of whose slices changes every 50 ms: until each of its
//!   ports has the change, and until other Services have theirs.
//! - A restart with another scheduler, after which every virtual server is changed: until other Services
//!   have their changes, those of the takeover and those that come later.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bed::Namespace;
use parking_lot::Mutex;
use plan::kernel_objects::Frontend;
use plan::op::Op;
use plan::scheduler::SchedulerName;
use reconcile::observer::KernelWrite;

use crate::cluster::{Change, Large, Size};
use crate::kind::Kind;
use crate::node::Node;
use crate::ours::Extent;
use crate::{Arguments, wait_until_quiet};

/// Time between two changes of the large Service.
const PACE: Duration = Duration::from_millis(50);
/// Time between two changes of other Services.
const OTHERS: Duration = Duration::from_millis(250);
/// The same during a takeover, which lasts for a second or two.
const OTHERS_AT_START: Duration = Duration::from_millis(20);
/// Time without a change of a scheduler after which all have been made.
const QUIET: Duration = Duration::from_secs(5);

/// Longest time for all changes of a scheduler.
const PATIENCE: Duration = Duration::from_secs(900);

/// When the kernel had what it was last told, shared with the thread that asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Arrived>>);

#[derive(Debug, Default)]
struct Arrived {
    /// When a virtual server had a real server at this address.
    real_servers: HashMap<(Frontend, IpAddr), Instant>,
    /// When the kernel had been read: nothing is written before.
    listed: Option<Instant>,
    /// Number of virtual servers that were changed, and when the last one was.
    changed: usize,
    last_changed: Option<Instant>,
}

/// Delays of changes.
#[derive(Debug, Default)]
struct Delays(Vec<Duration>);

pub(crate) fn measure(arguments: &Arguments) -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    println!("Linux {release}\n");
    println!("| What goes on | changes of it | other Services' changes | median | p99 | longest |");
    println!("|---|---:|---|---:|---:|---:|");
    let size = *arguments.sizes.first().context("no size")?;
    let extent = if arguments.short { Extent::SHORT } else { Extent::LONG };
    let namespace = Namespace::create("held-up")?;
    wait_until_quiet();
    namespace.enter(|| large_service(size, extent, arguments.kind))??;
    namespace.enter(|| another_scheduler(size, extent, arguments.kind))?
}

/// Changes a slice of the large Service again and again, and other Services' endpoints meanwhile.
fn large_service(size: Size, extent: Extent, kind: Kind) -> Result<()> {
    let arrivals = Arrivals::default();
    let (scheduler, watching) = (SchedulerName::default(), Some(arrivals.clone()));
    let node = Node::start_with(size, extent.sync_period, kind, scheduler, watching)?;
    node.tell_all()?;
    let large = Large;
    node.tell(large.events().collect())?;
    node.wait_in_sync()?;
    node.wait_written()?;
    let (began, mut told, mut others) = (Instant::now(), Vec::new(), Vec::new());
    for number in 0..extent.changes {
        let turn = PACE * number;
        thread::sleep(turn.saturating_sub(began.elapsed()));
        let (event, address) = large.changed(number);
        node.tell(vec![event])?;
        told.push((address, Instant::now()));
        if (OTHERS * others.len().try_into()?) <= turn {
            others.push(change(&node, 1, others.len())?);
        }
    }
    node.wait_written()?;
    let arrived = arrivals.0.lock();
    let of_large = told.iter().flat_map(|(address, told)| {
        large.frontends().map(|frontend| arrived.since(frontend, *address, *told))
    });
    let name = format!("5,000 endpoints x 10 ports, a slice changes every {} ms", PACE.as_millis());
    print(&name, told.len(), "of the ten ports of that Service", of_large.collect::<Result<_>>()?);
    let of_others = others.iter().map(|(at, address, told)| arrived.since(*at, *address, *told));
    print(&name, told.len(), "of others", of_others.collect::<Result<_>>()?);
    drop(arrived);
    node.stop()
}

/// Starts with another scheduler, and changes Services' endpoints until all have it.
fn another_scheduler(size: Size, extent: Extent, kind: Kind) -> Result<()> {
    let arrivals = Arrivals::default();
    let scheduler = SchedulerName::new("lc").context("lc is no scheduler")?;
    let watching = Some(arrivals.clone());
    let node = Node::start_with(size, extent.sync_period, kind, scheduler, watching)?;
    let began = Instant::now();
    node.tell_all()?;
    let (mut others, mut n_early) = (Vec::new(), 0);
    loop {
        thread::sleep(if node.seen().is_in_sync { OTHERS } else { OTHERS_AT_START });
        others.push(change(&node, 2, others.len())?);
        if !node.seen().is_in_sync {
            n_early = others.len();
        }
        let arrived = arrivals.0.lock();
        if arrived.last_changed.is_some_and(|at| at.elapsed() >= QUIET) {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "{} changed in {PATIENCE:?}", arrived.changed);
    }
    node.wait_written()?;
    let arrived = arrivals.0.lock();
    let took = arrived.last_changed.unwrap_or(began).saturating_duration_since(began);
    let name = format!("a restart with another scheduler, {:.1} s", took.as_secs_f64());
    let (early, later) = others.split_at(n_early);
    let is_unread = |(_, _, told): &(_, _, Instant)| arrived.listed.is_none_or(|at| *told < at);
    let (unread, early) = early.split_at(early.partition_point(is_unread));
    for (others, whose) in [
        (unread, "of others, until the kernel has been read"),
        (early, "of others, until it is in sync"),
        (later, "of others, then"),
    ] {
        let delays = others.iter().map(|(at, address, told)| arrived.since(*at, *address, *told));
        print(&name, arrived.changed, whose, delays.collect::<Result<_>>()?);
    }
    drop(arrived);
    node.stop()
}

/// Has a Service have other endpoints, from this one on when its turn comes first. Returns its frontend,
/// the address of the last one, which is new, and when that was told.
fn change(node: &Node, first: u32, number: usize) -> Result<(Frontend, IpAddr, Instant)> {
    let (size, number) = (node.size, u32::try_from(number)?);
    let service = number % size.services;
    let first = first + number / size.services;
    let which = first..first + size.endpoints;
    let address = size.endpoint(service, which.end - 1).into();
    node.change(&Change::Endpoints { service, which })?;
    Ok((size.frontend(service), address, Instant::now()))
}

fn print(name: &str, count: usize, whose: &str, mut delays: Delays) {
    delays.0.sort_unstable();
    let place = |percent: usize| delays.0.get(delays.0.len().saturating_sub(1) * percent / 100);
    let text = |delay: Option<&Duration>| {
        delay.map_or_else(|| "-".to_owned(), |it| format!("{:.1} ms", it.as_secs_f64() * 1_000.0))
    };
    let [median, p99, longest] = [50, 99, 100].map(|percent| text(place(percent)));
    println!("| {name} | {count} | {whose} | {median} | {p99} | {longest} |");
}

impl Arrivals {
    pub(crate) fn listed(&self) {
        self.0.lock().listed = Some(Instant::now());
    }

    pub(crate) fn note(&self, write: &KernelWrite<'_>) {
        let now = Instant::now();
        let mut arrived = self.0.lock();
        let done = write.ops.iter().zip(write.results).filter(|(_, result)| result.is_ok());
        for (op, _) in done {
            match op {
                Op::AddRealServer(frontend, server) => {
                    arrived.real_servers.insert((*frontend, server.address), now);
                }
                Op::ChangeVirtualServer(..) => {
                    arrived.changed += 1;
                    arrived.last_changed = Some(now);
                }
                _ => {}
            }
        }
    }
}

impl Arrived {
    /// Returns the time from when it was told until the kernel had it.
    fn since(&self, frontend: Frontend, address: IpAddr, told: Instant) -> Result<Duration> {
        let at = self.real_servers.get(&(frontend, address));
        let at = at.with_context(|| format!("{frontend} never had a real server {address}"))?;
        Ok(at.saturating_duration_since(told))
    }
}

impl FromIterator<Duration> for Delays {
    fn from_iter<T: IntoIterator<Item = Duration>>(delays: T) -> Self {
        Self(delays.into_iter().collect())
    }
}
