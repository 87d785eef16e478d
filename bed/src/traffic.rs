//! The asking side: one question, one answer or the way in which it was refused.

use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use socket2::Socket;
use thiserror::Error;

use crate::namespace::Namespace;
use crate::protocol::Protocol;
use crate::server::{LAST_QUESTION, QUESTION};

/// Time to wait for connection and answer if nothing else is said. A guest under emulation is slow,
/// a lost packet is resent after one second.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3);

/// Source ports, for one question after the other. No server of the bed listens on one, no Service has
/// one as its node port, and the kernel chooses none of them for a socket.
const PORTS: Range<u16> = 11_000..30_000;

/// The longest answer taken for one.
const MAX_ANSWER: usize = 512;

/// Whom to ask, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address and port asked.
    pub target: SocketAddr,
    /// The address to ask from; port 0 leaves the port to the kernel. `None` leaves the address to it,
    /// and takes a port that no other question has. A client that uses one port for two frontends of
    /// one endpoint gets the answers of one from the other (`ip_vs_conn_out_get` in
    /// net/netfilter/ipvs/ip_vs_conn.c), and the kernel chooses a port by its destination, so that it
    /// does that.
    pub source: Option<SocketAddr>,
    /// The limit for connecting, and again for each answer.
    pub timeout: Duration,
}

/// Server that answered, and the address that it took for the asker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name of the server.
    pub server: String,
    /// The source address and port that the server saw.
    pub seen_source: SocketAddr,
}

/// Why there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum Refusal {
    /// No process listens, or a packet filter says so: a reset or "port unreachable" came back.
    #[error("connection refused")]
    Refused,
    /// Nothing came back in time.
    #[error("timeout")]
    Timeout,
    /// An established connection was cut.
    #[error("connection reset")]
    Reset,
    /// The other side closed the connection in good order instead of answering.
    #[error("closed without an answer")]
    Closed,
    /// No route, or no host at the last hop.
    #[error("unreachable")]
    Unreachable,
    /// The answer is not of our servers: the text is what came.
    #[error("not an answer of ours: {0:?}")]
    Foreign(String),
    /// Anything else, in the kernel's words.
    #[error("{0}")]
    Other(String),
}

/// A connection that stays open, to find out later whether it has survived.
///
/// For UDP this is a socket with a fixed source port, which is what conntrack and IPVS take for a
/// connection.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    question: Question,
}

/// Asks once, on a fresh connection, from inside `namespace`.
///
/// # Errors
/// The way in which no answer came.
pub fn ask(namespace: &Namespace, question: Question) -> Result<Answer, Refusal> {
    inside(namespace, || ask_here(question))
}

impl Question {
    /// A question with the default timeout, from whatever address the kernel picks and a port of its
    /// own.
    pub fn new(protocol: Protocol, target: impl Into<SocketAddr>) -> Self {
        Self { protocol, target: target.into(), source: None, timeout: DEFAULT_TIMEOUT }
    }

    /// A question over TCP.
    pub fn tcp(target: impl Into<SocketAddr>) -> Self {
        Self::new(Protocol::Tcp, target)
    }

    /// A question over UDP.
    pub fn udp(target: impl Into<SocketAddr>) -> Self {
        Self::new(Protocol::Udp, target)
    }

    /// A question over SCTP.
    pub fn sctp(target: impl Into<SocketAddr>) -> Self {
        Self::new(Protocol::Sctp, target)
    }

    /// The same question from this address and port.
    #[must_use]
    pub fn from_source(self, source: impl Into<SocketAddr>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// The same question with this timeout.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.protocol, self.target)?;
        match self.source {
            Some(source) => write!(formatter, " from {source}"),
            None => Ok(()),
        }
    }
}

impl Answer {
    /// Reads a server's line.
    fn parse(line: &str) -> Result<Self, Refusal> {
        line.split_once(' ')
            .filter(|(server, _)| !server.is_empty())
            .and_then(|(server, source)| {
                Some(Self { server: server.to_owned(), seen_source: source.parse().ok()? })
            })
            .ok_or_else(|| Refusal::Foreign(line.to_owned()))
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            // A socket with a timeout says `WouldBlock` when its time is over.
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::Timeout,
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                Self::Reset
            }
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Self::Unreachable,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl Connection {
    /// Connects from inside `namespace`; nothing is asked yet.
    ///
    /// # Errors
    /// The way in which the connection did not come about.
    pub fn open(namespace: &Namespace, question: Question) -> Result<Self, Refusal> {
        inside(namespace, || Self::open_here(question))
    }

    /// The own address and port.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn local_address(&self) -> Result<SocketAddr> {
        let address = self.socket.local_addr().context("asking for a socket's own address")?;
        address.as_socket().context("the socket's own address is not an IP address")
    }

    /// Asks on this connection.
    ///
    /// # Errors
    /// The way in which no answer came.
    pub fn say(&mut self) -> Result<Answer, Refusal> {
        self.exchange(QUESTION)
    }

    /// Asks once more, and has the server close the connection: its port can be used again at once.
    ///
    /// # Errors
    /// The way in which no answer came.
    pub fn say_last(mut self) -> Result<Answer, Refusal> {
        let answer = self.exchange(LAST_QUESTION)?;
        match self.socket.read(&mut [0; 1])? {
            0 => Ok(answer),
            _ => Err(Refusal::Foreign("more than an answer".to_owned())),
        }
    }

    fn exchange(&mut self, question: &str) -> Result<Answer, Refusal> {
        if !self.question.protocol.has_connections() {
            self.forget_late_answers()?;
        }
        let deadline = Instant::now() + self.question.timeout;
        self.socket.set_write_timeout(Some(self.question.timeout))?;
        self.socket.write_all(format!("{question}\n").as_bytes())?;
        let mut line = Vec::new();
        let mut chunk = [0; MAX_ANSWER];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Refusal::Timeout);
            }
            self.socket.set_read_timeout(Some(left))?;
            let length = self.socket.read(&mut chunk)?;
            line.extend(chunk.iter().take(length));
            let text = String::from_utf8_lossy(&line);
            if let Some((answer, _)) = text.split_once('\n') {
                return Answer::parse(answer);
            }
            if length == 0 && line.is_empty() {
                return Err(Refusal::Closed);
            }
            if length == 0 || line.len() > MAX_ANSWER {
                return Err(Refusal::Foreign(text.into_owned()));
            }
        }
    }

    /// Ends the connection with a reset, as a process that dies with unread data does.
    ///
    /// # Errors
    /// When the kernel does not take the option.
    pub fn abort(self) -> Result<()> {
        self.socket.set_linger(Some(Duration::ZERO)).context("asking for a reset at the end")
    }

    /// Connects from the namespace of the calling thread.
    pub(crate) fn open_here(question: Question) -> Result<Self, Refusal> {
        let Question { protocol, target, source, timeout } = question;
        let socket = protocol.socket(target)?;
        let source = match source {
            Some(source) => source,
            None => (source_by_route(protocol, target)?, unused_port()).into(),
        };
        socket.set_reuse_address(true)?;
        socket.bind(&source.into())?;
        // The wait is cut to whole milliseconds underneath, which must not make it shorter.
        socket.connect_timeout(&target.into(), timeout + Duration::from_millis(1))?;
        Ok(Self { socket, question })
    }

    /// The socket, for other questions.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// An answer that came after its question's timeout must not be taken for the next one's.
    fn forget_late_answers(&mut self) -> Result<(), Refusal> {
        self.socket.set_nonblocking(true)?;
        let mut late = [0; MAX_ANSWER];
        while self.socket.read(&mut late).is_ok() {}
        self.socket.set_nonblocking(false)?;
        Ok(())
    }
}

/// Asks once from the namespace of the calling thread.
pub(crate) fn ask_here(question: Question) -> Result<Answer, Refusal> {
    Connection::open_here(question)?.say()
}

/// Runs traffic inside a namespace; not getting in is one more way to be refused.
pub(crate) fn inside<T: Send>(
    namespace: &Namespace,
    work: impl FnOnce() -> Result<T, Refusal> + Send,
) -> Result<T, Refusal> {
    namespace.enter(work).map_err(|error| Refusal::Other(format!("{error:#}")))?
}

/// The address to bind to so that the kernel sends from the one that it would choose.
///
/// An SCTP socket without an address of its own offers all addresses of its host to the peer
/// (`sctp_bind_addrs_to_raw` in net/sctp/bind_addr.c), and those pass every NAT unchanged.
fn source_by_route(protocol: Protocol, target: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    if protocol != Protocol::Sctp {
        return Ok(any);
    }
    let probe = UdpSocket::bind((any, 0))?;
    probe.connect(target)?;
    Ok(probe.local_addr()?.ip())
}

/// A port that no question has had for [`PORTS`] questions.
fn unused_port() -> u16 {
    static ASKED: AtomicU16 = AtomicU16::new(0);
    let next = |asked: u16| Some((asked + 1) % (PORTS.end - PORTS.start));
    // The function is total, so the update cannot fail.
    let asked = ASKED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    PORTS.start + asked.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_server_and_source() {
        let answer = Answer::parse("pod1-1 10.244.1.11:4242").unwrap();
        assert_eq!(answer.server, "pod1-1");
        assert_eq!(answer.seen_source.to_string(), "10.244.1.11:4242");
        let answer = Answer::parse("pod1-1 [fd00:244:1::11]:4242").unwrap();
        assert_eq!(answer.seen_source.to_string(), "[fd00:244:1::11]:4242");
    }

    #[test]
    fn foreign_lines_are_not_answers() {
        for line in ["", " ", "HTTP/1.1 200 OK", "pod1-1", "pod1-1 10.244.1.11", " 10.0.0.1:1"] {
            assert_eq!(Answer::parse(line), Err(Refusal::Foreign(line.to_owned())));
        }
    }

    #[test]
    fn errors_of_the_kernel_have_their_names() {
        // The numbers are those of include/uapi/asm-generic/errno.h.
        for (errno, refusal) in [
            (111, Refusal::Refused),
            (110, Refusal::Timeout),
            (11, Refusal::Timeout),
            (104, Refusal::Reset),
            (32, Refusal::Reset),
            (113, Refusal::Unreachable),
            (101, Refusal::Unreachable),
        ] {
            assert_eq!(Refusal::from(io::Error::from_raw_os_error(errno)), refusal, "{errno}");
        }
        let forbidden = Refusal::from(io::Error::from_raw_os_error(1));
        assert!(matches!(forbidden, Refusal::Other(text) if text.contains("not permitted")));
    }
}
