//! IPVS's estimators, which compute the statistics of virtual servers and real servers.
//!
//! Every two seconds the kernel adds up each server's counters over all processors, and estimates
//! rates (net/netfilter/ipvs/ip_vs_est.c). Before Linux 6.2 one timer does that for all servers
//! without a pause, and its processor handles no packet meanwhile. Since then threads do it, which
//! yield after 0.1 ms. See `docs/estimators.md`.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::processors::Processors;
use super::sysctl::{self, Sysctl};

/// `MIN_NICE` and `MAX_NICE` of include/linux/sched/prio.h.
pub const NICE: RangeInclusive<i32> = -20..=19;

/// List of possible processors, below [`SYS`]. The timer walks all of them, present or not.
const POSSIBLE: &str = "devices/system/cpu/possible";

/// Place where the kernel shows its hardware.
pub const SYS: &str = "/sys";

const RUN: &str = "net/ipv4/vs/run_estimation";
const PROCESSORS: &str = "net/ipv4/vs/est_cpulist";
const NICENESS: &str = "net/ipv4/vs/est_nice";

/// Time that the timer takes for each virtual or real server and processor. More than 200 ms were
/// seen on a machine with 104 processors and 50,000 of them: the message of Linux' commit "ipvs:
/// add sysctl_run_estimation to support disable estimation".
const NANOSECONDS_EACH: u64 = 40;

/// Longest run of the timer, in nanoseconds, before it is stopped. Packets wait meanwhile.
const LONGEST_WALK: u64 = 10_000_000;

/// Choices of the operator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EstimatorSettings {
    /// Mode of the estimators.
    pub run: Run,
    /// Processors that the threads run on; none: the kernel's default.
    pub processors: Option<Processors>,
    /// Niceness of the threads; none: the kernel's default.
    pub nice: Option<i32>,
}

/// Mode of the estimators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Run {
    /// The kernel's default, except that a timer is stopped that would run too long.
    #[default]
    Auto,
    /// Running.
    On,
    /// Stopped.
    Off,
}

/// Kind of a kernel's estimators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimatorKind {
    /// A timer that cannot be stopped: before Linux 5.16.
    Timer,
    /// A timer that can be stopped.
    StoppableTimer,
    /// Threads: Linux 6.2 and later.
    Threads,
}

/// Stops the timer when there is too much for it.
#[derive(Debug)]
pub struct Guard {
    proc_sys: PathBuf,
    kind: EstimatorKind,
    /// Number of processors that are walked for each virtual or real server.
    processors: u64,
    /// True if the warning has been given, or is not needed.
    is_settled: bool,
}

// === impl EstimatorSettings ===

impl EstimatorSettings {
    /// Returns the sysctls to set at the start on a kernel of this kind. With them come, in words,
    /// the parts of the choice that have no effect there.
    #[must_use]
    pub fn sysctls(&self, kind: EstimatorKind, processors: u64) -> (Vec<Sysctl>, Vec<String>) {
        let (mut wanted, mut notes) = (Vec::new(), Vec::new());
        let value = match self.run {
            Run::Auto => None,
            Run::On => Some(1),
            Run::Off => Some(0),
        };
        match (kind, value) {
            (EstimatorKind::Timer, Some(0)) => notes.push(format!(
                "estimators.run: off has no effect. {}",
                cannot_be_stopped(processors)
            )),
            (EstimatorKind::Timer, _) | (_, None) => {}
            (EstimatorKind::StoppableTimer | EstimatorKind::Threads, Some(value)) => {
                let why = "IPVS's statistics are kept up, or not, as estimators.run says";
                wanted.push(Sysctl::new(RUN, value, false, why));
            }
        }
        for (field, path, value, why) in [
            (
                "estimators.cpus",
                PROCESSORS,
                self.processors.as_ref().map(ToString::to_string),
                "IPVS's statistics are added up on the processors that estimators.cpus names",
            ),
            (
                "estimators.nice",
                NICENESS,
                self.nice.map(|nice| nice.to_string()),
                "the threads that add up IPVS's statistics have the niceness of estimators.nice",
            ),
        ] {
            match value {
                Some(value) if kind == EstimatorKind::Threads => {
                    wanted.push(Sysctl::new(path, value, false, why));
                }
                Some(_) => notes.push(format!(
                    "{field} has no effect: this kernel adds up IPVS's statistics in a timer, and \
                     not in threads as Linux 6.2 and later do"
                )),
                None => {}
            }
        }
        (wanted, notes)
    }
}

// === impl EstimatorKind ===

impl EstimatorKind {
    /// Detects the running kernel's kind by the sysctls that it has once IPVS is loaded. A version
    /// would mislead, since distributions backport. `proc_sys` is [`sysctl::ROOT`] except in tests.
    #[must_use]
    pub fn of(proc_sys: &Path) -> Self {
        if proc_sys.join(PROCESSORS).exists() {
            Self::Threads
        } else if proc_sys.join(RUN).exists() {
            Self::StoppableTimer
        } else {
            Self::Timer
        }
    }
}

// === impl Guard ===

impl Guard {
    /// Guards the running kernel. The arguments are [`sysctl::ROOT`] and [`SYS`] except in tests.
    #[must_use]
    pub fn new(proc_sys: &Path, sys: &Path) -> Self {
        let kind = EstimatorKind::of(proc_sys);
        Self {
            proc_sys: proc_sys.to_owned(),
            kind,
            processors: possible_processors(sys),
            // Threads hold up no packets.
            is_settled: kind == EstimatorKind::Threads,
        }
    }

    /// Takes the number of virtual and real servers that exist or are about to. Returns a warning
    /// for operators, once.
    pub fn note(&mut self, servers: u64) -> Option<String> {
        if self.is_settled || servers < most_for_a_timer(self.processors) {
            return None;
        }
        self.is_settled = true;
        let walk = format!(
            "the kernel's timer for IPVS's statistics walks {servers} virtual and real servers \
             every two seconds, each on {} processors, and holds up packets meanwhile",
            self.processors
        );
        if self.kind == EstimatorKind::Timer {
            return Some(format!("{walk}. {}", cannot_be_stopped(self.processors)));
        }
        let stop = Sysctl::new(RUN, 0, false, "IPVS's statistics do not hold up packets");
        let outcome = sysctl::apply(&self.proc_sys, &[stop]);
        if let Some(failed) = outcome.failed.first() {
            return Some(format!("{walk}. It should be stopped: {failed}"));
        }
        let changed = outcome.changed.first()?;
        Some(format!(
            "{walk}, so it is stopped: {changed}. Until it runs again, `ipvsadm --stats`, \
             `ipvsadm --rate` and /proc/net/ip_vs_stats stand still; estimators.run: on keeps it \
             running, and Linux 6.2 and later do without it"
        ))
    }
}

/// Returns the number of possible processors, or of those that this process may use.
#[must_use]
pub fn possible_processors(sys: &Path) -> u64 {
    let list = fs::read_to_string(sys.join(POSSIBLE)).ok();
    list.and_then(|list| list.parse::<Processors>().ok()).map_or_else(
        || std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        |processors| u64::from(processors.count()),
    )
}

/// Returns the number of virtual and real servers at which a timer takes [`LONGEST_WALK`].
fn most_for_a_timer(processors: u64) -> u64 {
    LONGEST_WALK / NANOSECONDS_EACH / processors.max(1)
}

/// True if the kernel keeps the statistics of virtual servers up to date. Otherwise their counters stand
/// still. `proc_sys` is [`sysctl::ROOT`] except in tests.
#[must_use]
pub fn are_running(proc_sys: &Path) -> bool {
    let read = |path| fs::read_to_string(proc_sys.join(path)).ok();
    let is_stopped = read(RUN).is_some_and(|value| value.trim() == "0");
    // An empty list stops the threads.
    let has_processors = read(PROCESSORS).is_none_or(|list| !list.trim().is_empty());
    !is_stopped && has_processors
}

fn cannot_be_stopped(processors: u64) -> String {
    format!(
        "This kernel has no sysctl for it (net.ipv4.vs.run_estimation, Linux 5.16 and later). With \
         {processors} processors its timer holds up packets for 10 ms or more from about {} \
         virtual and real servers on: where there are more, use Linux 6.2 or later",
        most_for_a_timer(processors)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these sysctls, all at 1, and another one for 64 processors.
    fn mk_roots(sysctls: &[&str]) -> (tempfile::TempDir, tempfile::TempDir) {
        let (proc_sys, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for sysctl in sysctls {
            write(proc_sys.path().join(sysctl), "1\n");
        }
        write(sys.path().join(POSSIBLE), "0-63\n");
        (proc_sys, sys)
    }

    fn chosen(run: Run) -> EstimatorSettings {
        EstimatorSettings { run, processors: "3,0-1".parse().ok(), nice: Some(-5) }
    }

    fn written(wanted: &[Sysctl]) -> Vec<String> {
        wanted.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_kind_is_known_by_the_sysctls() {
        for (sysctls, expected) in [
            (&[][..], EstimatorKind::Timer),
            (&[RUN], EstimatorKind::StoppableTimer),
            (&[RUN, PROCESSORS, NICENESS], EstimatorKind::Threads),
        ] {
            let (proc_sys, _) = mk_roots(sysctls);
            assert_eq!(EstimatorKind::of(proc_sys.path()), expected);
        }
    }

    #[test]
    fn what_was_chosen_is_set_where_there_is_a_sysctl() {
        let threads = ["net.ipv4.vs.est_cpulist=0-1,3", "net.ipv4.vs.est_nice=-5"];
        for (run, sysctl) in [
            (Run::Auto, None),
            (Run::On, Some("net.ipv4.vs.run_estimation=1")),
            (Run::Off, Some("net.ipv4.vs.run_estimation=0")),
        ] {
            let (wanted, notes) = chosen(run).sysctls(EstimatorKind::Threads, 4);
            let expected: Vec<&str> = sysctl.into_iter().chain(threads).collect();
            assert_eq!(
                (written(&wanted), notes),
                (expected.iter().map(|s| (*s).to_owned()).collect(), Vec::new())
            );
            assert!(wanted.iter().all(|sysctl| !sysctl.required));
            let (wanted, notes) = chosen(run).sysctls(EstimatorKind::StoppableTimer, 4);
            let expected: Vec<&str> = sysctl.into_iter().collect();
            assert_eq!(written(&wanted), expected);
            assert_eq!(notes.len(), 2, "processors and niceness are of threads: {notes:?}");
            let (wanted, notes) = EstimatorSettings { run, ..EstimatorSettings::default() }
                .sysctls(EstimatorKind::Timer, 4);
            assert_eq!(wanted, []);
            assert_eq!(notes.len(), usize::from(run == Run::Off), "{notes:?}");
        }
        let off = EstimatorSettings { run: Run::Off, ..EstimatorSettings::default() };
        let (_, notes) = off.sysctls(EstimatorKind::Timer, 64);
        assert!(
            notes[0].contains("no effect") && notes[0].contains("from about 3906 "),
            "{notes:?}"
        );
        assert!(notes[0].contains("Linux 6.2 or later"), "{notes:?}");
    }

    #[test]
    fn a_timer_is_stopped_when_there_is_too_much_for_it_and_only_then() {
        let (proc_sys, sys) = mk_roots(&[RUN]);
        let now = || fs::read_to_string(proc_sys.path().join(RUN)).unwrap();
        let mut guard = Guard::new(proc_sys.path(), sys.path());
        assert_eq!(guard.note(3_905), None);
        assert_eq!(now(), "1\n");
        let said = guard.note(3_906).unwrap();
        assert_eq!(now(), "0");
        assert!(said.contains("net.ipv4.vs.run_estimation=0 (it was 1)"), "{said}");
        assert!(said.contains("ipvsadm --rate"), "{said}");
        // An operator has set it back: it stays.
        fs::write(proc_sys.path().join(RUN), "1").unwrap();
        assert_eq!(guard.note(100_000), None);
        assert_eq!(now(), "1");
    }

    #[test]
    fn what_is_off_already_needs_no_word() {
        let (proc_sys, sys) = mk_roots(&[RUN]);
        fs::write(proc_sys.path().join(RUN), "0\n").unwrap();
        assert_eq!(Guard::new(proc_sys.path(), sys.path()).note(100_000), None);
    }

    #[test]
    fn a_timer_that_cannot_be_stopped_gives_one_warning() {
        let (proc_sys, sys) = mk_roots(&[]);
        let mut guard = Guard::new(proc_sys.path(), sys.path());
        assert_eq!(guard.note(10), None);
        let said = guard.note(10_000).unwrap();
        assert!(said.contains("walks 10000") && said.contains("use Linux 6.2"), "{said}");
        assert_eq!(guard.note(20_000), None);
        // A sysctl that cannot be written.
        fs::create_dir_all(proc_sys.path().join(RUN)).unwrap();
        let said = Guard::new(proc_sys.path(), sys.path()).note(10_000).unwrap();
        assert!(said.contains("sysctl -w net.ipv4.vs.run_estimation=0"), "{said}");
    }

    #[test]
    fn statistics_stand_still_without_a_thread_or_a_timer() {
        let (proc_sys, _) = mk_roots(&[RUN, PROCESSORS]);
        let are_running_with = |path: &str, value: &str| {
            let file = proc_sys.path().join(path);
            let before = fs::read(&file).unwrap();
            fs::write(&file, value).unwrap();
            let running = are_running(proc_sys.path());
            fs::write(&file, before).unwrap();
            running
        };
        assert!(are_running_with(RUN, "1\n"));
        assert!(!are_running_with(RUN, "0\n"));
        assert!(!are_running_with(PROCESSORS, "\n"));
        let (without, _) = mk_roots(&[]);
        assert!(are_running(without.path()), "a timer that cannot be stopped");
    }

    #[test]
    fn threads_hold_no_packet_up() {
        let (proc_sys, sys) = mk_roots(&[RUN, PROCESSORS, NICENESS]);
        let mut guard = Guard::new(proc_sys.path(), sys.path());
        assert_eq!(guard.note(1_000_000), None);
        assert_eq!(fs::read_to_string(proc_sys.path().join(RUN)).unwrap(), "1\n");
    }
}
