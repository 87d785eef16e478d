//! Bytes from one TCP connection to another, in both directions.
//!
//! Each side sees what the other side does: an end of what it sends while it goes on listening, and
//! a reset. Everything that is not a good end is a reset, or it would be taken for one: a Service
//! that cannot be reached, since the client was connected before that was known, and this program's
//! own end, whatever it dies of.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;
use tracing::debug;

/// Bytes of a thread's buffer. It holds any UDP datagram.
const SCRATCH_BYTES: usize = 64 * 1_024;
/// Most bytes of one direction of a connection that wait here for a slow receiver.
const MOST_WAITING: usize = 16 * 1_024;

/// A side that has been silent for so long is asked whether it is still there. That is well before
/// IPVS forgets a silent connection (15 minutes).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// It is asked again after this time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// It is gone when it has not answered so many times.
const KEEPALIVE_PROBES: u32 = 4;

thread_local! {
    /// Bytes between reading and writing, for all connections of a thread: one that is silent takes
    /// no buffer.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// Result for bytes that were read.
enum Step {
    Written(usize),
    /// These wait until the receiver takes them.
    Waiting(Vec<u8>),
    /// There were none, and there come no more.
    End,
    /// There are none yet.
    Nothing,
}

/// Calls a function with this thread's buffer, which holds any UDP datagram. The function must not
/// call this.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| work(scratch))
}

/// Passes bytes on in both directions, until both have ended, each by itself. If one has ended and
/// nothing has moved in the other for `half_closed_idle`, that is an error; at the latest after twice
/// that time.
///
/// # Errors
/// When one side resets the connection, or is gone. Dropped connections then end with a reset.
pub(crate) async fn copy_both_ways(
    client: &mut TcpStream,
    server: &mut TcpStream,
    half_closed_idle: Option<Duration>,
) -> io::Result<()> {
    let moved = AtomicU64::new(0);
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let mut requests = pin!(copy(from_client, to_server, &moved));
    let mut answers = pin!(copy(from_server, to_client, &moved));
    tokio::select! {
        ended = &mut requests => { ended?; finish(answers, half_closed_idle, &moved).await }
        ended = &mut answers => { ended?; finish(requests, half_closed_idle, &moved).await }
    }
}

/// Waits for the end of the direction that is left.
async fn finish(
    mut rest: impl Future<Output = io::Result<()>> + Unpin,
    idle: Option<Duration>,
    moved: &AtomicU64,
) -> io::Result<()> {
    let Some(idle) = idle else { return rest.await };
    loop {
        let before = moved.load(Ordering::Relaxed);
        match timeout(idle, &mut rest).await {
            Ok(ended) => return ended,
            Err(_) if moved.load(Ordering::Relaxed) == before => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("half-closed, and silent for {idle:?}"),
                ));
            }
            Err(_) => {}
        }
    }
}

/// Passes bytes on in one direction, and then its end.
async fn copy(from: ReadHalf<'_>, mut to: WriteHalf<'_>, moved: &AtomicU64) -> io::Result<()> {
    loop {
        from.readable().await?;
        // One that always has bytes must not keep the thread from the others.
        consume_budget().await;
        match with_scratch(|scratch| step(&from, &to, scratch))? {
            Step::Nothing => {}
            Step::Written(length) => count(moved, length),
            Step::Waiting(bytes) => write_all(&to, &bytes, moved).await?,
            Step::End => return to.shutdown().await,
        }
    }
}

/// Reads what there is and writes what is taken at once.
fn step(from: &ReadHalf<'_>, to: &WriteHalf<'_>, scratch: &mut [u8]) -> io::Result<Step> {
    // What the receiver does not take at once has to wait, and no more than that is read.
    let Some(first) = scratch.get_mut(..MOST_WAITING) else { return Ok(Step::Nothing) };
    let read = match from.try_read(first) {
        Ok(0) => return Ok(Step::End),
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Step::Nothing),
        Err(error) => return Err(error),
    };
    let bytes = first.get(..read).unwrap_or_default();
    let written = match to.try_write(bytes) {
        Ok(written) => written,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    Ok(match bytes.get(written..) {
        Some(rest) if !rest.is_empty() => Step::Waiting(rest.to_vec()),
        _ => Step::Written(written),
    })
}

async fn write_all(to: &WriteHalf<'_>, mut bytes: &[u8], moved: &AtomicU64) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => {
                count(moved, written);
                bytes = bytes.get(written..).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn count(moved: &AtomicU64, length: usize) {
    moved.fetch_add(u64::try_from(length).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Sets TCP_NODELAY, so that no byte waits for more, and keepalive, so that a side that is gone is
/// noticed.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

/// The connection ends with a reset when it is dropped, or the process is.
pub(crate) fn end_with_reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        debug!(
            "cannot set SO_LINGER: {error}; a failure of the connection would end it without a reset"
        );
    }
}

/// Lets what was sent on the connection arrive when the connection is dropped.
pub(crate) fn end_well(stream: &TcpStream) {
    if let Err(error) = sockopt::set_socket_linger(stream, None) {
        debug!("cannot set SO_LINGER: {error}; the connection ends with a reset");
    }
}
