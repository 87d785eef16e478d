//! All state of ours in the kernel, for `--cleanup`.
//!
//! Unlike [`linux`](super::linux), this works on kernels without IPVS or ipset too.

use std::collections::hash_map::Entry as MapEntry;
use std::net::IpAddr;

use ipnet::IpNet;
use plan::actual::{Actual, ActualSet, ActualVirtualServer};
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::{Entry, Frontend};
use plan::model::Protocol;
use plan::routes::RouteOp;
use plan::sets::{FORMER, SetId};

use super::link::{AddressBatch, AddressScope, Link, LinkAddress, Links};
use super::linux::grow;
use super::nftables::own_sets;
use super::route::{RouteBatch, Routes};
use super::{ReadError, loaded, translate};

/// Handles that read and remove it, in the network namespace they were opened in.
#[derive(Debug)]
pub struct Leftovers {
    /// None: the kernel has no IPVS.
    ipvs: Option<ipvs::Client>,
    /// None: the kernel has no ipset.
    ipset: Option<ipset::Client>,
    links: Links,
    routes: Routes,
}

/// Result of [`Leftovers::read`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundLeftovers {
    /// Everything that could be ours. Of virtual servers only that they are there.
    pub actual: Actual,
    /// Kind of the interface that has our name, such as `dummy`; none: there is none.
    pub link_kind: Option<String>,
    /// The sets that have our names and are not of our types.
    pub foreign_sets: Vec<SetId>,
    /// The sets that are ipsets. Others are in tables of nf_tables, and some in both.
    pub ipsets: HashSet<SetId>,
}

/// A set that was not destroyed.
#[derive(Debug)]
pub struct NotDestroyed {
    /// The set's name.
    pub set: &'static str,
    /// True if a rule, or another set, refers to it.
    pub in_use: bool,
    /// Reason that the kernel gave.
    pub reason: String,
}

/// Connections of virtual servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connections {
    /// Number of real servers.
    pub real_servers: usize,
    /// Number of virtual servers that keep a client at its real server.
    pub persistent: usize,
    /// TCP connections that carry data, as the kernel counts them.
    pub active: u64,
    /// TCP connections that begin or end.
    pub inactive: u64,
}

impl Leftovers {
    /// Opens the handles that the kernel has, in the calling thread's network namespace.
    ///
    /// # Errors
    /// When a part exists and cannot be opened.
    pub fn open() -> Result<Self, ReadError> {
        let links = Links::open().map_err(|error| ReadError::new("network interfaces", error))?;
        let routes = Routes::open().map_err(|error| ReadError::new("routes", error))?;
        Ok(Self { ipvs: loaded::ipvs()?, ipset: loaded::ipset()?, links, routes })
    }

    /// Reads all state that could be ours.
    ///
    /// # Errors
    /// When any part could not be read: ownership of virtual servers depends on the sets and the
    /// addresses.
    pub fn read(&mut self) -> Result<FoundLeftovers, ReadError> {
        let unread = |error: netlink::Error| ReadError::new("addresses and routes", error);
        let link = self.links.find().map_err(unread)?;
        let (ours, others): (Vec<LinkAddress>, Vec<LinkAddress>) = self
            .links
            .addresses()
            .map_err(unread)?
            .into_iter()
            .partition(|address| link.as_ref().is_some_and(|link| link.index == address.index));
        let (mut sets, foreign_sets) = self.read_sets()?;
        let ipsets = sets.keys().copied().collect();
        for (set, found) in own_sets()? {
            match sets.entry(set) {
                MapEntry::Occupied(mut there) => there.get_mut().entries.extend(found.entries),
                MapEntry::Vacant(vacant) => drop(vacant.insert(found)),
            }
        }
        let actual = Actual {
            link: link.is_some(),
            addresses: ours
                .iter()
                .filter(|address| !address.is_link_local_v6())
                .map(|address| address.address)
                .collect(),
            local_addresses: others.iter().map(|address| address.address).collect(),
            virtual_servers: self.read_virtual_servers()?,
            sets,
            routes: self.routes.ours().map_err(unread)?.all,
            // Rules and chains are found by their text: `cleanup::rules`.
            rule_sets: HashSet::default(),
            chains: HashMap::default(),
        };
        let link_kind = link.map(|link| link.kind);
        Ok(FoundLeftovers { actual, link_kind, foreign_sets, ipsets })
    }

    fn read_virtual_servers(
        &mut self,
    ) -> Result<HashMap<Frontend, ActualVirtualServer>, ReadError> {
        let Some(ipvs) = &mut self.ipvs else { return Ok(HashMap::default()) };
        let servers =
            ipvs.list_services().map_err(|error| ReadError::new("virtual servers", error))?;
        let there = || ActualVirtualServer { server: None, real_servers: HashMap::default() };
        let frontends = servers.iter().filter_map(|found| translate::frontend(&found.server.id));
        Ok(frontends.map(|frontend| (frontend, there())).collect())
    }

    fn read_sets(&mut self) -> Result<(HashMap<SetId, ActualSet>, Vec<SetId>), ReadError> {
        let (mut sets, mut foreign) = (HashMap::default(), Vec::new());
        let Some(ipset) = &mut self.ipset else { return Ok((sets, foreign)) };
        let names = ipset.list_names().map_err(|error| ReadError::new("names of sets", error))?;
        for name in names {
            let Some(set) = SetId::by_name(&name.to_string()) else { continue };
            let found = match ipset.list(name) {
                Ok(found) => found,
                Err(error) if error.is_no_such_set() => continue,
                Err(error) => return Err(ReadError::new(format!("set {set}"), error)),
            };
            if translate::is_same_kind(set, &found.header.identity) {
                sets.insert(set, translate::actual_set(&found));
            } else {
                foreign.push(set);
            }
        }
        Ok((sets, foreign))
    }

    /// Counts the connections of these virtual servers. One that is gone has none.
    pub fn connections(&mut self, frontends: &[Frontend]) -> Result<Connections, ReadError> {
        let unread = |error: ipvs::Error| ReadError::new("connections of virtual servers", error);
        let mut counted = Connections::default();
        let Some(ipvs) = &mut self.ipvs else { return Ok(counted) };
        let ours: HashSet<&Frontend> = frontends.iter().collect();
        for found in ipvs.list_services().map_err(unread)? {
            let Some(frontend) = translate::frontend(&found.server.id) else { continue };
            if !ours.contains(&frontend) {
                continue;
            }
            counted.persistent += usize::from(found.server.flags.contains(ipvs::Flags::PERSISTENT));
            for real in ipvs.list_destinations(&found.server.id).map_err(unread)? {
                counted.real_servers += 1;
                if frontend.protocol == Protocol::Tcp {
                    counted.active += u64::from(real.active_connections);
                    counted.inactive += u64::from(real.inactive_connections);
                }
            }
        }
        Ok(counted)
    }

    /// Removes virtual servers, and returns what went wrong, in words.
    pub fn remove_virtual_servers(&mut self, frontends: &[Frontend]) -> Vec<String> {
        let Some(ipvs) = &mut self.ipvs else { return Vec::new() };
        let mut batch = ipvs::Batch::new();
        for frontend in frontends {
            batch.delete_service(&translate::virtual_server_id(frontend));
        }
        match ipvs.send(&batch) {
            Ok(results) => results
                .into_iter()
                .filter_map(Result::err)
                .filter(|error| !error.is_no_such_service())
                .map(|error| error.to_string())
                .collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    /// Binds addresses to our interface, which is made if there is none. Returns the reason, in words,
    /// for each address that is not bound then.
    ///
    /// # Errors
    /// When there is no interface and none can be made, or the kernel does not answer, in words.
    pub fn bind(&mut self, addresses: &[IpAddr]) -> Result<HashMap<IpAddr, String>, String> {
        let words = |error: netlink::Error| error.to_string();
        if self.links.find().map_err(words)?.is_none() {
            self.links.create().map_err(words)?;
        }
        let found = self.links.find().map_err(words)?;
        let index = found.ok_or("the interface was removed at once")?.index;
        let mut batch = AddressBatch::new(index);
        for address in addresses {
            batch.add(*address, AddressScope::default());
        }
        let results = addresses.iter().zip(self.links.send(&batch).map_err(words)?);
        Ok(results
            .filter_map(|(address, result)| Some((*address, result.err()?)))
            .filter(|(_, error)| !is(error, rustix::io::Errno::EXIST))
            .map(|(address, error)| (address, error.to_string()))
            .collect())
    }

    /// Takes addresses off our interface, and returns what went wrong, in words.
    pub fn unbind(&mut self, addresses: &[IpAddr]) -> Vec<String> {
        let index = match self.links.find() {
            Ok(Some(Link { index, .. })) => index,
            Ok(None) => return Vec::new(),
            Err(error) => return vec![error.to_string()],
        };
        let mut bound = match self.links.addresses() {
            Ok(found) => found,
            Err(error) => return vec![format!("list the addresses of the interface: {error}")],
        };
        let unwanted: HashSet<IpAddr> = addresses.iter().copied().collect();
        bound.retain(|found| found.index == index && unwanted.contains(&found.address));
        let mut batch = AddressBatch::new(index);
        for found in &bound {
            batch.remove_prefix(found.address, found.prefix);
        }
        match self.links.send(&batch) {
            Ok(results) => bound
                .iter()
                .zip(results)
                .filter_map(|(found, result)| Some((found.address, result.err()?)))
                // With the first address of a network, the kernel removes the others.
                .filter(|(_, error)| !is(error, rustix::io::Errno::ADDRNOTAVAIL))
                .map(|(address, error)| format!("remove {address} from the interface: {error}"))
                .collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    /// Removes local routes, and returns what went wrong, in words.
    pub fn remove_routes(&mut self, networks: &[IpNet]) -> Vec<String> {
        let mut batch = RouteBatch::default();
        for network in networks {
            batch.push(&RouteOp::Remove(*network));
        }
        match self.routes.send(&batch) {
            Ok(results) => networks
                .iter()
                .zip(results)
                .filter_map(|(network, result)| Some((network, result.err()?)))
                .filter(|(_, error)| !is(error, rustix::io::Errno::SRCH))
                .map(|(network, error)| format!("remove the local route {network}: {error}"))
                .collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    /// Deletes our interface with all its addresses.
    pub fn delete_link(&mut self) -> Result<(), netlink::Error> {
        match self.links.find()? {
            Some(link) => self.links.delete(link.index),
            None => Ok(()),
        }
    }

    /// Deletes entries, and returns what went wrong, in words.
    pub fn remove_entries(&mut self, entries: &[(SetId, Entry)]) -> Vec<String> {
        let Some(ipset) = &mut self.ipset else { return Vec::new() };
        let mut batch = ipset::Batch::new();
        for (set, entry) in entries {
            match translate::set_name(*set) {
                Ok(name) => batch.delete(name, translate::entry(entry)),
                Err(error) => return vec![error.to_string()],
            };
        }
        match ipset.send(&batch) {
            Ok(results) => {
                results.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect()
            }
            Err(error) => vec![error.to_string()],
        }
    }

    /// Destroys leftovers of growing sets, and returns the errors in words.
    pub fn destroy_temporary_sets(&mut self) -> Vec<String> {
        let Some(ipset) = &mut self.ipset else { return Vec::new() };
        match grow::remove_leftovers(ipset) {
            Ok(left) => left.iter().map(ToString::to_string).collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    /// Brings a set that has grown back to the capacity that kube-proxy makes it with. Returns
    /// whether it had another one.
    ///
    /// # Errors
    /// When that was not possible, in words. The set is then unchanged.
    pub fn shrink(&mut self, set: SetId) -> Result<bool, String> {
        self.ipset.as_mut().map_or(Ok(false), |ipset| grow::shrink(ipset, set))
    }

    /// Returns the names of sets that are there and that [earlier versions](FORMER) made. Without a
    /// list, there is none.
    pub fn former_sets(&mut self) -> Vec<&'static str> {
        let names = self.ipset.as_mut().and_then(|ipset| ipset.list_names().ok());
        let names: Vec<String> = names.iter().flatten().map(ToString::to_string).collect();
        FORMER.into_iter().filter(|former| names.iter().any(|name| name == former)).collect()
    }

    /// Destroys sets with their entries, and returns those that are still there.
    pub fn destroy(&mut self, sets: &[&'static str]) -> Vec<NotDestroyed> {
        let Some(ipset) = &mut self.ipset else { return Vec::new() };
        let mut left = Vec::new();
        for set in sets {
            let destroyed = match ipset::Name::new(set) {
                Ok(name) => ipset.destroy(name),
                Err(error) => {
                    left.push(NotDestroyed { set, in_use: false, reason: error.to_string() });
                    continue;
                }
            };
            match destroyed {
                Err(error) if !error.is_no_such_set() => left.push(NotDestroyed {
                    set,
                    in_use: error.is_busy(),
                    reason: error.to_string(),
                }),
                _ => {}
            }
        }
        left
    }
}

fn is(error: &netlink::Error, errno: rustix::io::Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
