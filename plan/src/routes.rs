//! Local routes in the place of addresses.
//!
//! An address on `kube-ipvs0` is local because the kernel makes a local route for it. One local
//! route for a whole range of addresses does the same, and costs the same however many Services
//! there are. Source: `fib_add_ifaddr` in net/ipv4/fib_frontend.c.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::hash::HashSet;
use crate::model::Family;
use crate::settings::Settings;

/// A route that makes all addresses of a network local, whether they are bound or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRoute {
    pub network: IpNet,
    /// Source of the node's own connections to its addresses; none: the kernel chooses.
    pub source: Option<IpAddr>,
}

/// A change of a local route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteOp {
    /// Make it, or take over any program's route to the network.
    Add(LocalRoute),
    /// Take away the route to a network.
    Remove(IpNet),
}

impl LocalRoute {
    /// A route to a network, as `serviceRoutes` asks for it.
    #[must_use]
    pub const fn to(network: IpNet) -> Self {
        Self { network, source: None }
    }

    /// Returns its attributes, in words.
    #[must_use]
    pub fn attributes(&self) -> Option<String> {
        self.source.map(|source| format!("with the source {source}"))
    }
}

impl RouteOp {
    /// Returns the network of the route.
    #[must_use]
    pub const fn network(&self) -> IpNet {
        match self {
            Self::Add(route) => route.network,
            Self::Remove(network) => *network,
        }
    }
}

impl fmt::Display for RouteOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(route) => {
                write!(f, "add local route {}", route.network)?;
                route.attributes().map_or(Ok(()), |attributes| write!(f, " {attributes}"))
            }
            Self::Remove(network) => write!(f, "remove local route {network}"),
        }
    }
}

/// Returns the operations that turn the local routes that are ours into the desired ones.
#[must_use]
pub fn compare(found: &HashSet<IpNet>, settings: &Settings) -> Vec<RouteOp> {
    let mut ops = Vec::new();
    for family in &settings.families {
        let desired = settings.routes(*family);
        let missing = desired.iter().filter(|route| !found.contains(route));
        ops.extend(missing.map(|network| RouteOp::Add(LocalRoute::to(*network))));
        let of_family = found.iter().filter(|route| Family::of_net(route) == *family);
        let mut extra: Vec<_> = of_family.filter(|r| !desired.contains(r)).copied().collect();
        extra.sort_unstable();
        ops.extend(extra.into_iter().map(RouteOp::Remove));
    }
    ops
}
