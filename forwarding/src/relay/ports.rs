//! Proxy ports, from a range or from the kernel.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A range of ports, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: NonZeroU16,
    last: NonZeroU16,
}

/// A text that is no range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a port range: {reason}; write 40000-40999, 40000+999 or 40000, or leave it \
     empty to let the kernel choose"
)]
pub struct InvalidPortRange {
    text: String,
    reason: &'static str,
}

/// Reason why a Service port has no proxy port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoProxyPort {
    /// Every port of the range is taken.
    #[error(
        "no port of --proxy-port-range {range} is free: of its {} ports, {served} serve other \
         Service ports or their last connections, and other programs have {taken} (`ss -ltunp` \
         shows them); widen the range, or leave it empty to let the kernel choose", range.count()
    )]
    Exhausted {
        range: PortRange,
        /// Ports of it that the relay has.
        served: usize,
        /// Ports of it that cannot be had.
        taken: usize,
    },
    /// No port of this address can be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Address {
        address: IpAddr,
        /// The kernel's answer.
        reason: String,
    },
}

/// Allocator of proxy ports. No port is handed out twice at a time, whatever the protocol.
///
/// A port that comes back is handed out again as late as possible: connection tracking still leads
/// UDP clients of its last Service to it for a while.
#[derive(Debug)]
pub(super) struct PortAllocator {
    free: Mutex<FreePorts>,
    returned: Notify,
}

/// Ports of a range that are not handed out.
#[derive(Debug)]
struct FreePorts {
    /// None: the kernel chooses the ports.
    range: Option<PortRange>,
    /// The next port that was never handed out, as a distance from the first.
    next: u32,
    /// Number of ports that were never handed out.
    unused: u32,
    /// Ports that came back, the first one first.
    returned: VecDeque<u16>,
    /// Number of leases.
    leased: usize,
}

/// A proxy port that is in use. It comes back when this is dropped.
#[derive(Debug)]
pub(super) struct PortLease {
    allocator: Arc<PortAllocator>,
    /// The port and its range; none: the kernel chose the port.
    port: Option<(PortRange, u16)>,
}

impl PortRange {
    /// A range, unless it ends before it begins.
    #[must_use]
    pub fn new(first: NonZeroU16, last: NonZeroU16) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Parses kube-proxy's `--proxy-port-range`: `first-last`, `first+more` or one port. None: the
    /// kernel chooses, as with an empty text, `0` and `0-0`.
    pub fn parse(text: &str) -> Result<Option<Self>, InvalidPortRange> {
        let invalid = |reason| InvalidPortRange { text: text.to_owned(), reason };
        let number = |text: &str| {
            let text = text.trim();
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = if is_number { text.parse::<u32>().ok() } else { None };
            number.ok_or(invalid("a port must be a number"))
        };
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(None);
        }
        let (first, last) = if let Some((first, last)) = trimmed.split_once('-') {
            (number(first)?, number(last)?)
        } else if let Some((first, more)) = trimmed.split_once('+') {
            let first = number(first)?;
            (first, first.saturating_add(number(more)?))
        } else {
            let port = number(trimmed)?;
            (port, port)
        };
        if (first, last) == (0, 0) {
            return Ok(None);
        }
        let port = |number| u16::try_from(number).map_err(|_| invalid("the last port is 65535"));
        let (first, last) = (port(first)?, port(last)?);
        let first = NonZeroU16::new(first).ok_or(invalid("the first port is 1"))?;
        let range = NonZeroU16::new(last).and_then(|last| Self::new(first, last));
        range.map(Some).ok_or(invalid("it ends before it begins"))
    }

    /// Number of ports.
    #[must_use]
    pub fn count(self) -> u32 {
        u32::from(self.last.get()) - u32::from(self.first.get()) + 1
    }

    /// Returns the port at a distance from the first.
    fn port(self, distance: u32) -> u16 {
        let port = u32::from(self.first.get()) + distance % self.count();
        u16::try_from(port).unwrap_or(self.last.get())
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl PortAllocator {
    /// Hands out the ports of a range from a random one on; without one, those that the kernel
    /// chooses.
    pub(super) fn new(range: Option<PortRange>) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(FreePorts::new(range)), returned: Notify::new() })
    }

    /// Hands out the ports of another range from now on.
    pub(super) fn set_range(&self, range: Option<PortRange>) {
        let mut free = self.free.lock();
        if free.range != range {
            let leased = free.leased;
            *free = FreePorts { leased, ..FreePorts::new(range) };
            self.returned.notify_one();
        }
    }

    /// Binds a socket to a port of an address: the first one that can be had.
    pub(super) fn bind<S>(
        self: &Arc<Self>,
        address: IpAddr,
        bind: impl Fn(SocketAddr) -> io::Result<S>,
    ) -> Result<(S, PortLease), NoProxyPort> {
        let failed =
            |error: &io::Error| NoProxyPort::Address { address, reason: error.to_string() };
        let Some(range) = self.free.lock().range else {
            let socket = bind(SocketAddr::new(address, 0)).map_err(|error| failed(&error))?;
            return Ok((socket, self.lease(None)));
        };
        // Each free port is tried once.
        let free = self.free.lock().count();
        for _ in 0..free {
            let Some(port) = self.free.lock().take(range) else { break };
            match bind(SocketAddr::new(address, port)) {
                Ok(socket) => return Ok((socket, self.lease(Some((range, port))))),
                Err(error) => {
                    self.free.lock().returned.push_back(port);
                    // Another program has it, or a process without privileges may not have it.
                    let is_of_port = [io::ErrorKind::AddrInUse, io::ErrorKind::PermissionDenied]
                        .contains(&error.kind());
                    if !is_of_port {
                        return Err(failed(&error));
                    }
                }
            }
        }
        Err(NoProxyPort::Exhausted { range, served: self.leased(), taken: free })
    }

    fn lease(self: &Arc<Self>, port: Option<(PortRange, u16)>) -> PortLease {
        self.free.lock().leased += 1;
        PortLease { allocator: Arc::clone(self), port }
    }

    /// Number of ports that are in use.
    pub(super) fn leased(&self) -> usize {
        self.free.lock().leased
    }

    /// Waits until a port of the range comes back.
    pub(super) async fn until_returned(&self) {
        self.returned.notified().await;
    }
}

impl FreePorts {
    fn new(range: Option<PortRange>) -> Self {
        let unused = range.map_or(0, PortRange::count);
        let next = fastrand::u32(..unused.max(1));
        Self { range, next, unused, returned: VecDeque::new(), leased: 0 }
    }

    fn count(&self) -> usize {
        self.returned.len() + usize::try_from(self.unused).unwrap_or(usize::MAX)
    }

    /// Takes a port: one that was never handed out, or else the one that came back first.
    fn take(&mut self, range: PortRange) -> Option<u16> {
        if self.unused == 0 {
            return self.returned.pop_front();
        }
        self.unused -= 1;
        self.next += 1;
        Some(range.port(self.next - 1))
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        let mut free = self.allocator.free.lock();
        free.leased -= 1;
        if let Some((range, port)) = self.port
            && free.range == Some(range)
        {
            free.returned.push_back(port);
            self.allocator.returned.notify_one();
        }
    }
}
