//! Virtual servers, addresses and sets that are to be removed, of what was read.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use plan::actual::Actual;
use plan::hash::HashSet;
use plan::kernel_objects::{Entry, Frontend};
use plan::op::Op;
use plan::planner::Planner;
use plan::routes::RouteOp;
use plan::sets::SetId;
use plan::settings::Settings;

use kernel::leftovers::FoundLeftovers;
use syntax::counted::first_named;

/// Kernel state that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct StateRemoval {
    pub(super) virtual_servers: Vec<Frontend>,
    pub(super) routes: Vec<IpNet>,
    pub(super) link: LinkRemoval,
    /// Entries of sets that stay.
    pub(super) entries: Vec<(SetId, Entry)>,
    pub(super) sets: Vec<SetId>,
    /// Things that stay although they have a name of ours, with the reason.
    pub(super) kept: Vec<String>,
}

/// Treatment of the interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum LinkRemoval {
    /// It is not there.
    #[default]
    None,
    /// It goes with its addresses.
    Whole,
    /// It stays, and so do other programs' addresses on it.
    Addresses(Vec<IpAddr>),
    /// It has our name and is of this other kind.
    Foreign(String),
}

impl LinkRemoval {
    /// True if something of ours is there to be removed.
    pub(super) fn is_left(&self) -> bool {
        match self {
            Self::None | Self::Foreign(_) => false,
            Self::Whole => true,
            Self::Addresses(addresses) => !addresses.is_empty(),
        }
    }
}

/// Returns what is to be removed: what a planner that wants nothing would remove, and the sets and
/// the interface themselves when nothing of other programs is in them. `chosen` tells in which
/// networks everything belongs to other programs, and in which everything is an internal frontend's.
pub(super) fn removal(found: &FoundLeftovers, chosen: &Settings) -> StateRemoval {
    let (exclude, internal_frontend_networks) =
        (chosen.exclude.clone(), chosen.ipvs_internal_frontend_networks);
    let settings = Settings { exclude, internal_frontend_networks, ..Settings::new("") };
    let excludes = |address: &IpAddr| settings.excludes(*address);
    let is_foreign = |entry: &Entry| entry.address().is_some_and(|address| excludes(&address));
    let mut removal = StateRemoval::default();
    for (set, there) in &found.actual.sets {
        if there.entries.iter().any(is_foreign) {
            removal
                .kept
                .push(format!("the set {set}, which has entries inside the excluded networks"));
        } else if found.ipsets.contains(set) {
            removal.sets.push(*set);
        }
    }
    removal.sets.sort_unstable();
    removal.kept.sort_unstable();
    let mut addresses = Vec::new();
    let is_foreign_link = found.link_kind.as_deref().is_some_and(|kind| kind != "dummy");
    let mut actual = Cow::Borrowed(&found.actual);
    if is_foreign_link {
        // Its addresses say nothing about virtual servers.
        actual.to_mut().addresses.clear();
    }
    for op in Planner::new(settings.clone()).diff(&actual) {
        match op {
            Op::RemoveVirtualServer(frontend) => removal.virtual_servers.push(frontend),
            Op::UnbindAddress(address) => addresses.push(address),
            Op::Route(RouteOp::Remove(network)) => removal.routes.push(network),
            Op::RemoveEntry(set, entry)
                if found.ipsets.contains(&set) && !removal.sets.contains(&set) =>
            {
                removal.entries.push((set, entry));
            }
            _ => {}
        }
    }
    removal.link = match &found.link_kind {
        None => LinkRemoval::None,
        Some(kind) if is_foreign_link => LinkRemoval::Foreign(kind.clone()),
        Some(_) if found.actual.addresses.iter().any(excludes) => {
            removal.kept.push(format!(
                "the interface {}, which has addresses inside the excluded networks",
                plan::kernel_objects::LINK
            ));
            LinkRemoval::Addresses(addresses)
        }
        Some(_) => LinkRemoval::Whole,
    };
    let foreign = found.foreign_sets.iter();
    removal.kept.extend(foreign.map(|set| {
        format!(
            "the set {set}, whose type is not that of \
                                                   kube-ipvs"
        )
    }));
    removal.kept.extend(unowned(&actual, &removal.virtual_servers));
    removal
}

/// Names the virtual servers that stay, since nothing says whose they are.
fn unowned(actual: &Actual, removed: &[Frontend]) -> Option<String> {
    let removed: HashSet<&Frontend> = removed.iter().collect();
    let mut left: Vec<&Frontend> =
        actual.virtual_servers.keys().filter(|it| !removed.contains(it)).collect();
    left.sort_unstable();
    (!left.is_empty()).then(|| {
        format!(
            "unowned virtual servers, or virtual servers inside the excluded networks: {} (remove \
             one with ipvsadm -D)",
            first_named(left.iter())
        )
    })
}

#[cfg(test)]
mod tests {
    use plan::hash::HashMap;

    use plan::actual::{ActualSet, ActualVirtualServer};
    use plan::model::{Family, Protocol};
    use plan::sets::SetKind;
    use plan::settings::InternalFrontendNetworks;

    use super::*;

    fn mk_frontend(address: &str, port: u16) -> Frontend {
        Frontend { address: address.parse().unwrap(), protocol: Protocol::Tcp, port }
    }

    fn mk_set(kind: SetKind, family: Family) -> SetId {
        SetId { kind, family }
    }

    /// A virtual server each that is ours by an address, by a set and by a node port, one that is
    /// unowned, one on a node's address at a port of its own, and one of each family.
    fn mk_found() -> FoundLeftovers {
        let mut found =
            FoundLeftovers { link_kind: Some("dummy".into()), ..FoundLeftovers::default() };
        let actual = &mut found.actual;
        actual.link = true;
        actual.addresses =
            ["10.96.0.1", "fd00:96::1"].map(|text| text.parse().unwrap()).into_iter().collect();
        actual.local_addresses = ["192.168.0.11".parse().unwrap()].into_iter().collect();
        for (address, port) in [
            ("10.96.0.1", 443),
            ("fd00:96::1", 443),
            ("203.0.113.9", 80),
            ("192.168.0.11", 30_080),
            ("192.168.0.11", 5_555),
            ("192.168.0.99", 30_080),
            ("172.30.0.1", 80),
        ] {
            let there = ActualVirtualServer { server: None, real_servers: HashMap::default() };
            actual.virtual_servers.insert(mk_frontend(address, port), there);
        }
        let cluster = Entry::AddressPort(mk_frontend("10.96.0.1", 443));
        let balancer = Entry::AddressPort(mk_frontend("203.0.113.9", 80));
        for (kind, family, entry) in [
            (SetKind::ClusterIp, Family::V4, cluster),
            (SetKind::LoadBalancer, Family::V4, balancer),
            (SetKind::NodePortTcp, Family::V4, Entry::Port(30_080)),
        ] {
            actual.sets.insert(mk_set(kind, family), [entry].into_iter().collect());
        }
        actual.sets.insert(mk_set(SetKind::ClusterIp, Family::V6), ActualSet::default());
        found.ipsets = found.actual.sets.keys().copied().collect();
        found
    }

    #[test]
    fn what_is_ours_goes_and_nothing_else() {
        let removal = removal(&mk_found(), &Settings::new(""));
        let expected = [
            ("10.96.0.1", 443),
            ("192.168.0.11", 30_080),
            ("203.0.113.9", 80),
            ("fd00:96::1", 443),
        ];
        let mut removed = removal.virtual_servers.clone();
        removed.sort_unstable();
        assert_eq!(removed, expected.map(|(address, port)| mk_frontend(address, port)));
        assert_eq!(removal.link, LinkRemoval::Whole);
        assert_eq!(removal.sets.len(), 4);
        assert!(removal.sets.contains(&mk_set(SetKind::ClusterIp, Family::V6)));
        // The virtual server of another program is named.
        assert_eq!((removal.entries.len(), removal.kept.len()), (0, 1));
    }

    #[test]
    fn sets_in_nf_tables_name_virtual_servers_and_are_no_ipsets() {
        let found = mk_found();
        let in_tables = FoundLeftovers { ipsets: HashSet::default(), ..found.clone() };
        let [removed, expected] =
            [in_tables, found].map(|found| removal(&found, &Settings::new("")));
        assert_eq!(removed.virtual_servers, expected.virtual_servers);
        assert_eq!((removed.sets.len(), removed.entries.len()), (0, 0));
    }

    #[test]
    fn a_route_of_ours_goes_with_the_virtual_servers_inside() {
        let mut found = mk_found();
        let routes: [IpNet; 2] = ["172.30.0.0/16", "fd00:97::/108"].map(|net| net.parse().unwrap());
        found.actual.routes = routes.into_iter().collect();
        let removal = removal(&found, &Settings::new(""));
        assert_eq!(removal.routes, routes);
        assert!(removal.virtual_servers.contains(&mk_frontend("172.30.0.1", 80)));
        assert_eq!(removal.virtual_servers.len(), 5);
    }

    #[test]
    fn all_in_the_networks_of_internal_frontends_goes_and_they_are_those_that_were_chosen() {
        let mut found = mk_found();
        let internal_frontends =
            ["240.96.0.7", "198.19.0.7"].map(|address| mk_frontend(address, 80));
        for internal_frontend in internal_frontends {
            let there = found.actual.virtual_servers[&mk_frontend("10.96.0.1", 443)].clone();
            found.actual.virtual_servers.insert(internal_frontend, there);
        }
        let of_ours = |internal_frontend_networks: InternalFrontendNetworks| {
            let ipvs_internal_frontend_networks = internal_frontend_networks;
            let chosen = Settings { ipvs_internal_frontend_networks, ..Settings::new("") };
            removal(&found, &chosen).virtual_servers
        };
        let is_removed = |networks| {
            internal_frontends
                .map(|internal_frontend| of_ours(networks).contains(&internal_frontend))
        };
        let elsewhere = InternalFrontendNetworks { v4: "198.18.0.0/15".parse().ok(), v6: None };
        assert_eq!(is_removed(InternalFrontendNetworks::default()), [true, false]);
        assert_eq!(is_removed(elsewhere), [false, true]);
        assert_eq!(is_removed(InternalFrontendNetworks::NONE), [false, false]);
    }

    #[test]
    fn nothing_there_is_nothing_to_do() {
        assert_eq!(
            removal(&FoundLeftovers::default(), &Settings::new("")),
            StateRemoval::default()
        );
    }

    #[test]
    fn what_is_excluded_stays_and_what_holds_it_does_too() {
        let mut found = mk_found();
        let own = mk_frontend("10.97.0.1", 80);
        let cluster = mk_set(SetKind::ClusterIp, Family::V4);
        found.actual.addresses.insert(own.address);
        found.actual.sets.get_mut(&cluster).unwrap().entries.insert(Entry::AddressPort(own));
        let exclude = vec!["10.96.0.0/16".parse().unwrap()];
        let removal = removal(&found, &Settings { exclude, ..Settings::new("") });
        assert!(!removal.virtual_servers.contains(&mk_frontend("10.96.0.1", 443)));
        assert_eq!(removal.virtual_servers.len(), 3);
        let LinkRemoval::Addresses(addresses) = &removal.link else { panic!("{removal:?}") };
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        assert!(!addresses.contains(&"10.96.0.1".parse().unwrap()));
        assert!(removal.link.is_left() && !LinkRemoval::Addresses(Vec::new()).is_left());
        assert_eq!(removal.entries, [(cluster, Entry::AddressPort(own))]);
        assert!(!removal.sets.contains(&cluster));
        let [.., virtual_servers] = &removal.kept[..] else { panic!("{removal:?}") };
        assert!(virtual_servers.contains("10.96.0.1:443"), "{virtual_servers}");
        assert_eq!(removal.kept.len(), 3, "{:?}", removal.kept);
    }

    #[test]
    fn what_only_has_our_name_stays() {
        let mut found = mk_found();
        found.link_kind = Some("bridge".into());
        found.foreign_sets = vec![mk_set(SetKind::LoopBack, Family::V4)];
        let removal = removal(&found, &Settings::new(""));
        assert_eq!(removal.link, LinkRemoval::Foreign("bridge".into()));
        // Recorded in a set, but not only by an address on that interface.
        assert!(removal.virtual_servers.contains(&mk_frontend("10.96.0.1", 443)));
        assert!(!removal.virtual_servers.contains(&mk_frontend("fd00:96::1", 443)));
        assert!(removal.kept[0].contains("KUBE-LOOP-BACK"));
    }
}
