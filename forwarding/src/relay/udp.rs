//! UDP clients of a proxy port. Each has a socket of its own, connected to its endpoint: so the
//! kernel tells apart the answers, and refusals.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::net::{SendFlags, send, sendto};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::task::coop::consume_budget;
use tokio::time::sleep;
use tracing::warn;

use super::balancer::Endpoint;
use super::port::{ProxyPort, TRIES};
use super::recency::Place;
use crate::copy::with_scratch;
use crate::listening::ACCEPT_PAUSE;

/// The UDP clients of a proxy port. Copies share them.
#[derive(Debug, Clone)]
pub(super) struct UdpClients(Arc<Mutex<HashMap<SocketAddr, UdpClient>>>);

/// A client. Its socket is closed when this is dropped.
#[derive(Debug)]
struct UdpClient {
    flow: Arc<Flow>,
    answers: JoinHandle<()>,
}

/// Datagrams between a client and an endpoint.
#[derive(Debug)]
pub(super) struct Flow {
    /// Connected to the endpoint.
    socket: UdpSocket,
    endpoint: Arc<Endpoint>,
    place: Place,
}

/// Result of reading the answers of an endpoint.
enum Answer {
    /// It was passed on, or lost.
    Done,
    /// The proxy port's socket takes no more now.
    Waiting(Vec<u8>),
    /// There is none yet.
    Nothing,
}

/// Listens on an address, and returns it with its port.
pub(super) fn listen(address: SocketAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let socket = StdUdpSocket::bind(address)?;
    let address = socket.local_addr()?;
    Ok((nonblocking(socket)?, address))
}

fn nonblocking(socket: StdUdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Passes datagrams on to endpoints, for ever.
pub(super) async fn serve(socket: UdpSocket, port: Arc<ProxyPort>, clients: UdpClients) {
    let socket = Arc::new(socket);
    loop {
        let received = match socket.readable().await {
            Ok(()) => with_scratch(|scratch| {
                let (length, client) = socket.try_recv_from(scratch)?;
                let datagram = scratch.get(..length).unwrap_or_default();
                clients.pass(&socket, &port, client, datagram);
                Ok(())
            }),
            Err(error) => Err(error),
        };
        match received {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                if port.shared.socket_warnings.is_due() {
                    warn!(port = %port.id, "cannot receive: {error}; retried in {ACCEPT_PAUSE:?}");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
        // A flood must not keep the thread from the others.
        consume_budget().await;
    }
}

impl UdpClients {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Ends the flows to endpoints that are none any more: there is no connection that would have
    /// to end by itself, and the client's next datagram goes to another one.
    pub(super) fn end_leaving(&self) {
        self.0.lock().retain(|_, client| !client.flow.endpoint.is_leaving());
    }

    /// Ends all flows.
    pub(super) fn end_all(&self) {
        self.0.lock().clear();
    }

    /// Passes a client's datagram on: to its endpoint, or, if that has refused the last one, to
    /// another one.
    fn pass(
        &self,
        socket: &Arc<UdpSocket>,
        port: &Arc<ProxyPort>,
        from: SocketAddr,
        datagram: &[u8],
    ) {
        let meters = &port.shared.meters;
        let mut failed = None;
        for _ in 0..TRIES {
            let known = self.0.lock().get(&from).map(|client| Arc::clone(&client.flow));
            let Some(flow) = known.or_else(|| self.open(socket, port, from, failed.as_ref()))
            else {
                return;
            };
            match send(&flow.socket, datagram, SendFlags::DONTWAIT) {
                Ok(_) => return flow.place.used().touch(),
                // It does not fit into the socket's buffer, or into a datagram of the path.
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::MSGSIZE) => break,
                Err(error) => {
                    port.endpoint_failed(&flow.endpoint, &error.into());
                    self.end(from, &flow);
                    failed = Some(Arc::clone(&flow.endpoint));
                }
            }
        }
        meters.udp_lost.inc();
    }

    /// Begins to serve a client. Counts and warns if that is not possible.
    fn open(
        &self,
        socket: &Arc<UdpSocket>,
        port: &Arc<ProxyPort>,
        from: SocketAddr,
        failed: Option<&Arc<Endpoint>>,
    ) -> Option<Arc<Flow>> {
        let endpoint = match failed {
            Some(failed) => port.choose_another(from.ip(), failed),
            None => port.choose(from.ip()),
        };
        let Some(endpoint) = endpoint else {
            port.shared.meters.udp_lost.inc();
            return None;
        };
        let connected = match connect(endpoint.address) {
            Ok(connected) => connected,
            Err(error) => {
                port.shared.meters.udp_lost.inc();
                if port.shared.socket_warnings.is_due() {
                    let endpoint = endpoint.address;
                    warn!(port = %port.id, %endpoint, "datagram lost, no socket for it: {error}");
                }
                return None;
            }
        };
        let place = port.shared.udp_clients.take(from);
        let flow = Arc::new(Flow { socket: connected, endpoint, place });
        let (clients, of_client) = (self.clone(), Arc::downgrade(&flow));
        flow.place.ended_by(move || {
            if let Some(flow) = of_client.upgrade() {
                clients.end(from, &flow);
            }
        });
        let answers = tokio::spawn(answers(
            Arc::clone(&flow),
            Arc::clone(socket),
            Arc::clone(port),
            self.clone(),
            from,
        ));
        self.0.lock().insert(from, UdpClient { flow: Arc::clone(&flow), answers });
        Some(flow)
    }

    /// Stops serving a client, if that is by this flow.
    fn end(&self, from: SocketAddr, flow: &Arc<Flow>) {
        let mut clients = self.0.lock();
        if clients.get(&from).is_some_and(|client| Arc::ptr_eq(&client.flow, flow)) {
            clients.remove(&from);
        }
    }
}

impl Drop for UdpClient {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

impl Flow {
    /// Fails if the endpoint has refused a datagram, and no later datagram has noticed that.
    fn take_refusal(&self) -> io::Result<()> {
        let refusal = || match self.socket.take_error()? {
            Some(refusal) => Err(refusal),
            None => Err(io::ErrorKind::WouldBlock.into()),
        };
        match self.socket.try_io(Interest::ERROR, refusal) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            taken => taken,
        }
    }

    /// Passes an answer on, from the proxy port's socket.
    fn pass_answer(&self, socket: &UdpSocket, client: SocketAddr) -> io::Result<Answer> {
        with_scratch(|scratch| {
            let length = match self.socket.try_recv(scratch) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Answer::Nothing);
                }
                Err(error) => return Err(error),
            };
            self.place.used().touch();
            let datagram = scratch.get(..length).unwrap_or_default();
            Ok(match sendto(socket, datagram, SendFlags::DONTWAIT, &client) {
                Err(rustix::io::Errno::AGAIN) => Answer::Waiting(datagram.to_vec()),
                // Whatever else it is, it is of this client: one that cannot be reached any more.
                _ => Answer::Done,
            })
        })
    }
}

/// Passes an endpoint's answers on to the client until the flow ends.
async fn answers(
    flow: Arc<Flow>,
    socket: Arc<UdpSocket>,
    port: Arc<ProxyPort>,
    clients: UdpClients,
    client: SocketAddr,
) {
    let pass = async {
        loop {
            // A refusal alone does not make a socket readable.
            let ready = flow.socket.ready(Interest::READABLE.add(Interest::ERROR)).await?;
            if ready.is_error() {
                flow.take_refusal()?;
            }
            if let Answer::Waiting(datagram) = flow.pass_answer(&socket, client)? {
                drop(socket.send_to(&datagram, client).await);
            }
            consume_budget().await;
        }
    };
    let ended: io::Result<()> = tokio::select! {
        ended = pass => ended,
        () = flow.place.used().until_idle(port.shared.timeouts().udp_idle) => Ok(()),
    };
    if let Err(error) = ended {
        // Refused, mostly: nothing listens there. The next datagram goes to another endpoint.
        port.endpoint_failed(&flow.endpoint, &error);
        port.balancer().forget(client.ip(), &flow.endpoint);
    }
    clients.end(client, &flow);
}

fn connect(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let any = match endpoint {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = StdUdpSocket::bind(any)?;
    socket.connect(endpoint)?;
    nonblocking(socket)
}
