//! Open connections of draining real servers, where the kernel's counters do not tell.
//!
//! While the node leaves IPVS mode, closed connections may count as active for as long as clients use
//! their ports again. So a real server has drained as soon as none of its connections is open, at two
//! checks in a row: an open one may have been on its way into the table.

use std::net::SocketAddr;
use std::time::Duration;

use plan::actual::ActualVirtualServer;
use plan::hash::HashSet;
use plan::kernel_objects::Frontend;
use plan::op::PartKind;
use tokio::time::Instant;
use tracing::info;

use crate::context::{Context, Seen};
use kernel::worker::WorkerGone;
use kernel::{KernelRead, OpenConnections};

/// Age to which a reading of the connections serves for other virtual servers.
const FRESH: Duration = Duration::from_secs(1);

/// Most connections of the whole table with which it is read. The kernel walks to the place in its
/// table again for each page of 4 KiB (`ip_vs_conn_array` in net/netfilter/ipvs/ip_vs_conn.c), so that
/// the cost grows with the square of their number.
const MOST: u64 = 20_000;

/// Time of a reading after which the next one waits for [`REST`]. The loop waits for a reading.
const SLOW: Duration = Duration::from_millis(100);

/// Time without a reading after one that was slow, or was broken off.
const REST: Duration = Duration::from_secs(60);

/// Readings of open connections.
#[derive(Debug, Default)]
pub(in crate::writer) struct OpenCounts {
    last: Option<(Instant, OpenConnections)>,
    /// Time of the next reading after one that was slow, or was broken off.
    rests_until: Option<Instant>,
    /// Real servers without an open connection at their last check.
    closed: HashSet<(Frontend, SocketAddr)>,
    /// True if the connections cannot be read.
    is_unreadable: bool,
}

impl OpenCounts {
    /// Puts the number of open connections in the place of the kernel's counters. Leaves these where
    /// they hold, and where reading would take too long. `n_all` is the number of connections of all
    /// draining real servers: the whole table is read for those of a few.
    pub(in crate::writer) async fn count(
        &mut self,
        cx: &mut Context,
        seen: &mut Seen,
        n_all: u64,
    ) -> Result<(), WorkerGone> {
        let servers = seen.found.iter().flat_map(|(_, found)| found);
        let real_servers = servers.flat_map(|server| server.real_servers.values());
        let n_connections: u64 = real_servers.map(|found| found.connections).sum();
        if cx.uses(PartKind::VirtualServers)
            || self.is_unreadable
            || n_connections == 0
            || n_connections.max(n_all) > MOST
        {
            return Ok(());
        }
        self.read(cx).await?;
        let Self { last: Some((_, open)), closed, .. } = self else { return Ok(()) };
        for (frontend, found) in &mut seen.found {
            if let Some(found) = found {
                only_open(frontend, found, open, closed);
            }
        }
        Ok(())
    }

    async fn read(&mut self, cx: &mut Context) -> Result<(), WorkerGone> {
        if self.last.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH) {
            return Ok(());
        }
        self.last = None;
        let started = Instant::now();
        if self.rests_until.is_some_and(|until| started < until) {
            return Ok(());
        }
        let read = KernelRead::Connections;
        let read = cx.kernel.read(read, |kernel| kernel.count_open_connections(MOST)).await;
        let is_slow = started.elapsed() > SLOW || matches!(read, Ok(None));
        self.rests_until = is_slow.then(|| Instant::now() + REST);
        self.last = match read {
            Ok(open) => open.map(|open| (Instant::now(), open)),
            Err(failure) => {
                let error = failure.retryable()?;
                info!("{error}. Real servers are drained by the kernel's counters");
                self.is_unreadable = true;
                None
            }
        };
        Ok(())
    }
}

/// Puts the numbers of open connections of a virtual server's draining real servers in the place of
/// the kernel's counters. The first time that a real server has none, its counter stays.
fn only_open(
    frontend: &Frontend,
    found: &mut ActualVirtualServer,
    open: &OpenConnections,
    closed: &mut HashSet<(Frontend, SocketAddr)>,
) {
    for (socket, real_server) in &mut found.real_servers {
        let servers = (*frontend, *socket);
        match open.get(&servers) {
            Some(n_open) => {
                closed.remove(&servers);
                real_server.connections = *n_open;
            }
            None if real_server.weight > 0 => {}
            None if closed.contains(&servers) => real_server.connections = 0,
            None => {
                closed.insert(servers);
            }
        }
    }
}
