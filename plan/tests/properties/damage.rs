//! Changes that others make to the kernel's state, and objects that they have in it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use plan::actual::{Actual, ActualRealServer, ActualSet, ActualVirtualServer};
use plan::kernel_objects::{Entry, Frontend, VirtualServer};
use plan::model::{Family, Protocol};
use plan::scheduler::SchedulerName;
use plan::sets::{SetId, SetKind};
use plan::settings::Settings;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::world::{EXCLUDED, ip, net};

/// Change that another program made to our state.
#[derive(Debug, Clone)]
pub(crate) enum Damage {
    LinkRemoved,
    RuleSetGone(Family),
    SetGone(SetId),
    EntryGone(SetId, Index),
    EntryAdded(SetId),
    AddressGone(Index),
    AddressAdded(IpAddr),
    RoutesGone,
    RouteAdded(IpNet),
    VirtualServerGone(Index),
    VirtualServerStrange(Index),
    SchedulerChanged(Index),
    RealServersGone(Index),
    RealServersChanged(Index, u32, bool),
    RealServerAdded(Index),
}

impl Damage {
    pub(crate) fn inflict(&self, actual: &mut Actual) {
        match self {
            Self::LinkRemoved => {
                actual.link = false;
                actual.addresses.clear();
                actual.routes.retain(|route| route.addr().is_ipv6());
            }
            Self::RuleSetGone(family) => {
                actual.rule_sets.remove(family);
            }
            Self::SetGone(set) => {
                actual.sets.remove(set);
            }
            Self::EntryGone(set, which) => {
                if let Some(ActualSet { entries, .. }) = actual.sets.get_mut(set) {
                    let mut sorted: Vec<Entry> = entries.iter().copied().collect();
                    sorted.sort_unstable();
                    if !sorted.is_empty() {
                        entries.remove(which.get(&sorted));
                    }
                }
            }
            Self::EntryAdded(set) => {
                if let Some(there) = actual.sets.get_mut(set) {
                    there.entries.insert(entry_of(*set));
                }
            }
            Self::AddressGone(which) => {
                let mut sorted: Vec<IpAddr> = actual.addresses.iter().copied().collect();
                sorted.sort_unstable();
                if !sorted.is_empty() {
                    actual.addresses.remove(which.get(&sorted));
                }
            }
            Self::AddressAdded(address) => {
                if actual.link {
                    actual.addresses.insert(*address);
                }
            }
            Self::RoutesGone => actual.routes.clear(),
            Self::RouteAdded(route) => {
                actual.routes.insert(*route);
            }
            Self::VirtualServerGone(which) => {
                if let Some(frontend) = pick(actual, which) {
                    actual.virtual_servers.remove(&frontend);
                }
            }
            Self::VirtualServerStrange(which) => change(actual, which, |it| it.server = None),
            Self::SchedulerChanged(which) => change(actual, which, |it| {
                it.server = Some(foreign_server());
            }),
            Self::RealServersGone(which) => change(actual, which, |it| it.real_servers.clear()),
            Self::RealServersChanged(which, weight, plain) => change(actual, which, |it| {
                for real in it.real_servers.values_mut() {
                    *real = ActualRealServer {
                        weight: *weight,
                        plain: *plain,
                        deadline: None,
                        connections: 3,
                    };
                }
            }),
            Self::RealServerAdded(which) => change(actual, which, |it| {
                it.real_servers.insert(foreign_socket(), strange_real_server());
            }),
        }
    }
}

fn change(actual: &mut Actual, which: &Index, how: impl FnOnce(&mut ActualVirtualServer)) {
    if let Some(frontend) = pick(actual, which) {
        how(actual.virtual_servers.get_mut(&frontend).unwrap());
    }
}

fn pick(actual: &Actual, which: &Index) -> Option<Frontend> {
    let mut sorted: Vec<Frontend> = actual.virtual_servers.keys().copied().collect();
    sorted.sort_unstable();
    (!sorted.is_empty()).then(|| *which.get(&sorted))
}

/// Damage of any kind, but for what tells that an undesired virtual server is ours: without that,
/// it rightly stays.
pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let tells_nothing = select(vec![
        SetKind::LoopBack,
        SetKind::LoadBalancerFirewall,
        SetKind::LoadBalancerSourceCidr,
        SetKind::HealthCheckNodePort,
        SetKind::IpvsAddresses,
    ]);
    let family = || select(Family::BOTH.to_vec());
    let removable = (tells_nothing, family()).prop_map(|(kind, family)| SetId { kind, family });
    let any_set = (select(plan::sets::ALL.to_vec()), family())
        .prop_map(|(kind, family)| SetId { kind, family });
    let which = any::<Index>;
    let address = select(vec!["172.20.0.1", "10.96.0.2", "fd00:ad::1", "fd00:96::2"]);
    let route = select(vec!["172.20.0.0/16", "10.96.0.0/17", "fd00:ad::/64"]);
    prop_oneof![
        Just(Damage::LinkRemoved),
        family().prop_map(Damage::RuleSetGone),
        removable.clone().prop_map(Damage::SetGone),
        (removable, which()).prop_map(|(set, which)| Damage::EntryGone(set, which)),
        any_set.prop_map(Damage::EntryAdded),
        which().prop_map(Damage::AddressGone),
        address.prop_map(|address| Damage::AddressAdded(ip(address))),
        Just(Damage::RoutesGone),
        route.prop_map(|route| Damage::RouteAdded(net(route))),
        which().prop_map(Damage::VirtualServerGone),
        which().prop_map(Damage::VirtualServerStrange),
        which().prop_map(Damage::SchedulerChanged),
        which().prop_map(Damage::RealServersGone),
        (which(), 0_u32..3, any::<bool>())
            .prop_map(|(which, weight, plain)| Damage::RealServersChanged(which, weight, plain)),
        which().prop_map(Damage::RealServerAdded),
    ]
}

/// Adds another program's state, which has to be unchanged afterwards.
pub(crate) fn add_foreign(actual: &mut Actual, settings: &Settings) {
    let tcp =
        |address: &str, port| Frontend { address: ip(address), protocol: Protocol::Tcp, port };
    let mut foreign = vec![
        // An address that is not the node's, one that is, and the unspecified one.
        tcp("172.16.0.1", 80),
        tcp("192.0.2.11", 9_999),
        tcp("0.0.0.0", 80),
        tcp("fd00:16::1", 80),
    ];
    if settings.excludes(ip(EXCLUDED)) {
        let excluded = tcp(EXCLUDED, 80);
        foreign.push(excluded);
        if actual.link {
            actual.addresses.insert(excluded.address);
        }
        let set = SetId { kind: SetKind::ExternalIp, family: Family::V4 };
        if let Some(there) = actual.sets.get_mut(&set) {
            there.entries.insert(Entry::AddressPort(excluded));
        }
    }
    for frontend in foreign {
        let real_servers = [(foreign_socket(), strange_real_server())].into_iter().collect();
        let server = Some(foreign_server());
        actual.virtual_servers.insert(frontend, ActualVirtualServer { server, real_servers });
    }
}

/// Returns the part of a state that must not be touched: what [`add_foreign`] adds, and the
/// families that are not ours.
pub(crate) fn untouchable(
    actual: &Actual,
    desired: &BTreeSet<Frontend>,
    settings: &Settings,
) -> Actual {
    let ours = |family: &Family| settings.families.contains(family);
    let of_other_family = |address: &IpAddr| !ours(&Family::of(*address));
    let foreign = foreign_server();
    let mut left = Actual {
        link: actual.link,
        local_addresses: actual.local_addresses.clone(),
        ..Actual::default()
    };
    let addresses = actual.addresses.iter();
    left.addresses =
        addresses.filter(|a| of_other_family(a) || settings.excludes(**a)).copied().collect();
    let others = actual.virtual_servers.iter().filter(|(frontend, it)| {
        let address = frontend.address;
        let is_nobodys = ["172.16.0.1", "0.0.0.0", "fd00:16::1"].map(ip).contains(&address)
            || frontend.port == 9_999;
        of_other_family(&address)
            || (settings.excludes(address) && !desired.contains(frontend))
            || (is_nobodys && it.server.as_ref() == Some(&foreign))
    });
    left.virtual_servers = others.map(|(frontend, it)| (*frontend, it.clone())).collect();
    for (set, there) in &actual.sets {
        let is_desired = |entry: &Entry| entry.frontend().is_some_and(|f| desired.contains(&f));
        let excluded = |entry: &&Entry| {
            entry.address().is_some_and(|a| settings.excludes(a)) && !is_desired(entry)
        };
        let kept =
            there.entries.iter().filter(|entry| !ours(&set.family) || excluded(entry)).copied();
        left.sets.insert(*set, kept.collect());
    }
    let routes = actual.routes.iter().filter(|route| !ours(&Family::of_net(route)));
    left.routes = routes.copied().collect();
    left.rule_sets = actual.rule_sets.iter().copied().filter(|family| !ours(family)).collect();
    left
}

fn foreign_server() -> VirtualServer {
    VirtualServer {
        scheduler: SchedulerName::new("sed").unwrap(),
        persistence: Some(77),
        scheduler_flags: 0x20,
    }
}

fn foreign_socket() -> SocketAddr {
    "172.16.9.9:99".parse().unwrap()
}

fn strange_real_server() -> ActualRealServer {
    ActualRealServer { weight: 42, plain: false, deadline: None, connections: 1 }
}

/// An entry that fits a set's type and that no Service desires.
fn entry_of(set: SetId) -> Entry {
    use plan::sets::SetType;
    let address = match set.family {
        Family::V4 => ip("172.30.0.1"),
        Family::V6 => ip("fd00:30::1"),
    };
    let frontend = Frontend { address, protocol: Protocol::Udp, port: 5 };
    match set.set_type() {
        SetType::HashAddress => Entry::Address(address),
        SetType::HashAddressPort => Entry::AddressPort(frontend),
        SetType::HashAddressPortAddress => Entry::AddressPortAddress(frontend, address),
        SetType::HashAddressPortNet => Entry::AddressPortNet(frontend, address.into()),
        SetType::BitmapPort => Entry::Port(5),
    }
}
