//! The way that the kernel would take to an address, as its routes have it.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{Batch, DecodeError, Error, Protocol, Socket, attributes};
use rustix::io::Errno;

use super::family::{AF_INET, AF_INET6};
use super::link::{AddressScope, LinkAddress, Links};

const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTN_LOCAL: u8 = 2;
/// `struct rtmsg`: family, length of the destination, length of the source, type of service, table,
/// protocol, scope, type, flags (u32).
const HEADER: usize = 12;

/// rtnetlink, in the network namespace it was opened in.
#[derive(Debug)]
pub struct Ways {
    socket: Socket,
    links: Links,
}

/// Way to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// True if the address is one of this host.
    pub is_local: bool,
    /// Index of the interface by which packets leave.
    pub interface: u32,
    /// Source of connections that this host makes.
    pub source: Option<IpAddr>,
    /// Router on the way.
    gateway: Option<IpAddr>,
}

/// An interface by which packets come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// True if packets come to it by ports of its own.
    pub is_bridge: bool,
}

impl Ways {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(Protocol::Route)?, links: Links::open()? })
    }

    /// Returns the way to an address; none: no route leads there.
    pub fn to(&mut self, address: IpAddr) -> Result<Option<Way>, Error> {
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

    /// The addresses of all interfaces.
    pub fn addresses(&mut self) -> Result<Vec<LinkAddress>, Error> {
        self.links.addresses()
    }

    /// Returns the address that packets to an address have as their source once they are masqueraded: one of the
    /// interface by which they leave, whatever source the route has. None: no route leads there.
    /// `addresses`: those of all interfaces.
    pub fn masqueraded(
        &mut self,
        to: IpAddr,
        addresses: &[LinkAddress],
    ) -> Result<Option<IpAddr>, Error> {
        let Some(way) = self.to(to)? else { return Ok(None) };
        let of_interface = addresses.iter().filter(|it| it.index == way.interface);
        Ok(masquerading(of_interface, to, way.gateway).or(way.source))
    }

    /// Returns the interface of this index; none: it has gone.
    pub fn interface(&mut self, index: u32) -> Result<Option<Interface>, Error> {
        let link = self.links.by_index(index)?;
        Ok(link.map(|link| Interface { is_bridge: link.kind == "bridge", name: link.name }))
    }
}

/// Returns the address of an interface that masquerading takes: of IPv4 the first one whose network the next hop
/// is in, or else the first (`inet_select_addr` in net/ipv4/devinet.c); of IPv6 the one that has most in common
/// with the destination (`ipv6_dev_get_saddr` in net/ipv6/addrconf.c, without its rules for home and temporary
/// addresses).
fn masquerading<'a>(
    addresses: impl Iterator<Item = &'a LinkAddress>,
    to: IpAddr,
    gateway: Option<IpAddr>,
) -> Option<IpAddr> {
    let is_candidate = |it: &&LinkAddress| {
        it.address.is_ipv4() == to.is_ipv4() && it.scope == AddressScope::Universe.number()
    };
    match to {
        IpAddr::V4(_) => {
            let next_hop = gateway.filter(IpAddr::is_ipv4).unwrap_or(to);
            let primary: Vec<_> =
                addresses.filter(is_candidate).filter(|it| !it.is_secondary).collect();
            let has_next_hop = |it: &&&LinkAddress| {
                IpNet::new(it.address, it.prefix).is_ok_and(|net| net.contains(&next_hop))
            };
            primary.iter().find(has_next_hop).or(primary.first()).map(|it| it.address)
        }
        IpAddr::V6(to) => {
            let in_common = |it: &&LinkAddress| match it.address {
                IpAddr::V6(address) => (address.to_bits() ^ to.to_bits()).leading_zeros(),
                IpAddr::V4(_) => 0,
            };
            let usable = addresses.filter(is_candidate).filter(|it| !it.is_deprecated);
            usable.max_by_key(in_common).map(|it| it.address)
        }
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
    let mut way = Way { is_local: kind == RTN_LOCAL, interface: 0, source: None, gateway: None };
    for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        match (attribute.kind, family) {
            (RTA_OIF, _) => way.interface = attribute.u32()?,
            (RTA_GATEWAY, AF_INET) => way.gateway = Some(attribute.ipv4()?.into()),
            (RTA_GATEWAY, AF_INET6) => way.gateway = Some(attribute.ipv6()?.into()),
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
    fn masquerading_takes_an_address_of_the_interface_by_the_next_hop() {
        let address = |text: &str, scope, is_secondary| {
            let net: IpNet = text.parse().unwrap();
            LinkAddress {
                index: 2,
                address: net.addr(),
                prefix: net.prefix_len(),
                scope,
                is_deprecated: false,
                is_secondary,
            }
        };
        let found = |addresses: &[LinkAddress], to: &str, gateway: Option<&str>| {
            let gateway = gateway.map(|it| it.parse().unwrap());
            masquerading(addresses.iter(), to.parse().unwrap(), gateway).unwrap().to_string()
        };
        let two = [
            address("192.0.2.5/24", 0, false),
            address("192.0.2.50/24", 0, true),
            address("198.51.100.7/24", 0, false),
            address("203.0.113.1/24", 253, false),
            address("2001:db8:1::5/64", 0, false),
            address("2001:db8:2::5/64", 0, false),
        ];
        assert_eq!(found(&two, "10.244.2.11", Some("192.0.2.1")), "192.0.2.5");
        assert_eq!(found(&two, "10.244.2.11", Some("198.51.100.1")), "198.51.100.7");
        assert_eq!(found(&two, "198.51.100.9", None), "198.51.100.7");
        assert_eq!(found(&two, "203.0.113.9", None), "192.0.2.5", "of the link's scope");
        assert_eq!(found(&two, "2001:db8:2::9", None), "2001:db8:2::5");
        assert_eq!(masquerading(two[1..2].iter(), [10, 0, 0, 1].into(), None), None);
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
