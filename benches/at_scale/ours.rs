//! Cost of the loop, from the first event to nothing at all for a minute.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::checker::Checker;
use crate::cluster::{Change, Size};
use crate::cost::Stopwatch;
use crate::damage;
use crate::kind::Kind;
use crate::metered::Seen;
use crate::node::{Node, PATIENCE};
use crate::schema::Line;

/// Durations to watch, and numbers of changes to make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) sync_period: Duration,
    /// Time in which nothing changes at all.
    pub(crate) idle: Duration,
    /// Changes of one endpoint, of each kind.
    pub(crate) changes: u32,
    /// Services that are added and removed, one after the other.
    pub(crate) services: u32,
    /// Services of the rolling update.
    pub(crate) updated: u32,
    /// Changes of one endpoint where modes are compared.
    pub(crate) few: u32,
}

/// Measurements of a running loop.
struct Run {
    node: Node,
    checker: Checker,
    extent: Extent,
    /// True if other programs may not change sets and rules.
    is_owner: bool,
    lines: Vec<Line>,
}

impl Extent {
    /// A minute of nothing, and enough changes for a 99th percentile.
    pub(crate) const LONG: Self = Self {
        sync_period: Duration::from_secs(30),
        idle: Duration::from_secs(60),
        changes: 500,
        services: 100,
        updated: 100,
        few: 20,
    };
    /// For a look, and for tests.
    pub(crate) const SHORT: Self = Self {
        sync_period: Duration::from_secs(5),
        idle: Duration::from_secs(10),
        changes: 100,
        services: 20,
        updated: 100,
        few: 5,
    };
}

/// From an empty kernel to the complete state.
pub(crate) fn first(size: Size, extent: Extent, kind: Kind) -> Result<Vec<Line>> {
    let node = Node::start(size, extent.sync_period, kind)?;
    let watch = Stopwatch::start(node.seen().counts)?;
    let (_, told) = node.tell_all()?;
    let seen = node.wait_in_sync()?;
    ensure!(seen.refused == 0, "{} operations were refused in the first sync", seen.refused);
    let written = seen.written.unwrap_or(told);
    let all = watch.stop("first_sync", written, seen.counts)?;
    let served = seen.first_service.unwrap_or(written);
    let mut lines = vec![all];
    for (name, ended) in
        [("first_sync_after_source", written), ("first_service_after_source", served)]
    {
        let wall_ms = crate::cost::milliseconds(ended.saturating_duration_since(told));
        lines.push(Line { name: name.to_owned(), count: 1, wall_ms, ..Line::default() });
    }
    node.stop()?;
    Ok(lines)
}

/// A restart on the complete state, and nothing else.
pub(crate) fn again(size: Size, extent: Extent, kind: Kind) -> Result<Vec<Line>> {
    let node = Node::start(size, extent.sync_period, kind)?;
    let line = restart(&node)?;
    node.stop()?;
    Ok(vec![line])
}

/// From the complete state on: a restart under a change, and everything that happens then.
pub(crate) fn rest(size: Size, extent: Extent, kind: Kind) -> Result<Vec<Line>> {
    let changed = restart_under_change(size, extent, kind)?;
    let node = Node::start(size, extent.sync_period, kind)?;
    restart(&node)?;
    let checker = Checker::start(size, kind)?;
    let is_owner = kind.tables;
    let mut run = Run { node, checker, extent, is_owner, lines: vec![changed] };
    run.checker.wait_exact("the restart")?;
    run.endpoints()?;
    run.services()?;
    run.rolling_update()?;
    run.idle()?;
    run.verification()?;
    run.changes_meanwhile()?;
    run.damages()?;
    let Run { node, lines, .. } = run;
    node.stop()?;
    Ok(lines)
}

pub(crate) fn restart(node: &Node) -> Result<Line> {
    let watch = Stopwatch::start(node.seen().counts)?;
    node.tell_all()?;
    let seen = node.wait_in_sync()?;
    let line = watch.stop("restart", Instant::now(), seen.counts)?;
    ensure!(
        seen.counts.operations == 0,
        "a restart on complete state wrote {} operations; the loop's log has them",
        seen.counts.operations
    );
    Ok(line)
}

/// A restart, right after whose list an endpoint of the youngest Service changes: from the end of the
/// list until the kernel has the change. In the end the endpoint is as it was.
fn restart_under_change(size: Size, extent: Extent, kind: Kind) -> Result<Line> {
    let node = Node::start(size, extent.sync_period, kind)?;
    let watch = Stopwatch::start(node.seen().counts)?;
    let (_, told) = node.tell_all()?;
    let (service, usual) = (size.services - 1, size.usual());
    node.change(&Change::Endpoints { service, which: usual.start..usual.end + 1 })?;
    let is_written = |seen: &Seen| seen.counts.operations > 0;
    let seen = node.meter.wait("a change at a restart", PATIENCE, is_written)?;
    let written = seen.written.context("operations that nothing was written by")?;
    let name = "change_at_restart";
    let line = watch.stop(name, written, seen.counts)?;
    node.wait_in_sync()?;
    node.change(&Change::Endpoints { service, which: usual })?;
    node.wait_written()?;
    // What drained goes a second later.
    Checker::start(size, kind)?.wait_exact(name)?;
    node.stop()?;
    let wall_ms = crate::cost::milliseconds(written.saturating_duration_since(told));
    Ok(Line { wall_ms, count: 1, ..line })
}

impl Run {
    fn endpoints(&mut self) -> Result<()> {
        let usual = self.node.size.usual();
        let kinds = [
            ("endpoint_added", usual.start..usual.end + 1),
            ("endpoint_removed", usual.clone()),
            ("endpoint_moved", usual.start + 1..usual.end + 1),
        ];
        let services = self.node.size.services.min(self.extent.changes);
        for (name, which) in kinds {
            let change = |service| Change::Endpoints { service, which: which.clone() };
            self.one_by_one(name, &(0..services).map(change).collect::<Vec<_>>())?;
        }
        // As it was, for what comes next.
        self.together("endpoints_moved_back", services, |service| {
            vec![Change::Endpoints { service, which: usual.clone() }]
        })
    }

    fn services(&mut self) -> Result<()> {
        let new = self.node.size.services..self.node.size.services + self.extent.services;
        let added: Vec<Change> = new.clone().map(|service| Change::Added { service }).collect();
        self.one_by_one("service_added", &added)?;
        let removed: Vec<Change> = new.map(|service| Change::Removed { service }).collect();
        self.one_by_one("service_removed", &removed)
    }

    /// Every endpoint of each gives way to another, one at a time.
    fn rolling_update(&mut self) -> Result<()> {
        let count = self.node.size.endpoints;
        let services = self.node.size.services.min(self.extent.updated);
        self.together("rolling_update", services, |service| {
            let steps = 1..=count;
            steps.map(|first| Change::Endpoints { service, which: first..first + count }).collect()
        })?;
        let usual = self.node.size.usual();
        self.together("rolled_back", services, |service| {
            vec![Change::Endpoints { service, which: usual.clone() }]
        })
    }

    fn idle(&mut self) -> Result<()> {
        let watch = Stopwatch::start(self.node.seen().counts)?;
        thread::sleep(self.extent.idle);
        let line = watch.stop("idle", Instant::now(), self.node.seen().counts)?;
        ensure!(line.operations == 0, "{} operations while nothing changed", line.operations);
        self.push(line);
        Ok(())
    }

    /// Measures the cost of reading and comparing everything, by the pass that ends next. A pass
    /// takes forty times its cost, so there is no figure if it takes too long.
    fn verification(&mut self) -> Result<()> {
        let (passes, patience) = (self.node.seen().passes, Duration::from_secs(150));
        let ended = self.node.meter.wait("a verification", patience, |seen| seen.passes > passes);
        let Ok(seen) = ended else {
            eprintln!("at_scale: {}: no verification ends in {patience:?}", self.node.size);
            return Ok(());
        };
        let wall_ms = crate::cost::milliseconds(seen.pass_cost);
        let name = "verification".to_owned();
        self.push(Line { name, count: 1, wall_ms, ..Line::default() });
        Ok(())
    }

    /// Changes spread over a whole sync period, so that verification meets some of them.
    fn changes_meanwhile(&mut self) -> Result<()> {
        let usual = self.node.size.usual();
        let services = self.node.size.services.min(self.extent.changes / 2);
        let wider = usual.start..usual.end + 1;
        let changes: Vec<Change> = [wider, usual]
            .into_iter()
            .flat_map(|which| {
                (0..services)
                    .map(move |service| Change::Endpoints { service, which: which.clone() })
            })
            .collect();
        let pause = self.extent.sync_period / u32::try_from(changes.len()).unwrap_or(1).max(1);
        self.paced("change_at_any_time", &changes, pause)
    }

    fn damages(&mut self) -> Result<()> {
        let is_owner = self.is_owner;
        for damage in damage::ALL.iter().filter(|it| !is_owner || !it.is_of_rules()) {
            let patience = self.extent.sync_period + PATIENCE;
            let (before, refused) = (self.node.seen().counts, self.node.seen().refused);
            damage.inflict()?;
            let mut watch = Stopwatch::start(before)?;
            let meter = self.node.meter.clone();
            meter.wait(damage.name, patience, |seen| seen.counts.operations > before.operations)?;
            self.wait_quiet()?;
            watch.ended();
            self.checker.wait_exact(damage.name)?;
            let seen = self.node.seen();
            let repaired = seen.written.unwrap_or_else(Instant::now);
            self.push(watch.stop(damage.name, repaired, seen.counts)?);
            if seen.refused > refused {
                eprintln!(
                    "at_scale: {}: {} refusals on the way",
                    damage.name,
                    seen.refused - refused
                );
            }
        }
        Ok(())
    }

    /// The guest has one processor: a comparison would take it from the loop.
    fn wait_quiet(&self) -> Result<()> {
        let quiet = Duration::from_secs(1);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.node.seen();
            if !seen.is_writing && seen.written.is_none_or(|written| written.elapsed() >= quiet) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the loop does not stop writing");
            thread::sleep(quiet / 10);
        }
    }

    /// One after the other, each when the one before is written.
    fn one_by_one(&mut self, name: &str, changes: &[Change]) -> Result<()> {
        self.paced(name, changes, Duration::ZERO)
    }

    fn paced(&mut self, name: &str, changes: &[Change], pause: Duration) -> Result<()> {
        let watch = Stopwatch::start(self.node.seen().counts)?;
        let mut each = Vec::new();
        for change in changes {
            let turn = Instant::now();
            each.push(self.node.change_and_wait(change)?);
            thread::sleep(pause.saturating_sub(turn.elapsed()));
        }
        let ended = Instant::now();
        self.finish(name, watch, ended, changes, Some(each))
    }

    /// Everything as fast as the loop takes it, and one service after the other in each turn.
    fn together(
        &mut self,
        name: &str,
        services: u32,
        changes: impl Fn(u32) -> Vec<Change>,
    ) -> Result<()> {
        let each: Vec<Vec<Change>> = (0..services).map(changes).collect();
        let turns = each.iter().map(Vec::len).max().unwrap_or(0);
        let changes: Vec<Change> = (0..turns)
            .flat_map(|turn| each.iter().filter_map(move |changes| changes.get(turn)))
            .cloned()
            .collect();
        let watch = Stopwatch::start(self.node.seen().counts)?;
        changes.iter().try_for_each(|change| self.node.change(change))?;
        let ended = self.node.wait_written()?;
        self.finish(name, watch, ended, &changes, None)
    }

    /// Waits for the end of what follows, such as what drains, which is removed after a second.
    /// That is part of the cost of a change, but for the time that it is waited for.
    fn finish(
        &mut self,
        name: &str,
        mut watch: Stopwatch,
        ended: Instant,
        changes: &[Change],
        each: Option<Vec<Duration>>,
    ) -> Result<()> {
        watch.ended();
        for change in changes {
            self.checker.applied(change)?;
        }
        self.checker.wait_exact(name)?;
        let line = watch.stop(name, ended, self.node.seen().counts)?;
        self.push(match each {
            Some(each) => line.of_each(each),
            None => line,
        });
        Ok(())
    }

    /// Says how far it is, too: the largest clusters take many minutes on an emulated machine.
    fn push(&mut self, line: Line) {
        eprintln!("at_scale: {}, {}: {:.1} ms", self.node.size, line.name, line.wall_ms);
        self.lines.push(line);
    }
}
