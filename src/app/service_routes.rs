//! The choice that `serviceRoutes: auto` leaves open: addresses one by one, or routes once there are many
//! Services.
//!
//! A start keeps routes that the kernel has. One that finds addresses counts these, and one that finds
//! nothing asks how many Services there are. While the node serves, their number is looked at now and
//! then; another choice begins another tenure, which changes over without a gap. All nodes see the same
//! number, so each waits for a while of its own before that; and so that a number that goes up and down
//! costs little, an hour goes by between two changes.

use std::collections::BTreeMap;
use std::time::Duration;

use ipnet::IpNet;
use plan::mode::Mode;
use plan::model::Family;
use plan::planner::Planner;
use plan::settings::Settings;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::changes::{Consequence, Switch};
use super::source::ClusterQuestions;
use crate::config::Configuration;
use crate::kernel::linux::LocalServiceAddresses;
use crate::reconcile::Status;
use crate::reconcile::inquiry::Inquiries;
use crate::spread::random_up_to;

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
/// node opens: with 250 of them, that costs as much as all the rest (docs/packets.md).
const IPV6: Limits = Limits { many: 250, few: 125 };

/// Pause between two looks at the number of Services.
const LOOK: Duration = Duration::from_secs(10);

/// Least time between two looks at the cluster's ServiceCIDRs, and what is added at random.
const PERIOD: Duration = Duration::from_secs(720);
const PERIOD_SPREAD: Duration = Duration::from_secs(360);

/// Longest time for which a node waits before it changes, when others see the same.
const SPREAD: Duration = Duration::from_secs(300);

/// Least time between two changes.
const REST: Duration = Duration::from_secs(3_600);

/// Time after which a choice that the node could not serve with is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(3_600);

/// Looks at whether the choice still is the right one.
pub(super) struct RouteWatch {
    /// Configuration for the preferred mode, with the choice that was made.
    pub(super) configuration: Configuration,
    /// Settings that the node serves with.
    pub(super) settings: Settings,
    pub(super) cluster: Option<ClusterQuestions>,
    pub(super) inquiries: Inquiries,
    /// True if another choice could not be served with just now.
    pub(super) has_failed: bool,
    /// Time of the last change in this process.
    pub(super) last_change: Option<Instant>,
}

/// Time of the next look at the networks, unless there should be routes for more families.
struct NextLook {
    at: Instant,
    families: Vec<Family>,
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

/// Returns the configuration with the choice to begin with, if that is open.
pub(super) async fn at_start(
    configuration: Configuration,
    cluster: Option<&ClusterQuestions>,
) -> Configuration {
    let routes = &configuration.service_routes;
    if configuration.settings.mode != Mode::Ipvs || routes.chosen.is_some() {
        return configuration;
    }
    let found = LocalServiceAddresses::read().unwrap_or_else(|error| {
        warn!("cannot read local routes and addresses: {error}; serviceRoutes: auto takes there to be none");
        LocalServiceAddresses::default()
    });
    let networks = if !found.routes.is_empty() {
        usable(&configuration, &routes.kept(&found.routes))
    } else if let Some(counts) = counts(found.n_bound, cluster).await
        && let families = better_routed(&configuration.settings, &counts, &[])
        && !families.is_empty()
    {
        of_families(networks(&configuration, cluster).await.unwrap_or_default(), &families)
    } else {
        Vec::new()
    };
    if !networks.is_empty() {
        info!("serviceRoutes: auto begins with routes to {}", listed(&networks));
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
            "cannot ask how many Services there are: {problem}; they are counted once they are listed"
        );
    });
    counted.ok()
}

/// Returns the networks to have routes to; none if they are not known.
async fn networks(
    configuration: &Configuration,
    cluster: Option<&ClusterQuestions>,
) -> Option<Vec<IpNet>> {
    let named = &configuration.service_routes.named;
    if !named.is_empty() {
        return Some(usable(configuration, named));
    }
    let asked = match cluster {
        Some(cluster) => cluster.service_networks().await,
        None => Err("there is no API server to ask".to_owned()),
    };
    match asked {
        Ok(found) => Some(usable(configuration, &found)),
        Err(problem) => {
            warn!(
                "cannot read the cluster's ServiceCIDRs: {problem}. There are so many Services that routes \
                 would be better than an address each; name the networks: serviceRoutes: [auto, 10.96.0.0/12] \
                 (kube-apiserver's --service-cluster-ip-range), or let the program list servicecidrs"
            );
            None
        }
    }
}

/// Returns those that a route can lead to, and warns of the others.
fn usable(configuration: &Configuration, networks: &[IpNet]) -> Vec<IpNet> {
    let (usable, problems) = configuration.routable(networks);
    for problem in problems {
        warn!(
            "serviceRoutes: auto leaves a network out, whose addresses are bound one by one: {problem}"
        );
    }
    usable
}

// === impl RouteWatch ===

impl RouteWatch {
    /// Ready with another choice, and never if the choice is not automatic.
    pub(super) async fn changed(self, mut status: watch::Receiver<Status>) -> Consequence {
        if !self.configuration.service_routes.is_automatic || self.settings.mode != Mode::Ipvs {
            return std::future::pending().await;
        }
        if self.has_failed {
            sleep(AFTER_FAILURE).await;
        }
        // What a start did not know is made good; starts are spread by themselves.
        let mut may_be_at_once = self.last_change.is_none();
        let mut next = NextLook { at: Instant::now(), families: Vec::new() };
        loop {
            if status.wait_for(|status| status.in_sync_once).await.is_err() {
                return std::future::pending().await;
            }
            if let Some(consequence) = self.look(&mut next).await {
                if may_be_at_once {
                    return consequence;
                }
                sleep(self.pause()).await;
                next.at = Instant::now();
                if let Some(consequence) = self.look(&mut next).await {
                    return consequence;
                }
            }
            may_be_at_once = false;
            sleep(LOOK).await;
        }
    }

    /// Returns the time to wait before a change.
    fn pause(&self) -> Duration {
        let rested = self.last_change.map_or(REST, |changed| changed.elapsed());
        REST.saturating_sub(rested) + random_up_to(SPREAD)
    }

    /// Looks once. The networks are looked at when it is time to, or when there should be routes.
    async fn look(&self, next: &mut NextLook) -> Option<Consequence> {
        let chosen = self.configuration.service_routes.chosen.as_deref().unwrap_or_default();
        let of_family =
            |planner: &Planner| Family::BOTH.map(|family| (family, planner.n_services_of(family)));
        let asked = self.inquiries.ask(move |view| of_family(view.planner)).await.ok()?;
        let counts = Counts::from(asked);
        let families = better_routed(&self.settings, &counts, chosen);
        let remaining = of_families(chosen.to_vec(), &families);
        if remaining.len() < chosen.len() {
            return Some(self.change_to(remaining, &counts));
        }
        if families.is_empty() || (Instant::now() < next.at && families == next.families) {
            return None;
        }
        next.at = Instant::now() + PERIOD + random_up_to(PERIOD_SPREAD);
        next.families.clone_from(&families);
        let wanted = networks(&self.configuration, self.cluster.as_ref()).await?;
        let wanted = of_families(wanted, &families);
        // A cluster without any network is one that does not say.
        let is_other = !wanted.is_empty() && !lead_to_the_same(&self.settings, &wanted, chosen);
        is_other.then(|| self.change_to(wanted, &counts))
    }

    fn change_to(&self, networks: Vec<IpNet>, counts: &Counts) -> Consequence {
        let counts = counts.iter().map(|(family, count)| format!("{count} of {family}"));
        let services = format!("for Services: {}", counts.collect::<Vec<_>>().join(", "));
        let reason = if networks.is_empty() {
            format!("serviceRoutes: auto binds each address, {services}")
        } else {
            format!("serviceRoutes: auto has routes to {}, {services}", listed(&networks))
        };
        Consequence::Switch(Box::new(Switch {
            configuration: self.configuration.clone().with_routes(networks),
            is_configured: false,
            is_rerouting: true,
            reason,
        }))
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

    fn mk_watch(last_change: Option<Instant>) -> RouteWatch {
        let words = ["kube-ipvs", "--proxy-mode=ipvs"].map(Into::into);
        let configuration = Configuration::load(&crate::cli::parse(words).unwrap()).unwrap();
        RouteWatch {
            settings: Settings::clone(&configuration.settings),
            configuration,
            cluster: None,
            inquiries: crate::reconcile::inquiry::inquiries().0,
            has_failed: false,
            last_change,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_spread_and_an_hour_apart() {
        let now = Instant::now();
        let pauses: Vec<Duration> = (0..100).map(|_| mk_watch(Some(now)).pause()).collect();
        assert!(pauses.iter().all(|pause| (REST..=REST + SPREAD).contains(pause)), "{pauses:?}");
        let spread = *pauses.iter().max().unwrap() - *pauses.iter().min().unwrap();
        assert!(spread > SPREAD / 2, "{spread:?}");
        tokio::time::advance(REST).await;
        assert!(mk_watch(Some(now)).pause() <= SPREAD);
        assert!(mk_watch(None).pause() <= SPREAD);
    }
}
