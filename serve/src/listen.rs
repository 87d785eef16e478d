//! Listening for TCP connections, and talking HTTP on them within limits.
//!
//! A client that can reach a port can open connections and be silent. So each listener has a
//! limited number of connections, and the oldest makes room for a new one: an honest client is
//! answered within milliseconds, and a client that occupies all of them keeps no other out. A
//! request's header has to arrive in time, and no connection lives for ever.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// A failed attempt to listen is repeated after this time.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time until a request's header has arrived: on a new connection, and on an idle one after
/// an answer. Load balancers keep a connection for their checks, which are up to a minute apart.
const IDLE: Duration = Duration::from_secs(75);
/// After this time a connection ends with the answer that it is at.
const CONNECTION: Duration = Duration::from_secs(120);
/// Longest time for that answer.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// Connections that the kernel has set up and that are not accepted yet.
const BACKLOG: u32 = 128;
/// For what is read of a connection at once, which bounds a request's header too.
const BUFFER: usize = 16 * 1_024;

/// One of the two servers whose address the operator chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Server {
    /// At `healthzBindAddress`.
    Health,
    /// At `metricsBindAddress`.
    Metrics,
}

/// Address of the client of a request, which the request has as an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Clients that may read pages that say much of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Those of the node itself, such as `kubectl port-forward`.
    Loopback,
    /// All that reach the server.
    Network,
}

/// A server cannot listen, and the operator wants that to be the end (`bindAddressHardFail`).
#[derive(Debug, thiserror::Error)]
#[error(
    "{server}: cannot listen on {address}: {source}; free the port (`ss -ltnp` shows the process), \
     or choose another address"
)]
pub struct ListenError {
    /// Server that cannot listen.
    pub server: Server,
    /// Address and port to listen on.
    pub address: SocketAddr,
    /// Error of the kernel.
    pub source: io::Error,
}

/// Lets the process open as many files as it may at all. Every Service with a health check needs
/// one for each family, and the limit that a process starts with is often 1,024.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        let current = limit.current.unwrap_or_default();
        warn!(
            "cannot raise the limit of open files (RLIMIT_NOFILE) from {current}: {error}; health \
             checks of many Services may be without a listener"
        );
    }
}

/// A task that listens. It and its connections end when this is dropped.
#[derive(Debug)]
pub(super) struct Listener(pub(super) JoinHandle<Infallible>);

impl Listener {
    /// Ends it, and waits until its port is free.
    pub(super) async fn close(mut self) {
        self.0.abort();
        drop((&mut self.0).await);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Listens for a server; tries again every 5 seconds as long as it cannot.
///
/// # Errors
/// With `hard_fail`, when the first attempt fails.
pub async fn listen(
    server: Server,
    address: SocketAddr,
    hard_fail: bool,
) -> Result<TcpListener, ListenError> {
    loop {
        let error = match open(address) {
            Ok(listener) => {
                info!("{server}: listening on {address}");
                return Ok(listener);
            }
            Err(source) => ListenError { server, address, source },
        };
        if hard_fail {
            return Err(error);
        }
        warn!("{error}; next attempt in {} s", RETRY.as_secs());
        sleep(RETRY).await;
    }
}

/// Listens on an address. An unspecified one means both families, whichever it is written in: that
/// is how Go listens, and what kube-proxy's `0.0.0.0:10256` has always meant on a node that is
/// reached by IPv6.
pub fn open(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return open_exactly(address);
    }
    let both = open_with(SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port())), false);
    match both {
        Err(error) if address.is_ipv4() && lacks_ipv6(&error) => open_exactly(address),
        other => other,
    }
}

/// Listens on an address of one family; an unspecified one means that family alone.
pub fn open_exactly(address: SocketAddr) -> io::Result<TcpListener> {
    open_with(address, true)
}

/// Serves connections until it is dropped, `most` of them at a time: the oldest makes room.
pub async fn serve(listener: TcpListener, router: Router, most: usize) -> Infallible {
    let mut connections = JoinSet::new();
    // In the order in which they came.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    open.retain(|connection| !connection.is_finished());
                    if open.len() >= most && let Some(oldest) = open.pop_front() {
                        oldest.abort();
                    }
                    let router = router.clone().layer(Extension(Peer(peer)));
                    open.push_back(connections.spawn(converse(stream, router)));
                }
                Err(error) => {
                    // The peer has gone already, or the process has no file left.
                    let address = listener.local_addr().map_or_else(|_| "?".to_owned(), |it| it.to_string());
                    warn!("cannot accept a connection on {address}: {error}; retried in {ACCEPT_PAUSE:?}");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Talks HTTP on a connection until it ends, or has lived long enough.
pub async fn converse<S>(stream: S, router: Router)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER)
        // Names as Go writes them, for clients that forget that case does not matter.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let ended = match timeout(CONNECTION, connection.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!("HTTP connection ended with an error: {error}");
    }
}

fn open_with(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        let socket = TcpSocket::new_v6()?;
        rustix::net::sockopt::set_ipv6_v6only(&socket, only_v6)?;
        socket
    };
    // Or a restarted proxy would have to wait for its former connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// True if the error says that this host has no IPv6: not built in, or switched off.
fn lacks_ipv6(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Health => "health server",
            Self::Metrics => "metrics server",
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_reading_is_dropped() {
        let router = Router::new().route("/", get(|| async { "x".repeat(1 << 20) }));
        let (mut client, server) = tokio::io::duplex(1_024);
        let conversation = tokio::spawn(converse(server, router));
        client.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        let began = tokio::time::Instant::now();
        conversation.await.unwrap();
        assert!(began.elapsed() <= CONNECTION + LAST_ANSWER, "{:?}", began.elapsed());
        drop(client);
    }
}
