//! Load that notices everything: long streams, short connections, flows of datagrams that never
//! pause and clients with affinity, side by side.
//!
//! Servers are [`Server`](crate::Server)s. What is sent is checked against what comes back, byte by
//! byte.

mod connections;
mod datagrams;
mod report;
mod reuse;
mod streams;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;

pub use report::{Counts, LoadReport};

use crate::eventually::eventually;
use crate::namespace::Namespace;
use crate::traffic::Refusal;

/// Number of failures that are reported in words.
const SHOWN: usize = 40;
/// Time to wait for an answer.
const LIMIT: Duration = Duration::from_secs(30);
/// Time limit of the start.
const START_LIMIT: Duration = Duration::from_secs(120);

/// One client's traffic.
#[derive(Clone, Debug)]
pub struct Client<'a> {
    /// Name of the client in the report.
    pub name: String,
    /// Namespace of the client.
    pub from: &'a Namespace,
    /// Address and port that it talks to.
    pub target: SocketAddr,
    /// Kind of its traffic.
    pub traffic: Traffic,
    /// Time from one question to the next: of a stream, of a flow, or after a short connection.
    pub interval: Duration,
    /// Names of the servers that may answer. Empty: all.
    pub servers: BTreeSet<String>,
}

/// Kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Number of TCP connections that stay.
    Streams(usize),
    /// One TCP connection after another.
    Connections,
    /// The same for a Service with affinity: always the same server has to answer.
    Affinity,
    /// TCP connections from this port and the next seven, again and again: each lives until three
    /// others have begun. Servers close one half of them, clients reset the other half.
    FewPorts(u16),
    /// One flow of datagrams from one port.
    Datagrams,
}

/// Load that goes on in the background. Dropping it stops it.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// State that the clients' threads share.
#[derive(Debug)]
struct Shared {
    started: Instant,
    stopped: AtomicBool,
    report: Mutex<LoadReport>,
}

/// A client as its thread has it.
#[derive(Debug)]
struct Running {
    name: String,
    target: SocketAddr,
    interval: Duration,
    servers: BTreeSet<String>,
    shared: Arc<Shared>,
}

impl Load {
    /// Starts all clients. Returns when all of their streams and flows stand.
    ///
    /// # Errors
    /// When a thread cannot be started or one of them does not come to its feet; then with the report.
    pub fn start(clients: &[Client<'_>]) -> Result<Self> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            stopped: AtomicBool::new(false),
            report: Mutex::default(),
        });
        let mut load = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let (ready, all_ready) = mpsc::channel();
        for client in clients {
            let running = Running {
                name: client.name.clone(),
                target: client.target,
                interval: client.interval,
                servers: client.servers.clone(),
                shared: Arc::clone(&shared),
            };
            shared.report.lock().clients.entry(client.name.clone()).or_default();
            let (traffic, ready) = (client.traffic, ready.clone());
            load.threads.push(client.from.start_thread(move || match traffic {
                Traffic::Streams(number) => streams::run(&running, number, ready),
                Traffic::Connections => connections::run(&running, false, &ready),
                Traffic::Affinity => connections::run(&running, true, &ready),
                Traffic::FewPorts(first) => reuse::run(&running, first, &ready),
                Traffic::Datagrams => datagrams::run(&running, &ready),
            })?);
        }
        let deadline = Instant::now() + START_LIMIT;
        for _ in clients {
            let left = deadline.saturating_duration_since(Instant::now());
            let started = all_ready.recv_timeout(left);
            started.with_context(|| format!("a client has not started:\n{}", load.report()))?;
        }
        Ok(load)
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn report(&self) -> LoadReport {
        self.shared.report.lock().clone()
    }

    /// Waits until every client has had so many more answers.
    ///
    /// # Errors
    /// With the report, if one has not within the limit.
    pub fn wait_for_answers(&self, more: usize, limit: Duration) -> Result<()> {
        let before = self.report();
        eventually(limit, &format!("{more} more answers for each client"), || {
            let now = self.report();
            let is_behind = |(name, counts): (&String, &Counts)| {
                let before = before.clients.get(name).map_or(0, |it| it.answers);
                counts.answers < before + more
            };
            if now.clients.iter().any(is_behind) { Err(anyhow::anyhow!("{now}")) } else { Ok(()) }
        })
    }

    /// Stops, waits for the answers to what is under way, and reports.
    #[must_use]
    pub fn stop(mut self) -> LoadReport {
        self.halt();
        self.report()
    }

    fn halt(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("a thread of a load panicked");
                self.shared.report.lock().failures.push("a client's thread panicked".to_owned());
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Running {
    fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Changes the client's counts.
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut report = self.shared.report.lock();
        change(report.clients.entry(self.name.clone()).or_default());
    }

    /// Counts a failure, and notes the first ones in words.
    fn fail(&self, refusal: &Refusal, of: impl std::fmt::Display) {
        self.count(|counts| counts.refused_by(refusal));
        self.note(format_args!("{of}: {refusal}"));
    }

    fn note(&self, what: impl std::fmt::Display) {
        let mut report = self.shared.report.lock();
        if report.failures.len() < SHOWN {
            let at = self.shared.started.elapsed();
            report.failures.push(format!("after {at:.3?}: {}: {what}", self.name));
        }
    }

    /// True if this server may answer.
    fn may_answer(&self, server: &str) -> bool {
        self.servers.is_empty() || self.servers.contains(server)
    }
}
