//! Connection tracking, over ctnetlink: removing stale flows, listing and counting connections that are led elsewhere.
//!
//! Entries are listed, stale ones are picked here, then deleted one by one in batches. Since Linux
//! 5.8 a listing can have a filter. Older kernels ignore it, so every entry is checked as if there
//! were none. The filter never has an address, because for IPv6 some kernels leave out exactly the
//! matching entries (`ctnetlink_filter_match_tuple` in net/netfilter/nf_conntrack_netlink.c took
//! the result of `ipv6_addr_cmp` for its opposite).

mod connection;
mod counts;
mod message;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use netlink::{Batch, Error, Socket};
use plan::flows::FlowTargets;
use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol};
use rustix::io::Errno;

pub use connection::{TrackedConnection, TrackedConnections, Wanted};
pub use counts::{REST, TrackedCounts};
use message::{ConntrackEntry, Filter};

/// Most ports that are listed one by one. For each the kernel walks its whole table, which takes
/// some milliseconds. A listing without a port returns every flow of the node by that protocol.
const MOST_PORTS: usize = 8;

/// ctnetlink, in the network namespace it was opened in.
#[derive(Debug)]
pub struct ConntrackClient {
    socket: Socket,
    /// True if the kernel knows filters, as far as we have seen.
    can_filter: bool,
}

impl ConntrackClient {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(netlink::Protocol::Netfilter)?, can_filter: true })
    }

    /// Removes the stale flows of a family and returns their number.
    pub(crate) fn remove_stale(
        &mut self,
        family: Family,
        targets: &FlowTargets,
    ) -> Result<u64, Error> {
        let mut batch = Batch::new();
        for entry in self.stale(family, targets)? {
            message::push_delete(&mut batch, &entry);
        }
        let mut deleted = 0;
        for result in self.socket.send(&batch)? {
            match result {
                Ok(()) => deleted += 1,
                // The flow has ended, or another one has taken its place.
                Err(error) if is(&error, Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    fn stale(
        &mut self,
        family: Family,
        targets: &FlowTargets,
    ) -> Result<Vec<ConntrackEntry>, Error> {
        if self.can_filter {
            match self.filtered(family, targets) {
                Ok(Some(stale)) => return Ok(stale),
                Ok(None) => self.can_filter = false,
                // Linux 5.8 itself refuses every filter. If something else is wrong, listing
                // without a filter shows it.
                Err(error) if is(&error, Errno::OPNOTSUPP) || is(&error, Errno::INVAL) => {}
                Err(error) => return Err(error),
            }
        }
        let (stale, _) = self.list(&Filter::all(family), targets)?;
        self.can_filter = false;
        Ok(stale)
    }

    /// Returns none if the kernel ignored a filter.
    fn filtered(
        &mut self,
        family: Family,
        targets: &FlowTargets,
    ) -> Result<Option<Vec<ConntrackEntry>>, Error> {
        let mut stale = Vec::new();
        for filter in filters(family, targets.frontends()) {
            let (entries, is_heeded) = self.list(&filter, targets)?;
            if !is_heeded {
                return Ok(None);
            }
            stale.extend(entries);
        }
        Ok(Some(stale))
    }

    /// Returns the stale entries that pass a filter, and true if all listed entries passed it.
    fn list(
        &mut self,
        filter: &Filter,
        targets: &FlowTargets,
    ) -> Result<(Vec<ConntrackEntry>, bool), Error> {
        let mut is_heeded = true;
        let stale = self.socket.dump(
            message::GET,
            |message| filter.write(message),
            |body| {
                let Some(entry) = message::decode(body)? else { return Ok(None) };
                let passes = filter.passes(&entry.flow);
                is_heeded &= passes;
                Ok((passes && targets.is_stale(&entry.flow)).then_some(entry))
            },
        )?;
        Ok((stale, is_heeded))
    }
}

/// Returns filters that together list all flows to these frontends, each once.
fn filters<'a>(family: Family, frontends: impl Iterator<Item = &'a Frontend>) -> Vec<Filter> {
    let mut ports: BTreeMap<Protocol, BTreeSet<u16>> = BTreeMap::new();
    for frontend in frontends.filter(|frontend| frontend.family() == family) {
        ports.entry(frontend.protocol).or_default().insert(frontend.port);
    }
    let mut filters = Vec::new();
    for (protocol, ports) in ports {
        // The kernel heeds ports for TCP and UDP only.
        if protocol != Protocol::Sctp && ports.len() <= MOST_PORTS {
            filters.extend(ports.iter().map(|port| Filter::port(family, protocol, *port)));
        } else {
            filters.push(Filter::protocol(family, protocol));
        }
    }
    filters
}

fn is(error: &Error, errno: Errno) -> bool {
    error.refusal().is_some_and(|refusal| refusal.errno == errno.raw_os_error())
}
