//! Local routes, which replace addresses (`serviceRoutes`).

use std::collections::BTreeMap;

use ipnet::IpNet;
use plan::model::Family;
use plan::op::Op;
use plan::routes::RouteOp;
use plan::settings::InternalFrontendNetworks;
use rustix::io::Errno;

use super::super::link::{LinkAddress, Links};
use super::super::route::{OurRoutes, RouteBatch, Routes};
use super::{Linux, ReadError, Refusal};

/// Routes and addresses that make service addresses local to the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalServiceAddresses {
    /// Networks that routes of ours lead to. Routes to single addresses are a mode's that has been left.
    pub routes: Vec<IpNet>,
    /// Number of addresses on our interface, by family.
    pub n_bound: BTreeMap<Family, usize>,
}

impl LocalServiceAddresses {
    /// Reads them, but for those of internal frontends, in these networks.
    pub fn read(internal_frontends: &InternalFrontendNetworks) -> Result<Self, netlink::Error> {
        let is_of_internal_frontend = |address| internal_frontends.around(address).is_some();
        let mut routes: Vec<IpNet> = Routes::open()?.ours()?.all.into_iter().collect();
        routes.sort_unstable();
        routes.retain(|network| {
            network.prefix_len() < network.max_prefix_len()
                && !is_of_internal_frontend(network.addr())
        });
        let mut links = Links::open()?;
        let Some(link) = links.find()? else { return Ok(Self { routes, ..Self::default() }) };
        let found = links.addresses()?.into_iter();
        let ours = found.filter(|it| it.index == link.index && !it.is_link_local_v6());
        let mut n_bound = BTreeMap::new();
        for address in ours.filter(|it| !is_of_internal_frontend(it.address)) {
            *n_bound.entry(Family::of(address.address)).or_default() += 1;
        }
        Ok(Self { routes, n_bound })
    }
}

/// Returns the networks of the node's own addresses, as [`Linux::neighbourhoods`] does.
pub fn neighbourhoods() -> Result<Vec<IpNet>, ReadError> {
    let unread = |error: netlink::Error| ReadError::new("interface addresses", error);
    let mut links = Links::open().map_err(unread)?;
    let index = links.find().map_err(unread)?.map(|link| link.index);
    Ok(networks_of_others(index, &links.addresses().map_err(unread)?))
}

fn networks_of_others(ours: Option<u32>, addresses: &[LinkAddress]) -> Vec<IpNet> {
    let others = addresses.iter().filter(|found| Some(found.index) != ours);
    let nets = others.filter_map(|found| IpNet::new(found.address, found.prefix).ok());
    nets.filter(|net| net.prefix_len() < net.max_prefix_len()).collect()
}

impl Linux {
    /// Returns the networks of the node's own addresses. A route of ours must not cover them, since
    /// neighbours have addresses there.
    pub fn neighbourhoods(&mut self) -> Result<Vec<IpNet>, ReadError> {
        let (index, addresses) = self.all_addresses()?;
        Ok(networks_of_others(index, &addresses))
    }

    pub(super) fn read_routes(&mut self) -> Result<OurRoutes, ReadError> {
        self.routes.ours().map_err(|error| ReadError::new("local routes", error))
    }

    pub(super) fn apply_routes(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let mut batch = RouteBatch::default();
        for op in ops {
            if let Op::Route(op) = op {
                batch.push(op);
            }
        }
        let sent = self.routes.send(&batch);
        self.judge(ops, sent, |op| {
            matches!(op, Op::Route(RouteOp::Remove(_))).then_some(Errno::SRCH)
        })
    }
}
