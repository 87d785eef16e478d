//! Connections that are passed on, within limits.
//!
//! Each side sees what the other side does: an end of what it sends while it goes on listening, and
//! a reset. Everything that is not a good end is a reset, or it would be taken for one: a Service
//! that cannot be reached, since the client was connected before that was known, and this program's
//! own end, whatever it dies of.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::IntGauge;
use rustix::net::sockopt;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::Meters;

/// Longest time that it may take to reach a Service.
const CONNECT: Duration = Duration::from_secs(10);
/// A side that has been silent for so long is asked whether it is still there. That is well before
/// IPVS forgets a silent connection (15 minutes).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// It is asked again after this time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// It is gone when it has not answered so many times.
const KEEPALIVE_PROBES: u32 = 4;
/// Least time between two warnings about too many connections.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// Passes connections on.
#[derive(Debug, Clone)]
pub(super) struct Passing {
    pub(super) meters: Meters,
    most: usize,
    slots: Arc<Semaphore>,
    warned: Arc<Mutex<Option<Instant>>>,
}

/// Slot of a connection, of the limited number.
struct Slot {
    open: IntGauge,
    _permit: OwnedSemaphorePermit,
}

// === impl Passing ===

impl Passing {
    /// Passes on at most `most` connections at a time.
    pub(super) fn new(most: usize, meters: Meters) -> Self {
        let slots = Arc::new(Semaphore::new(most));
        Self { meters, most, slots, warned: Arc::default() }
    }

    /// Passes a client's connection on, in a task of its own that lives as long as the connection.
    pub(super) fn begin(&self, client: TcpStream, to: SocketAddr) {
        let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() else {
            self.meters.refused.inc();
            self.warn_of_limit();
            end_with_reset(&client);
            return;
        };
        let slot = Slot::new(self.meters.open.clone(), permit);
        let meters = self.meters.clone();
        tokio::spawn(async move {
            pass(client, to, &meters).await;
            drop(slot);
        });
    }

    fn warn_of_limit(&self) {
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|last| now.duration_since(last) >= WARN_AGAIN) {
            *warned = Some(now);
            warn!(
                "connection to a node port on localhost refused: {} are open, which is the limit; \
                 `ss -tnp` shows their clients",
                self.most
            );
        }
    }
}

// === impl Slot ===

impl Slot {
    fn new(open: IntGauge, permit: OwnedSemaphorePermit) -> Self {
        open.inc();
        Self { open, _permit: permit }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.dec();
    }
}

async fn pass(mut client: TcpStream, to: SocketAddr, meters: &Meters) {
    end_with_reset(&client);
    let connected = timeout(CONNECT, TcpStream::connect(to)).await;
    let mut service = match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(service) => service,
        Err(error) => {
            debug!("connection to a node port on localhost reset: cannot connect to {to}: {error}");
            meters.failed.inc();
            return;
        }
    };
    meters.passed.inc();
    end_with_reset(&service);
    let tuned = tune(&client).and_then(|()| tune(&service));
    if let Err(error) = tuned {
        debug!("cannot set TCP_NODELAY or keepalive on a connection passed on to {to}: {error}");
    }
    match copy_bidirectional(&mut client, &mut service).await {
        Ok(_) => {
            end_well(&client);
            end_well(&service);
        }
        Err(error) => debug!("connection passed on to {to} failed: {error}"),
    }
}

/// Sets TCP_NODELAY, so that no byte waits for more, and keepalive, so that a side that is gone is
/// noticed.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

/// The connection ends with a reset when it is dropped, or the process is.
fn end_with_reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        debug!(
            "cannot set SO_LINGER: {error}; a failure of the connection would end it without a reset"
        );
    }
}

/// Lets what was sent on the connection arrive when the connection is dropped.
fn end_well(stream: &TcpStream) {
    if let Err(error) = sockopt::set_socket_linger(stream, None) {
        debug!("cannot set SO_LINGER: {error}; the connection ends with a reset");
    }
}
