//! Schedulers of the kernel: the algorithms that choose a real server for a new connection.

use std::fmt;
use std::sync::Arc;

/// A scheduler's name as the kernel has it: `rr`, `wlc`, `sh`, … The kernel decides which exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchedulerName(Arc<str>);

/// A scheduler name that the kernel could not even be asked about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "scheduler {0:?}: a scheduler's name has 1 to 15 visible ASCII characters, such as rr, wlc, sh"
)]
pub struct InvalidSchedulerName(String);

/// A scheduler of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduler {
    pub name: &'static str,
    /// True if weights other than 0 make a difference.
    pub uses_weights: bool,
    /// True if it fills a hash table with the real servers in the order in which the kernel lists
    /// them, so that its choices depend on that order.
    pub(crate) depends_on_order: bool,
    /// True if it passes over a real server of weight 0, given the flags that are always set.
    pub(crate) can_drain: bool,
    /// True if it chooses by the connections that IPVS has (`ip_vs_dest_conn_overhead`, `activeconns`).
    pub(crate) counts_connections: bool,
    pub flags: &'static [SchedulerFlag],
}

/// A flag of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerFlag {
    /// Its name, as ipvsadm has it.
    pub name: &'static str,
    /// Its bit: `IP_VS_SVC_F_SCHED1` to `3` (0x08, 0x10, 0x20).
    pub bit: u32,
    applied: Applied,
}

/// Condition on which a flag is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    /// Always, independent of the Service.
    Always,
    /// Unless a Service chooses its flags.
    ByDefault,
    /// If a Service chooses it.
    OnRequest,
}

/// The fallback: a client whose real server has weight 0 gets another one. Without it, `sh` and
/// `mh` refuse that client for as long as the real server drains.
const fn fallback(name: &'static str) -> SchedulerFlag {
    SchedulerFlag { name, bit: 0x08, applied: Applied::Always }
}

/// Includes the source port in the hash.
const fn port(name: &'static str, applied: Applied) -> SchedulerFlag {
    SchedulerFlag { name, bit: 0x10, applied }
}

/// `IP_VS_SVC_F_SCHED_SH_FALLBACK` and `IP_VS_SVC_F_SCHED_SH_PORT` in include/uapi/linux/ip_vs.h.
const SH_FLAGS: [SchedulerFlag; 2] = [fallback("sh-fallback"), port("sh-port", Applied::OnRequest)];

/// `IP_VS_SVC_F_SCHED_MH_FALLBACK` and `IP_VS_SVC_F_SCHED_MH_PORT` in
/// net/netfilter/ipvs/ip_vs_mh.c.
const MH_FLAGS: [SchedulerFlag; 2] = [fallback("mh-fallback"), port("mh-port", Applied::ByDefault)];

/// The schedulers of Linux: net/netfilter/ipvs/ip_vs_NAME.c.
/// Which of them a node has is for its kernel to say.
pub const SCHEDULERS: [Scheduler; 14] = [
    // Goes round whatever the weights.
    Scheduler { uses_weights: false, ..weighted("rr") },
    weighted("wrr"),
    // Compares numbers of connections alone.
    Scheduler { uses_weights: false, ..counting("lc") },
    counting("wlc"),
    counting("lblc"),
    counting("lblcr"),
    // Each real server has one slot of the table in turn (`ip_vs_dh_reassign`). A connection to a
    // slot of one with weight 0 is refused (`ip_vs_dh_schedule`), and there is no fallback.
    Scheduler { uses_weights: false, depends_on_order: true, can_drain: false, ..weighted("dh") },
    // `ip_vs_sh_reassign`
    Scheduler { depends_on_order: true, flags: &SH_FLAGS, ..weighted("sh") },
    counting("sed"),
    counting("nq"),
    weighted("fo"),
    counting("ovf"),
    // `ip_vs_mh_permutate` and `ip_vs_mh_populate`
    Scheduler { depends_on_order: true, flags: &MH_FLAGS, ..weighted("mh") },
    counting("twos"),
];

/// A scheduler that goes by weights, passes over real servers of weight 0 and has no flags.
const fn weighted(name: &'static str) -> Scheduler {
    Scheduler {
        name,
        uses_weights: true,
        depends_on_order: false,
        can_drain: true,
        counts_connections: false,
        flags: &[],
    }
}

/// One of these that counts connections.
const fn counting(name: &'static str) -> Scheduler {
    Scheduler { counts_connections: true, ..weighted(name) }
}

impl Scheduler {
    /// Returns the flags of a Service's virtual servers. None chosen: the usual ones.
    pub(crate) fn flags(&self, chosen: Option<u32>) -> u32 {
        self.bits(Applied::Always) | chosen.unwrap_or_else(|| self.bits(Applied::ByDefault))
    }

    fn bits(&self, applied: Applied) -> u32 {
        let flags = self.flags.iter().filter(|flag| flag.applied == applied);
        flags.fold(0, |bits, flag| bits | flag.bit)
    }
}

impl SchedulerName {
    /// The kernel's `IP_VS_SCHEDNAME_MAXLEN` (include/uapi/linux/ip_vs.h) counts the ending zero.
    const MOST_BYTES: usize = 15;

    /// A name that may be handed to the kernel.
    ///
    /// # Errors
    /// When it is empty, longer than 15 bytes, or has anything but visible ASCII characters.
    pub fn new(name: &str) -> Result<Self, InvalidSchedulerName> {
        if (1..=Self::MOST_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic())
        {
            Ok(Self(name.into()))
        } else {
            Err(InvalidSchedulerName(name.to_owned()))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the kernel module that has this scheduler.
    #[must_use]
    pub fn module(&self) -> String {
        format!("ip_vs_{self}")
    }

    /// Returns the share of new connections that a real server of this weight gets, of this number of
    /// real servers that have `weights` together. None: it depends on the connections that there
    /// are, or on the client.
    #[must_use]
    pub fn share(&self, weight: u32, weights: u64, number: usize) -> Option<f64> {
        match self.as_str() {
            "rr" => Some(1.0 / number as f64),
            "wrr" => Some(f64::from(weight) / weights as f64),
            _ => None,
        }
    }

    /// Returns the scheduler of this name; none if Linux has none.
    #[must_use]
    pub fn known(&self) -> Option<&'static Scheduler> {
        SCHEDULERS.iter().find(|scheduler| scheduler.name == self.as_str())
    }
}

impl Default for SchedulerName {
    /// Round robin.
    fn default() -> Self {
        Self("rr".into())
    }
}

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The rows of the tables of a document's section, each as its cells.
    fn rows(section: &str) -> Vec<Vec<&str>> {
        let document = include_str!("../../docs/annotations.md");
        let (_, rest) = document.split_once(&format!("\n## {section}\n")).unwrap();
        let section = rest.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.map(|row| row.trim_end_matches(" |").split(" | ").collect()).collect()
    }

    fn names(cell: &str) -> impl Iterator<Item = &str> {
        cell.split(", ").map(|name| name.trim_matches('`'))
    }

    #[test]
    fn the_document_lists_every_scheduler_and_whether_it_uses_weights() {
        let mut documented = BTreeMap::new();
        for row in rows("kube-ipvs.io/scheduler") {
            documented.extend(names(row[0]).map(|name| (name, row[2] == "yes")));
        }
        let known = SCHEDULERS.iter().map(|scheduler| (scheduler.name, scheduler.uses_weights));
        assert_eq!(documented, known.collect());
        let mut in_order: Vec<_> =
            rows("The same choice on every node").iter().flat_map(|row| names(row[0])).collect();
        in_order.sort_unstable();
        let known = SCHEDULERS.iter().filter(|scheduler| scheduler.depends_on_order);
        let mut known: Vec<_> = known.map(|scheduler| scheduler.name).collect();
        known.sort_unstable();
        assert_eq!(in_order, known);
    }

    #[test]
    fn the_document_lists_every_flag() {
        let rows = rows("kube-ipvs.io/scheduler-flags");
        let mut documented: Vec<_> = rows.iter().flat_map(|row| names(row[0])).collect();
        documented.retain(|name| *name != "none");
        documented.sort_unstable();
        let known = SCHEDULERS.iter().flat_map(|scheduler| scheduler.flags);
        let mut known: Vec<_> = known.map(|flag| flag.name).collect();
        known.sort_unstable();
        assert_eq!(documented, known);
    }
}
