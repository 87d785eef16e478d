//! Resources that this process has used, as the kernel counts them.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use kernel::rules::{self, ProgramsRun};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// `getconf CLK_TCK`, which Linux has fixed for user space (include/asm-generic/param.h, USER_HZ).
const MILLISECONDS_A_TICK: f64 = 10.0;

/// Threads whose processor time, wake-ups and page faults count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    All,
    /// All threads but the calling one.
    Others,
}

/// Counts since the process began, and what memory it has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) user_ms: f64,
    pub(crate) system_ms: f64,
    pub(crate) programs_ms: f64,
    pub(crate) programs: ProgramsRun,
    pub(crate) wakeups: u64,
    pub(crate) faults: u64,
    pub(crate) anonymous_kib: u64,
    pub(crate) resident_kib: u64,
    pub(crate) peak_kib: u64,
}

impl Usage {
    pub(crate) fn now(whose: Whose) -> Result<Self> {
        let this = fs::read_link("/proc/thread-self").context("which thread this is")?;
        let (own, own_time) = match whose {
            Whose::All => (Statistics::default(), Duration::ZERO),
            Whose::Others => (
                Statistics::read(&format!("/proc/{}/stat", this.display()))?,
                time(ClockId::ThreadCPUTime),
            ),
        };
        let all = Statistics::read("/proc/self/stat")?;
        let status = read("/proc/self/status")?;
        let mut wakeups = 0;
        for task in fs::read_dir("/proc/self/task").context("the threads")?.flatten() {
            let is_own = whose == Whose::Others && this.file_name() == Some(&task.file_name());
            // One that has ended meanwhile did nothing else before.
            let status = fs::read_to_string(task.path().join("status"));
            if let (false, Ok(status)) = (is_own, status) {
                wakeups += number(&status, "voluntary_ctxt_switches:")?;
            }
        }
        Ok(Self {
            cpu: time(ClockId::ProcessCPUTime).saturating_sub(own_time),
            user_ms: all.user - own.user,
            system_ms: all.system - own.system,
            programs_ms: all.children,
            programs: rules::programs_run(),
            wakeups,
            faults: all.faults - own.faults,
            anonymous_kib: number(&status, "RssAnon:")?,
            resident_kib: number(&status, "VmRSS:")?,
            peak_kib: number(&status, "VmHWM:")?,
        })
    }

    /// Returns the usage since `before`; memory is as it is now.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            user_ms: self.user_ms - before.user_ms,
            system_ms: self.system_ms - before.system_ms,
            programs_ms: self.programs_ms - before.programs_ms,
            programs: ProgramsRun {
                count: self.programs.count - before.programs.count,
                took: self.programs.took.saturating_sub(before.programs.took),
            },
            // A thread that has ended takes its count along.
            wakeups: self.wakeups.saturating_sub(before.wakeups),
            faults: self.faults.saturating_sub(before.faults),
            ..*self
        }
    }
}

/// Fields of proc_pid_stat(5), times in milliseconds.
#[derive(Default)]
struct Statistics {
    faults: u64,
    user: f64,
    system: f64,
    /// Processor time of the processes that it waited for.
    children: f64,
}

impl Statistics {
    fn read(path: &str) -> Result<Self> {
        let stat = read(path)?;
        // The name in parentheses may have anything in it. After it, minflt is the 8th field, utime
        // the 12th, then stime, cutime and cstime.
        let (_, fields) = stat.rsplit_once(") ").with_context(|| format!("{path} has no name"))?;
        let number = |index: usize| -> Result<u64> {
            let field = fields.split_whitespace().nth(index);
            Ok(field.with_context(|| format!("{path} is short"))?.parse()?)
        };
        let time = |index: usize| Ok::<_, Error>(number(index)? as f64 * MILLISECONDS_A_TICK);
        Ok(Self {
            faults: number(7)?,
            user: time(11)?,
            system: time(12)?,
            children: time(13)? + time(14)?,
        })
    }
}

/// Returns the time that the machine's processors have been busy, all together.
pub(crate) fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // proc_stat(5): after `cpu`, the ticks in user mode, at low priority, and in the kernel.
    let ticks =
        stat.split_whitespace().skip(1).take(3).filter_map(|ticks| ticks.parse::<f64>().ok());
    Duration::from_secs_f64(ticks.sum::<f64>() * MILLISECONDS_A_TICK / 1_000.0)
}

fn time(clock: ClockId) -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    let seconds = Duration::from_secs(u64::try_from(tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(tv_nsec).unwrap_or(0))
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {path}"))
}

fn number(status: &str, field: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("a status has no {field}"))?.parse()?)
}
