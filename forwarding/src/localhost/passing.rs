//! Connections that are passed on, within limits.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Meters;
use crate::copy::{copy_both_ways, end_well, end_with_reset, tune};
use crate::limit::Limit;

/// Longest time that it may take to reach a Service.
const CONNECT: Duration = Duration::from_secs(10);
/// Passes connections on.
#[derive(Debug, Clone)]
pub(super) struct Passing {
    pub(super) meters: Meters,
    limit: Limit,
}

impl Passing {
    /// Passes on at most `most` connections at a time.
    pub(super) fn new(most: usize, meters: Meters) -> Self {
        let limit = Limit::new(most, meters.open.clone(), meters.refused.clone());
        Self { meters, limit }
    }

    /// Waits until no connection is open.
    pub(super) async fn until_idle(&self) {
        self.limit.until_all_are_free().await;
    }

    /// Passes a client's connection on, in a task of its own that lives as long as the connection.
    pub(super) fn begin(&self, client: TcpStream, to: SocketAddr) {
        let Some(slot) = self.limit.take(warn_of_limit) else {
            end_with_reset(&client);
            return;
        };
        let meters = self.meters.clone();
        tokio::spawn(async move {
            pass(client, to, &meters).await;
            drop(slot);
        });
    }
}

fn warn_of_limit(most: usize) {
    warn!(
        "connection to a NodePort on localhost rejected: the limit of {most} open connections is \
         reached; `ss -tnp` shows their clients"
    );
}

async fn pass(mut client: TcpStream, to: SocketAddr, meters: &Meters) {
    end_with_reset(&client);
    let connected = timeout(CONNECT, TcpStream::connect(to)).await;
    let mut service = match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(service) => service,
        Err(error) => {
            debug!("connection to a NodePort on localhost reset: cannot connect to {to}: {error}");
            meters.failed.inc();
            return;
        }
    };
    meters.passed.inc();
    end_with_reset(&service);
    let tuned = tune(&client).and_then(|()| tune(&service));
    if let Err(error) = tuned {
        debug!("cannot set TCP_NODELAY or keepalive on a connection forwarded to {to}: {error}");
    }
    match copy_both_ways(&mut client, &mut service, None).await {
        Ok(()) => {
            end_well(&client);
            end_well(&service);
        }
        Err(error) => debug!("connection forwarded to {to} failed: {error}"),
    }
}
