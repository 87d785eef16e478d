//! The node as it was planned: rules, entries, virtual servers and addresses that a packet meets.

use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::rule::{Rule, UnreadableRule};
use super::{Hook, Origin, Packet, frontend, native};
use crate::chains::ChainId;
use crate::hash::{HashMap, HashSet};
use crate::iptables::fragment::ChainFragment;
use crate::kernel_objects::{Entry, Frontend};
use crate::model::{Endpoint, Family, Protocol, ServiceName};
use crate::planner::Planner;
use crate::rule_set::nft::{self, SourceRanges};
use crate::rule_set::{JumpPlace, Table};
use crate::sets::{SetId, SetType};
use crate::settings::FastPath;
use crate::virtual_server::DesiredFrontend;

/// The planner's state, as far as packets of a family meet it.
pub(super) struct Planned<'a> {
    planner: &'a Planner,
    service: Option<ServiceName>,
    /// Texts of rules by their chains. Of Services, those of the packet's destination alone: no other
    /// Service's rules hold for it.
    chains: HashMap<(Table, String), Vec<String>>,
    /// Rules of nf_tables, each with its text, by their chains, where these are the constant ones.
    native: HashMap<String, Vec<(String, Rule)>>,
    /// Places of the Service's endpoints, once they are asked for.
    places: OnceCell<Places>,
}

/// Nodes of a Service's endpoints, as far as their slices say.
#[derive(Default)]
struct Places {
    /// Addresses of those on this node.
    here: HashSet<IpAddr>,
    /// Addresses of those of which all are on other nodes.
    elsewhere: HashSet<IpAddr>,
}

impl<'a> Planned<'a> {
    pub(super) fn new(planner: &'a Planner, packet: &Packet) -> Self {
        let family = packet.family();
        let service =
            planner.owner_as_seen_by_clients(&frontend(packet.protocol, packet.destination));
        let (chains, native, places) = (HashMap::default(), HashMap::default(), OnceCell::new());
        let mut planned = Self { planner, service: service.cloned(), chains, native, places };
        if planner.settings().has_tables() {
            planned.add_native(family);
        } else {
            planned.add_constant(family);
        }
        if let Some(fragment) = service
            .and_then(|service| planner.chains_of(service))
            .filter(|_| planner.settings().mode.leads_by_rules())
        {
            planned.add_service(family, fragment);
        }
        for (chain, rules) in planner.tails().into_iter().filter(|(it, _)| it.family == family) {
            planned.chain(&chain).extend(rules.into_iter().map(String::from));
        }
        planned
    }

    /// The Service that the packet's destination belongs to.
    pub(super) fn service(&self) -> Option<&ServiceName> {
        self.service.as_ref()
    }

    /// Returns the rules of a chain, each with its text.
    pub(super) fn rules(
        &self,
        table: Table,
        chain: &str,
    ) -> Result<Vec<(&str, Rule)>, UnreadableRule> {
        if let Some(rules) = self.native.get(chain).filter(|_| table == Table::Nat) {
            return Ok(rules.iter().map(|(text, rule)| (text.as_str(), rule.clone())).collect());
        }
        let rules = self.chains.get(&(table, chain.to_owned())).into_iter().flatten();
        rules.map(|text| Ok((text.as_str(), Rule::read(text)?))).collect()
    }

    /// Returns the entry by which a set has what a rule looks up; none: it has not.
    pub(super) fn entry_in_set(&self, set: SetId, of: &Looked) -> Option<Entry> {
        let desired = self.planner.desired();
        let [first, last] = [of.first, of.last];
        let has = |entry: &Entry| desired.has_entry(set, entry);
        let entry = match set.set_type() {
            SetType::HashAddress => Entry::Address(first),
            SetType::BitmapPort => Entry::Port(of.frontend.port),
            SetType::HashAddressPort => Entry::AddressPort(of.frontend),
            SetType::HashAddressPortAddress => Entry::AddressPortAddress(of.frontend, last),
            // By each prefix, the longest first, as the kernel does.
            SetType::HashAddressPortNet => {
                let networks = networks_with(last);
                let mut entries = networks.map(|net| Entry::AddressPortNet(of.frontend, net));
                return entries.find(has);
            }
        };
        Some(entry).filter(has)
    }

    /// Returns the virtual server of a frontend.
    pub(super) fn virtual_server(&self, frontend: &Frontend) -> DesiredFrontend<'_> {
        self.planner.desired().at(frontend)
    }

    /// Returns what carries the later packets of a connection that was led to its virtual server by another address.
    pub(super) fn later_packets(&self, packet: &Packet, endpoint: IpAddr) -> FastPath {
        let comes_in = matches!(packet.origin, Origin::Interface { .. });
        let is_forwarded = comes_in && !self.is_local(endpoint);
        match self.planner.settings().fast_path_in_force() {
            FastPath::Offload if is_forwarded && packet.protocol != Protocol::Sctp => {
                FastPath::Offload
            }
            _ => FastPath::Conntrack,
        }
    }

    /// Returns the endpoints that the relay chooses from on a proxy port. None: it is none.
    pub(super) fn endpoints_of_proxy_port(&self, socket: SocketAddr) -> Option<Arc<[SocketAddr]>> {
        self.planner.endpoints_of_proxy_port(self.service.as_ref()?, socket)
    }

    /// True if packets to an address are for this node.
    pub(super) fn is_local(&self, address: IpAddr) -> bool {
        self.planner.is_local(address)
    }

    /// True if an endpoint's answer does not pass this node: the client and the endpoint are on other
    /// nodes, or outside. False where that is not known, without the Node's `podCIDRs` or an endpoint's
    /// `nodeName`.
    pub(super) fn is_answered_past(&self, packet: &Packet, endpoint: IpAddr) -> bool {
        let client = packet.source.ip();
        let is_by_uplink =
            matches!(&packet.origin, Origin::Interface { is_by_bridge_port: false, .. });
        if !is_by_uplink || self.is_local(endpoint) || !self.planner.is_elsewhere(client) {
            return false;
        }
        let places = self.places.get_or_init(|| self.places());
        places.elsewhere.contains(&endpoint) && !places.here.contains(&client)
    }

    fn places(&self) -> Places {
        let service =
            self.service.as_ref().and_then(|service| self.planner.store().service(service));
        let Some((_, slices)) = service else { return Places::default() };
        let node = &self.planner.settings().node_name;
        let endpoints = || slices.iter().flat_map(|slice| &slice.endpoints);
        let is_here = |it: &&Endpoint| it.node.as_ref() == Some(node);
        let may_be_here = |it: &&Endpoint| it.node.as_ref().is_none_or(|of| of == node);
        let mut elsewhere: HashSet<IpAddr> = endpoints().map(|it| it.address).collect();
        for endpoint in endpoints().filter(may_be_here) {
            elsewhere.remove(&endpoint.address);
        }
        Places { here: endpoints().filter(is_here).map(|it| it.address).collect(), elsewhere }
    }

    fn add_constant(&mut self, family: Family) {
        let Ok(rule_set) = self.planner.rule_set(family) else { return };
        for jump in rule_set.jumps() {
            let rules = self.chains.entry((jump.table, jump.from.to_owned())).or_default();
            match jump.place {
                JumpPlace::First => rules.insert(0, jump.rule()),
                JumpPlace::Last => rules.push(jump.rule()),
            }
        }
        for chain in rule_set.chains().iter().chain(rule_set.shared()) {
            let key = (chain.table, chain.name.to_owned());
            self.chains.entry(key).or_default().extend(chain.rules.iter().cloned());
        }
    }

    /// Adds the chains of nf_tables. Base chains have the name of their hook.
    fn add_native(&mut self, family: Family) {
        let mut ranges = SourceRanges::default();
        for entry in self.planner.desired().entries(nft::networks(family)) {
            if let Entry::AddressPortNet(_, net) = entry {
                ranges.add(family, net.prefix_len());
            }
        }
        for chain in
            self.planner.rule_set(family).map(|it| it.nft_chains(&ranges)).unwrap_or_default()
        {
            let name = match chain.hook {
                Some(nft::Hook::PreRouting) => Hook::Prerouting.chain(),
                Some(nft::Hook::Output) => Hook::Output.chain(),
                Some(nft::Hook::PostRouting) => Hook::Postrouting.chain(),
                // The first packet, which is followed, comes to no rule there that decides about it.
                Some(nft::Hook::Forward) => continue,
                None => chain.name,
            };
            let rules = chain.rules.iter().map(|rule| (rule.text(family), native::read(rule)));
            self.native.insert(name.to_owned(), rules.collect());
        }
    }

    fn add_service(&mut self, family: Family, fragment: ChainFragment) {
        let ChainFragment { chains, claims, rules } = fragment;
        for chain in chains.into_iter().filter(|chain| chain.id.family == family) {
            let rules = chain.rules.iter().map(|rule| rule.to_string());
            self.chain(&chain.id).extend(rules);
        }
        let owned = claims.into_iter().filter(|claim| {
            let owner = self.planner.desired_chains().owner(&claim.frontend);
            owner == self.service.as_ref()
        });
        let of_claims: Vec<_> = owned.flat_map(|claim| claim.rules.into_vec()).collect();
        for rule in of_claims.into_iter().chain(rules).filter(|it| it.chain.family == family) {
            self.chain(&rule.chain).push(rule.text.into());
        }
    }

    fn chain(&mut self, chain: &ChainId) -> &mut Vec<String> {
        self.chains.entry((chain.table, chain.name.to_string())).or_default()
    }
}

/// Returns the networks that have an address, the smallest first.
fn networks_with(address: IpAddr) -> impl Iterator<Item = IpNet> {
    let host = IpNet::from(address);
    let lengths = (0..=host.max_prefix_len()).rev();
    lengths.filter_map(move |length| IpNet::new(address, length).ok()).map(|net| net.trunc())
}

/// Addresses and port that a rule looks up in a set.
pub(super) struct Looked {
    /// The first address.
    pub(super) first: IpAddr,
    /// The first address with the port, which is the destination's.
    pub(super) frontend: Frontend,
    /// The last address.
    pub(super) last: IpAddr,
}
