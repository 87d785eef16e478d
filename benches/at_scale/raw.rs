//! The least it can cost: the same virtual servers, entries and addresses (or the one route) from plain
//! batches, by a program that knows what it wants and what is there; and listings that are not decoded.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netlink::{MessageWriter, generic};

use crate::cluster::{API_SERVER, PORT, Size};
use crate::cost::{Counts, Stopwatch};
use crate::kind::SERVICES;
use crate::ours::Extent;
use crate::schema::Line;

/// The interface's index: chosen, so that nothing has to be asked.
const INDEX: u32 = 1_000;
// include/uapi/linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
// include/uapi/linux/netlink.h
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
// include/uapi/linux/if_link.h
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
// include/uapi/linux/if_addr.h
const IFA_LOCAL: u16 = 2;
// include/uapi/linux/ip_vs.h: commands and attributes
const IPVS_VERSION: u8 = 1;
const IPVS_CMD_GET_SERVICE: u8 = 4;
const IPVS_CMD_GET_DEST: u8 = 8;
const IPVS_CMD_ATTR_SERVICE: u16 = 1;
const IPVS_SVC_ATTR_AF: u16 = 1;
const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
const IPVS_SVC_ATTR_ADDR: u16 = 3;
const IPVS_SVC_ATTR_PORT: u16 = 4;
/// `AF_INET`, `IPPROTO_TCP`.
const IPV4: u16 = 2;
const TCP: u16 = 6;

struct Raw {
    size: Size,
    /// True if one route stands for the addresses.
    routes: bool,
    ipvs: ipvs::Client,
    ipset: ipset::Client,
    route: netlink::Socket,
    /// For listings, with the number of IPVS there.
    listing: netlink::Socket,
    family: u16,
    lines: Vec<Line>,
}

/// Measures in the calling thread's network namespace, which has nothing yet, and leaves no
/// virtual server behind.
pub(crate) fn measure(size: Size, extent: Extent, routes: bool) -> Result<Vec<Line>> {
    let mut raw = Raw::open(size, routes)?;
    let all = raw.watch()?;
    raw.part("repair_sets", Raw::sets)?;
    raw.part("repair_virtual_servers", Raw::virtual_servers)?;
    raw.part("repair_link", Raw::addresses)?;
    let counts = raw.counts();
    raw.lines.push(all.stop("first_sync", Instant::now(), counts)?);
    raw.part("restart", Raw::list_all)?;
    let services = size.services.min(extent.changes);
    let (last, spare) = (size.endpoints - 1, size.endpoints);
    raw.each("endpoint_added", 0..services, |raw, service| raw.add(service, spare))?;
    raw.each("endpoint_removed", 0..services, |raw, service| raw.drain(service, spare))?;
    raw.each("endpoint_moved", 0..services, |raw, service| {
        raw.add(service, spare)?;
        raw.drain(service, last)
    })?;
    let new = size.services..size.services + extent.services;
    raw.each("service_added", new.clone(), Raw::add_service)?;
    raw.each("service_removed", new, Raw::remove_service)?;
    raw.part("rolling_update", |raw| raw.roll(size.services.min(extent.updated)))?;
    raw.ipvs.flush()?;
    Ok(raw.lines)
}

impl Raw {
    fn open(size: Size, routes: bool) -> Result<Self> {
        let mut listing = netlink::Socket::open(netlink::Protocol::Generic)?;
        let family = generic::family(&mut listing, "IPVS")?;
        Ok(Self {
            size,
            routes,
            ipvs: ipvs::Client::open()?,
            ipset: ipset::Client::open()?,
            route: netlink::Socket::open(netlink::Protocol::Route)?,
            listing,
            family,
            lines: Vec::new(),
        })
    }

    fn counts(&self) -> Counts {
        let sockets = [&self.route, &self.listing].map(netlink::Socket::traffic);
        let traffic = sockets.into_iter().chain([self.ipvs.traffic(), self.ipset.traffic()]).sum();
        Counts { traffic, ..Counts::default() }
    }

    fn watch(&self) -> Result<Stopwatch> {
        Stopwatch::start_of_all(self.counts())
    }

    fn part(&mut self, name: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let watch = self.watch()?;
        work(self)?;
        let line = watch.stop(name, Instant::now(), self.counts())?;
        self.lines.push(line);
        Ok(())
    }

    fn each(
        &mut self,
        name: &str,
        services: impl Iterator<Item = u32>,
        work: impl Fn(&mut Self, u32) -> Result<()>,
    ) -> Result<()> {
        let mut each: Vec<Duration> = Vec::new();
        self.part(name, |raw| {
            for service in services {
                let began = Instant::now();
                work(raw, service)?;
                each.push(began.elapsed());
            }
            Ok(())
        })?;
        let line = self.lines.pop().context("a part without a line")?;
        self.lines.push(line.of_each(each));
        Ok(())
    }

    /// Every address, `default/kubernetes` first.
    fn cluster_addresses(&self) -> impl Iterator<Item = std::net::Ipv4Addr> {
        let size = self.size;
        std::iter::once(API_SERVER)
            .chain((0..size.services).map(move |service| size.cluster_address(service)))
    }

    /// Those that the interface has.
    fn bound_addresses(&self) -> impl Iterator<Item = std::net::Ipv4Addr> {
        self.cluster_addresses().filter(|_| !self.routes)
    }

    fn sets(&mut self) -> Result<()> {
        use ipset::{Batch, Entry, Family, Protocol, SetOptions, SetSpec, SetType};
        let (frontends, addresses) = set_names()?;
        let most = (self.size.services * 2).max(65_536);
        let options = SetOptions::default().with_max_elements(most);
        let spec = |set_type| SetSpec::new(set_type, Family::Ipv4).with_options(options.clone());
        let mut batch = Batch::new();
        batch.create(frontends, spec(SetType::HashIpPort));
        batch.create(addresses, spec(SetType::HashIp));
        for address in self.cluster_addresses() {
            let (address, port) = (address.into(), PORT.get());
            batch.add(frontends, Entry::IpPort { address, protocol: Protocol::TCP, port });
        }
        for address in self.bound_addresses() {
            batch.add(addresses, Entry::Ip(address.into()));
        }
        self.ipset.send(&batch)?.into_iter().collect::<Result<(), _>>().context("fill the sets")
    }

    fn virtual_servers(&mut self) -> Result<()> {
        let scheduler = ipvs::Scheduler::new("rr")?;
        let mut batch = ipvs::Batch::new();
        for service in 0..self.size.services {
            batch.new_service(&ipvs::VirtualServer::new(self.id(service), scheduler));
        }
        for service in 0..self.size.services {
            for index in self.size.usual() {
                batch.new_destination(&self.id(service), &self.server(service, index));
            }
        }
        self.send(&batch)
    }

    fn addresses(&mut self) -> Result<()> {
        let mut batch = netlink::Batch::new();
        batch.push(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |message| {
            // struct ifinfomsg: family, padding, type (u16), index (i32), flags, change mask.
            let body = message.body();
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(&INDEX.to_ne_bytes());
            body.extend_from_slice(&[0; 8]);
            let mut attributes = message.attributes();
            attributes.string(IFLA_IFNAME, plan::kernel_objects::LINK);
            attributes.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "dummy"));
        });
        for address in self.bound_addresses() {
            push_address(&mut batch, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, address);
        }
        if self.routes {
            push_route(&mut batch);
        }
        self.route(&batch)
    }

    /// Lists everything that there is.
    fn list_all(&mut self) -> Result<()> {
        let family = self.family;
        let servers = self.listing.dump(
            family,
            |message| generic::write_header(message, IPVS_CMD_GET_SERVICE, IPVS_VERSION),
            |_| Ok(Some(())),
        )?;
        ensure!(servers.len() as u32 == self.size.services, "{} virtual servers", servers.len());
        for service in 0..self.size.services {
            let address = self.size.cluster_address(service);
            let write = |message: &mut MessageWriter<'_>| {
                generic::write_header(message, IPVS_CMD_GET_DEST, IPVS_VERSION);
                message.attributes().nested(IPVS_CMD_ATTR_SERVICE, |inner| {
                    inner.u16(IPVS_SVC_ATTR_AF, IPV4);
                    inner.u16(IPVS_SVC_ATTR_PROTOCOL, TCP);
                    inner.address(IPVS_SVC_ATTR_ADDR, address.into());
                    inner.u16_be(IPVS_SVC_ATTR_PORT, PORT.get());
                });
            };
            let found = self.listing.dump(family, write, |_| Ok(Some(())))?;
            ensure!(found.len() as u32 == self.size.endpoints, "{} real servers", found.len());
        }
        let (frontends, addresses) = set_names()?;
        let n_bound = self.bound_addresses().count();
        for (set, expected) in [(frontends, self.size.services as usize + 1), (addresses, n_bound)]
        {
            let entries = self.ipset.list(set)?.entries.len();
            ensure!(entries == expected, "{entries} entries of {set}");
        }
        // struct ifaddrmsg, of any family.
        let write = |message: &mut MessageWriter<'_>| message.body().extend_from_slice(&[0; 8]);
        let bound = self.route.dump(RTM_GETADDR, write, |_| Ok(Some(())))?.len();
        ensure!(bound >= n_bound, "{bound} addresses");
        Ok(())
    }

    fn add(&mut self, service: u32, index: u32) -> Result<()> {
        let mut batch = ipvs::Batch::new();
        batch.new_destination(&self.id(service), &self.server(service, index));
        self.send(&batch)
    }

    /// Removes an endpoint as the loop does: first it gets no new connections.
    fn drain(&mut self, service: u32, index: u32) -> Result<()> {
        let mut batch = ipvs::Batch::new();
        let server = self.server(service, index).with_weight(0);
        batch.set_destination(&self.id(service), &server);
        batch.delete_destination(&self.id(service), server.socket_address());
        self.send(&batch)
    }

    fn add_service(&mut self, service: u32) -> Result<()> {
        use ipset::{Entry, Protocol};
        let address = self.size.cluster_address(service);
        let (frontends, addresses) = set_names()?;
        let mut batch = ipset::Batch::new();
        let entry =
            Entry::IpPort { address: address.into(), protocol: Protocol::TCP, port: PORT.get() };
        batch.add(frontends, entry);
        if !self.routes {
            batch.add(addresses, Entry::Ip(address.into()));
        }
        self.ipset.send(&batch)?.into_iter().collect::<Result<(), _>>()?;
        let mut batch = ipvs::Batch::new();
        let scheduler = ipvs::Scheduler::new("rr")?;
        batch.new_service(&ipvs::VirtualServer::new(self.id(service), scheduler));
        for index in self.size.usual() {
            batch.new_destination(&self.id(service), &self.server(service, index));
        }
        self.send(&batch)?;
        if self.routes {
            return Ok(());
        }
        let mut batch = netlink::Batch::new();
        push_address(&mut batch, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, address);
        self.route(&batch)
    }

    fn remove_service(&mut self, service: u32) -> Result<()> {
        use ipset::{Entry, Protocol};
        let address = self.size.cluster_address(service);
        if !self.routes {
            let mut batch = netlink::Batch::new();
            push_address(&mut batch, RTM_DELADDR, 0, address);
            self.route(&batch)?;
        }
        let mut batch = ipvs::Batch::new();
        batch.delete_service(&self.id(service));
        self.send(&batch)?;
        let (frontends, addresses) = set_names()?;
        let mut batch = ipset::Batch::new();
        let entry =
            Entry::IpPort { address: address.into(), protocol: Protocol::TCP, port: PORT.get() };
        batch.delete(frontends, entry);
        if !self.routes {
            batch.delete(addresses, Entry::Ip(address.into()));
        }
        Ok(self.ipset.send(&batch)?.into_iter().collect::<Result<(), _>>()?)
    }

    /// Every endpoint of so many services gives way to another. The last one has done so already.
    fn roll(&mut self, services: u32) -> Result<()> {
        let count = self.size.endpoints;
        let mut batch = ipvs::Batch::new();
        for index in 0..count {
            let old = if index + 1 == count { count } else { index };
            for service in 0..services {
                let id = self.id(service);
                batch.new_destination(&id, &self.server(service, count + 1 + index));
                let drained = self.server(service, old).with_weight(0);
                batch.set_destination(&id, &drained);
                batch.delete_destination(&id, drained.socket_address());
            }
        }
        self.send(&batch)
    }

    fn id(&self, service: u32) -> ipvs::VirtualServerId {
        ipvs::VirtualServerId::tcp(self.size.cluster_address(service), PORT.get())
    }

    fn server(&self, service: u32, index: u32) -> ipvs::RealServer {
        ipvs::RealServer::new(self.size.endpoint(service, index), PORT.get())
    }

    fn send(&mut self, batch: &ipvs::Batch) -> Result<()> {
        let results = self.ipvs.send(batch)?;
        results.into_iter().collect::<Result<(), _>>().context("change virtual servers")
    }

    fn route(&mut self, batch: &netlink::Batch) -> Result<()> {
        let results = self.route.send(batch)?;
        results.into_iter().collect::<Result<(), _>>().context("change addresses")
    }
}

fn push_address(batch: &mut netlink::Batch, what: u16, flags: u16, address: std::net::Ipv4Addr) {
    batch.push(what, flags, |message| {
        // struct ifaddrmsg: family (AF_INET), prefix length, flags, scope, index.
        message.body().extend_from_slice(&[2, 32, 0, 0]);
        message.body().extend_from_slice(&INDEX.to_ne_bytes());
        message.attributes().address(IFA_LOCAL, address.into());
    });
}

/// Adds the route to all cluster addresses, by the interface.
fn push_route(batch: &mut netlink::Batch) {
    let (address, length) = SERVICES;
    batch.push(RTM_NEWROUTE, NLM_F_CREATE, |message| {
        // struct rtmsg: family (AF_INET), lengths, type of service, table (local), protocol, scope (host),
        // type (local), flags.
        message.body().extend_from_slice(&[2, length, 0, 0, 255, 107, 254, 2, 0, 0, 0, 0]);
        let mut attributes = message.attributes();
        attributes.address(RTA_DST, address.into());
        attributes.u32(RTA_OIF, INDEX);
    });
}

fn set_names() -> Result<(ipset::Name, ipset::Name)> {
    Ok((ipset::Name::new("KUBE-CLUSTER-IP")?, ipset::Name::new("KUBE-IPVS-IPS")?))
}
