//! The kernel, behind a port in the planner's words.
//!
//! [`Kernel`] is what the reconciler sees. [`linux`] is the real one: one adapter each for IPVS,
//! ipset, the dummy interface and the rules, all owned by one worker thread ([`worker`]), because
//! netlink blocks and because the kernel works in order anyway. `fake` is for tests: it
//! exists with the feature `testing`.

use std::cmp::Reverse;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use plan::actual::{ActualSet, ActualVirtualServer, Addresses, ListedVirtualServer};
use plan::chains::ActualChains;
use plan::flows::FlowTargets;
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::Frontend;
use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSet;
use plan::scheduler::SchedulerName;
use plan::sets::SetId;

pub mod address_monitor;
pub mod connection_table;
pub mod conntrack;
pub mod counters;
pub mod estimators;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod family;
pub mod input_rules;
pub mod leftovers;
pub mod link;
pub mod linux;
mod loaded;
pub mod modules;
pub mod nfacct;
pub mod nftables;
pub(crate) mod packet_fate;
pub mod probe;
mod program;
pub mod reader;
pub mod route;
pub(crate) mod routing_rule;
pub mod rules;
pub mod saved_sets;
mod stopwatch;
pub mod sysctl;
pub mod traffic;
pub mod translate;
pub mod way;
pub mod worker;

use conntrack::TrackedCounts;
pub use stopwatch::processor_time;
pub use stopwatch::{KernelRead, Stopwatch};
use sysctl::{Sysctl, SysctlChange, SysctlError};
pub use traffic::{CurrentConnections, TrafficCounters};

/// Operations that the reconciler needs of a kernel.
///
/// An operation whose result is already there succeeds: adding an entry that exists, unbinding an
/// address that is gone.
pub trait Kernel: Send {
    /// Reads signs that another program flushed, deleted or added something. Its cost does not
    /// depend on the amount of state in the kernel.
    ///
    /// # Errors
    /// When a sign could not be read.
    fn drift_check(&mut self) -> Result<DriftCheck, ReadError>;

    /// Lists the virtual servers of all programs, except those by firewall mark.
    fn list_virtual_servers(&mut self) -> Result<Listing, ReadError>;

    /// True if IPVS, sets and the dummy interface can be read and written: always in IPVS mode; in
    /// another mode if there is the interface, which IPVS mode made.
    fn has_ipvs(&mut self) -> bool;

    /// True if each COMMIT reads and writes all rules of its table, however few it changes: x_tables
    /// of all families.
    fn writes_whole_tables(&mut self) -> bool;

    /// Reads virtual servers with their real servers. Returns a result for each frontend, in the
    /// same order: one that cannot be read does not keep the others from being read.
    fn read_virtual_servers(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Vec<VirtualServerReading>, ReadError>;

    /// Reads virtual servers that were listed just now. Takes their scheduler, flags and timeout
    /// from the listing, which saves a request for each.
    fn read_listed(
        &mut self,
        listed: &[ListedVirtualServer],
    ) -> Result<Vec<VirtualServerReading>, ReadError>;

    /// Counts the open TCP connections that IPVS leads, by virtual server and real server. Open is a
    /// connection that one of its ends may still send data on. None: the table has more than `most`
    /// connections of all kinds, and is not read to its end. The cost grows with the square of what is
    /// read.
    fn count_open_connections(&mut self, most: u64) -> Result<Option<OpenConnections>, ReadError>;

    /// Reads a set with its entries; none if there is no such set.
    ///
    /// # Errors
    /// When it could not be read, or is of another type than ours.
    fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError>;

    /// Reads the addresses of all interfaces.
    fn read_addresses(&mut self) -> Result<Addresses, ReadError>;

    /// Compares a family's rules with the desired ones.
    fn read_rule_set(&mut self, family: Family) -> Result<RuleSetReading, ReadError>;

    /// Reads a family's chains of iptables mode.
    fn read_chains(&mut self, family: Family) -> Result<ActualChains, ReadError>;

    /// Sets a family's desired rules, for [`Op::WriteRuleSet`] and [`Kernel::read_rule_set`].
    fn set_desired_rules(&mut self, rule_set: RuleSet);

    /// A handle that repairs these rules beside all other calls.
    fn rule_repairer(&self) -> Arc<dyn RuleRepairer>;

    /// Carries out the operations, in their order, and returns a result for each. One that fails
    /// does not keep the others from being tried.
    fn apply(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>>;

    /// Says which of these schedulers have their module loaded.
    fn loaded_schedulers(&mut self, names: Vec<SchedulerName>) -> Vec<SchedulerName>;

    /// Sets one of [`DriftCheck::sysctls`]. Returns what changed; nothing if it has its value
    /// already.
    fn set_sysctl(&mut self, sysctl: &Sysctl) -> Result<Option<SysctlChange>, SysctlError>;

    /// A handle on the flows of connection tracking, beside all other calls.
    fn tracked_flows(&self) -> Arc<dyn TrackedFlows>;

    /// A handle that reads sets beside all other calls.
    fn set_reader(&self) -> Arc<dyn SetReader>;
}

/// Reads sets on any thread: the kernel lists a set whole, which takes 0.1 s for 50,000 entries. What is
/// written to the set meanwhile may be in the reading or not.
pub trait SetReader: fmt::Debug + Send + Sync {
    /// Reads a set as [`Kernel::read_set`] does.
    fn read_set(&self, set: SetId) -> Result<Option<ActualSet>, ReadError>;
}

/// Flows of connection tracking, on any thread: listing a large table takes some tenths of a second for
/// each port.
pub trait TrackedFlows: fmt::Debug + Send + Sync {
    /// Counts the connections to these frontends, as clients see them, that connection tracking carries.
    fn count_flows(&self, frontends: &HashSet<Frontend>) -> Result<TrackedCounts, ReadError>;

    /// Removes the stale flows of a family, and returns how many.
    fn remove_flows(&self, family: Family, targets: &FlowTargets) -> Result<u64, Refusal>;
}

/// Repairs the constant rules, on any thread: iptables' programs may wait for seconds for the lock of
/// x_tables, or read what others have written for longer, and no other call waits for them then. Calls
/// about rules wait for a repair under way; to a drift check, no rules are untouched meanwhile.
pub trait RuleRepairer: fmt::Debug + Send + Sync {
    /// Compares a family's rules with the desired ones.
    fn read_rule_set(&self, family: Family) -> Result<RuleSetReading, ReadError>;

    /// Carries out [`Op::WriteRuleSet`].
    fn write_rule_set(&self, family: Family) -> Result<(), Refusal>;
}

/// A virtual server with its real servers (none if it does not exist), or the reason why it cannot
/// be read.
pub type VirtualServerReading = Result<Option<ActualVirtualServer>, ReadError>;

/// Result of [`Kernel::read_rule_set`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleSetReading {
    /// True if the kernel has the family's desired rules, all of them.
    pub is_complete: bool,
    /// Differences in words, as far as the kernel's port can tell them.
    pub differences: String,
    /// True if rules of another mode lead connections to Services, before those of this mode.
    pub is_led_by_rules: bool,
}

impl RuleSetReading {
    /// Returns what differs, in words; none: all rules are there.
    pub fn lacks(self) -> Option<String> {
        (!self.is_complete).then_some(self.differences)
    }
}

/// Number of open TCP connections of each real server that has some.
pub type OpenConnections = HashMap<(Frontend, SocketAddr), u64>;

/// Result of [`Kernel::drift_check`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DriftCheck {
    /// True if the dummy interface is there.
    pub link: bool,
    /// Number of virtual servers that [`Kernel::list_virtual_servers`] would return. None if the
    /// kernel does not count them.
    pub n_virtual_servers: Option<u32>,
    /// Number of entries of each of our sets, without the sets that are missing.
    pub set_entries: HashMap<SetId, u32>,
    /// Families whose rules have not changed since they were last written, or read and found
    /// complete.
    pub untouched: HashSet<Family>,
    /// Sysctls with another value than the desired one, which is in here.
    pub sysctls: Vec<Sysctl>,
    /// True if the virtual servers had to be listed: this check cost more than others do.
    pub has_listed: bool,
}

/// Result of listing the virtual servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// The virtual servers, in any order.
    pub virtual_servers: Vec<ListedVirtualServer>,
    /// The kernel's order, as the last listing had it that had most of them. See
    /// [`Listing::sort_for_return`].
    pub order: Arc<[Frontend]>,
}

impl Listing {
    /// Returns the frontends of the virtual servers.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        self.virtual_servers.iter().map(|listed| listed.frontend)
    }

    /// Puts virtual servers in the order in which the kernel takes them back fastest, if all of them
    /// were removed at once. It keeps a removed real server in a list for two to three minutes, and
    /// searches that list for each that is added, the last removed first. A flush removes them in the
    /// order of a listing. Source: net/netfilter/ipvs/ip_vs_ctl.c (`ip_vs_flush`,
    /// `ip_vs_trash_get_dest`).
    pub fn sort_for_return(&self, frontends: &mut [Frontend]) {
        let places: HashMap<&Frontend, usize> = self.order.iter().zip(0..).collect();
        frontends.sort_by_key(|it| Reverse(places.get(it)));
    }
}

/// Something could not be read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {what}: {reason}")]
pub struct ReadError {
    /// Part of the kernel's state that was to be read.
    pub what: String,
    /// Reason that the kernel, or a program, gave.
    pub reason: String,
    /// True if it is another program's, under a name of ours: retrying does not help until that is removed.
    pub is_foreign: bool,
}

/// An operation that the kernel did not carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Kind of refusal.
    pub class: RefusalClass,
    /// Reason that the kernel, or a program, gave.
    pub reason: String,
}

/// Kinds of refusal, by what can be done about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RefusalClass {
    /// The kernel's state is not what the operation started from. Read it again.
    Conflict,
    /// The kernel's answer was lost. The operation may or may not have been carried out.
    AnswerLost,
    /// A set has reached its capacity.
    SetFull,
    /// Memory or another resource is short for now.
    Exhausted,
    /// The process lacks a permission.
    NotPermitted,
    /// The kernel lacks the feature or the module.
    NotSupported,
    /// The programs that write rules are not installed, or cannot work: no lock file, no table.
    NotInstalled,
    /// The kernel lacks the scheduler that a virtual server is to have.
    NoScheduler,
    /// Another program made what has the name, as something else, and may keep it for ever.
    Foreign,
    /// Anything else.
    Other,
}

impl ReadError {
    /// Makes the error of a read of `what`.
    pub fn new(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self { what: what.into(), reason: reason.to_string(), is_foreign: false }
    }

    /// Makes the error of a read of what another program made under a name of ours.
    pub fn foreign(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self { is_foreign: true, ..Self::new(what, reason) }
    }
}

impl RefusalClass {
    /// Consequence or advice, in parentheses, that follows the reason of a refusal. May be empty.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Conflict => " (its state is unexpected; kube-ipvs reads it again and repairs it)",
            Self::AnswerLost => " (kube-ipvs reads it again and repairs it)",
            Self::SetFull => " (kube-ipvs reads the set again, and grows it up to limits.setSize)",
            Self::Exhausted => " (kube-ipvs retries it)",
            Self::NotPermitted => " (the capability CAP_NET_ADMIN is needed)",
            Self::NotSupported => " (the kernel lacks the feature, or its module)",
            Self::NotInstalled => " (no rule of this family can be written)",
            Self::NoScheduler => " (the kernel lacks the scheduler; the default is used)",
            Self::Foreign => {
                " (another program created it; kube-ipvs serves the rest, and retries: remove or \
                 rename it there)"
            }
            Self::Other => "",
        }
    }
}

impl Refusal {
    /// A refusal with the kernel's words.
    pub fn new(class: RefusalClass, reason: impl fmt::Display) -> Self {
        Self { class, reason: reason.to_string() }
    }

    /// Returns the class of an error number.
    #[must_use]
    pub fn class_of(errno: Option<i32>) -> RefusalClass {
        use rustix::io::Errno;
        // ipset's own numbers begin behind the system's largest, `MAX_ERRNO` (include/linux/err.h).
        let of_the_system = errno.filter(|errno| (1..=4_095).contains(errno));
        match of_the_system.map(Errno::from_raw_os_error) {
            Some(
                Errno::EXIST | Errno::NOENT | Errno::SRCH | Errno::NODEV | Errno::ADDRNOTAVAIL,
            ) => RefusalClass::Conflict,
            Some(
                Errno::NOMEM
                | Errno::NOBUFS
                | Errno::BUSY
                | Errno::AGAIN
                | Errno::NOSPC
                | Errno::MFILE
                | Errno::NFILE,
            ) => RefusalClass::Exhausted,
            // `EACCES` is another's: an interface without IPv6, an attribute that is read-only.
            Some(Errno::PERM) => RefusalClass::NotPermitted,
            Some(Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT) => {
                RefusalClass::NotSupported
            }
            _ => RefusalClass::Other,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.reason, self.class.hint())
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn the_capability_is_named_only_where_the_kernel_says_that_it_is_missing() {
        let names_it = |errno: Errno| {
            let refusal = Refusal::new(Refusal::class_of(Some(errno.raw_os_error())), "refused");
            refusal.to_string().contains("CAP_NET_ADMIN")
        };
        assert!(names_it(Errno::PERM));
        assert!(!names_it(Errno::ACCESS), "of an interface without IPv6, or what is read-only");
    }
}
