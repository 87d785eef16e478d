//! Traffic of each Service, added up from readings of virtual servers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use plan::kernel_objects::Frontend;
use plan::model::ServiceName;

use super::{MeasuredServices, ServiceTraffic};
use kernel::CurrentConnections;
use kernel::TrafficCounters;

/// Time after which traffic counts half for the order of [`MeasuredServices::Top`]. The order must be
/// slow: each Service that comes and goes there leaves series behind in the database.
const HALF_LIFE: Duration = Duration::from_secs(3_600);

/// TrafficCounters of a virtual server, with the Service that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendTraffic {
    /// Address, protocol and port of the virtual server.
    pub frontend: Frontend,
    /// Service that has the frontend; none: no Service has it any more, or it is another program's.
    pub owner: Option<ServiceName>,
    pub counters: TrafficCounters,
}

/// Traffic of the Services since the program started.
#[derive(Debug)]
pub struct Accounts {
    selection: MeasuredServices,
    /// Virtual servers of the last reading; none before the first one.
    frontends: Option<HashMap<Frontend, Account>>,
    services: HashMap<ServiceName, Total>,
}

/// The last reading of a virtual server.
#[derive(Debug)]
struct Account {
    owner: Option<ServiceName>,
    counters: TrafficCounters,
}

/// Traffic of a Service.
#[derive(Debug, Default)]
struct Total {
    counted: TrafficCounters,
    /// Bytes, of which earlier ones count less.
    recent: f64,
}

/// Services that are to be shown after a reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The Services in the order of their names, each with its virtual servers.
    pub services: Vec<(ServiceName, Vec<Frontend>)>,
    /// Number of Services that would be shown if there were room.
    pub n_omitted: usize,
}

impl Accounts {
    /// No traffic yet.
    #[must_use]
    pub fn new(selection: MeasuredServices) -> Self {
        Self { selection, frontends: None, services: HashMap::new() }
    }

    /// Adds what has passed since the last reading, which was `elapsed` ago, and returns the Services
    /// to show.
    ///
    /// Counts from before the first reading belong to an earlier process.
    pub fn add(&mut self, reading: Vec<FrontendTraffic>, elapsed: Duration) -> Shown {
        let weight = 0.5_f64.powf(elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64());
        for total in self.services.values_mut() {
            total.recent *= weight;
        }
        let before = self.frontends.take();
        let mut frontends = HashMap::with_capacity(reading.len());
        let mut owned: HashMap<ServiceName, Vec<Frontend>> = HashMap::new();
        for FrontendTraffic { frontend, owner, counters } in reading {
            let known = before.as_ref().map(|before| before.get(&frontend));
            // A virtual server that drains belongs to no Service any more. It is its last one's.
            let owner = owner.or_else(|| known.flatten()?.owner.clone());
            if let Some(owner) = owner.as_ref().filter(|owner| self.selection.includes(owner)) {
                let passed = match known {
                    None => TrafficCounters::default(),
                    Some(None) => counters,
                    Some(Some(account)) => counters.since(&account.counters),
                };
                let total = self.services.entry(owner.clone()).or_default();
                total.counted = total.counted.plus(&passed);
                total.recent += recent(&passed);
                owned.entry(owner.clone()).or_default().push(frontend);
            }
            frontends.insert(frontend, Account { owner, counters });
        }
        self.frontends = Some(frontends);
        self.services.retain(|service, _| owned.contains_key(service));
        self.shown(owned)
    }

    /// Returns the traffic of Services with the connections that their virtual servers have, in the
    /// order of [`Shown::services`].
    #[must_use]
    pub fn traffic(
        &self,
        connections: impl IntoIterator<Item = (ServiceName, CurrentConnections)>,
    ) -> Vec<ServiceTraffic> {
        let of = |(service, current)| {
            let counted =
                self.services.get(&service).map_or_else(TrafficCounters::default, |it| it.counted);
            ServiceTraffic { service, counted, current }
        };
        connections.into_iter().map(of).collect()
    }

    fn shown(&self, owned: HashMap<ServiceName, Vec<Frontend>>) -> Shown {
        let mut services: Vec<(ServiceName, Vec<Frontend>)> = owned.into_iter().collect();
        let n_omitted = services.len().saturating_sub(self.selection.most());
        if n_omitted > 0 {
            let mut order: Vec<(&ServiceName, f64)> = services
                .iter()
                .map(|(service, _)| {
                    (service, self.services.get(service).map_or(0.0, |it| it.recent))
                })
                .collect();
            order.sort_by(|(one, traffic), (other, other_traffic)| {
                other_traffic.total_cmp(traffic).then_with(|| one.cmp(other))
            });
            let first: HashSet<ServiceName> = order
                .into_iter()
                .take(self.selection.most())
                .map(|(service, _)| service.clone())
                .collect();
            services.retain(|(service, _)| first.contains(service));
        }
        services.sort_by(|(one, _), (other, _)| one.cmp(other));
        Shown { services, n_omitted }
    }
}

/// Returns the weight of traffic that passed just now.
fn recent(passed: &TrafficCounters) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "it only decides about an order")]
    let bytes = passed.bytes() as f64;
    bytes
}
