//! Facts about the host, and how they are gathered.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use netlink::{Socket, generic};
use plan::model::{Family, Protocol};
use plan::scheduler::SchedulerName;
use plan::settings::RuleForm;

use super::super::sysctl::{self, Sysctl};
use super::super::{Refusal, RefusalClass};

/// include/uapi/linux/capability.h
pub(super) const CAP_NET_ADMIN: u32 = 12;
/// include/uapi/linux/capability.h
const CAP_NET_RAW: u32 = 13;

/// Facts about the host. An error is the text of the program or the part of the kernel asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// True if the process has `CAP_NET_ADMIN`; none: that could not be read.
    pub net_admin: Option<bool>,
    /// True if the process has `CAP_NET_RAW`; none: that could not be read.
    pub net_raw: Option<bool>,
    /// Facts that only IPVS mode needs; none in another mode, where the probe does not collect them.
    pub of_ipvs: Option<IpvsFacts>,
    /// Form of rules that was tried.
    pub rule_form: RuleForm,
    /// `Ok` if iptables works, or nf_tables in the other form, with all that the mode's rules are made of.
    pub iptables_v4: Result<(), ProbeError>,
    /// The same of ip6tables; none: not asked, since there is no IPv6.
    pub iptables_v6: Option<Result<(), ProbeError>>,
    /// Support of the host for IPv6.
    pub ipv6: Ipv6,
    /// Sysctls with wrong values; none: not asked, since mode ipvs has no IPVS.
    pub sysctls: Option<Vec<Sysctl>>,
    /// `Ok` if sysctls can be changed.
    pub sysctls_writable: Result<(), String>,
    /// The kernel's release, as `uname -r` prints it; empty: it could not be read.
    pub kernel_release: String,
}

/// Reason for which a family's iptables cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeError {
    /// Text of the program.
    pub words: String,
    /// True if the host may have everything, and another program was in the way, or memory was short.
    pub is_momentary: bool,
}

/// Facts about what only mode ipvs needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpvsFacts {
    /// `Ok` if the kernel has IPVS.
    pub ipvs: Result<(), String>,
    pub scheduler: SchedulerName,
    /// `Ok` if the kernel takes the scheduler; none: not asked, since there is no IPVS.
    pub scheduler_taken: Option<Result<(), String>>,
    /// `Ok` if the kernel takes virtual servers of IPv6; none: not asked, since it has no IPv6 or does
    /// not take the scheduler.
    pub ipv6_taken: Option<Result<(), String>>,
    /// Protocols that the kernel's IPVS does not balance.
    pub unbalanced: Vec<Protocol>,
    /// `Ok` if the kernel has ipset.
    pub ipset: Result<(), String>,
    /// `Ok` if a dummy interface can be made.
    pub dummy: Result<(), String>,
}

/// Support of a host for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// The host does IPv6.
    Available,
    /// The kernel has none: `/proc/net/if_inet6` is missing.
    NotInKernel,
    /// `net.ipv6.conf.all.disable_ipv6` is 1.
    SwitchedOff,
}

/// Attempts that need a handle to a part of the kernel. Each answers in words.
pub struct Attempts<'a> {
    /// Attempts that only IPVS mode needs; none in another mode.
    pub of_ipvs: Option<IpvsAttempts<'a>>,
    /// Tries the family's iptables.
    pub iptables: &'a mut dyn FnMut(Family) -> Result<(), ProbeError>,
}

/// Attempts of what only mode ipvs needs.
pub struct IpvsAttempts<'a> {
    pub scheduler: &'a SchedulerName,
    /// Makes a virtual server with this scheduler and removes it again, unless one has it already.
    pub try_scheduler: &'a mut dyn FnMut(&SchedulerName) -> Result<(), String>,
    /// The same with a virtual server of IPv6.
    pub try_ipv6: &'a mut dyn FnMut(&SchedulerName) -> Result<(), String>,
    /// Returns the protocols that the kernel's IPVS does not balance.
    pub unbalanced: &'a mut dyn FnMut() -> Vec<Protocol>,
    /// Asks for ipset's protocol.
    pub ipset: &'a mut dyn FnMut() -> Result<(), String>,
    /// Makes our dummy interface, unless it is there already; it will be needed anyway.
    pub dummy: &'a mut dyn FnMut() -> Result<(), String>,
}

/// Root of the kernel's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcRoot {
    /// `/proc`
    pub proc: PathBuf,
}

/// Gathers the facts for [`judge`](super::judge), in the calling thread's network namespace.
/// `wanted` are the sysctls to set.
pub fn gather(root: &ProcRoot, wanted: &[Sysctl], attempts: &mut Attempts<'_>) -> Facts {
    // First, because this makes the kernel load the module, which adds the sysctls.
    let ipv6 = root.ipv6();
    let of_ipvs = attempts.of_ipvs.as_mut().map(|attempts| gather_ipvs(attempts, ipv6));
    let has_ipvs = of_ipvs.as_ref().is_none_or(|facts| facts.ipvs.is_ok());
    Facts {
        net_admin: root.has_capability(CAP_NET_ADMIN),
        net_raw: root.has_capability(CAP_NET_RAW),
        of_ipvs,
        rule_form: RuleForm::Iptables,
        iptables_v4: (attempts.iptables)(Family::V4),
        iptables_v6: (ipv6 == Ipv6::Available).then(|| (attempts.iptables)(Family::V6)),
        ipv6,
        sysctls: has_ipvs.then(|| sysctl::differing(&root.sysctl(), wanted)),
        sysctls_writable: root.sysctls_writable(),
        kernel_release: root.kernel_release(),
    }
}

fn gather_ipvs(attempts: &mut IpvsAttempts<'_>, ipv6: Ipv6) -> IpvsFacts {
    let ipvs = ipvs();
    let scheduler = attempts.scheduler;
    let scheduler_taken = ipvs.is_ok().then(|| (attempts.try_scheduler)(scheduler));
    let is_taken = matches!(scheduler_taken, Some(Ok(())));
    let ipv6_taken = (is_taken && ipv6 == Ipv6::Available).then(|| (attempts.try_ipv6)(scheduler));
    IpvsFacts {
        ipv6_taken,
        unbalanced: if ipvs.is_ok() { (attempts.unbalanced)() } else { Vec::new() },
        ipvs,
        scheduler: scheduler.clone(),
        scheduler_taken,
        ipset: (attempts.ipset)(),
        dummy: (attempts.dummy)(),
    }
}

/// Asks for the generic netlink family of `IPVS_GENL_NAME` (include/uapi/linux/ip_vs.h).
fn ipvs() -> Result<(), String> {
    let mut socket = Socket::open(netlink::Protocol::Generic).map_err(|error| error.to_string())?;
    generic::family(&mut socket, "IPVS")
        .map(|_| ())
        .map_err(|error| format!("the generic netlink family IPVS is not there: {error}"))
}

impl From<String> for ProbeError {
    fn from(words: String) -> Self {
        Self { words, is_momentary: false }
    }
}

impl From<netlink::Error> for ProbeError {
    fn from(error: netlink::Error) -> Self {
        let is_momentary = match error.raw_os_error() {
            Some(errno) => Refusal::class_of(Some(errno)) == RefusalClass::Exhausted,
            None => error.is_answer_lost(),
        };
        Self { words: error.to_string(), is_momentary }
    }
}

impl Default for ProcRoot {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc") }
    }
}

impl ProcRoot {
    fn sysctl(&self) -> PathBuf {
        self.proc.join("sys")
    }

    fn kernel_release(&self) -> String {
        let release = fs::read_to_string(self.sysctl().join("kernel/osrelease"));
        release.unwrap_or_default().trim().to_owned()
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
        // What cannot be looked at may be there: the attempts tell.
        if matches!(self.proc.join("thread-self/net/if_inet6").try_exists(), Ok(false)) {
            return Ipv6::NotInKernel;
        }
        let sysctl = fs::read_to_string(self.sysctl().join("net/ipv6/conf/all/disable_ipv6"));
        match sysctl {
            Ok(sysctl) if sysctl.trim() == "1" => Ipv6::SwitchedOff,
            _ => Ipv6::Available,
        }
    }

    /// Opens a sysctl that every kernel has for writing, and writes nothing.
    pub(super) fn sysctls_writable(&self) -> Result<(), String> {
        let path = self.sysctl().join("net/ipv4/ip_forward");
        OpenOptions::new()
            .write(true)
            .open(&path)
            .map(|_| ())
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}
