//! Units of traffic, and the counting of their instructions.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use socket2::{Domain, Socket, Type};

use crate::ground::Trial;

/// Longest time that a packet may take: only a lost one takes it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Payload of a segment: an MTU of 1,500 less the headers of IPv4 or IPv6, and those of TCP with
/// timestamps.
const SEGMENT: usize = 1_500 - 20 - 32;
const SEGMENT_OF_IPV6: usize = 1_500 - 40 - 32;
/// Ports of clients: no NodePort is among them, and the kernel chooses none of them for a socket.
const FIRST_PORT: u16 = 11_000;
const LAST_PORT: u16 = 30_000;
/// Number of segments that are sent at once.
const AT_ONCE: u64 = 16;

/// Unit of traffic whose cost is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    /// A datagram of a byte and its answer, of a flow that goes on.
    Datagram,
    /// The same of a new flow.
    Question,
    /// A connection: it is opened, a byte goes each way, and it is closed.
    Connection,
    /// A segment of a long transfer, with its share of acknowledgements.
    Segment,
}

/// Number of times that something is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    repetitions: usize,
    /// Number of units of each repetition, whose cost is their median.
    each: usize,
}

impl Extent {
    pub(crate) const WHOLE: Self = Self { repetitions: 8, each: 33 };
    pub(crate) const RATE: Self = Self { repetitions: 10, each: 100 };
    pub(crate) const SHORT: Self = Self { repetitions: 3, each: 9 };
}

impl Unit {
    pub(crate) const ALL: [Self; 4] =
        [Self::Datagram, Self::Question, Self::Connection, Self::Segment];

    /// Returns the cost of one in each repetition.
    pub(crate) fn measure(self, trial: &Trial<'_>, extent: Extent) -> Result<Vec<u64>> {
        trial.client.enter(|| match self {
            Self::Datagram => datagrams(trial, extent),
            Self::Question => repeated(extent, || question(trial)),
            Self::Connection => repeated(extent, || connection(trial)),
            Self::Segment => segments(trial, extent),
        })?
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Datagram => "UDP round trip",
            Self::Question => "UDP flow of one question",
            Self::Connection => "TCP connection",
            Self::Segment => "TCP segment of a transfer",
        })
    }
}

/// Does something as often as asked for, after some times that are not counted. Returns the median of
/// each repetition: what a timer of the kernel adds now and then is not in it.
fn repeated(extent: Extent, mut once: impl FnMut() -> Result<u64>) -> Result<Vec<u64>> {
    for _ in 0..extent.each.div_ceil(4) {
        once()?;
    }
    let mut repetition = || -> Result<u64> {
        let mut costs = (0..extent.each).map(|_| once()).collect::<Result<Vec<_>>>()?;
        costs.sort_unstable();
        costs.get(costs.len() / 2).copied().context("nothing was counted")
    };
    (0..extent.repetitions).map(|_| repetition()).collect()
}

fn counted(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let began = Instant::now();
    work()?;
    Ok(u64::try_from(began.elapsed().as_nanos())?)
}

fn datagrams(trial: &Trial<'_>, extent: Extent) -> Result<Vec<u64>> {
    let socket = open_datagrams(trial)?;
    repeated(extent, || counted(|| round_trip(trial, &socket)))
}

fn question(trial: &Trial<'_>) -> Result<u64> {
    counted(|| round_trip(trial, &open_datagrams(trial)?))
}

fn open_datagrams(trial: &Trial<'_>) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(unused_source(trial)?)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(trial.target)?;
    Ok(socket)
}

static NEXT: AtomicU16 = AtomicU16::new(FIRST_PORT);

/// Lets ports be used again: new namespaces know none of them.
pub(crate) fn use_ports_again() {
    NEXT.store(FIRST_PORT, Ordering::Relaxed);
}

/// A port that no other socket had. A client that uses one port for two frontends of one endpoint gets the
/// answers of one from the other (`ip_vs_conn_out_get` in net/netfilter/ipvs/ip_vs_conn.c), and the kernel
/// chooses a port by its destination, so that it does that.
fn unused_source(trial: &Trial<'_>) -> Result<SocketAddr> {
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    ensure!((FIRST_PORT..LAST_PORT).contains(&port), "there are no ports left");
    let any: IpAddr = match trial.target.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    Ok((any, port).into())
}

fn round_trip(trial: &Trial<'_>, socket: &UdpSocket) -> Result<()> {
    let mut byte = [0; 1];
    socket.send(b"?").context("send a datagram")?;
    let datagrams = &trial.endpoint.datagrams;
    let (_, seen) = datagrams.recv_from(&mut byte).context("no datagram came to the endpoint")?;
    datagrams.send_to(b"!", seen).context("answer a datagram")?;
    socket.recv(&mut byte).context("no answer came to the client")?;
    let is_replaced = seen.port() != socket.local_addr()?.port() || seen.ip() != source(socket)?;
    ensure!(
        is_replaced == trial.is_masqueraded,
        "the endpoint saw {seen}, which is {}masqueraded",
        if is_replaced { "" } else { "not " }
    );
    Ok(())
}

fn source(socket: &UdpSocket) -> Result<IpAddr> {
    Ok(socket.local_addr()?.ip())
}

fn connection(trial: &Trial<'_>) -> Result<u64> {
    counted(|| {
        let (mut client, mut server) = connect(trial)?;
        let mut byte = [0; 1];
        client.write_all(b"?")?;
        server.read_exact(&mut byte).context("no byte came to the endpoint")?;
        server.write_all(b"!")?;
        client.read_exact(&mut byte).context("no byte came to the client")?;
        client.shutdown(Shutdown::Write)?;
        ensure!(server.read(&mut byte)? == 0, "more than a byte came to the endpoint");
        drop(server);
        ensure!(client.read(&mut byte)? == 0, "more than a byte came to the client");
        Ok(())
    })
}

fn connect(trial: &Trial<'_>) -> Result<(TcpStream, TcpStream)> {
    let socket = Socket::new(Domain::for_address(trial.target), Type::STREAM, None)?;
    socket.bind(&unused_source(trial)?.into())?;
    socket
        .connect_timeout(&trial.target.into(), PATIENCE)
        .with_context(|| format!("connect to {}", trial.target))?;
    let client = TcpStream::from(socket);
    let (server, _) = trial.endpoint.listener.accept().context("accept a connection")?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE))?;
    }
    Ok((client, server))
}

/// Sends on one connection, which has come to speed before it is counted.
fn segments(trial: &Trial<'_>, extent: Extent) -> Result<Vec<u64>> {
    let (mut client, mut server) = connect(trial)?;
    client.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    let payload = if trial.target.is_ipv4() { SEGMENT } else { SEGMENT_OF_IPV6 };
    let bytes = vec![0; payload * usize::try_from(AT_ONCE)?];
    let mut buffer = vec![0; bytes.len() * 4];
    for _ in 0..extent.each {
        transfer(&mut client, &mut server, &bytes, &mut buffer)?;
    }
    repeated(extent, || {
        let cost = counted(|| transfer(&mut client, &mut server, &bytes, &mut buffer))?;
        Ok(cost / AT_ONCE)
    })
}

fn transfer(
    client: &mut TcpStream,
    server: &mut TcpStream,
    bytes: &[u8],
    buffer: &mut [u8],
) -> Result<()> {
    let began = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while received < bytes.len() {
        ensure!(began.elapsed() < PATIENCE, "{received} bytes of {} came", bytes.len());
        match client.write(bytes.get(sent..).unwrap_or_default()) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("send a segment"),
        }
        match server.read(buffer) {
            Ok(n) => received += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receive a segment"),
        }
    }
    Ok(())
}
