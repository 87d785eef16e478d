//! Number of virtual servers, read without listing them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use netlink::{Namespace, OptionSocket};

use crate::error::Error;
use crate::uapi::{GETINFO_LENGTH, SO_GET_INFO};

/// Reads the module's reference count, which `ip_vs_add_service` raises by one.
const MODULE_USERS: &str = "/sys/module/ip_vs/refcnt";

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

    fn users(&self) -> Option<u32> {
        let mut text = [0; 16];
        let length = self.users.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(text.get(..length)?).ok()?.trim_ascii().parse().ok()
    }
}
