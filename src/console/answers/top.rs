//! `/v1/top`: Services and endpoints by connections, packets and bytes a second.
//!
//! Rates are differences between two readings of IPVS' counters. A reading is one listing of the
//! virtual servers; real servers are read of the Services alone that are shown. The last two readings
//! are kept as long as someone asks, so that watching costs one reading each time.

mod rates;
mod reading;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use clap::ValueEnum;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::ServiceName;
use serde::{Deserialize, Serialize};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::connections::owners_of;
use super::{Answer, Content, FailureAnswer, Reason, blocking};
use crate::console::Desk;
use crate::kernel::traffic::TrafficCounters;
use crate::kernel::{estimators, sysctl};
pub use rates::Rates;
use reading::Reading;

/// The kernel adds counters up every 2 seconds: less makes no sense between two readings.
const PERIOD: Duration = Duration::from_secs(2);

/// A reading is not repeated before this time: others who ask get the same.
const FRESH: Duration = Duration::from_millis(900);

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

/// Traffic of a Service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTraffic {
    /// The Service; none: virtual servers of other programs.
    pub service: Option<String>,
    /// Number of its virtual servers.
    pub virtual_servers: usize,
    /// Its rates.
    pub rates: Rates,
    /// Established connections, and of UDP all.
    pub active: u64,
    /// Connections that begin or end.
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
    /// Established connections, and of UDP all.
    pub active: u64,
    /// Connections that begin or end.
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
    /// Counters of the real servers that were read last, with the time.
    real_servers: HashMap<(Frontend, SocketAddr), (Instant, TrafficCounters)>,
    /// Task that forgets all of it.
    forgetting: Option<AbortHandle>,
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
    Query(asked): Query<Asked>,
) -> Result<Answer<Top>, FailureAnswer> {
    let mode = desk.settings.mode;
    if mode != Mode::Ipvs {
        return Err(FailureAnswer::new(
            Reason::Unavailable,
            format!("mode {mode} has no counters of Services: IPVS keeps them, in mode ipvs"),
        ));
    }
    let mut kept = desk.readings.0.lock().await;
    kept.read().await?;
    kept.know_owners(&desk).await?;
    let (mut top, shown) = kept.top(&asked);
    let counted = blocking(move || reading::real_servers(&shown)).await??;
    let are_running = || estimators::are_running(Path::new(sysctl::ROOT));
    top.stands_still = !blocking(are_running).await?;
    kept.add_endpoints(&mut top, counted, asked.sort);
    kept.forget_later(&desk.readings);
    Ok(Answer::new(top))
}

// === impl Kept ===

impl Kept {
    /// Reads the counters, twice if there is no former reading that rates could be told by.
    async fn read(&mut self) -> Result<(), FailureAnswer> {
        let age = self.last.as_ref().map(|last| last.at.elapsed());
        if age.is_some_and(|age| age < FRESH) && self.former.is_some() {
            return Ok(());
        }
        if age.is_none_or(|age| age > STALE) {
            self.last = Some(blocking(Reading::now).await??);
            sleep(PERIOD).await;
        } else if let Some(age) = age.filter(|age| *age < FRESH) {
            sleep(PERIOD.saturating_sub(age)).await;
        }
        self.former = self.last.take();
        self.last = Some(blocking(Reading::now).await??);
        Ok(())
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
        // In the order of names, which stays where rates are the same.
        let mut by_service: BTreeMap<Option<&ServiceName>, (usize, Rates)> = BTreeMap::new();
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
        services.sort_by(|(_, (_, one)), (_, (_, other))| asked.sort.compare(one, other));
        let total = services.len();
        services.truncate(asked.limit.unwrap_or(DEFAULT_LIMIT).min(MOST));
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

    /// Adds the endpoints, with their connections and rates.
    fn add_endpoints(
        &mut self,
        top: &mut Top,
        counted: Vec<(Frontend, reading::RealServerTraffic)>,
        sort: Sort,
    ) {
        let now = Instant::now();
        let former = std::mem::take(&mut self.real_servers);
        let mut places: HashMap<Option<String>, &mut ServiceTraffic> =
            top.services.iter_mut().map(|it| (it.service.clone(), it)).collect();
        for (frontend, read) in counted {
            let key = (frontend, read.endpoint);
            let rates = match former.get(&key) {
                Some((at, before)) if now.duration_since(*at) < STALE => {
                    reading::rates(&read.counted, before, now.duration_since(*at).as_secs_f64())
                }
                _ => read.estimated,
            };
            self.real_servers.insert(key, (now, read.counted));
            let service = self.owners.get(&frontend).map(ToString::to_string);
            let Some(place) = places.get_mut(&service) else { continue };
            place.add(&read, rates);
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

// === impl ServiceTraffic ===

impl ServiceTraffic {
    /// Adds a real server of one of its virtual servers.
    fn add(&mut self, read: &reading::RealServerTraffic, rates: Rates) {
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
mod tests {
    use std::net::IpAddr;

    use plan::model::Protocol;

    use super::*;

    fn frontend(last: u8) -> Frontend {
        Frontend { address: IpAddr::from([10, 96, 0, last]), protocol: Protocol::Tcp, port: 80 }
    }

    fn counted(connections: u64, packets: u64, bytes: u64) -> TrafficCounters {
        TrafficCounters {
            connections,
            incoming_packets: packets,
            outgoing_packets: packets,
            incoming_bytes: bytes,
            outgoing_bytes: 0,
        }
    }

    fn reading(at: Instant, servers: [(u8, TrafficCounters); 3]) -> Reading {
        let servers = servers.into_iter().map(|(last, counted)| (frontend(last), counted));
        Reading { at, servers: servers.collect() }
    }

    /// Two readings, 2 s apart: `shop/cart` has two virtual servers, and a foreign program one.
    fn kept() -> Kept {
        let now = Instant::now();
        let before = [(1, counted(0, 0, 0)), (2, counted(10, 0, 0)), (9, counted(5, 5, 5))];
        let after = [(1, counted(4, 20, 600)), (2, counted(16, 0, 0)), (9, counted(1, 5, 5))];
        let cart = ServiceName::new("shop", "cart");
        Kept {
            former: Some(reading(now, before)),
            last: Some(reading(now + PERIOD, after)),
            owners: [(frontend(1), cart.clone()), (frontend(2), cart)].into(),
            ..Kept::default()
        }
    }

    fn names(top: &Top) -> Vec<Option<&str>> {
        top.services.iter().map(|it| it.service.as_deref()).collect()
    }

    #[test]
    fn rates_are_differences_of_all_of_a_services_virtual_servers() {
        let (top, _) = kept().top(&Asked::default());
        assert_eq!(names(&top), [Some("shop/cart"), None]);
        let cart = &top.services[0];
        assert_eq!(cart.virtual_servers, 2);
        assert_eq!((cart.rates.connections, cart.rates.packets_in), (5.0, 10.0));
        assert_eq!((cart.rates.bytes_in, cart.rates.bytes_out), (300.0, 0.0));
        // Counters of a virtual server that was made anew begin at 0.
        assert_eq!(top.services[1].rates.connections, 0.5);
        assert_eq!(top.all.connections, 5.5);
        assert_eq!((top.seconds, top.total), (2.0, 2));
    }

    #[test]
    fn the_order_and_the_filter_are_those_that_were_asked_for() {
        let by_name = Asked { sort: Sort::Name, ..Asked::default() };
        assert_eq!(names(&kept().top(&by_name).0), [None, Some("shop/cart")]);
        let filtered = Asked { filter: "shop/".to_owned(), ..Asked::default() };
        let (top, _) = kept().top(&filtered);
        assert_eq!((names(&top), top.total), (vec![Some("shop/cart")], 1));
        let none = Asked { filter: "x".to_owned(), ..Asked::default() };
        assert!(kept().top(&none).0.services.is_empty());
    }

    #[test]
    fn endpoints_add_up_over_the_frontends_of_their_service() {
        let mut kept = kept();
        let (mut top, frontends) = kept.top(&Asked::default());
        assert_eq!(frontends.len(), 3);
        let first = Asked { limit: Some(1), ..Asked::default() };
        let (cart, frontends) = kept.top(&first);
        assert_eq!((cart.services.len(), cart.total, frontends.len()), (1, 2, 2));
        let endpoint: SocketAddr = "10.244.1.11:8080".parse().unwrap();
        let read = |connections, estimate| reading::RealServerTraffic {
            endpoint,
            counted: counted(connections, 0, 0),
            estimated: Rates { connections: estimate, ..Rates::default() },
            active: 3,
            inactive: 1,
            weight: 1,
        };
        let of_both = vec![(frontend(1), read(2, 1.0)), (frontend(2), read(2, 0.5))];
        kept.add_endpoints(&mut top, of_both, Sort::Connections);
        let cart = &top.services[0];
        assert_eq!((cart.active, cart.inactive, cart.endpoints.len()), (6, 2, 1));
        assert_eq!(cart.endpoints[0].rates.connections, 1.5, "as the kernel estimates it");
    }
}
