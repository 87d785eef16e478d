//! One change's way: from the API server to the kernel.
//!
//! A Service is added with its endpoints, whose slice is there before. Its address comes to `kube-ipvs0`
//! last, and the kernel says so.

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use apiserver::Server;
use bed::Namespace;

use crate::cluster::{self, Size};
use crate::report::Times;

/// Pause before a change: what the one before has led to is over.
const PAUSE: Duration = Duration::from_millis(50);

/// Changes of a cluster, and the kernel's word of them.
pub(crate) struct Changes<'a> {
    server: &'a Server,
    endpoints: u32,
    /// Number of the next Service.
    next: u32,
    monitor: Child,
    lines: BufReader<ChildStdout>,
}

// === impl Changes ===

impl<'a> Changes<'a> {
    /// Watches the addresses of a node.
    pub(crate) fn watch(node: &Namespace, server: &'a Server, size: Size) -> Result<Self> {
        let mut command = Command::new("ip");
        command.args(["-oneline", "-4", "monitor", "address"]).stdout(Stdio::piped());
        let mut monitor = node.enter(|| command.spawn())?.context("start ip monitor")?;
        let lines = BufReader::new(monitor.stdout.take().context("ip monitor has no output")?);
        // It has no way to say that it listens.
        thread::sleep(Duration::from_secs(2));
        let Size { services: next, endpoints } = size;
        Ok(Self { server, endpoints, next, monitor, lines })
    }

    /// Adds so many Services, one after the other, and returns the time that each took.
    pub(crate) fn time(&mut self, count: u32) -> Result<Times> {
        let mut times = Times::default();
        for _ in 0..count {
            self.server.apply(cluster::slice(self.next, self.endpoints))?;
            thread::sleep(PAUSE);
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + self.next);
            let word = format!(" {address}/32 ");
            let service = cluster::service(self.next);
            let began = Instant::now();
            self.server.apply(service)?;
            let mut line = String::new();
            while !line.contains(&word) {
                line.clear();
                let length = self.lines.read_line(&mut line).context("read ip monitor")?;
                anyhow::ensure!(length > 0, "ip monitor has ended");
            }
            times.add(began.elapsed());
            self.next += 1;
        }
        Ok(times)
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.monitor.kill()?;
        self.monitor.wait()?;
        Ok(())
    }
}
