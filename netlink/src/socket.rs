//! The socket: many requests in a send, a result for each; listings; notifications.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::NLM_F_DUMP;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt;

use crate::attribute::DecodeError;
use crate::batch::{Batch, MessageWriter, Part};
use crate::datagrams::{self, Wait};
use crate::error::Error;
use crate::home::Home;
use crate::namespace::Namespace;
use crate::reply::{Content, replies};

mod ask;
mod buffers;

use buffers::RECEIVE_BUFFER;

/// Number of times that a listing is tried when changes disturb it.
pub const DUMP_ATTEMPTS: usize = 8;

/// Bytes of the receive buffer that one answer takes at most, when answers are capped: the kernel
/// counts a small datagram as some 800 bytes, and an explanation makes it longer.
const ANSWER_COST: usize = 1_536;
/// Least number of bytes that the kernel counts for a datagram.
const SMALLEST_DATAGRAM: usize = 256;
/// Past a few hundred requests a send, longer sends gain nothing measurable.
const REQUESTS_PER_SEND: usize = 500;
/// Larger than any datagram the kernel makes for us: listings come in parts of at most 32 KiB,
/// and an uncapped refusal carries back one request of at most 64 KiB and its attributes. A notification
/// may have a sixteenth of it: that of a bridge with 1,000 mappings of VLANs has 28 KiB.
const DATAGRAM: usize = 512 << 10;
/// The kernel answers within the send, so this only ends a wait for something that is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Part of the kernel that a socket talks to (include/uapi/linux/netlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Links, addresses, routes: `NETLINK_ROUTE`.
    Route,
    /// ipset, connection tracking, nftables: `NETLINK_NETFILTER`.
    Netfilter,
    /// Families with names, such as IPVS: `NETLINK_GENERIC`.
    Generic,
}

/// A message that the kernel sent unasked, to a group that was joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notification<'a> {
    /// The subsystem's message type.
    pub message_type: u16,
    /// The subsystem's header and attributes.
    pub body: &'a [u8],
}

/// Amount of traffic over a socket, for measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Requests sent.
    pub requests: u64,
    /// Sends they went in.
    pub sends: u64,
    /// Datagrams received.
    pub receives: u64,
}

/// A netlink socket. It belongs to one network namespace for good. When it fails, it is opened
/// again at its next use, if the thread that uses it is in that namespace.
#[derive(Debug)]
pub struct Socket {
    socket: netlink_sys::Socket,
    protocol: Protocol,
    home: Home,
    /// Those that were joined.
    groups: Vec<u32>,
    /// Why it is to be opened again.
    failure: Option<Errno>,
    sequence: u32,
    requests_per_send: usize,
    questions_per_send: usize,
    bytes_per_send: usize,
    longest_send: usize,
    /// True if listings are checked strictly.
    is_strict: bool,
    /// A send on its way out; kept for its memory.
    outgoing: Vec<u8>,
    buffer: Vec<u8>,
    traffic: Traffic,
}

impl Protocol {
    fn number(self) -> isize {
        match self {
            Self::Route => netlink_sys::protocols::NETLINK_ROUTE,
            Self::Netfilter => netlink_sys::protocols::NETLINK_NETFILTER,
            Self::Generic => netlink_sys::protocols::NETLINK_GENERIC,
        }
    }
}

impl<'a> Notification<'a> {
    /// A message of this type.
    #[must_use]
    pub fn new(message_type: u16, body: &'a [u8]) -> Self {
        Self { message_type, body }
    }
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |sum, one| Self {
            requests: sum.requests + one.requests,
            sends: sum.sends + one.sends,
            receives: sum.receives + one.receives,
        })
    }
}

impl Socket {
    /// A socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel lacks the protocol, or the process may not open more files.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        let mut socket = netlink_sys::Socket::new(protocol.number())
            .map_err(|error| Error::system("open a netlink socket", error))?;
        socket.bind_auto().map_err(|error| Error::system("bind a netlink socket", error))?;
        // Kernels before 4.12 know neither; answers are then longer and have no text.
        let capped = socket.set_cap_ack(true).is_ok();
        let _without_text = socket.set_ext_ack(true);
        let receive = buffers::enlarge_receive(socket.as_fd())?;
        let send = buffers::enlarge_send(socket.as_fd())?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))
            .map_err(|error| Error::system("set a netlink socket's receive timeout", error))?;
        let answer_cost = if capped { ANSWER_COST } else { 2 * ANSWER_COST };
        Ok(Self {
            socket,
            protocol,
            home: Home::here(),
            groups: Vec::new(),
            failure: None,
            sequence: 1,
            requests_per_send: (receive / answer_cost).clamp(1, REQUESTS_PER_SEND),
            questions_per_send: (receive / ask::ANSWER_COST).clamp(1, REQUESTS_PER_SEND),
            bytes_per_send: buffers::bytes_per_send(send),
            longest_send: buffers::longest_send(send),
            is_strict: false,
            outgoing: Vec::new(),
            buffer: Vec::new(),
            traffic: Traffic::default(),
        })
    }

    /// A socket in another network namespace.
    ///
    /// # Errors
    /// As [`Socket::open`], and when the namespace may not be entered.
    pub fn open_in(namespace: &Namespace, protocol: Protocol) -> Result<Self, Error> {
        namespace.run(|| Self::open(protocol))?
    }

    /// Has rtnetlink take what a listing is asked with at its word (`NETLINK_GET_STRICT_CHK`): the
    /// kernel then lists only what fits, and refuses what it cannot choose by.
    ///
    /// # Errors
    /// When the kernel is older than 4.20, which lists everything.
    pub fn list_strictly(&mut self) -> Result<(), Error> {
        self.socket
            .set_netlink_get_strict_chk(true)
            .map_err(|error| Error::system("have netlink listings checked strictly", error))?;
        self.is_strict = true;
        Ok(())
    }

    /// Sends every request of the batch and returns a result for each, in their order. The batch
    /// is left as it was, and may be sent again.
    ///
    /// A refused request does not keep the ones behind it from being tried.
    ///
    /// # Errors
    /// When the socket itself fails; it is then unknown which requests were carried out.
    pub fn send(&mut self, batch: &Batch) -> Result<Vec<Result<(), Error>>, Error> {
        self.send_typed(batch, None)
    }

    /// As [`Socket::send`], with one message type for all requests, whatever they were pushed with:
    /// for a family of generic netlink, whose number may be another one by now.
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn send_to_family(
        &mut self,
        family: u16,
        batch: &Batch,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        self.send_typed(batch, Some(family))
    }

    fn send_typed(
        &mut self,
        batch: &Batch,
        message_type: Option<u16>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let mut results = Vec::with_capacity(batch.len());
        while results.len() < batch.len() {
            let first = results.len();
            if batch.is_too_long(first) {
                results.push(Err(Error::too_long()));
                continue;
            }
            let count = batch.span(first, self.requests_per_send, self.bytes_per_send);
            let part = Part { first, count, acknowledged: Some(count - 1), message_type };
            let begin = self.transmit(batch, part)?;
            results.resize_with(first + count, || Ok(()));
            let results = results.get_mut(first..).unwrap_or_default();
            let last = results.len().saturating_sub(1);
            self.collect(begin, results, |is_answered| is_answered(last), |_, _| ())?;
        }
        Ok(results)
    }

    /// Sends a transaction of nfnetlink whole: it is carried out as one, or not at all. Returns the requests that
    /// were refused, by their places in the batch; none if the transaction was carried out.
    ///
    /// The batch's first request opens the transaction (`NFNL_MSG_BATCH_BEGIN`), and the kernel addresses to it what
    /// went wrong with the whole. A batch that ends without `NFNL_MSG_BATCH_END` is only checked, and rolled back.
    ///
    /// The kernel works through every request, and answers those that fail in their order; the one at `acknowledged`
    /// in any case (`nfnetlink_rcv_batch` in net/netfilter/nfnetlink.c). This should be the last one but for an end:
    /// kernels before 6.10 acknowledge no end.
    ///
    /// # Errors
    /// A lost answer or a failing socket, upon which it is not known whether the transaction was carried out.
    pub fn transact(
        &mut self,
        batch: &Batch,
        acknowledged: usize,
    ) -> Result<Vec<(usize, Error)>, Error> {
        if (0..batch.len()).any(|index| batch.is_too_long(index)) {
            return Err(Error::too_long());
        }
        let mut results = Vec::new();
        results.resize_with(batch.len(), || Ok(()));
        let part = Part { acknowledged: Some(acknowledged), ..Part::new(0, batch.len()) };
        let begin = self.transmit(batch, part)?;
        let is_complete =
            |is_answered: &dyn Fn(usize) -> bool| is_answered(0) || is_answered(acknowledged);
        self.collect(begin, &mut results, is_complete, |_, _| ())?;
        let (lost, refused): (Vec<_>, Vec<_>) = (results.into_iter().enumerate())
            .filter_map(|(place, result)| Some((place, result.err()?)))
            .partition(|(_, error)| error.refusal().is_none());
        // One refusal is enough to know that nothing was carried out.
        match lost.into_iter().next() {
            Some((_, error)) if refused.is_empty() => Err(error),
            _ => Ok(refused),
        }
    }

    /// Sends the batch's only request, which is answered by messages of the subsystem's own, and
    /// returns what `decode` makes of them; `None` passes over a message.
    ///
    /// # Errors
    /// The kernel's refusal, an answer that is lost or cannot be read, or a failing socket.
    pub fn request<T>(
        &mut self,
        batch: &Batch,
        decode: impl FnMut(&[u8]) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, Error> {
        let part = Part { acknowledged: Some(0), ..Part::new(0, 1) };
        let sequence = self.transmit(batch, part)?;
        let (answers, _) = self.listing(sequence, collecting(decode))?;
        Ok(answers)
    }

    /// Asks for a listing, and returns what `decode` makes of each message; `None` passes over it.
    ///
    /// A listing that a change disturbed is asked for again, up to [`DUMP_ATTEMPTS`] times.
    ///
    /// # Errors
    /// The kernel's refusal, an answer that is lost or cannot be read, or a failing socket.
    pub fn dump<T>(
        &mut self,
        message_type: u16,
        write: impl FnOnce(&mut MessageWriter<'_>),
        decode: impl FnMut(&[u8]) -> Result<Option<T>, DecodeError>,
    ) -> Result<Vec<T>, Error> {
        self.fold_dump(message_type, write, collecting(decode))
    }

    /// Lists as [`Socket::dump`] does, and has each message added to one value, which begins anew with each retry: what is
    /// counted need not be held.
    ///
    /// # Errors
    /// As [`Socket::dump`].
    pub fn fold_dump<A: Default>(
        &mut self,
        message_type: u16,
        write: impl FnOnce(&mut MessageWriter<'_>),
        mut add: impl FnMut(&mut A, &[u8]) -> Result<(), DecodeError>,
    ) -> Result<A, Error> {
        let mut batch = Batch::new();
        batch.push(message_type, NLM_F_DUMP, write);
        for attempt in 0..DUMP_ATTEMPTS {
            let sent = self.transmit(&batch, Part::new(0, 1));
            match sent.and_then(|sequence| self.listing(sequence, &mut add)) {
                Ok((whole, false)) => return Ok(whole),
                Err(error) if !is_disturbance(&error) => return Err(error),
                Ok((_, true)) | Err(_) => {}
            }
            // The disturbing process needs some time. The first retries are immediate all the same.
            std::thread::sleep(Duration::from_millis(attempt as u64));
        }
        Err(Error::interrupted(DUMP_ATTEMPTS))
    }

    /// Joins a multicast group, to be told of changes by [`Socket::notifications`].
    ///
    /// # Errors
    /// When the group does not exist or may not be joined.
    pub fn join(&mut self, group: u32) -> Result<(), Error> {
        self.socket
            .add_membership(group)
            .map_err(|error| Error::system("join a netlink multicast group", error))?;
        self.groups.push(group);
        Ok(())
    }

    /// Waits for notifications and hands over those that are there by then. A quiet time of some
    /// seconds ends the wait without any.
    ///
    /// # Errors
    /// [`Error::is_overrun`] when notifications were lost: what they told must be read anew. The
    /// same goes for any other failure.
    pub fn notifications(&mut self, mut each: impl FnMut(Notification<'_>)) -> Result<(), Error> {
        self.repair()?;
        self.receive_notifications(Wait::ForFirst, &mut each).map(drop)
    }

    /// Hands over the notifications that are there, without waiting for one.
    ///
    /// # Errors
    /// As [`notifications`](Self::notifications).
    pub fn notifications_so_far(
        &mut self,
        mut each: impl FnMut(Notification<'_>),
    ) -> Result<(), Error> {
        self.repair()?;
        while self.receive_notifications(Wait::Not, &mut each)? {}
        Ok(())
    }

    /// Returns false if there was none.
    fn receive_notifications(
        &mut self,
        wait: Wait,
        each: &mut dyn FnMut(Notification<'_>),
    ) -> Result<bool, Error> {
        self.have_buffer();
        let received = match datagrams::receive(self.socket.as_fd(), &mut self.buffer, wait) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(self.failed("receive from a netlink socket", error)),
        };
        for (part, length) in received.parts(&self.buffer) {
            self.traffic.receives += 1;
            for reply in replies(part.get(..length).ok_or_else(|| Error::truncated(length))?) {
                if let Content::Message { message_type, body } = reply?.content {
                    each(Notification { message_type, body });
                }
            }
        }
        Ok(true)
    }

    /// Throws away what is queued. After an overrun the kernel drops messages without a word until
    /// nothing is (`netlink_overrun` and `netlink_rcv_wake` in net/netlink/af_netlink.c), so what
    /// is to be read anew must be read after this.
    pub fn discard_notifications(&mut self) {
        // The buffer cannot hold more.
        for _ in 0..RECEIVE_BUFFER / SMALLEST_DATAGRAM {
            if matches!(self.receive(RecvFlags::DONTWAIT), Err(errno) if errno != Errno::NOBUFS) {
                return;
            }
        }
    }

    /// Returns the number by which the kernel knows the socket (`nlmsg_pid`, "port id"), which changes when a failed
    /// socket is opened again.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn port(&self) -> Result<u32, Error> {
        let mut address = netlink_sys::SocketAddr::new(0, 0);
        self.socket
            .get_address(&mut address)
            .map_err(|error| Error::system("read a netlink socket's address", error))?;
        Ok(address.port_number())
    }

    /// Returns the most bytes that one send may have: a transaction must fit in it.
    #[must_use]
    pub fn longest_send(&self) -> usize {
        self.longest_send
    }

    /// Returns the traffic over this socket since it was opened.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Sends a part of a batch and returns the first request's sequence number.
    fn transmit(&mut self, batch: &Batch, part: Part) -> Result<u32, Error> {
        if batch.is_too_long(part.first) {
            return Err(Error::too_long());
        }
        self.repair()?;
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(u32::try_from(part.count).unwrap_or(u32::MAX));
        batch.copy_numbered(part, sequence, &mut self.outgoing);
        self.traffic.requests += part.count as u64;
        self.traffic.sends += 1;
        let sent = match self.socket.send(&self.outgoing, 0) {
            Ok(sent) => sent,
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                return Err(self.failed("send to a netlink socket", errno));
            }
        };
        if sent == self.outgoing.len() { Ok(sequence) } else { Err(Error::truncated(sent)) }
    }

    /// Reads the answers to the requests numbered from `begin` on into `results`, which are all
    /// "done" at first: the kernel answers only those that fail, and those that ask for it. Reads
    /// until `is_complete` says so, which can ask whether the request at an index is answered. What
    /// the subsystem says itself is handed over, with its request's index.
    fn collect(
        &mut self,
        begin: u32,
        results: &mut [Result<(), Error>],
        is_complete: impl Fn(&dyn Fn(usize) -> bool) -> bool,
        mut message: impl FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        let mut answered = vec![false; results.len()];
        let mut lost = None;
        while !is_complete(&|index| answered.get(index).copied().unwrap_or(true)) {
            // After an overrun the last answer may be among the lost, so nothing is waited for:
            // what is not in the buffer by now will not come.
            let wait = if lost.is_some() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            let length = match self.receive(wait) {
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => {
                    lost = Some(Error::answer_lost as fn() -> Error);
                    continue;
                }
                Err(Errno::AGAIN) => {
                    lost = lost.or(Some(Error::no_answer));
                    break;
                }
                Err(error) => return Err(self.failed("receive from a netlink socket", error)),
            };
            for reply in replies(self.datagram(length)?) {
                let reply = reply?;
                let index = reply.sequence.wrapping_sub(begin) as usize;
                // Anything else is a late answer to a request that was given up.
                let (Some(result), Some(answered)) =
                    (results.get_mut(index), answered.get_mut(index))
                else {
                    continue;
                };
                *answered = true;
                match reply.content {
                    Content::Refused(refusal) => *result = Err(refusal.into()),
                    Content::Message { body, .. } => message(index, body),
                    _ => {}
                }
            }
        }
        if let Some(error) = lost {
            for (result, _) in results.iter_mut().zip(answered).filter(|(_, answered)| !answered) {
                *result = Err(error());
            }
        }
        Ok(())
    }

    /// Reads the messages that answer `sequence`, and whether a change disturbed them.
    fn listing<A: Default>(
        &mut self,
        sequence: u32,
        mut add: impl FnMut(&mut A, &[u8]) -> Result<(), DecodeError>,
    ) -> Result<(A, bool), Error> {
        let mut whole = A::default();
        let mut interrupted = false;
        let mut broken = None;
        loop {
            let length = match self.receive(RecvFlags::empty()) {
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => return Err(Error::answer_lost()),
                Err(Errno::AGAIN) => return Err(Error::no_answer()),
                Err(error) => return Err(self.failed("receive from a netlink socket", error)),
            };
            for reply in replies(self.datagram(length)?) {
                let reply = reply?;
                if reply.sequence != sequence {
                    continue;
                }
                interrupted |= reply.interrupted;
                match reply.content {
                    // The rest is read all the same, so that the next listing finds a quiet socket.
                    Content::Message { body, .. } => {
                        if let Err(error) = add(&mut whole, body) {
                            broken = Some(error);
                        }
                    }
                    Content::Refused(refusal) => return Err(refusal.into()),
                    Content::Overrun => return Err(Error::answer_lost()),
                    Content::Done | Content::Acknowledged => {
                        return broken.map_or(Ok((whole, interrupted)), |error| Err(error.into()));
                    }
                    Content::Nothing => {}
                }
            }
        }
    }

    /// Notes whether this means that the socket has to be opened again.
    fn failed(&mut self, call: &'static str, errno: Errno) -> Error {
        let error = Error::system(call, errno);
        if error.is_socket_failure() {
            self.failure = Some(errno);
        }
        error
    }

    /// Opens it again if it has failed.
    fn repair(&mut self) -> Result<(), Error> {
        let Some(errno) = self.failure else { return Ok(()) };
        self.home.must_be_here()?;
        let mut opened = Self::open(self.protocol)?;
        for group in &self.groups {
            opened.join(*group)?;
        }
        if self.is_strict {
            opened.list_strictly()?;
        }
        tracing::warn!("a netlink socket failed ({errno}) and was opened again");
        let former = std::mem::replace(&mut self.socket, opened.socket);
        if [Errno::BADF, Errno::NOTSOCK].contains(&errno) {
            // Other code may own the descriptor's number by now: a drop would close it.
            std::mem::forget(former);
        }
        self.failure = None;
        Ok(())
    }

    fn receive(&mut self, flags: RecvFlags) -> Result<usize, Errno> {
        self.have_buffer();
        // MSG_TRUNC returns the datagram's own length, so that one that was cut is noticed.
        let (_, length) =
            rustix::net::recv(&self.socket, &mut self.buffer[..], flags | RecvFlags::TRUNC)?;
        self.traffic.receives += 1;
        Ok(length)
    }

    fn have_buffer(&mut self) {
        if self.buffer.is_empty() {
            // What is not written to takes no memory.
            self.buffer = vec![0; DATAGRAM];
        }
    }

    fn datagram(&self, length: usize) -> Result<&[u8], Error> {
        self.buffer.get(..length).ok_or_else(|| Error::truncated(length))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Has what `decode` makes of each message added to a list.
fn collecting<T>(
    mut decode: impl FnMut(&[u8]) -> Result<Option<T>, DecodeError>,
) -> impl FnMut(&mut Vec<T>, &[u8]) -> Result<(), DecodeError> {
    move |items, body| {
        items.extend(decode(body)?);
        Ok(())
    }
}

/// Errors of a listing that another try can cure: the kernel ran into a change (`EINTR`,
/// `EAGAIN`), another listing on this socket is not yet done (`EBUSY`), or answers were lost.
fn is_disturbance(error: &Error) -> bool {
    let again = [Errno::INTR, Errno::AGAIN, Errno::BUSY].map(Errno::raw_os_error);
    error.is_answer_lost() || error.refusal().is_some_and(|r| again.contains(&r.errno))
}

#[cfg(test)]
mod tests;
