//! IPVS's estimators, which compute the statistics of virtual servers and real servers.
//!
//! Every two seconds the kernel adds up each server's counters over all CPUs, and estimates
//! rates (net/netfilter/ipvs/ip_vs_est.c). Before Linux 6.2 one timer does that for all servers
//! without a pause, and its CPU handles no packet meanwhile. Since then threads do it, which
//! yield after 0.1 ms. See `docs/sizing.md`.

use std::fs;
use std::path::Path;

use super::sysctl::Sysctl;

const RUN: &str = "net/ipv4/vs/run_estimation";
const CPUS: &str = "net/ipv4/vs/est_cpulist";

/// Mode of the estimators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Run {
    /// Unchanged.
    #[default]
    Auto,
    /// Running.
    On,
    /// Stopped.
    Off,
}

impl Run {
    /// Returns the sysctl to set at the start, on a kernel that has it: Linux 5.16 and later, and older
    /// ones of distributions that have backported it.
    #[must_use]
    pub fn sysctl(self) -> Option<Sysctl> {
        let value = match self {
            Self::Auto => return None,
            Self::On => 1,
            Self::Off => 0,
        };
        let why = "IPVS statistics are on or off, as set by estimators.run";
        Some(Sysctl::new(RUN, value, false, why))
    }
}

/// True if the kernel keeps the statistics of virtual servers up to date. Otherwise their counters stand
/// still. `proc_sys` is [`ROOT`](super::sysctl::ROOT) except in tests.
#[must_use]
pub fn are_running(proc_sys: &Path) -> bool {
    let read = |path| fs::read_to_string(proc_sys.join(path)).ok();
    let is_stopped = read(RUN).is_some_and(|value| value.trim() == "0");
    // An empty list stops the threads.
    let has_cpus = read(CPUS).is_none_or(|list| !list.trim().is_empty());
    !is_stopped && has_cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_stand_still_without_a_thread_or_a_timer() {
        let proc_sys = tempfile::tempdir().unwrap();
        let proc_sys = proc_sys.path();
        assert!(are_running(proc_sys), "a timer that cannot be stopped");
        fs::create_dir_all(proc_sys.join("net/ipv4/vs")).unwrap();
        for (run, cpus, expected) in
            [("1\n", "0-3\n", true), ("0\n", "0-3\n", false), ("1\n", "\n", false)]
        {
            fs::write(proc_sys.join(RUN), run).unwrap();
            fs::write(proc_sys.join(CPUS), cpus).unwrap();
            assert_eq!(are_running(proc_sys), expected, "{run:?} {cpus:?}");
        }
    }
}
