//! Sysctls of connection tracking, by kube-proxy's settings.
//!
//! Each is read first and written only if different. The table's size is only raised, as kube-proxy
//! does since 1.38 (kubernetes/kubernetes#142035). kube-proxy ends when one cannot be written; kube-ipvs
//! does not in a network namespace where the table's size is not its own to set, nor for buckets, which
//! only make the table slower. None is put back on exit.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use config::Conntrack;
use kernel::sysctl::{self, Sysctl, SysctlChange, SysctlError};

const MAX: &str = "net/netfilter/nf_conntrack_max";
/// Below `/sys`: how many buckets the table has.
const HASH_SIZE: &str = "module/nf_conntrack/parameters/hashsize";
/// Sysctl that shows the same, and takes it in the host's network namespace only.
const BUCKETS: &str = "net/netfilter/nf_conntrack_buckets";
/// Below `/sys`: the processors in use, such as `0-3,6`. What the process itself may use can be
/// less, by its cgroup or affinity, and does not count.
const PROCESSORS: &str = "devices/system/cpu/online";
/// Limit of IPVS' connections in a network namespace, since Linux 7.2: beyond it, the packet of a new one is dropped
/// (`ip_vs_conn_new` in net/netfilter/ipvs/ip_vs_conn.c). 2^30 unless it is set.
const IPVS_MAX: &str = "net/ipv4/vs/conn_max";
/// However many processors there are, no more than this.
const MOST: u32 = 1_048_576;

/// Directories in which the kernel shows itself as files.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) proc_sys: PathBuf,
    pub(crate) sys: PathBuf,
}

/// Result of setting up connection tracking.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ConntrackSetup {
    /// Settings that were changed.
    pub(crate) changed: Vec<SysctlChange>,
    /// Settings that could not be made and need not be, with the reason.
    pub(crate) tolerated: Vec<String>,
    /// Settings that could not be made, each with what to do about it.
    pub(crate) failed: Vec<String>,
}

/// Sets what differs from what the operator chose.
pub(crate) fn set(root: &Root, chosen: &Conntrack) -> ConntrackSetup {
    let mut outcome = ConntrackSetup::default();
    if let Some(entries) = entries(chosen.max_per_core, chosen.min, processors(root))
        && set_entries(root, entries, &mut outcome)
    {
        set_buckets(root, entries / 4, &mut outcome);
    }
    let applied = sysctl::apply(&root.proc_sys, &sysctls(chosen));
    outcome.changed.extend(applied.changed);
    outcome.failed.extend(applied.failed.iter().map(ToString::to_string));
    outcome
}

/// Returns the sysctls that [`set`] would set.
pub(super) fn wanted(root: &Root, chosen: &Conntrack) -> Vec<Sysctl> {
    let size = entries(chosen.max_per_core, chosen.min, processors(root)).map(size);
    let size = size.filter(|size| {
        !is_large_enough(&root.proc_sys, size) && !is_of_another_namespace(&root.proc_sys)
    });
    size.into_iter().chain(sysctls(chosen)).collect()
}

/// Returns why the buckets cannot be set to what a start would set them to; none if they can, or need
/// not be.
pub(super) fn buckets_missing(root: &Root, chosen: &Conntrack) -> Option<String> {
    let buckets = entries(chosen.max_per_core, chosen.min, processors(root))? / 4;
    let path = root.sys.join(HASH_SIZE);
    // A file of sysfs that is opened for writing is not written yet.
    let tried = found_buckets(&path).and_then(|found| {
        if found < buckets {
            fs::OpenOptions::new().write(true).open(&path).map(drop)
        } else {
            Ok(())
        }
    });
    tried.err().map(|error| too_few_buckets(buckets, &error))
}

/// Returns a warning if IPVS may have fewer connections than are tracked.
pub(super) fn ipvs_limit(root: &Root) -> Option<String> {
    let read = |path| -> Option<u64> {
        fs::read_to_string(root.proc_sys.join(path)).ok()?.trim().parse().ok()
    };
    let (of_ipvs, tracked) = (read(IPVS_MAX)?, read(MAX)?);
    (of_ipvs < tracked).then(|| {
        format!(
            "IPVS may have {of_ipvs} connections (net.ipv4.vs.conn_max), fewer than conntrack ({tracked}); beyond \
             that, new connections get no answer. On the host: sysctl -w net.ipv4.vs.conn_max={tracked}"
        )
    })
}

/// Returns the number of entries that the table is to have; none: as it has.
fn entries(max_per_core: Option<u32>, min: u32, processors: u32) -> Option<u32> {
    let max_per_core = max_per_core.filter(|entries| *entries > 0)?;
    let scaled = max_per_core.saturating_mul(processors);
    let entries = if scaled > MOST { MOST } else { scaled.max(min) };
    (entries > 0).then_some(entries)
}

/// Returns the sysctls but for the table's size.
fn sysctls(chosen: &Conntrack) -> Vec<Sysctl> {
    let sysctl = |path, value: u32, why| Sysctl::new(path, value, true, why);
    let mut sysctls = Vec::new();
    for (path, duration, why) in [
        (
            "net/netfilter/nf_conntrack_tcp_timeout_established",
            chosen.tcp_established,
            "conntrack keeps idle TCP connections for conntrack.tcpEstablishedTimeout",
        ),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            chosen.tcp_close_wait,
            "conntrack keeps half-closed TCP connections for conntrack.tcpCloseWaitTimeout",
        ),
        (
            "net/netfilter/nf_conntrack_udp_timeout",
            chosen.udp,
            "conntrack keeps unanswered UDP flows for conntrack.udpTimeout",
        ),
        (
            "net/netfilter/nf_conntrack_udp_timeout_stream",
            chosen.udp_stream,
            "conntrack keeps idle UDP flows for conntrack.udpStreamTimeout",
        ),
    ] {
        if let Some(duration) = duration {
            // In seconds. Less than one would be none at all, and every entry forgotten at once.
            let seconds = u32::try_from(duration.as_secs().max(1)).unwrap_or(u32::MAX);
            sysctls.push(sysctl(path, seconds, why));
        }
    }
    if chosen.tcp_be_liberal {
        let why = "TCP packets outside of the window are not dropped (conntrack.tcpBeLiberal)";
        sysctls.push(sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", 1, why));
    }
    sysctls
}

fn size(entries: u32) -> Sysctl {
    let why = "conntrack tracks as many connections as conntrack.maxPerCore and conntrack.min ask \
               for";
    Sysctl::new(MAX, entries, true, why)
}

/// True if the table may have as many entries already. A size that an operator raised is not lowered.
fn is_large_enough(proc_sys: &Path, size: &Sysctl) -> bool {
    let found = fs::read_to_string(proc_sys.join(size.path)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
    found.and_then(|found| number(&found)) >= number(&size.value)
}

/// Raises the number of entries. Returns true if the table may have as many.
fn set_entries(root: &Root, entries: u32, outcome: &mut ConntrackSetup) -> bool {
    let size = size(entries);
    if is_large_enough(&root.proc_sys, &size) {
        return true;
    }
    match sysctl::set(&root.proc_sys, &size) {
        Ok(change) => {
            outcome.changed.extend(change);
            return true;
        }
        Err(error) => match tolerable(&root.proc_sys, &error) {
            Some(reason) => outcome.tolerated.push(reason),
            None => outcome.failed.push(error.to_string()),
        },
    }
    false
}

/// Raises the number of buckets. Four entries a bucket, as the kernel has it by default
/// (net/netfilter/nf_conntrack_core.c, `nf_conntrack_init_start`, before Linux 5.15).
fn set_buckets(root: &Root, buckets: u32, outcome: &mut ConntrackSetup) {
    match enlarge(&root.sys.join(HASH_SIZE), buckets) {
        Ok(None) => {}
        Ok(Some(before)) => {
            let why = "a bucket of the conntrack table has at most four entries";
            let sysctl = Sysctl::new(BUCKETS, buckets, true, why);
            outcome.changed.push(SysctlChange { sysctl, before: before.to_string() });
        }
        Err(error) => outcome.tolerated.push(too_few_buckets(buckets, &error)),
    }
}

fn too_few_buckets(buckets: u32, error: &io::Error) -> String {
    // The kernel takes it in the first network namespace only: EOPNOTSUPP
    // (`nf_conntrack_set_hashsize` in net/netfilter/nf_conntrack_core.c).
    let cure = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::OPNOTSUPP) => {
            "This is not the host's network namespace, and they can be set only there"
        }
        _ => "Mount /sys writable, or leave the table unchanged (conntrack.maxPerCore: 0)",
    };
    format!(
        "cannot resize the conntrack table to {buckets} buckets, a quarter of the entries that \
         conntrack.maxPerCore and conntrack.min ask for: {error}. With fewer buckets, tracking \
         slows down as the table fills. {cure}. On the host: echo {buckets} > /sys/{HASH_SIZE}"
    )
}

/// Returns why it is well although the table's size could not be set; none if it is not.
fn tolerable(proc_sys: &Path, error: &SysctlError) -> Option<String> {
    let wanted = &error.sysctl.value;
    let found = error.found.as_ref()?;
    is_of_another_namespace(proc_sys).then(|| {
        format!(
            "{} stays {found} instead of {wanted}: this is not the host's network namespace, and \
             it can be set only there",
            error.sysctl.name()
        )
    })
}

/// True if the table's size is read-only, as in every network namespace but the first
/// (`nf_conntrack_standalone_init_sysctl` in net/netfilter/nf_conntrack_standalone.c).
fn is_of_another_namespace(proc_sys: &Path) -> bool {
    fs::metadata(proc_sys.join(MAX)).is_ok_and(|metadata| metadata.permissions().readonly())
}

/// Returns the value that there was, if it was too small.
fn enlarge(path: &Path, least: u32) -> io::Result<Option<u32>> {
    let found = found_buckets(path)?;
    if found >= least {
        return Ok(None);
    }
    fs::write(path, least.to_string())?;
    Ok(Some(found))
}

fn found_buckets(path: &Path) -> io::Result<u32> {
    let text = fs::read_to_string(path)?;
    text.trim().parse::<u32>().map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{:?}: {error}", text.trim()))
    })
}

/// The host's processors.
fn processors(root: &Root) -> u32 {
    let listed = fs::read_to_string(root.sys.join(PROCESSORS)).ok();
    listed.and_then(|list| counted(&list)).unwrap_or_else(|| {
        std::thread::available_parallelism()
            .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
    })
}

/// Returns the number of processors in a list of the kernel's, such as `0-3,6`; none: it is no list.
fn counted(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0_u32, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

impl Default for Root {
    fn default() -> Self {
        Self { proc_sys: PathBuf::from(sysctl::ROOT), sys: PathBuf::from("/sys") }
    }
}
