//! Processor time of a process.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// `getconf CLK_TCK`, which Linux has fixed for user space (include/asm-generic/param.h, USER_HZ).
const TICK: Duration = Duration::from_millis(10);

/// Processor time of a process since its start, of all its threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage(Duration);

// === impl Usage ===

impl Usage {
    /// Reads it, to 10 ms.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).context("read its times")?;
        // proc_pid_stat(5): after the name in parentheses, utime is the 12th and stime the 13th.
        let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has no name")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks = ticks.sum::<Result<u64, _>>().context("/proc/PID/stat has no times")?;
        Ok(Self(TICK * u32::try_from(ticks)?))
    }

    pub(crate) fn since(&self, before: &Self) -> Duration {
        self.0.saturating_sub(before.0)
    }
}
