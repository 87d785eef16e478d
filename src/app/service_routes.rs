//! The choice that `serviceRoutes: auto` leaves open: addresses one by one, or routes once there are many
//! Services.
//!
//! A start keeps routes that the kernel has. One that finds addresses counts these, and one that finds
//! nothing asks how many Services there are. While the node serves, their number is looked at now and
//! then, for each family by itself; for another choice, the event loop changes over without a gap. All
//! nodes see the same number, so each waits for a while of its own before that; and so that a number
//! that goes up and down costs little, an hour goes by between two changes of a family.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ipnet::IpNet;
use parking_lot::Mutex;
use plan::model::Family;
use plan::settings::Settings;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::source::ClusterQuestions;
use config::Configuration;
use kernel::linux::LocalServiceAddresses;
use node::host::without_neighbours;
use reconcile::inquiry::{Inquiries, LoopGone};
use reconcile::{Input, Status};

/// Numbers of Services that decide for a family.
struct Limits {
    /// Number above which there are routes.
    many: usize,
    /// Number below which addresses are bound one by one again. In between, it stays as it is.
    few: usize,
}

/// The kernel takes 0.2 s to bind 5,000 addresses, and a hundred times as long for ten times as many
/// (docs/service-addresses.md).
const IPV4: Limits = Limits { many: 5_000, few: 2_500 };

/// The kernel looks at each address of the node for each connection that is masqueraded or that the
/// node opens: with 250 of them, that costs as much as all the rest (docs/internals/packets.md).
const IPV6: Limits = Limits { many: 250, few: 125 };

/// Pause between two looks at the number of Services.
const LOOK: Duration = Duration::from_secs(10);

/// Least time between two looks at the cluster's ServiceCIDRs, and what is added at random.
const PERIOD: Duration = Duration::from_secs(720);
const PERIOD_SPREAD: Duration = Duration::from_secs(360);

/// Longest time for which a node waits before it changes, when others see the same.
const SPREAD: Duration = Duration::from_secs(300);

/// Least time between two changes of a family.
const REST: Duration = Duration::from_secs(3_600);

/// Looks at whether the choice still is the right one.
pub(super) struct RouteWatch {
    pub(super) configuration: Configuration,
    /// Settings that the node serves with.
    pub(super) settings: Settings,
    pub(super) cluster: Option<ClusterQuestions>,
    pub(super) inquiries: Inquiries,
    pub(super) last_changes: LastChanges,
}

/// Times of the last changes in this process, by family.
#[derive(Debug, Clone, Default)]
pub(super) struct LastChanges(Arc<Mutex<BTreeMap<Family, Instant>>>);

/// Way in which a family's addresses are local.
struct Choice {
    family: Family,
    /// Networks with a local route.
    routes: Vec<IpNet>,
    /// Time of the next look at the cluster's ServiceCIDRs.
    next: Instant,
    /// Problems of the last look that there were some in: a warning is logged once.
    warned: Vec<String>,
}

/// Another choice, and the number of Services that it is for.
struct Wanted {
    routes: Vec<IpNet>,
    n_services: usize,
}

/// Numbers of Services, by family.
type Counts = BTreeMap<Family, usize>;

/// True if there should be routes, for so many Services.
const fn is_better_routed(family: Family, n_services: usize, is_routed: bool) -> bool {
    let Limits { many, few } = match family {
        Family::V4 => IPV4,
        Family::V6 => IPV6,
    };
    n_services > many || (is_routed && n_services >= few)
}

/// Returns the families that there should be routes for.
fn better_routed(settings: &Settings, counts: &Counts, chosen: &[IpNet]) -> Vec<Family> {
    let is_routed = |family| chosen.iter().any(|network| Family::of_net(network) == family);
    let families = settings.families.iter().copied();
    let count = |family| counts.get(&family).copied().unwrap_or_default();
    families.filter(|it| is_better_routed(*it, count(*it), is_routed(*it))).collect()
}

fn of_families(mut networks: Vec<IpNet>, families: &[Family]) -> Vec<IpNet> {
    networks.retain(|network| families.contains(&Family::of_net(network)));
    networks
}

/// True if there are local routes, or may be later.
pub(super) fn may_be(configuration: &Configuration, settings: &Settings) -> bool {
    !settings.service_routes.is_empty() || configuration.chooses_routes()
}

/// Returns the configuration with the choice to begin with, if that is open.
pub(super) async fn at_start(
    configuration: Configuration,
    cluster: Option<&ClusterQuestions>,
) -> Configuration {
    if !configuration.chooses_routes() || configuration.service_routes.chosen.is_some() {
        return configuration;
    }
    let internal_frontends = &configuration.settings.internal_frontend_networks;
    let found = LocalServiceAddresses::read(internal_frontends).unwrap_or_else(|error| {
        warn!("cannot read local routes and addresses: {error}; serviceRoutes: auto assumes none");
        LocalServiceAddresses::default()
    });
    begin(configuration, found, cluster).await
}

/// Returns the configuration with the choice to begin with, where this was found in the kernel. The first look
/// while the node serves warns of problems.
pub(super) async fn begin(
    configuration: Configuration,
    found: LocalServiceAddresses,
    cluster: Option<&ClusterQuestions>,
) -> Configuration {
    let routes = &configuration.service_routes;
    let (networks, problems) = if !found.routes.is_empty() {
        usable(&configuration, &routes.kept(&found.routes))
    } else if let Some(counts) = counts(found.n_bound, cluster).await
        && let families = better_routed(&configuration.settings, &counts, &[])
        && !families.is_empty()
    {
        networks(&configuration, cluster, &families).await
    } else {
        Default::default()
    };
    for problem in problems {
        info!("serviceRoutes: auto looks again once Services are listed: {problem}");
    }
    if !networks.is_empty() {
        info!("serviceRoutes: auto starts with routes to {}", listed(&networks));
    }
    configuration.with_routes(networks)
}

/// Returns about how many Services there are, before any is listed: one for each address that is bound,
/// or as many as the API server says, of each family.
async fn counts(n_bound: Counts, cluster: Option<&ClusterQuestions>) -> Option<Counts> {
    if !n_bound.is_empty() {
        return Some(n_bound);
    }
    let n_services = count_services(cluster).await?;
    Some(Family::BOTH.map(|family| (family, n_services)).into())
}

/// Asks how many Services there are, before any is listed.
async fn count_services(cluster: Option<&ClusterQuestions>) -> Option<usize> {
    let counted = cluster?.count_services().await.inspect_err(|problem| {
        info!(
            "cannot get the number of Services: {problem}; kube-ipvs counts them once they are \
             listed"
        );
    });
    counted.ok()
}

/// Returns the networks of these families to have routes to, none if they are not known, and problems in words.
async fn networks(
    configuration: &Configuration,
    cluster: Option<&ClusterQuestions>,
    families: &[Family],
) -> (Vec<IpNet>, Vec<String>) {
    let named = &configuration.service_routes.named;
    let known = match cluster {
        _ if !named.is_empty() => Ok(named.clone()),
        Some(cluster) => cluster.service_networks().await,
        None => Err("no API server is configured".to_owned()),
    };
    match known {
        Ok(known) => usable(configuration, &of_families(known, families)),
        Err(problem) => {
            let problem = format!(
                "cannot read the cluster's ServiceCIDRs: {problem}. With this many Services, routes \
                 would be better than an address each: set serviceRoutes: [auto, 10.96.0.0/12] \
                 (kube-apiserver's --service-cluster-ip-range), or allow kube-ipvs to list \
                 servicecidrs. serviceRoutes: [] keeps an address each"
            );
            (Vec::new(), vec![problem])
        }
    }
}

/// Returns those that a route can lead to, and problems of the others in words.
fn usable(configuration: &Configuration, networks: &[IpNet]) -> (Vec<IpNet>, Vec<String>) {
    let (usable, problems) = configuration.routable(networks);
    let left_out =
        |problem| format!("it skips a network and binds its addresses one by one: {problem}");
    (usable, problems.into_iter().map(left_out).collect())
}

impl LastChanges {
    fn of(&self, family: Family) -> Option<Instant> {
        self.0.lock().get(&family).copied()
    }

    fn note(&self, family: Family) {
        self.0.lock().insert(family, Instant::now());
    }
}

impl RouteWatch {
    /// Has the event loop change over when another choice is the right one. Does nothing if the choice
    /// is not automatic.
    pub(super) async fn run(self, status: watch::Receiver<Status>) -> Infallible {
        if self.configuration.chooses_routes() {
            let families = self.settings.families.iter();
            // They end when the loop does.
            join_all(families.map(|family| self.follow(*family, status.clone()))).await;
        }
        std::future::pending().await
    }

    /// Looks at the number of a family's Services again and again, until the loop has ended.
    async fn follow(
        &self,
        family: Family,
        mut status: watch::Receiver<Status>,
    ) -> Result<Infallible, LoopGone> {
        let routes = of_families(self.settings.service_routes.clone(), &[family]);
        let mut choice = Choice { family, routes, next: Instant::now(), warned: Vec::new() };
        // What a start did not know is made good; starts are spread by themselves.
        let mut may_be_at_once = self.last_changes.of(family).is_none();
        loop {
            status.wait_for(|status| status.in_sync_once).await.map_err(|_| LoopGone)?;
            let mut wanted = self.look(&mut choice).await?;
            if wanted.is_some() && !may_be_at_once {
                sleep(self.pause(family)).await;
                choice.next = Instant::now();
                wanted = self.look(&mut choice).await?;
            }
            if let Some(Wanted { routes, n_services }) = wanted {
                let what = if routes.is_empty() {
                    format!("binds each address of {family}")
                } else {
                    format!("has routes of {family} to {}", listed(&routes))
                };
                info!("serviceRoutes: auto {what}, for {n_services} Services");
                self.inquiries.order(Input::ServiceRoutes(family, routes.clone())).await?;
                self.last_changes.note(family);
                choice.routes = routes;
            }
            may_be_at_once = false;
            sleep(LOOK).await;
        }
    }

    /// Returns the time to wait before a change.
    fn pause(&self, family: Family) -> Duration {
        let rested = self.last_changes.of(family).map_or(REST, |changed| changed.elapsed());
        REST.saturating_sub(rested) + SPREAD.mul_f64(fastrand::f64())
    }

    /// Looks once, and returns the networks of another choice. The cluster's networks are looked at when
    /// it is time to, or when there should be routes.
    async fn look(&self, choice: &mut Choice) -> Result<Option<Wanted>, LoopGone> {
        let Choice { family, routes, next, warned } = choice;
        let family = *family;
        let ask = self.inquiries.ask(move |view| view.planner.n_services_of(family));
        let n_services = ask.await?;
        if !is_better_routed(family, n_services, !routes.is_empty()) {
            *next = Instant::now();
            let wanted = Wanted { routes: Vec::new(), n_services };
            return Ok((!routes.is_empty()).then_some(wanted));
        }
        if Instant::now() < *next {
            return Ok(None);
        }
        *next = Instant::now() + PERIOD + PERIOD_SPREAD.mul_f64(fastrand::f64());
        let (wanted, problems) =
            networks(&self.configuration, self.cluster.as_ref(), &[family]).await;
        for problem in problems.iter().filter(|problem| !warned.contains(problem)) {
            warn!("serviceRoutes: auto, {family}: {problem}");
        }
        if !problems.is_empty() {
            *warned = problems;
        }
        if lead_to_the_same(&self.settings, &wanted, routes) {
            return Ok(None);
        }
        let wanted = match without_neighbours(wanted, &self.settings) {
            Ok(wanted) => wanted,
            Err(error) => {
                warn!("serviceRoutes: auto changes nothing now, and checks again: {error}");
                return Ok(None);
            }
        };
        // A cluster without any network is one that does not say.
        if wanted.is_empty() || lead_to_the_same(&self.settings, &wanted, routes) {
            return Ok(None);
        }
        Ok(Some(Wanted { routes: wanted, n_services }))
    }
}

/// True if routes to these networks are routes to those, with what is excluded cut out.
fn lead_to_the_same(settings: &Settings, these: &[IpNet], those: &[IpNet]) -> bool {
    let routes = |networks: &[IpNet], family| {
        let service_routes = networks.to_vec();
        Settings { service_routes, ..settings.clone() }.routes(family)
    };
    Family::BOTH.into_iter().all(|family| routes(these, family) == routes(those, family))
}

fn listed(networks: &[IpNet]) -> String {
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_goes_up_and_down_changes_nothing() {
        for (family, Limits { many, few }) in [(Family::V4, IPV4), (Family::V6, IPV6)] {
            assert!(!is_better_routed(family, many, false));
            assert!(is_better_routed(family, many + 1, false));
            assert!(is_better_routed(family, few, true));
            assert!(!is_better_routed(family, few - 1, true));
        }
    }

    #[test]
    fn each_family_has_routes_of_its_own() {
        let settings = Settings { families: Family::BOTH.to_vec(), ..Settings::new("node-1") };
        let both: Vec<IpNet> =
            ["10.96.0.0/16", "fd00::/112"].map(|text| text.parse().unwrap()).into();
        let routed = |n_services, chosen: &[IpNet]| {
            let counts = Family::BOTH.map(|family| (family, n_services)).into();
            of_families(both.clone(), &better_routed(&settings, &counts, chosen))
        };
        assert_eq!(routed(250, &[]), []);
        assert_eq!(routed(5_000, &[]), both[1..]);
        assert_eq!(routed(5_001, &both[1..]), both);
        assert_eq!(routed(2_500, &both), both);
        assert_eq!(routed(2_499, &both), both[1..]);
        assert_eq!(routed(124, &both), []);
        // Services of the other family do not count.
        let counts = Counts::from([(Family::V4, 9_000), (Family::V6, 3)]);
        assert_eq!(better_routed(&settings, &counts, &both), [Family::V4]);
    }

    #[test]
    fn routes_that_the_kernel_has_are_compared_without_what_is_excluded() {
        let nets =
            |texts: &[&str]| texts.iter().map(|it| it.parse().unwrap()).collect::<Vec<IpNet>>();
        let settings = Settings { exclude: nets(&["10.96.0.2/32"]), ..Settings::new("node-1") };
        let (whole, found) = (nets(&["10.96.0.0/30"]), nets(&["10.96.0.0/31", "10.96.0.3/32"]));
        assert!(lead_to_the_same(&settings, &whole, &found));
        assert!(!lead_to_the_same(
            &settings,
            &[&whole[..], &nets(&["fd00::/112"])].concat(),
            &found
        ));
        assert!(!lead_to_the_same(&settings, &whole, &[]));
    }

    fn mk_watch() -> RouteWatch {
        let words = ["kube-ipvs", "--proxy-mode=ipvs"].map(Into::into);
        let configuration = Configuration::load(&config::cli::parse(words).unwrap()).unwrap();
        RouteWatch {
            settings: Settings::clone(&configuration.settings),
            configuration,
            cluster: None,
            inquiries: reconcile::inquiry::inquiries().0,
            last_changes: LastChanges::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_spread_and_an_hour_apart_for_each_family() {
        let watch = mk_watch();
        watch.last_changes.note(Family::V6);
        let pauses: Vec<Duration> = (0..100).map(|_| watch.pause(Family::V6)).collect();
        assert!(pauses.iter().all(|pause| (REST..=REST + SPREAD).contains(pause)), "{pauses:?}");
        let spread = *pauses.iter().max().unwrap() - *pauses.iter().min().unwrap();
        assert!(spread > SPREAD / 2, "{spread:?}");
        assert!(watch.pause(Family::V4) <= SPREAD, "the other family");
        tokio::time::advance(REST).await;
        assert!(watch.pause(Family::V6) <= SPREAD);
    }
}
