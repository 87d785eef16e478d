//! A server's use of the machine: bytes on its connections, and its thread's processor time.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// A server's use of the machine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections that it accepted.
    pub connections: u64,
    /// Bytes that it received, TLS included.
    pub received: u64,
    /// Bytes that it sent, TLS included.
    pub sent: u64,
    /// Processor time of its thread, in the program and for it in the kernel.
    pub processor: Duration,
}

/// Counts what a server uses.
#[derive(Default)]
pub(crate) struct Meter {
    connections: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    /// Directory of the thread in /proc.
    thread: OnceLock<PathBuf>,
}

impl Meter {
    /// Measures the calling thread from now on.
    pub(crate) fn measure_this_thread(&self) {
        // A process without /proc gets an error when it asks.
        if let Ok(thread) = fs::read_link("/proc/thread-self") {
            let _ = self.thread.set(PathBuf::from("/proc").join(thread));
        }
    }

    pub(crate) fn accepted(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let thread = self.thread.get().context("the server's thread is not in /proc")?;
        // Documentation/scheduler/sched-stats.rst: the first field is time on the processor, in ns.
        let text = fs::read_to_string(thread.join("schedstat"))?;
        let nanoseconds = text.split_whitespace().next().context("schedstat is empty")?.parse()?;
        Ok(Usage {
            connections: self.connections(),
            received: self.received.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            processor: Duration::from_nanos(nanoseconds),
        })
    }
}
