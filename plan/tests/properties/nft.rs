//! The two forms of the constant rules decide alike.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use plan::kernel_objects::{Entry, Frontend};
use plan::mode::Mode;
use plan::model::{Family, Protocol};
use plan::planner::Planner;
use plan::sets::{SetId, SetKind};
use plan::settings::{FastPath, RuleForm, Settings};
use plan::trace::{Client, Fate};
use proptest::prelude::*;

use crate::world::{World, groups, ip, settings};

/// Fates of a packet, without the words for a refusal.
fn fates(planner: &Planner, client: Client, protocol: Protocol, to: SocketAddr) -> BTreeSet<Fate> {
    let Some(packet) = planner.packet_of(client, protocol, to) else { return BTreeSet::new() };
    let ways = planner.trace(&packet).unwrap().ways.into_iter();
    let plain = |fate| match fate {
        Fate::Refused { .. } => Fate::Refused { by: String::new() },
        fate => fate,
    };
    ways.map(|way| plain(way.fate)).collect()
}

/// Clients of each kind that rules tell apart.
fn clients(planner: &Planner, family: Family) -> Vec<Client> {
    let elsewhere = match family {
        Family::V4 => ["10.244.2.7", "192.168.0.100", "10.1.2.3", "203.0.113.77"],
        Family::V6 => ["fd00:244:0:2::7", "2001:db8::100", "fd00::3", "2001:db8:ff::77"],
    };
    let here = match family {
        Family::V4 => "10.244.1.9",
        Family::V6 => "fd00:244:0:1::9",
    };
    let mut clients: Vec<Client> =
        elsewhere.map(|address| Client::Elsewhere(ip(address))).into_iter().collect();
    clients.extend([Client::Pod(ip(here)), Client::Node]);
    clients.extend(planner.example_pod(family));
    // The kernel takes no packet from outside that has an address of the node as its source (`accept_local`).
    let is_node = |address: &IpAddr| planner.client_at(*address) == Client::Node;
    clients.retain(|client| match client {
        Client::Pod(address) | Client::Elsewhere(address) => !is_node(address),
        Client::Node => true,
    });
    clients
}

/// Destinations at which something is decided: frontends, and the ports beside them.
fn destinations(planner: &Planner) -> BTreeSet<(Protocol, SocketAddr)> {
    let mut all = BTreeSet::new();
    let sets = Family::BOTH.into_iter().flat_map(SetId::all);
    let of_entries: Vec<_> = sets
        .flat_map(|set| {
            planner.desired().entries(set).filter_map(|entry| entry.frontend()).collect::<Vec<_>>()
        })
        .collect();
    let of_servers = planner.desired().frontends().copied();
    let node: IpAddr = ip("192.168.0.1");
    for frontend in of_servers.chain(of_entries) {
        for protocol in [frontend.protocol, Protocol::Udp] {
            for port in [frontend.port, frontend.port.wrapping_add(1), 10_256] {
                all.insert((protocol, SocketAddr::new(frontend.address, port)));
                all.insert((protocol, SocketAddr::new(node, port)));
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every client of every frontend meets the same fate, whether iptables or nf_tables holds the rules.
    #[test]
    fn both_forms_of_the_rules_decide_alike(
        settings in settings(),
        is_fast in any::<bool>(),
        groups in groups(),
    ) {
        let world = World::after(groups.iter().flatten());
        let planner = |rule_form| {
            let fast_path = if is_fast { FastPath::Conntrack } else { FastPath::Off };
            let settings = Settings { mode: Mode::Ipvs, rule_form, fast_path, ..settings.clone() };
            let mut planner = Planner::new(settings);
            world.events().into_iter().for_each(|event| planner.apply(event));
            planner.plan();
            planner
        };
        let [iptables, native] = [RuleForm::Iptables, RuleForm::Nftables].map(planner);
        for (protocol, to) in destinations(&iptables) {
            let frontend = Frontend { address: to.ip(), protocol, port: to.port() };
            let is_in = |kind| {
                let set = SetId { kind, family: frontend.family() };
                iptables.desired().has_entry(set, &Entry::AddressPort(frontend))
            };
            for client in clients(&iptables, Family::of(to.ip())) {
                let found = fates(&native, client, protocol, to);
                let expected = fates(&iptables, client, protocol, to);
                // Differences, all of the node's own connections, which the iptables of mangle meet before IPVS.
                let refused: BTreeSet<Fate> = [Fate::Refused { by: String::new() }].into();
                let is_known = client == Client::Node && {
                    // That there is no endpoint is said before it is asked who may have one.
                    let is_told = is_in(SetKind::NoEndpoints) && expected == [Fate::Dropped].into();
                    // The address of an internal frontend is refused to those who are not led there.
                    let networks = iptables.settings().internal_frontend_networks;
                    (is_told || networks.around(to.ip()).is_some()) && found == refused
                        // A cluster IP that is a load balancer's as well is one to all clients.
                        || is_in(SetKind::ClusterIp) && is_in(SetKind::LoadBalancerFirewall)
                };
                if !is_known {
                    prop_assert_eq!(found, expected, "{:?} to {} {}", client, protocol, to);
                }
            }
        }
    }
}
