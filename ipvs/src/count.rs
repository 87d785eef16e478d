//! Number of virtual servers, read without listing them, and a listing of those of IPv4: what the kernel tells as an
//! option of a socket.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use netlink::{Namespace, OptionSocket};

use crate::codec::{decode_service_entries, service_entries};
use crate::error::Error;
use crate::uapi::{GETINFO_LENGTH, SO_GET_INFO, SO_GET_SERVICES};
use crate::virtual_server::VirtualServer;

/// Reads the module's reference count, which `ip_vs_add_service` raises by one.
const MODULE_USERS: &str = "/sys/module/ip_vs/refcnt";

/// Has a link for each module that needs the module. Each is one of its users.
const HOLDERS: &str = "/sys/module/ip_vs/holders";
/// Beginning of the names of schedulers and persistence engines. Each is a user once more: see
/// `register_ip_vs_scheduler` (net/netfilter/ipvs/ip_vs_sched.c) and `register_ip_vs_pe` (ip_vs_pe.c).
const REGISTERED: &[u8] = b"ip_vs_";

/// Asks for numbers that the kernel has at hand, whatever there is of virtual servers: it takes two
/// system calls and a few microseconds.
///
/// Together the two numbers tell whether a virtual server was added or deleted, but for an exchange
/// of one for another.
#[derive(Debug)]
pub struct Counter {
    socket: OptionSocket,
    users: Option<File>,
}

/// Numbers that a [`Counter`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The namespace's virtual servers of IPv4, those by firewall mark among them. The kernel
    /// counts no others for this (`ip_vs_add_service` in net/netfilter/ipvs/ip_vs_ctl.c).
    pub ipv4: u32,
    /// The module's users: every virtual server of both families and all namespaces, every loaded
    /// scheduler, every thread that synchronises, and each listing while it runs. `None` when IPVS
    /// is no module.
    pub users: Option<u32>,
}

impl Count {
    /// These numbers.
    #[must_use]
    pub fn new(ipv4: u32, users: Option<u32>) -> Self {
        Self { ipv4, users }
    }
}

impl Counter {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// When there can be no socket.
    pub fn open() -> Result<Self, Error> {
        let socket = OptionSocket::ipv4().map_err(Error::open)?;
        Ok(Self { socket, users: File::open(MODULE_USERS).ok() })
    }

    /// For another network namespace.
    ///
    /// # Errors
    /// As [`Counter::open`], and when the namespace may not be entered.
    pub fn open_in(namespace: &Namespace) -> Result<Self, Error> {
        namespace.run(Self::open).map_err(Error::open)?
    }

    /// Counts.
    ///
    /// # Errors
    /// When the kernel lacks the old interface, or the process the right to it.
    pub fn count(&self) -> Result<Count, Error> {
        // `struct ip_vs_getinfo`: version, size, num_services, each an unsigned int.
        let mut info = [0; GETINFO_LENGTH];
        self.socket.get(SO_GET_INFO, &mut info).map_err(Error::count)?;
        let [.., s0, s1, s2, s3] = info;
        Ok(Count { ipv4: u32::from_ne_bytes([s0, s1, s2, s3]), users: self.users() })
    }

    /// Lists the namespace's virtual servers, if all of them are of IPv4, in the kernel's order. The statistics and the
    /// persistence engines are not told.
    ///
    /// It takes one call, and time in proportion to their number: for each part of a listing by netlink, the kernel
    /// passes over all that it has told before (`ip_vs_genl_dump_services` in net/netfilter/ipvs/ip_vs_ctl.c).
    ///
    /// `None` when there may be others: IPVS is no module, or it has users that are neither of these virtual servers
    /// nor modules.
    ///
    /// # Errors
    /// As [`Counter::count`], and for an answer that cannot be read.
    pub fn list_only_ipv4(&self) -> Result<Option<Vec<VirtualServer>>, Error> {
        let count = self.count()?;
        let known = modules_that_use().and_then(|modules| count.ipv4.checked_add(modules));
        if known.is_none() || known != count.users {
            return Ok(None);
        }
        let mut buffer = service_entries(count.ipv4);
        self.socket.get(SO_GET_SERVICES, &mut buffer).map_err(Error::list)?;
        decode_service_entries(&buffer).map(Some).map_err(|error| Error::list(error.into()))
    }

    fn users(&self) -> Option<u32> {
        let mut text = [0; 16];
        let length = self.users.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(text.get(..length)?).ok()?.trim_ascii().parse().ok()
    }
}

/// Returns how many of the module's users are modules.
fn modules_that_use() -> Option<u32> {
    let mut users = 0;
    for holder in fs::read_dir(HOLDERS).ok()? {
        let name = holder.ok()?.file_name();
        users += if name.as_encoded_bytes().starts_with(REGISTERED) { 2 } else { 1 };
    }
    Some(users)
}
