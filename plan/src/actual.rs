//! State that was read back from the kernel, in the same words as the desired state.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::capacity::Capacity;
use crate::chains::ChainId;
use crate::hash::{HashMap, HashSet};
use crate::kernel_objects::{Deadline, Entry, Frontend, VirtualServer};
use crate::model::Family;
use crate::sets::{SetId, SetKind};

/// The kernel's state, as far as it could be ours.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Actual {
    /// True if the dummy interface is there.
    pub link: bool,
    /// The addresses on it, without link-local ones, which the kernel makes by itself.
    pub addresses: HashSet<IpAddr>,
    /// The local routes that are ours, by the protocol they say.
    pub routes: HashSet<IpNet>,
    /// The addresses of all other interfaces, loopback and link-local included.
    pub local_addresses: HashSet<IpAddr>,
    /// Virtual servers by address, also other programs'. Those by firewall mark are never ours.
    pub virtual_servers: HashMap<Frontend, ActualVirtualServer>,
    /// The sets with our names.
    pub sets: HashMap<SetId, ActualSet>,
    /// The families whose constant rules are all there, as they should be.
    pub rule_sets: HashSet<Family>,
    /// The chains of iptables mode with our names, each with its rules.
    pub chains: HashMap<ChainId, Vec<Box<str>>>,
}

/// The addresses of all interfaces, and the routes that are ours.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Addresses {
    /// True if the dummy interface is there.
    pub link: bool,
    /// The addresses on it, without link-local ones, which the kernel makes by itself.
    pub bound: HashSet<IpAddr>,
    /// The local routes that are ours.
    pub routes: HashSet<IpNet>,
    /// Those of them of which a part is missing: the routing rule that it needs, or the route itself.
    pub incomplete_routes: HashSet<IpNet>,
    /// The addresses of all other interfaces, loopback and link-local included.
    pub local: HashSet<IpAddr>,
}

impl Actual {
    /// Returns the addresses that sets say clients can ask, unlike those of internal frontends.
    #[must_use]
    pub fn served_addresses(&self) -> HashSet<IpAddr> {
        let asked = [
            SetKind::ClusterIp,
            SetKind::ExternalIp,
            SetKind::ExternalIpLocal,
            SetKind::LoadBalancer,
            SetKind::NoEndpoints,
            SetKind::NoLocalEndpoints,
        ];
        let sets = self.sets.iter().filter(|(set, _)| asked.contains(&set.kind));
        sets.flat_map(|(_, there)| there.entries.iter().filter_map(Entry::address)).collect()
    }
}

/// A set as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActualSet {
    pub entries: HashSet<Entry>,
    /// Number of further entries, of a kind that we never write. They take capacity all the same.
    pub n_unknown: usize,
    /// Number of entries that it may hold.
    pub capacity: Capacity,
}

/// A virtual server as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActualVirtualServer {
    /// Parameters of balancing, if they can be said in our words; none: it balances in a way that
    /// we never ask for (one-packet scheduling, a persistence engine, a persistence netmask, …).
    pub server: Option<VirtualServer>,
    pub real_servers: HashMap<SocketAddr, ActualRealServer>,
}

/// A virtual server as a listing of all shows it: without its real servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedVirtualServer {
    /// Its address, protocol and port.
    pub frontend: Frontend,
    /// Parameters of balancing, as [`ActualVirtualServer::server`].
    pub server: Option<VirtualServer>,
}

/// A real server as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActualRealServer {
    pub weight: u32,
    /// True if everything else is as we ask for it: masquerade mode, no thresholds.
    pub plain: bool,
    /// Time until which its connections may go on, if it has weight 0 and a deadline was noted.
    pub deadline: Option<Deadline>,
    /// Connections that it still has, active and inactive ones.
    pub connections: u64,
}

impl ActualSet {
    /// Returns the number of its entries, unknown ones included.
    #[must_use]
    pub fn n_entries(&self) -> usize {
        self.entries.len() + self.n_unknown
    }
}

impl FromIterator<Entry> for ActualSet {
    /// One of these entries, otherwise as it is when it is made.
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect(), ..Self::default() }
    }
}

impl Default for ActualSet {
    /// An empty one of the capacity that a set has at first.
    fn default() -> Self {
        Self { entries: HashSet::default(), n_unknown: 0, capacity: Capacity::FIRST }
    }
}
