//! Echo servers: what runs in a pod.
//!
//! Each line of a request is answered with one line `NAME PEER`: who answered, and which source
//! address and port the request seemed to come from. What is asked beyond `QUESTION` is repeated:
//! `NAME PEER TEXT`. A UDP datagram is one line. Connections stay open until the other side closes
//! them, asks for the end, or the server stops.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use socket2::Socket;

use crate::cluster::Host;
use crate::namespace::Namespace;
use crate::protocol::Protocol;

/// Request that asks for the name and the source only.
pub(crate) const QUESTION: &str = "?";

/// The same, after which the server closes the connection.
pub(crate) const LAST_QUESTION: &str = "?!";

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Length of the longest line that is answered.
const LONGEST_LINE: usize = 2048;

/// A running server. Dropping it closes its sockets and all its connections and ends its thread.
#[derive(Debug)]
pub struct Server {
    /// Closing this end wakes the thread and tells it to go.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Everything the server's thread holds.
struct EchoLoop {
    name: String,
    stop: UnixStream,
    listeners: Vec<Socket>,
    datagrams: Vec<UdpSocket>,
    connections: Vec<OpenConnection>,
}

struct OpenConnection {
    socket: Socket,
    peer: SocketAddr,
    /// Part of a line that has arrived.
    line: Vec<u8>,
}

impl Server {
    /// Listens on all of a host's addresses, on each given protocol and port, under the host's
    /// name.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn start(host: &Host, ports: &[(Protocol, u16)]) -> Result<Self> {
        let listen: Vec<(Protocol, SocketAddr)> = host
            .addresses()
            .into_iter()
            .flat_map(|address: IpAddr| {
                ports.iter().map(move |(protocol, port)| (*protocol, (address, *port).into()))
            })
            .collect();
        Self::bind(&host.namespace, &host.name, &listen)
    }

    /// Listens on exactly these addresses inside a namespace and answers as `name`.
    ///
    /// Binding to one address each, never to all, proves that a request was sent to just that
    /// endpoint, makes UDP answer from the address it was asked at, and keeps SCTP from offering
    /// its other addresses to the peer.
    ///
    /// # Errors
    /// When `name` is not one word, an address is not there or in use, or the kernel does not
    /// have the protocol. Nothing listens then.
    pub fn bind(
        namespace: &Namespace,
        name: &str,
        listen: &[(Protocol, SocketAddr)],
    ) -> Result<Self> {
        if name.is_empty() || name.contains(char::is_whitespace) {
            bail!("a server's name must be one word, got {name:?}");
        }
        let (stop, stopped) = UnixStream::pair().context("making a stop signal")?;
        let mut echo = EchoLoop {
            name: name.to_owned(),
            stop: stopped,
            listeners: Vec::new(),
            datagrams: Vec::new(),
            connections: Vec::new(),
        };
        namespace.enter(|| {
            listen.iter().try_for_each(|(protocol, address)| {
                echo.listen(*protocol, *address)
                    .with_context(|| format!("{name} listening on {protocol} {address}"))
            })
        })??;
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || echo.serve())
            .with_context(|| format!("starting the thread of server {name}"))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("a server's thread panicked");
        }
    }
}

impl EchoLoop {
    fn listen(&mut self, protocol: Protocol, address: SocketAddr) -> io::Result<()> {
        let socket = protocol.socket(address)?;
        if protocol.has_connections() {
            // A server that comes back must not wait for its former connections to be forgotten.
            socket.set_reuse_address(true)?;
        }
        socket.bind(&address.into())?;
        socket.set_nonblocking(true)?;
        if protocol.has_connections() {
            socket.listen(BACKLOG)?;
            self.listeners.push(socket);
        } else {
            self.datagrams.push(socket.into());
        }
        Ok(())
    }

    fn serve(mut self) {
        while let Ok(ready) = self.wait() {
            let mut ready = ready.into_iter();
            let mut is_ready = || ready.next() == Some(true);
            if is_ready() {
                return;
            }
            let mut accepted = Vec::new();
            for listener in &self.listeners {
                if is_ready() {
                    accept_all(listener, &mut accepted);
                }
            }
            for datagrams in &self.datagrams {
                if is_ready() {
                    answer_all(datagrams, &self.name);
                }
            }
            let name = &self.name;
            self.connections
                .retain_mut(|connection| !is_ready() || connection.answer(name).is_ok());
            self.connections.append(&mut accepted);
        }
    }

    /// Waits until something happens. One flag each: the stop signal, then every socket in the
    /// order of the fields.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let sockets = self
            .listeners
            .iter()
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .chain(self.datagrams.iter().map(|socket| PollFd::new(socket, PollFlags::IN)))
            .chain(self.connections.iter().map(|open| PollFd::new(&open.socket, PollFlags::IN)));
        let mut polled: Vec<PollFd<'_>> =
            std::iter::once(PollFd::new(&self.stop, PollFlags::IN)).chain(sockets).collect();
        loop {
            match poll(&mut polled, None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(polled.iter().map(|one| !one.revents().is_empty()).collect())
    }
}

fn accept_all(listener: &Socket, accepted: &mut Vec<OpenConnection>) {
    // Any error ends the round: no client waits, or the one that came has gone again.
    while let Ok((socket, peer)) = listener.accept() {
        if let Some(peer) = peer.as_socket()
            && socket.set_nonblocking(true).is_ok()
        {
            accepted.push(OpenConnection { socket, peer, line: Vec::new() });
        }
    }
}

fn answer_all(datagrams: &UdpSocket, name: &str) {
    let mut request = [0; LONGEST_LINE];
    while let Ok((length, peer)) = datagrams.recv_from(&mut request) {
        let line = request.get(..length).unwrap_or_default();
        // An answer that cannot be sent is a lost datagram, which the asking side will notice.
        let _ = datagrams.send_to(&answer_line(name, peer, line), peer);
    }
}

fn answer_line(name: &str, peer: SocketAddr, line: &[u8]) -> Vec<u8> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut answer = format!("{name} {peer}").into_bytes();
    if line != QUESTION.as_bytes() && line != LAST_QUESTION.as_bytes() {
        answer.push(b' ');
        answer.extend_from_slice(line);
    }
    answer.push(b'\n');
    answer
}

impl OpenConnection {
    /// Answers each line that has arrived. An error means that the connection is over; a peer
    /// that lets answers pile up until the socket is full is treated so as well.
    fn answer(&mut self, name: &str) -> io::Result<()> {
        let mut chunk = [0; 2048];
        loop {
            let length = match self.socket.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let (mut answers, mut is_last) = (Vec::new(), false);
            for part in chunk.get(..length).unwrap_or_default().split_inclusive(|it| *it == b'\n') {
                self.line.extend_from_slice(part);
                if part.ends_with(b"\n") {
                    answers.append(&mut answer_line(name, self.peer, &self.line));
                    is_last |= self.line.strip_suffix(b"\n") == Some(LAST_QUESTION.as_bytes());
                    self.line.clear();
                }
            }
            if self.line.len() > LONGEST_LINE {
                return Err(ErrorKind::InvalidData.into());
            }
            self.socket.write_all(&answers)?;
            if is_last {
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_repeated_unless_it_is_the_question() {
        let peer = ([10, 0, 0, 1], 7).into();
        let answer = |line: &[u8]| String::from_utf8(answer_line("pod1-1", peer, line)).unwrap();
        assert_eq!(answer(b"?\n"), "pod1-1 10.0.0.1:7\n");
        assert_eq!(answer(b"12 abc\n"), "pod1-1 10.0.0.1:7 12 abc\n");
        assert_eq!(answer(b"12"), "pod1-1 10.0.0.1:7 12\n");
        assert_eq!(answer(b"?!\n"), "pod1-1 10.0.0.1:7\n");
    }
}
