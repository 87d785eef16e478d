//! Health of the proxy: pure state, and the answers from it.
//!
//! The rules are kube-proxy's: a family is healthy unless something has been waiting to be written
//! for it for longer than the timeout, which is two sync periods. So a proxy that has nothing to
//! do is healthy, and so is one that has not had its first list yet: restarting it would not help.
//!
//! Nor is it healthy when the source has delivered a change and the event loop has taken none for
//! that long: the loop is stuck, and what is answered here comes from another thread.
//!
//! Changes that are left when a round of writing ends go on waiting. The oldest change that is not
//! written yet counts, so a proxy that writes without a pause and falls behind is not healthy.
//! kube-proxy writes everything at once, and does not know that case. A Service that is written in
//! parts waits anew for each: it is no reason to restart a proxy that gets on with it.
//!
//! One rule more: a family is not healthy either when the kernel has refused a prerequisite for
//! that long: the interface, a set or the rules. Without them nothing new on this node works, and
//! load balancers should send their traffic elsewhere. A refusal for a single Service does not make
//! the node unhealthy. All other Services work here, the same Service would fail on every other
//! node too, and if all nodes left, one bad object would end the cluster's traffic. The metric
//! `kube_ipvs_pending_retries` counts such refusals.
//!
//! In a rule-based mode the same holds for chains: a family is not healthy if no change of its chains could be
//! written for the timeout, for a reason outside of the chains (the lock is held, the programs are gone). kube-proxy's
//! iptables mode does the same.
//!
//! This state outlives a tenure. Until the next one has planned everything, what was known last is
//! answered.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use plan::model::Family;
use serde::Serialize;
use tokio::time::Instant;

/// A point in time, by the clock that never jumps and by the one that people read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// For distances.
    pub instant: Instant,
    /// For showing.
    pub time: SystemTime,
}

/// State of the proxy's health.
#[derive(Debug)]
pub struct Health {
    families: BTreeMap<Family, FamilyHealth>,
    timeout: Duration,
    /// True if this node is about to leave the cluster; none if the node is not known.
    node_leaving: Option<bool>,
    /// Number of Services that were waiting when it was last reported.
    backlog: usize,
    /// Number of changes that the source has delivered and the event loop has not taken.
    untaken: usize,
    /// Time at which the event loop last took one, or the first of them was delivered. None: it has
    /// all.
    untaken_since: Option<Instant>,
    /// True once the kernel was in sync, and refused no more than half, in any tenure of this process.
    is_served: bool,
    /// True once changes of Services and EndpointSlices arrived.
    followed: bool,
    /// True once both were so, and no prerequisite was refused.
    ready: bool,
}

/// The health, shared by the parts that update it and those that answer from it.
#[derive(Debug, Clone)]
pub struct SharedHealth(Arc<Mutex<Health>>);

/// Answer to a health request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReport {
    /// True if all is well: status 200, or else 503.
    pub good: bool,
    /// The body, as JSON.
    pub body: String,
}

#[derive(Debug)]
struct FamilyHealth {
    /// Time at which everything that waited was written last, or the proxy started.
    updated: SystemTime,
    /// Time since which a change has been waiting to be written.
    waiting: Option<Instant>,
    /// Time since which the kernel has been refusing a prerequisite.
    refused: Option<Instant>,
    /// Time since which no change of a chain could be written.
    withheld: Option<Instant>,
}

/// In kube-proxy's order of fields.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthBody<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'a str, FamilyBody>,
    /// Reasons for not being healthy, for people. kube-proxy has no such field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

impl Moment {
    /// Returns the present moment.
    #[must_use]
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }
}

impl FamilyHealth {
    fn new(now: Moment) -> Self {
        Self { updated: now.time, waiting: None, refused: None, withheld: None }
    }
}

impl Health {
    /// The health of a proxy that has just started. `timeout` is how long something may wait.
    #[must_use]
    pub fn new(families: &[Family], timeout: Duration, now: Moment) -> Self {
        let families = families.iter().map(|family| (*family, FamilyHealth::new(now))).collect();
        Self {
            families,
            timeout,
            node_leaving: None,
            backlog: 0,
            untaken: 0,
            untaken_since: None,
            is_served: false,
            followed: false,
            ready: false,
        }
    }

    /// Begins a tenure that serves these families. One that was not healthy is not until something
    /// is written for it; others begin anew, since nothing waits before the first list.
    pub fn begin(&mut self, families: &[Family], timeout: Duration, now: Moment) {
        let mut known = std::mem::take(&mut self.families);
        let begun = families.iter().map(|name| {
            let family = match known.remove(name) {
                Some(former) if !self.is_family_healthy(&former, now) => former,
                Some(former) => FamilyHealth { updated: former.updated, ..FamilyHealth::new(now) },
                None => FamilyHealth::new(now),
            };
            (*name, family)
        });
        self.families = begun.collect();
        self.timeout = timeout;
        (self.backlog, self.untaken, self.untaken_since) = (0, 0, None);
    }

    /// The kernel is as it should be, as far as it let us, which is most of it.
    pub fn served(&mut self) {
        self.is_served = true;
        self.note_ready();
    }

    /// Changes of Services and EndpointSlices arrive.
    pub fn followed(&mut self) {
        self.followed = true;
        self.note_ready();
    }

    fn note_ready(&mut self) {
        let is_refused = |family: &FamilyHealth| family.refused.or(family.withheld).is_some();
        let is_refused = self.families.values().any(is_refused);
        self.ready |= self.is_served && self.followed && !is_refused;
    }

    /// The source has delivered a change, which the event loop will take.
    pub fn delivered(&mut self, now: Moment) {
        self.untaken += 1;
        self.untaken_since.get_or_insert(now.instant);
    }

    /// The event loop has taken so many changes.
    pub fn taken(&mut self, count: usize, now: Moment) {
        self.untaken = self.untaken.saturating_sub(count);
        self.untaken_since = (self.untaken > 0).then_some(now.instant);
    }

    /// Notes that `backlog` Services wait to be written. A family that has been waiting longer
    /// keeps its earlier start.
    pub fn waiting(&mut self, backlog: usize, now: Moment) {
        self.backlog = backlog;
        for family in self.families.values_mut() {
            family.waiting.get_or_insert(now.instant);
        }
    }

    /// All that was waiting for a family is written, as far as the kernel let us.
    pub fn written(&mut self, family: Family, now: Moment) {
        if let Some(family) = self.families.get_mut(&family) {
            family.waiting = None;
            if family.withheld.is_none() {
                family.updated = now.time;
            }
        }
    }

    /// Some of what was waiting is written. So many Services are left, and their oldest change has
    /// been waiting since then.
    pub fn left(&mut self, backlog: usize, since: Instant) {
        self.backlog = backlog;
        for family in self.families.values_mut() {
            family.waiting = Some(since);
        }
    }

    /// Returns the time since which the oldest unwritten change has been waiting; none if none
    /// waits.
    #[must_use]
    pub fn waiting_since(&self) -> Option<Instant> {
        self.families.values().filter_map(|family| family.waiting).min()
    }

    /// Notes if the kernel refuses a family's prerequisites.
    pub fn prerequisites_refused(&mut self, family: Family, refused: bool, now: Moment) {
        if let Some(family) = self.families.get_mut(&family) {
            family.refused = refused.then(|| family.refused.unwrap_or(now.instant));
        }
        self.note_ready();
    }

    /// Notes if no change of a family's chains can be written. One that is written ends that.
    pub fn chains_withheld(&mut self, family: Family, withheld: bool, now: Moment) {
        if let Some(family) = self.families.get_mut(&family) {
            family.withheld = withheld.then(|| family.withheld.unwrap_or(now.instant));
        }
        self.note_ready();
    }

    /// True if no change of a family's chains could be written since one was refused.
    #[must_use]
    pub fn is_withheld(&self, family: Family) -> bool {
        self.families.get(&family).is_some_and(|family| family.withheld.is_some())
    }

    /// Notes if this node is about to leave the cluster. Before the first call the node is not
    /// known, and gets no traffic from load balancers.
    pub fn node_leaving(&mut self, leaving: bool) {
        self.node_leaving = Some(leaving);
    }

    /// True if every family is healthy, even if the node is about to leave the cluster.
    #[must_use]
    pub fn is_healthy(&self, now: Moment) -> bool {
        self.families.values().all(|family| self.is_family_healthy(family, now))
    }

    /// Returns the answer at `/healthz`: if load balancers should send traffic to this node.
    #[must_use]
    pub fn healthz(&self, now: Moment) -> HealthReport {
        self.report(Some(self.node_leaving == Some(false)), Vec::new(), now)
    }

    /// Returns the answer at `/readyz`: if this process has come to serve, and does. It is about the
    /// process, so that neither a switch, nor a node that leaves, nor an API server that is away
    /// makes it not ready.
    #[must_use]
    pub fn readyz(&self, now: Moment) -> HealthReport {
        let lacking = [
            (
                self.is_served,
                "Services are not served: the kernel has not been in sync yet, or rejects most \
                 addresses or virtual servers",
            ),
            (self.followed, "no Services and EndpointSlices have arrived yet"),
            (self.ready, "Services are not served: the kernel rejects objects that they need"),
        ];
        let lacking = lacking.iter().find(|(is_there, _)| !is_there && !self.ready);
        self.report(
            None,
            lacking.map(|(_, problem)| (*problem).to_owned()).into_iter().collect(),
            now,
        )
    }

    /// Returns the answer at `/livez`: if the proxy works, or had better be restarted.
    #[must_use]
    pub fn livez(&self, now: Moment) -> HealthReport {
        self.report(None, Vec::new(), now)
    }

    fn report(
        &self,
        node_eligible: Option<bool>,
        lacking: Vec<String>,
        now: Moment,
    ) -> HealthReport {
        let healthy = self.is_healthy(now);
        let good = healthy && lacking.is_empty() && node_eligible != Some(false);
        // Some load balancers read this time alone, so it moves on for as long as all is well.
        let last_updated = if good {
            now.time
        } else {
            self.families.values().map(|f| f.updated).max().unwrap_or(now.time)
        };
        let status = self.families.iter().map(|(name, family)| {
            let healthy = self.is_family_healthy(family, now);
            (label(*name), FamilyBody { last_updated: rfc3339(family.updated), healthy })
        });
        let body = HealthBody {
            last_updated: rfc3339(last_updated),
            current_time: rfc3339(now.time),
            node_eligible,
            healthy,
            status: status.collect(),
            problems: [lacking, self.problems(now)].concat(),
        };
        match serde_json::to_string(&body) {
            Ok(body) => HealthReport { good, body },
            Err(error) => HealthReport { good: false, body: error.to_string() },
        }
    }

    fn is_family_healthy(&self, family: &FamilyHealth, now: Moment) -> bool {
        let since = [family.waiting, family.refused, family.withheld, self.untaken_since];
        !since.into_iter().any(|since| self.is_late(since, now))
    }

    fn is_late(&self, since: Option<Instant>, now: Moment) -> bool {
        since.is_some_and(|since| now.instant.saturating_duration_since(since) >= self.timeout)
    }

    fn problems(&self, now: Moment) -> Vec<String> {
        let seconds = |since: Instant| now.instant.saturating_duration_since(since).as_secs();
        let limit = self.timeout.as_secs();
        let mut problems = Vec::new();
        if let Some(since) = self.waiting_since().filter(|since| self.is_late(Some(*since), now)) {
            problems.push(format!(
                "changes of {} Services are pending, the oldest for {} s (limit {limit} s)",
                self.backlog,
                seconds(since)
            ));
        }
        if let Some(since) = self.untaken_since.filter(|since| self.is_late(Some(*since), now)) {
            problems.push(format!(
                "the event loop has taken no change for {} s, and {} are pending (limit {limit} s)",
                seconds(since),
                self.untaken
            ));
        }
        let refused = self.families.values().filter_map(|family| family.refused).min();
        if let Some(since) = refused.filter(|since| self.is_late(Some(*since), now)) {
            problems.push(format!(
                "writing the interface, a set or the rules has failed for {} s (limit {limit} s); \
                 see the log",
                seconds(since)
            ));
        }
        let withheld = self.families.values().filter_map(|family| family.withheld).min();
        if let Some(since) = withheld.filter(|since| self.is_late(Some(*since), now)) {
            problems.push(format!(
                "writing changes of Services' rules has failed for {} s (limit {limit} s); see the \
                 log",
                seconds(since)
            ));
        }
        problems
    }
}

impl SharedHealth {
    /// Shares it.
    #[must_use]
    pub fn new(health: Health) -> Self {
        Self(Arc::new(Mutex::new(health)))
    }

    /// Notes if this node is about to leave the cluster: see [`Health::node_leaving`].
    pub fn node_leaving(&self, leaving: bool) {
        self.lock().node_leaving(leaving);
    }

    /// Changes of Services and EndpointSlices arrive: see [`Health::followed`].
    pub fn followed(&self) {
        self.lock().followed();
    }

    /// The source has delivered a change: see [`Health::delivered`].
    pub fn delivered(&self) {
        self.lock().delivered(Moment::now());
    }

    /// Locks the state. Every holder releases it within the time of writing an answer.
    pub fn lock(&self) -> MutexGuard<'_, Health> {
        self.0.lock()
    }
}

/// Returns the name of a family in answers and labels.
pub(super) const fn label(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// In UTC, with as many digits of a second as it has: how Go writes a time in JSON.
fn rfc3339(time: SystemTime) -> String {
    // Only a clock that is thousands of years wrong has no such form.
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}
