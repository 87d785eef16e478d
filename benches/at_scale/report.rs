//! The table for people, and the JSON for machines, whose schema is [`crate::schema`].

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::schema::{Line, Measured, Report};

impl Report {
    pub(crate) fn of_this_machine(short: bool) -> Result<Self> {
        let memory = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
        let total = memory.split_whitespace().nth(1).context("/proc/meminfo says nothing")?;
        Ok(Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            short,
            memory_kib: total.parse()?,
            fault_us: fault_us(),
            call_us: call_us(),
            nothing: Vec::new(),
            sizes: Vec::new(),
        })
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }
}

fn fault_us() -> f64 {
    const PAGE: usize = 4_096;
    // Memory that was given back would be taken from again, and has been touched.
    let mut kept = Vec::new();
    least_us(|| {
        // Zeroed memory of this size is not touched before it is used.
        let mut memory = vec![0_u8; PAGE * TIMES as usize];
        let began = Instant::now();
        memory.iter_mut().step_by(PAGE).for_each(|byte| *black_box(byte) = 1);
        let took = began.elapsed();
        kept.push(memory);
        took
    })
}

fn call_us() -> f64 {
    least_us(|| {
        let began = Instant::now();
        for _ in 0..TIMES {
            black_box(rustix::process::getppid());
        }
        began.elapsed()
    })
}

/// Number of times in a row that something is done for one measurement.
const TIMES: u32 = 1_024;

/// Returns the least of 20 measurements, in microseconds for one time. Whatever disturbs a
/// measurement only makes it longer.
fn least_us(mut measure: impl FnMut() -> Duration) -> f64 {
    let least = (0..20).map(|_| measure()).min().unwrap_or_default();
    least.as_secs_f64() * 1e6 / f64::from(TIMES)
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{} services of {} endpoints", self.services, self.endpoints)?;
        writeln!(
            f,
            "{:<26} {:>6} {:>10} {:>9} {:>9} {:>9} {:>8} {:>7} {:>8} {:>6} {:>8} {:>8} {:>8} {:>9} {:>7}",
            "",
            "count",
            "ms",
            "median",
            "p99",
            "cpu ms",
            "requests",
            "sends",
            "ops",
            "progs",
            "waited",
            "wakeups",
            "anon MiB",
            "peak MiB",
            "ratio",
        )?;
        for line in &self.ours {
            let raw = self.raw.iter().find(|raw| raw.name == line.name);
            row(f, "", line, raw.map(|raw| ratio(line, raw)))?;
            if let Some(raw) = raw {
                row(f, "  raw", raw, None)?;
            }
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, instead: &str, line: &Line, ratio: Option<f64>) -> fmt::Result {
    let some = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    let name = if instead.is_empty() { line.name.as_str() } else { instead };
    writeln!(
        f,
        "{name:<26} {:>6} {:>10.2} {:>9} {:>9} {:>9.2} {:>8} {:>7} {:>8} {:>6} {:>8.1} {:>8} {:>8.1} {:>9.1} {:>7}",
        line.count,
        line.wall_ms,
        some(line.median_ms),
        some(line.p99_ms),
        line.cpu_ms,
        line.requests,
        line.sends,
        line.operations,
        line.programs,
        line.programs_wall_ms,
        line.wakeups,
        line.anonymous_kib as f64 / 1_024.0,
        line.peak_kib as f64 / 1_024.0,
        ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
    )
}

/// Returns our time over the raw one: of the median where there is one, else in all.
fn ratio(ours: &Line, raw: &Line) -> f64 {
    ours.own_ms() / raw.own_ms()
}
