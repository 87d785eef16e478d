//! The way that the kernel would take to an address, as its routes have it.

use std::net::IpAddr;

use netlink::{Batch, DecodeError, Error, Protocol, Socket, attributes};
use rustix::io::Errno;

use super::link::Links;

const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RTN_LOCAL: u8 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `struct rtmsg`: family, length of the destination, length of the source, type of service, table,
/// protocol, scope, type, flags (u32).
const HEADER: usize = 12;

/// rtnetlink, in the network namespace it was opened in.
#[derive(Debug)]
pub(crate) struct Ways {
    socket: Socket,
    links: Links,
}

/// Way to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    /// True if the address is one of this host.
    pub(crate) is_local: bool,
    /// Index of the interface by which packets leave.
    pub(crate) interface: u32,
    /// Source of connections that this host makes.
    pub(crate) source: Option<IpAddr>,
}

/// An interface by which packets come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// True if packets come to it by ports of its own.
    pub(crate) is_bridge: bool,
}

// === impl Ways ===

impl Ways {
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(Protocol::Route)?, links: Links::open()? })
    }

    /// Returns the way to an address; none: no route leads there.
    pub(crate) fn to(&mut self, address: IpAddr) -> Result<Option<Way>, Error> {
        let mut batch = Batch::new();
        batch.push(RTM_GETROUTE, 0, |message| {
            let (family, length) = if address.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
            message.body().extend_from_slice(&[family, length]);
            message.body().extend_from_slice(&[0; HEADER - 2]);
            message.attributes().address(RTA_DST, address);
        });
        match self.socket.request(&batch, decode) {
            Ok(ways) => Ok(ways.into_iter().next()),
            Err(error) if is_nowhere(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the interface of this index; none: it has gone.
    pub(crate) fn interface(&mut self, index: u32) -> Result<Option<Interface>, Error> {
        let link = self.links.by_index(index)?;
        Ok(link.map(|link| Interface { is_bridge: link.kind == "bridge", name: link.name }))
    }
}

/// True if a refusal says that no route leads to the address.
fn is_nowhere(error: &Error) -> bool {
    // Of a route that refuses, the kernel says what it would tell a program that connects.
    [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::ACCESS, Errno::INVAL, Errno::AFNOSUPPORT]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn decode(body: &[u8]) -> Result<Option<Way>, DecodeError> {
    let header = body
        .first_chunk::<HEADER>()
        .ok_or_else(|| DecodeError::new("route", "shorter than struct rtmsg"))?;
    let [family, _, _, _, _, _, _, kind, ..] = *header;
    let mut way = Way { is_local: kind == RTN_LOCAL, interface: 0, source: None };
    for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        match (attribute.kind, family) {
            (RTA_OIF, _) => way.interface = attribute.u32()?,
            (RTA_PREFSRC, AF_INET) => way.source = Some(attribute.ipv4()?.into()),
            (RTA_PREFSRC, AF_INET6) => way.source = Some(attribute.ipv6()?.into()),
            _ => {}
        }
    }
    Ok(Some(way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_this_host_is_by_the_loopback_interface() {
        let mut ways = Ways::open().unwrap();
        let way = ways.to([127, 0, 0, 1].into()).unwrap().unwrap();
        assert!(way.is_local, "{way:?}");
        assert_eq!(way.source, Some([127, 0, 0, 1].into()));
        let interface = ways.interface(way.interface).unwrap().unwrap();
        assert_eq!(interface, Interface { name: "lo".to_owned(), is_bridge: false });
        assert_eq!(ways.interface(u32::from(u16::MAX)).unwrap(), None);
    }

    #[test]
    fn a_short_message_is_an_error() {
        assert!(decode(&[2, 32, 0]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _any = decode(&body);
        }
    }
}
