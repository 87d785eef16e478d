//! A node, as far as the API server knows it: the real source, and for some a planner and a kernel in
//! memory behind it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use kernel::Kernel as _;
use kernel::fake::Fake;
use plan::actual::Actual;
use plan::event::Event;
use plan::planner::Planner;
use plan::settings::Settings;
use source::kubernetes::{ClientMetrics, Clients, Kubernetes};
use source::{Options, SourceEvent};
use tokio::sync::mpsc::channel;
use tokio::task::JoinHandle;

/// Number of things that all followers have heard, together.
#[derive(Default)]
pub(crate) struct Heard {
    /// Followers that have everything that there was at the start.
    pub(crate) complete: AtomicUsize,
    /// Slices that were applied, by all followers together.
    pub(crate) slices: AtomicU64,
    /// Addresses of other nodes that were told, by all followers together.
    pub(crate) others: AtomicU64,
}

pub(crate) struct Follower {
    task: JoinHandle<Option<Fake>>,
    pub(crate) metrics: ClientMetrics,
}

impl Follower {
    /// Follows the server of these clients, as a node of this name.
    pub(crate) fn start(clients: &Clients, name: &str, plans: bool, heard: Arc<Heard>) -> Self {
        let (sink, mut events) = channel(1_024);
        let source = Kubernetes::new(clients, Options::new(name)).run(sink);
        let mut node =
            plans.then(|| (Planner::new(Settings::new(name)), Fake::new(Actual::default())));
        let task = tokio::spawn(async move {
            let source = tokio::spawn(source);
            let mut is_complete = false;
            while let Some(event) = events.recv().await {
                match event {
                    SourceEvent::Complete => {
                        is_complete = true;
                        heard.complete.fetch_add(1, Ordering::Relaxed);
                    }
                    SourceEvent::Change(event) => {
                        match event {
                            Event::SliceApplied(_) => heard.slices.fetch_add(1, Ordering::Relaxed),
                            Event::OtherNodeApplied(..) => {
                                heard.others.fetch_add(1, Ordering::Relaxed)
                            }
                            // Ends the herd.
                            Event::ServiceRemoved(_) => break,
                            _ => 0,
                        };
                        if let Some((planner, _)) = &mut node {
                            planner.apply(event);
                        }
                    }
                    _ => {}
                }
                if let Some((planner, kernel)) = &mut node
                    && is_complete
                {
                    kernel.apply(&planner.plan().ops);
                }
            }
            source.abort();
            node.map(|(_, kernel)| kernel)
        });
        Self { task, metrics: clients.metrics.clone() }
    }

    /// Ends once a Service was removed. Checks that the kernel in memory has as many real servers for
    /// each virtual server as there should be, if there is one.
    pub(crate) async fn end(self, expected: &HashMap<u32, usize>) -> Result<()> {
        let Some(kernel) = self.task.await? else { return Ok(()) };
        let mut found = HashMap::new();
        for server in kernel.actual().virtual_servers.values() {
            let n: u32 = u32::try_from(server.real_servers.len())?;
            *found.entry(n).or_default() += 1;
        }
        ensure!(found == *expected, "virtual servers by real servers: {found:?}, not {expected:?}");
        Ok(())
    }
}
