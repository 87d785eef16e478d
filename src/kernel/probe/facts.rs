//! Asking the host.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use netlink::{Protocol, Socket, generic};
use plan::model::Family;
use plan::settings::SchedulerName;

use super::super::sysctl;
use super::{Facts, Ipv6};

/// include/uapi/linux/capability.h
pub(super) const CAP_NET_ADMIN: u32 = 12;
/// include/uapi/linux/capability.h
const CAP_NET_RAW: u32 = 13;

/// Attempts that need a handle to a part of the kernel. Each answers in words.
pub struct Attempts<'a> {
    /// Makes a virtual server with this scheduler and removes it again, unless one has it already.
    pub scheduler: &'a mut dyn FnMut(&SchedulerName) -> Result<(), String>,
    /// Asks for ipset's protocol.
    pub ipset: &'a mut dyn FnMut() -> Result<(), String>,
    /// Makes our dummy interface, unless it is there already; it will be needed anyway.
    pub dummy: &'a mut dyn FnMut() -> Result<(), String>,
    /// Lists a chain with the family's iptables.
    pub iptables: &'a mut dyn FnMut(Family) -> Result<(), String>,
}

/// Place where the kernel shows itself as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// `/proc`
    pub proc: PathBuf,
}

/// Asks the host everything that [`judge`](super::judge) wants to know, in the calling thread's
/// network namespace. `wanted` are the switches that should be set.
pub fn gather(
    root: &Root,
    scheduler: &SchedulerName,
    wanted: &[sysctl::Sysctl],
    attempts: &mut Attempts<'_>,
) -> Facts {
    // First of all, because asking makes the kernel load the module, and with it come the
    // switches.
    let ipvs = ipvs();
    let has_ipvs = ipvs.is_ok();
    let ipv6 = root.ipv6();
    Facts {
        net_admin: root.has_capability(CAP_NET_ADMIN),
        net_raw: root.has_capability(CAP_NET_RAW),
        ipvs,
        scheduler: scheduler.clone(),
        scheduler_taken: has_ipvs.then(|| (attempts.scheduler)(scheduler)),
        ipset: (attempts.ipset)(),
        dummy: (attempts.dummy)(),
        iptables_v4: (attempts.iptables)(Family::V4),
        iptables_v6: (ipv6 == Ipv6::Available).then(|| (attempts.iptables)(Family::V6)),
        ipv6,
        switches: has_ipvs.then(|| sysctl::differing(&root.sysctl(), wanted)),
        switches_writable: root.switches_writable(),
    }
}

/// Asks for the generic netlink family of `IPVS_GENL_NAME` (include/uapi/linux/ip_vs.h).
fn ipvs() -> Result<(), String> {
    let mut socket = Socket::open(Protocol::Generic).map_err(|error| error.to_string())?;
    generic::family(&mut socket, "IPVS")
        .map(|_| ())
        .map_err(|error| format!("the generic netlink family IPVS is not there: {error}"))
}

// === impl Root ===

impl Default for Root {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc") }
    }
}

impl Root {
    fn sysctl(&self) -> PathBuf {
        self.proc.join("sys")
    }

    /// True if a capability is among the effective ones of this thread; none: that could not be
    /// read.
    pub(super) fn has_capability(&self, number: u32) -> Option<bool> {
        let status = fs::read_to_string(self.proc.join("thread-self/status")).ok()?;
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
        Some(effective >> number & 1 == 1)
    }

    pub(super) fn ipv6(&self) -> Ipv6 {
        if !self.proc.join("thread-self/net/if_inet6").exists() {
            return Ipv6::NotInKernel;
        }
        let switch = fs::read_to_string(self.sysctl().join("net/ipv6/conf/all/disable_ipv6"));
        match switch {
            Ok(switch) if switch.trim() == "1" => Ipv6::SwitchedOff,
            _ => Ipv6::Available,
        }
    }

    /// Opens a switch that every kernel has for writing, and writes nothing.
    pub(super) fn switches_writable(&self) -> Result<(), String> {
        let path = self.sysctl().join("net/ipv4/ip_forward");
        OpenOptions::new()
            .write(true)
            .open(&path)
            .map(|_| ())
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}
