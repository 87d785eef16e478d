//! `/v1/top`: Services and endpoints by connections, packets and bytes a second.
//!
//! Rates are differences between two readings of IPVS' counters. A reading is one listing of the
//! virtual servers; real servers are read of the Services alone that are shown. The last readings are
//! kept as long as someone asks, and are shared by all who ask: another order or filter, and another
//! reader, get the same readings until the next one is due.

mod reading;
mod real_servers;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use clap::ValueEnum;
use plan::kernel_objects::Frontend;
use plan::model::ServiceName;
use plan::op::PartKind;
use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::connections::owners_of;
use super::question::Parameters;
use super::tracked::Tracked;
use super::{Answer, Content, FailureAnswer, Reason, blocking};
use crate::Desk;
use kernel::counters::ConnectionCount;
use kernel::{estimators, sysctl};
use reading::{Reading, RealServerTraffic};
use real_servers::RealServers;

/// Least time between two readings: the kernel adds counters up every 2 seconds
/// (`ip_vs_est.c`), so that a shorter time shows nothing, or twice the rate.
const PERIOD: Duration = Duration::from_secs(2);

/// Part of the time that readings may take, as its reciprocal: one hundredth.
const SHARE: u32 = 100;

/// Readings that are older are no base for rates of now.
const STALE: Duration = Duration::from_secs(15);

/// Time after the last question for which readings are kept.
const KEPT: Duration = Duration::from_secs(60);

/// Time after which the owners of frontends are asked for again.
const OWNERS_FRESH: Duration = Duration::from_secs(30);

/// Services that are shown, if nothing else is said.
pub const DEFAULT_LIMIT: usize = 20;

/// Most Services whose real servers are read for one answer.
const MOST: usize = 200;

/// Services by what goes through them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// Seconds between the two readings.
    pub seconds: f64,
    /// True if the kernel does not add its counters up, so that they stand still
    /// (`net.ipv4.vs.run_estimation`, `net.ipv4.vs.est_cpulist`).
    pub stands_still: bool,
    /// Number of Services, of those that were asked for.
    pub total: usize,
    /// Rates of all virtual servers together.
    pub all: Rates,
    /// The first Services in the order that was asked for.
    pub services: Vec<ServiceTraffic>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTraffic {
    /// The Service; none: virtual servers of other programs.
    pub service: Option<String>,
    /// Number of its virtual servers.
    pub virtual_servers: usize,
    pub rates: Rates,
    /// Established connections.
    pub active: u64,
    /// Connections that begin or end, and all of UDP.
    pub inactive: u64,
    /// Its endpoints, in the order that was asked for.
    pub endpoints: Vec<EndpointTraffic>,
}

/// Traffic to an endpoint of a Service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointTraffic {
    /// Address and port.
    pub endpoint: SocketAddr,
    /// Its rates: by two readings, or as the kernel estimates them where there was one only.
    pub rates: Rates,
    /// Established connections.
    pub active: u64,
    /// Connections that begin or end, and all of UDP.
    pub inactive: u64,
    /// Its weight, the largest if it has several; 0: it drains.
    pub weight: u32,
}

/// Order of Services and endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// By new connections a second.
    #[default]
    Connections,
    /// By packets a second, both ways.
    Packets,
    /// By bytes a second, both ways.
    Bytes,
    /// By name.
    Name,
}

/// Parameters of the question.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    sort: Sort,
    /// Part of the Services' names.
    filter: String,
    limit: Option<usize>,
}

/// The last readings, as long as someone asks.
#[derive(Debug, Clone, Default)]
pub struct Readings(Arc<tokio::sync::Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    former: Option<Reading>,
    last: Option<Reading>,
    owners: HashMap<Frontend, ServiceName>,
    owners_since: Option<Instant>,
    real_servers: RealServers,
    /// Connections to the frontends that were shown last, which conntrack carries; none: they are to be counted.
    tracked: Option<TrackedReading>,
    /// Task that forgets all of it.
    forgetting: Option<AbortHandle>,
}

/// Connections that conntrack carries, at one time.
#[derive(Debug)]
struct TrackedReading {
    at: Instant,
    frontends: HashSet<Frontend>,
    /// None: the fast path is not in force.
    tracked: Option<Tracked>,
}

/// Readings that are due before an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Nothing: the last two readings are those of now.
    Nothing,
    /// A reading, after this time.
    Reading(Duration),
    /// A reading, and another one after [`PERIOD`].
    Both,
}

impl Content for Top {
    const KIND: &'static str = "Top";
}

/// Answers.
///
/// # Errors
/// When IPVS does not balance, or the kernel or the loop has no answer.
pub async fn answer(
    State(desk): State<Arc<Desk>>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Answer<Top>, FailureAnswer> {
    let mode = desk.settings.mode;
    if !mode.uses(PartKind::VirtualServers) {
        return Err(FailureAnswer::new(
            Reason::Unavailable,
            format!("{} has no counters of Services: only IPVS mode has them", mode.title()),
        ));
    }
    let mut kept = desk.readings.0.lock().await;
    kept.read().await?;
    kept.know_owners(&desk).await?;
    let (mut top, shown) = kept.top(&asked);
    let now = Instant::now();
    let to_read = kept.real_servers.next_to_read(&shown, now);
    let read = blocking(move || reading::real_servers(&to_read)).await??;
    kept.real_servers.add(read, now);
    kept.count_tracked(&desk, &shown).await?;
    let are_running = || estimators::are_running(Path::new(sysctl::ROOT));
    top.stands_still = !blocking(are_running).await?;
    kept.add_endpoints(&mut top, &shown, asked.sort);
    kept.forget_later(&desk.readings);
    Ok(Answer::new(top))
}

/// Traffic of a second.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    /// New connections.
    pub connections: f64,
    /// Packets from clients.
    pub packets_in: f64,
    /// Packets to clients, as far as they pass through this node.
    pub packets_out: f64,
    /// Bytes from clients.
    pub bytes_in: f64,
    /// Bytes to clients, as far as they pass through this node.
    pub bytes_out: f64,
}

impl AddAssign for Rates {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

impl Sort {
    /// Compares two, the larger one first. By name: they are the same.
    fn compare(self, one: &Rates, other: &Rates) -> Ordering {
        let value = |rates: &Rates| match self {
            Self::Connections => rates.connections,
            Self::Packets => rates.packets_in + rates.packets_out,
            Self::Bytes => rates.bytes_in + rates.bytes_out,
            Self::Name => 0.0,
        };
        value(other).total_cmp(&value(one))
    }
}

impl Asked {
    /// Keeps the first Services in the order that was asked for, and in that of names where rates are the
    /// same. Not all of them are sorted: most have no traffic.
    fn keep_first(&self, services: &mut Vec<(Option<&ServiceName>, (usize, Rates))>) {
        let order = |one: &(Option<&ServiceName>, (usize, Rates)),
                     other: &(Option<&ServiceName>, (usize, Rates))| {
            self.sort.compare(&one.1.1, &other.1.1).then_with(|| one.0.cmp(&other.0))
        };
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT).min(MOST);
        if limit < services.len() {
            services.select_nth_unstable_by(limit, order);
            services.truncate(limit);
        }
        services.sort_unstable_by(order);
    }
}

impl Kept {
    /// Reads the counters as far as that is due.
    async fn read(&mut self) -> Result<(), FailureAnswer> {
        match self.due(Instant::now()) {
            Due::Nothing => return Ok(()),
            Due::Reading(pause) => sleep(pause).await,
            Due::Both => {
                (self.former, self.last) = (None, Some(blocking(Reading::now).await??));
                sleep(PERIOD).await;
            }
        }
        let next = blocking(Reading::now).await??;
        self.former = self.last.replace(next);
        Ok(())
    }

    /// Returns what is due. Readings take [`SHARE`] of the time at most, however many ask.
    fn due(&self, now: Instant) -> Due {
        let Some(last) = &self.last else { return Due::Both };
        let pause = PERIOD.max(last.took.saturating_mul(SHARE));
        let age = now.saturating_duration_since(last.at);
        match &self.former {
            _ if age > STALE.max(pause * 2) => Due::Both,
            Some(_) if age < pause => Due::Nothing,
            // Who asked for the first reading has gone before the second one.
            None => Due::Reading(PERIOD.saturating_sub(age)),
            Some(_) => Due::Reading(Duration::ZERO),
        }
    }

    /// Asks whose the frontends are that are not known, and now and then all of them.
    async fn know_owners(&mut self, desk: &Desk) -> Result<(), FailureAnswer> {
        let Some(last) = &self.last else { return Ok(()) };
        if self.owners_since.is_none_or(|since| since.elapsed() > OWNERS_FRESH) {
            self.owners = HashMap::new();
            self.owners_since = Some(Instant::now());
        }
        let unknown = last.servers.keys().filter(|it| !self.owners.contains_key(it));
        let unknown: Vec<Frontend> = unknown.copied().collect();
        self.owners.extend(owners_of(desk, unknown).await?);
        Ok(())
    }

    /// Returns the first Services in the order that was asked for, without their endpoints, and the
    /// frontends of these.
    fn top(&self, asked: &Asked) -> (Top, Vec<Frontend>) {
        let (Some(former), Some(last)) = (&self.former, &self.last) else {
            return (Top::default(), Vec::new());
        };
        let seconds = last.at.duration_since(former.at).as_secs_f64();
        let mut by_service: HashMap<Option<&ServiceName>, (usize, Rates)> = HashMap::new();
        let mut all = Rates::default();
        for (frontend, counted) in &last.servers {
            let before = former.servers.get(frontend).copied().unwrap_or_default();
            let rates = reading::rates(counted, &before, seconds);
            all += rates;
            let (n_servers, sum) = by_service.entry(self.owners.get(frontend)).or_default();
            *n_servers += 1;
            *sum += rates;
        }
        let mut services: Vec<_> = by_service.into_iter().collect();
        if !asked.filter.is_empty() {
            services
                .retain(|(name, _)| name.is_some_and(|it| it.to_string().contains(&asked.filter)));
        }
        let total = services.len();
        asked.keep_first(&mut services);
        let shown: HashSet<Option<&ServiceName>> = services.iter().map(|(name, _)| *name).collect();
        let frontends = last.servers.keys();
        let frontends = frontends.filter(|frontend| shown.contains(&self.owners.get(frontend)));
        let frontends = frontends.copied().collect();
        let traffic = |(name, (virtual_servers, rates)): (Option<&ServiceName>, (usize, Rates))| {
            ServiceTraffic {
                service: name.map(ToString::to_string),
                virtual_servers,
                rates,
                active: 0,
                inactive: 0,
                endpoints: Vec::new(),
            }
        };
        let services = services.into_iter().map(traffic).collect();
        (Top { seconds, stands_still: false, total, all, services }, frontends)
    }

    /// Counts what conntrack carries, if others are shown, or the last count was long enough ago.
    async fn count_tracked(
        &mut self,
        desk: &Desk,
        shown: &[Frontend],
    ) -> Result<(), FailureAnswer> {
        let is_fresh = |last: &TrackedReading| {
            let took = last.tracked.as_ref().map_or(Duration::ZERO, |it| it.took);
            last.at.elapsed() < PERIOD.max(took.saturating_mul(SHARE))
                && shown.iter().all(|frontend| last.frontends.contains(frontend))
        };
        if !self.tracked.as_ref().is_some_and(is_fresh) {
            let tracked = Tracked::read(desk, shown).await?;
            let frontends = shown.iter().copied().collect();
            self.tracked = Some(TrackedReading { at: Instant::now(), frontends, tracked });
        }
        Ok(())
    }

    /// Adds the endpoints of these frontends, with their connections and rates. What conntrack carries is not what IPVS
    /// knows of it.
    fn add_endpoints(&self, top: &mut Top, shown: &[Frontend], sort: Sort) {
        let tracked = self.tracked.as_ref().and_then(|it| it.tracked.as_ref());
        let mut places: HashMap<Option<String>, &mut ServiceTraffic> =
            top.services.iter_mut().map(|it| (it.service.clone(), it)).collect();
        for frontend in shown {
            let service = self.owners.get(frontend).map(ToString::to_string);
            let Some(place) = places.get_mut(&service) else { continue };
            for (read, rates) in self.real_servers.of(frontend) {
                let mut read = *read;
                if tracked.is_some_and(|it| it.is_led_to(frontend)) {
                    (read.active, read.inactive) = (0, 0);
                }
                place.add(&read, *rates);
            }
        }
        let shown: HashSet<&Frontend> = shown.iter().collect();
        for (frontend, endpoint, count) in tracked.into_iter().flat_map(|it| it.counts.iter()) {
            let service = self.owners.get(&frontend).map(ToString::to_string);
            if let Some(place) = places.get_mut(&service).filter(|_| shown.contains(&frontend)) {
                place.add_tracked(endpoint, count);
            }
        }
        for service in &mut top.services {
            service.endpoints.sort_by(|one, other| {
                let by_rates = sort.compare(&one.rates, &other.rates);
                by_rates.then(one.endpoint.cmp(&other.endpoint))
            });
        }
    }

    /// Forgets the readings when they were not asked for during a while.
    fn forget_later(&mut self, readings: &Readings) {
        let readings = readings.clone();
        let task = tokio::spawn(async move {
            sleep(KEPT).await;
            *readings.0.lock().await = Self::default();
        });
        if let Some(former) = self.forgetting.replace(task.abort_handle()) {
            former.abort();
        }
    }
}

impl ServiceTraffic {
    /// Adds the connections to an endpoint that conntrack carries.
    fn add_tracked(&mut self, endpoint: SocketAddr, count: ConnectionCount) {
        self.active += count.active;
        self.inactive += count.inactive;
        match self.endpoints.iter_mut().find(|it| it.endpoint == endpoint) {
            Some(same) => {
                same.active += count.active;
                same.inactive += count.inactive;
            }
            None => self.endpoints.push(EndpointTraffic {
                endpoint,
                rates: Rates::default(),
                active: count.active,
                inactive: count.inactive,
                weight: 0,
            }),
        }
    }

    /// Adds a real server of one of its virtual servers.
    fn add(&mut self, read: &RealServerTraffic, rates: Rates) {
        self.active += read.active;
        self.inactive += read.inactive;
        let place = self.endpoints.iter_mut().find(|it| it.endpoint == read.endpoint);
        match place {
            Some(same) => {
                same.rates += rates;
                same.active += read.active;
                same.inactive += read.inactive;
                same.weight = same.weight.max(read.weight);
            }
            None => self.endpoints.push(EndpointTraffic {
                endpoint: read.endpoint,
                rates,
                active: read.active,
                inactive: read.inactive,
                weight: read.weight,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
