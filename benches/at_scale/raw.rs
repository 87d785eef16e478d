//! The least it can cost: the same virtual servers, entries and addresses from plain batches, by a
//! program that knows what it wants and that nothing is there.

use std::time::Instant;

use anyhow::{Context as _, Result};
use netlink::Traffic;

use crate::cost::Cost;
use crate::state::{PORT, Size};

/// The interface's index: chosen, so that nothing has to be asked.
const INDEX: u32 = 1_000;
// include/uapi/linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
// include/uapi/linux/netlink.h
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
// include/uapi/linux/if_link.h
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
// include/uapi/linux/if_addr.h
const IFA_LOCAL: u16 = 2;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) everything: Cost,
    pub(crate) changes: Vec<Cost>,
}

struct Sockets {
    ipvs: ipvs::Client,
    ipset: ipset::Client,
    route: netlink::Socket,
}

/// Measures in the calling thread's network namespace, which has nothing yet, and leaves no
/// virtual server behind.
pub(crate) fn measure(size: Size, changes: u32) -> Result<Raw> {
    let mut sockets = Sockets::open()?;
    let before = sockets.traffic();
    let started = Instant::now();
    sockets.sets(size)?;
    sockets.virtual_servers(size)?;
    sockets.addresses(size)?;
    let everything = Cost::since(started, before, sockets.traffic());
    let changes = sockets.changes(size, changes)?;
    sockets.ipvs.flush()?;
    Ok(Raw { everything, changes })
}

// === impl Sockets ===

impl Sockets {
    fn open() -> Result<Self> {
        Ok(Self {
            ipvs: ipvs::Client::open()?,
            ipset: ipset::Client::open()?,
            route: netlink::Socket::open(netlink::Protocol::Route)?,
        })
    }

    fn traffic(&self) -> Traffic {
        [self.ipvs.traffic(), self.ipset.traffic(), self.route.traffic()].into_iter().sum()
    }

    fn sets(&mut self, size: Size) -> Result<()> {
        use ipset::{Batch, Entry, Family, Name, Protocol, SetSpec, SetType};
        let frontends = Name::new("KUBE-CLUSTER-IP")?;
        let addresses = Name::new("KUBE-IPVS-IPS")?;
        let mut batch = Batch::new();
        batch.create(frontends, SetSpec::new(SetType::HashIpPort, Family::Ipv4));
        batch.create(addresses, SetSpec::new(SetType::HashIp, Family::Ipv4));
        for address in size.cluster_addresses() {
            let (address, port) = (address.into(), PORT.get());
            batch.add(frontends, Entry::IpPort { address, protocol: Protocol::TCP, port });
        }
        for address in size.cluster_addresses() {
            batch.add(addresses, Entry::Ip(address.into()));
        }
        self.ipset.send(&batch)?.into_iter().collect::<Result<(), _>>().context("fill the sets")
    }

    fn virtual_servers(&mut self, size: Size) -> Result<()> {
        let scheduler = ipvs::Scheduler::new("rr")?;
        let mut batch = self.ipvs.batch();
        for service in 0..size.services {
            batch.new_service(&ipvs::VirtualServer::new(id(size, service), scheduler));
        }
        for service in 0..size.services {
            for endpoint in size.endpoints(service) {
                let server = ipvs::RealServer::new(endpoint, PORT.get());
                batch.new_destination(&id(size, service), &server);
            }
        }
        let results = self.ipvs.send(&mut batch)?;
        results.into_iter().collect::<Result<(), _>>().context("make the virtual servers")
    }

    fn addresses(&mut self, size: Size) -> Result<()> {
        let mut batch = netlink::Batch::new();
        batch.push(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |message| {
            // struct ifinfomsg: family, padding, type (u16), index (i32), flags, change mask.
            let body = message.body();
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(&INDEX.to_ne_bytes());
            body.extend_from_slice(&[0; 8]);
            let mut attributes = message.attributes();
            attributes.string(IFLA_IFNAME, plan::kernel::LINK);
            attributes.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "dummy"));
        });
        for address in size.cluster_addresses() {
            batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, |message| {
                // struct ifaddrmsg: family (AF_INET), prefix length, flags, scope, index.
                message.body().extend_from_slice(&[2, 32, 0, 0]);
                message.body().extend_from_slice(&INDEX.to_ne_bytes());
                message.attributes().address(IFA_LOCAL, address.into());
            });
        }
        let results = self.route.send(&mut batch)?;
        results.into_iter().collect::<Result<(), _>>().context("add the addresses")
    }

    fn changes(&mut self, size: Size, count: u32) -> Result<Vec<Cost>> {
        let mut costs = Vec::new();
        for change in size.changes(count) {
            let before = self.traffic();
            let started = Instant::now();
            let mut batch = self.ipvs.batch();
            let id = id(size, change.service);
            batch.new_destination(&id, &ipvs::RealServer::new(change.added, PORT.get()));
            batch.delete_destination(&id, (change.removed, PORT.get()).into());
            let results = self.ipvs.send(&mut batch)?;
            results.into_iter().collect::<Result<(), _>>().context("change an endpoint")?;
            costs.push(Cost::since(started, before, self.traffic()));
        }
        Ok(costs)
    }
}

fn id(size: Size, service: u32) -> ipvs::VirtualServerId {
    ipvs::VirtualServerId::tcp(size.cluster_address(service), PORT.get())
}
