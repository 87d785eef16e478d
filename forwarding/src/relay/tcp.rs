//! TCP connections of a proxy port.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SocketFlags, accept_with};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::balancer::Endpoint;
use super::port::{ProxyPort, TRIES};
use crate::copy::{copy_both_ways, end_well, end_with_reset, tune};
use crate::limit::Slot;
use crate::listening::{ACCEPT_PAUSE, BACKLOG};

/// Longest time that each endpoint may take to accept a connection, as kube-proxy has it: the first
/// one little, in case that another one answers.
const DIAL_TIMEOUTS: [Duration; TRIES] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Listens on an address, and returns it with its port.
pub(super) fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of the port's last Service do not keep it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Accepts connections until `closing` is dropped, and serves each in a task of its own.
pub(super) async fn accept(
    listener: TcpListener,
    port: Arc<ProxyPort>,
    mut closing: oneshot::Receiver<()>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut closing => break,
        };
        match accepted {
            Ok((client, from)) => serve(&port, client, from.ip()),
            Err(error) => {
                // The client has gone already, or the process has no file left.
                if port.shared.socket_warnings.is_due() {
                    warn!(
                        port = %port.id,
                        "cannot accept a connection: {error}; retried in {ACCEPT_PAUSE:?}"
                    );
                }
                tokio::select! {
                    () = sleep(ACCEPT_PAUSE) => {}
                    _ = &mut closing => break,
                }
            }
        }
    }
    serve_backlog(&listener, &port);
}

/// Serves the clients that the kernel has connected and that were not accepted yet.
fn serve_backlog(listener: &TcpListener, port: &Arc<ProxyPort>) {
    while let Ok(client) = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        let client = TcpStream::from_std(client.into());
        let from = client.as_ref().ok().and_then(|client| client.peer_addr().ok());
        if let (Ok(client), Some(from)) = (client, from) {
            serve(port, client, from.ip());
        }
    }
}

/// Serves a connection in a task of its own.
fn serve(port: &Arc<ProxyPort>, client: TcpStream, from: IpAddr) {
    end_with_reset(&client);
    let Some(slot) = port.shared.connections.take(warn_of_limit) else { return };
    // Chosen here: when the port is closed, its endpoints go next.
    let endpoint = port.choose(from);
    tokio::spawn(pass(Arc::clone(port), client, from, endpoint, slot));
}

fn warn_of_limit(most: usize) {
    warn!(
        "connection to a Service reset: the limit of {most} open connections of the relay is \
         reached; `ss -tnp` shows their clients"
    );
}

/// Passes a connection on to an endpoint until it ends.
async fn pass(
    port: Arc<ProxyPort>,
    mut client: TcpStream,
    from: IpAddr,
    endpoint: Option<Arc<Endpoint>>,
    _slot: Slot,
) {
    let meters = &port.shared.meters;
    let Some((endpoint, mut server)) = dial(&port, from, endpoint).await else {
        meters.failed.inc();
        debug!(port = %port.id, client = %from, "connection reset: no endpoint accepted it");
        return;
    };
    meters.passed.inc();
    end_with_reset(&server);
    if let Err(error) = tune(&client).and_then(|()| tune(&server)) {
        debug!(port = %port.id, "cannot set TCP_NODELAY or keepalive on a connection: {error}");
    }
    let half_closed_idle = Some(port.shared.half_closed_idle);
    let ended = tokio::select! {
        ended = copy_both_ways(&mut client, &mut server, half_closed_idle) => ended,
        () = endpoint.until_drained() => {
            meters.cut.inc();
            Err(io::Error::other("the endpoint was removed, and its drain deadline is over"))
        }
    };
    match ended {
        Ok(()) => {
            end_well(&client);
            end_well(&server);
        }
        Err(error) => {
            let endpoint = endpoint.address;
            debug!(port = %port.id, client = %from, %endpoint, "connection failed: {error}");
        }
    }
}

/// Connects to an endpoint; if that fails, to others.
async fn dial(
    port: &ProxyPort,
    client: IpAddr,
    endpoint: Option<Arc<Endpoint>>,
) -> Option<(Arc<Endpoint>, TcpStream)> {
    let mut endpoint = endpoint?;
    for longest in DIAL_TIMEOUTS {
        let dialed = timeout(longest, TcpStream::connect(endpoint.address)).await;
        match dialed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(server) => return Some((endpoint, server)),
            Err(error) => port.endpoint_failed(&endpoint, &error),
        }
        endpoint = port.choose_another(client, &endpoint)?;
    }
    None
}
