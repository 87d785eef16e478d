//! The dummy interface `kube-ipvs0` and its addresses, over rtnetlink.
//!
//! Messages are `struct ifinfomsg` and `struct ifaddrmsg` with two or three attributes each, so
//! they are written here rather than built from a general library's types: adding 10,000 addresses
//! is then one buffer and twenty system calls.
//!
//! Source: include/uapi/linux/{rtnetlink,if_link,if_addr}.h.

use std::net::IpAddr;

use netlink::{Batch, DecodeError, Error, MessageWriter, Protocol, Socket, attributes};
use plan::kernel_objects::LINK;
use rustix::io::Errno;

use super::family::{AF_INET, AF_INET6};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const IFLA_IFNAME: u16 = 3;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_EXT_MASK: u16 = 29;
/// Spares the numbers of packets and bytes.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
/// No duplicate address detection: the address is meant to be on every node at once.
const IFA_F_NODAD: u32 = 0x02;
/// No route to the address's network, which is the address itself: without one, the kernel need not
/// look through all other addresses for one that shares it when this one goes
/// (`check_cleanup_prefix_route` in net/ipv6/addrconf.c).
const IFA_F_NOPREFIXROUTE: u32 = 0x200;
/// Another address of the same network was there before.
const IFA_F_SECONDARY: u32 = 0x01;
/// The address's preferred lifetime has passed.
const IFA_F_DEPRECATED: u32 = 0x20;
/// `struct ifa_cacheinfo`: preferred for no time, valid forever (`INFINITY_LIFE_TIME`), two timestamps
/// of the kernel's. So the kernel chooses the address as a source for connections to itself only:
/// `ipv6_get_saddr_eval` in net/ipv6/addrconf.c would choose among addresses of other interfaces by the
/// longest common prefix, and find a Service's.
const NEVER_A_SOURCE: [u8; 16] = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
/// `struct ifinfomsg`: family, padding, type (u16), index (i32), flags (u32), change mask (u32).
const LINK_HEADER: usize = 16;
/// Place of the index in `struct ifinfomsg`.
const LINK_INDEX: usize = 4;
/// `struct ifaddrmsg`: family, prefix length, flags, scope, index (u32).
const ADDRESS_HEADER: usize = 8;

/// rtnetlink, in the network namespace it was opened in.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

/// Reach of an address: `enum rt_scope_t` (include/uapi/linux/rtnetlink.h). The kernel decides by
/// itself what an IPv6 address has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum AddressScope {
    /// `RT_SCOPE_UNIVERSE`, `global` to iproute2.
    #[default]
    Universe,
    /// `RT_SCOPE_HOST`: for this host only. Other hosts do not learn of it.
    Host,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub(crate) name: String,
    /// `dummy`, `veth`, …; empty for hardware.
    pub(crate) kind: String,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddress {
    pub index: u32,
    pub address: IpAddr,
    pub prefix: u8,
    /// As the kernel writes it: see `AddressScope::number`.
    pub scope: u8,
    /// True if the kernel does not choose it as a source where it has another one.
    pub(crate) is_deprecated: bool,
    /// True if it came after another one of the same network.
    pub(crate) is_secondary: bool,
}

/// Addresses to add to an interface or remove from it, in order, in one batch.
#[derive(Debug)]
pub(crate) struct AddressBatch {
    batch: Batch,
    index: u32,
}

impl Links {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// `kube-ipvs0`, if it is there.
    pub fn find(&mut self) -> Result<Option<Link>, Error> {
        self.get(|message| {
            message.body().extend_from_slice(&[0; LINK_HEADER]);
            message.attributes().string(IFLA_IFNAME, LINK);
        })
    }

    /// The interface of an index, if it is there.
    pub(crate) fn by_index(&mut self, index: u32) -> Result<Option<Link>, Error> {
        self.get(|message| {
            let body = message.body();
            body.extend_from_slice(&[0; LINK_INDEX]);
            body.extend_from_slice(&index.to_ne_bytes());
            body.extend_from_slice(&[0; LINK_HEADER - LINK_INDEX - 4]);
        })
    }

    fn get(&mut self, ask: impl FnOnce(&mut MessageWriter<'_>)) -> Result<Option<Link>, Error> {
        let mut batch = Batch::new();
        batch.push(RTM_GETLINK, 0, ask);
        match self.socket.request(&batch, decode_link) {
            Ok(links) => Ok(links.into_iter().next()),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes `kube-ipvs0`: a dummy without a queue. It stays down, which is enough for its
    /// addresses to be local, and keeps adding them cheap.
    pub(crate) fn create(&mut self) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.push(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |message| {
            message.body().extend_from_slice(&[0; LINK_HEADER]);
            let mut attributes = message.attributes();
            attributes.string(IFLA_IFNAME, LINK);
            attributes.u32(IFLA_TXQLEN, 0);
            attributes.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "dummy"));
        });
        self.socket.send(&batch)?.into_iter().collect()
    }

    /// Deletes an interface with its addresses. One that is gone already is no error.
    pub(crate) fn delete(&mut self, index: u32) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.push(RTM_DELLINK, 0, |message| {
            let body = message.body();
            body.extend_from_slice(&[0; LINK_INDEX]);
            body.extend_from_slice(&index.to_ne_bytes());
            body.extend_from_slice(&[0; LINK_HEADER - LINK_INDEX - 4]);
        });
        match self.socket.send(&batch)?.into_iter().collect() {
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(()),
            result => result,
        }
    }

    /// The addresses of all interfaces, both families.
    pub fn addresses(&mut self) -> Result<Vec<LinkAddress>, Error> {
        self.socket.dump(
            RTM_GETADDR,
            |message| message.body().extend_from_slice(&[0; ADDRESS_HEADER]),
            decode_address,
        )
    }

    /// All interfaces.
    pub(crate) fn all(&mut self) -> Result<Vec<Link>, Error> {
        self.socket.dump(
            RTM_GETLINK,
            |message| {
                message.body().extend_from_slice(&[0; LINK_HEADER]);
                message.attributes().u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
            },
            decode_link,
        )
    }

    /// All bridges. The kernel leaves out what is of another kind (`link_kind_filtered` in
    /// net/core/rtnetlink.c).
    pub(crate) fn bridges(&mut self) -> Result<Vec<Link>, Error> {
        let links = self.socket.dump(
            RTM_GETLINK,
            |message| {
                message.body().extend_from_slice(&[0; LINK_HEADER]);
                let mut attributes = message.attributes();
                attributes.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "bridge"));
            },
            decode_link,
        )?;
        Ok(links.into_iter().filter(|link| link.kind == "bridge").collect())
    }

    pub(crate) fn traffic(&self) -> netlink::Traffic {
        self.socket.traffic()
    }

    /// Carries a batch out, and returns a result for each of its addresses.
    pub(crate) fn send(&mut self, batch: &AddressBatch) -> Result<Vec<Result<(), Error>>, Error> {
        self.socket.send(&batch.batch)
    }
}

impl AddressScope {
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Universe => 0,
            Self::Host => 254,
        }
    }
}

impl LinkAddress {
    /// True if the kernel gave the interface this address by itself.
    pub(crate) fn is_link_local_v6(&self) -> bool {
        matches!(self.address, IpAddr::V6(address) if address.is_unicast_link_local())
    }
}

impl AddressBatch {
    pub(crate) fn new(index: u32) -> Self {
        Self { batch: Batch::new(), index }
    }

    pub(crate) fn add(&mut self, address: IpAddr, scope: AddressScope) {
        let prefix = full_length(address);
        self.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, (address, prefix), scope);
    }

    /// Makes the kernel choose an IPv6 address, which is there, as a source no more. It stays in its
    /// place meanwhile (`inet6_addr_modify` in net/ipv6/addrconf.c).
    pub(crate) fn deprecate(&mut self, address: IpAddr) {
        let place = (address, full_length(address));
        self.push(RTM_NEWADDR, NLM_F_REPLACE, place, AddressScope::default());
    }

    /// Removes an address, whatever its scope is.
    pub(crate) fn remove(&mut self, address: IpAddr) {
        self.remove_prefix(address, full_length(address));
    }

    /// Removes an address that was bound with this prefix length.
    pub(crate) fn remove_prefix(&mut self, address: IpAddr, prefix: u8) {
        self.push(RTM_DELADDR, 0, (address, prefix), AddressScope::default());
    }

    /// A message of it, without its header.
    #[cfg(test)]
    pub(super) fn body(&self, index: usize) -> Option<&[u8]> {
        self.batch.body(index)
    }

    fn push(
        &mut self,
        message_type: u16,
        flags: u16,
        (address, prefix): (IpAddr, u8),
        scope: AddressScope,
    ) {
        let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
        self.batch.push(message_type, flags, |message| {
            message.body().extend_from_slice(&[family, prefix, 0, scope.number()]);
            message.body().extend_from_slice(&self.index.to_ne_bytes());
            let mut attributes = message.attributes();
            attributes.address(IFA_LOCAL, address);
            // To be removed, one of IPv4 is known by the other alone, whatever its prefix and peer.
            if message_type == RTM_NEWADDR {
                attributes.address(IFA_ADDRESS, address);
            }
            if address.is_ipv6() {
                if message_type == RTM_NEWADDR {
                    attributes.bytes(IFA_CACHEINFO, &NEVER_A_SOURCE);
                }
                attributes.u32(IFA_FLAGS, IFA_F_NODAD | IFA_F_NOPREFIXROUTE);
            }
        });
    }
}

/// The prefix length of an address by itself.
const fn full_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

pub(super) fn decode_link(body: &[u8]) -> Result<Option<Link>, DecodeError> {
    let header = body
        .first_chunk::<LINK_HEADER>()
        .ok_or_else(|| DecodeError::new("interface", "shorter than struct ifinfomsg"))?;
    let [_, _, _, _, i0, i1, i2, i3, ..] = *header;
    let (mut name, mut kind) = (String::new(), String::new());
    for attribute in attributes(body.get(LINK_HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_IFNAME => attribute.string()?.clone_into(&mut name),
            IFLA_LINKINFO => {
                for inner in attribute.nested() {
                    let inner = inner?;
                    if inner.kind == IFLA_INFO_KIND {
                        inner.string()?.clone_into(&mut kind);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Some(Link { index: u32::from_ne_bytes([i0, i1, i2, i3]), name, kind }))
}

/// `IFA_LOCAL` is the interface's own address; where it is absent, `IFA_ADDRESS` is.
pub(super) fn decode_address(body: &[u8]) -> Result<Option<LinkAddress>, DecodeError> {
    let header = body
        .first_chunk::<ADDRESS_HEADER>()
        .ok_or_else(|| DecodeError::new("address", "shorter than struct ifaddrmsg"))?;
    let [family, prefix, flags, scope, i0, i1, i2, i3] = *header;
    let (mut address, mut local) = (None, None);
    // Flags above the eighth are in an attribute, which all kernels of today send.
    let is_deprecated = u32::from(flags) & IFA_F_DEPRECATED != 0;
    for attribute in attributes(body.get(ADDRESS_HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        let place = match attribute.kind {
            IFA_ADDRESS => &mut address,
            IFA_LOCAL => &mut local,
            _ => continue,
        };
        *place = match family {
            AF_INET => Some(IpAddr::V4(attribute.ipv4()?)),
            AF_INET6 => Some(IpAddr::V6(attribute.ipv6()?)),
            _ => None,
        };
    }
    let index = u32::from_ne_bytes([i0, i1, i2, i3]);
    let found = local.or(address);
    let is_secondary = u32::from(flags) & IFA_F_SECONDARY != 0;
    let of = |address| LinkAddress { index, address, prefix, scope, is_deprecated, is_secondary };
    Ok(found.map(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_request_is_what_the_header_file_says() {
        let mut batch = AddressBatch::new(7);
        for (index, (scope, number)) in
            [(AddressScope::Universe, 0), (AddressScope::Host, 254)].iter().enumerate()
        {
            batch.add(IpAddr::from([10, 96, 0, 1]), *scope);
            assert_eq!(
                batch.batch.body(index).unwrap(),
                [
                    2, 32, 0, *number, 7, 0, 0, 0, // family, prefix, flags, scope, index
                    8, 0, 2, 0, 10, 96, 0, 1, // IFA_LOCAL
                    8, 0, 1, 0, 10, 96, 0, 1, // IFA_ADDRESS
                ]
            );
        }
    }

    #[test]
    fn an_ipv6_address_is_neither_probed_for_nor_routed_twice() {
        let mut batch = AddressBatch::new(7);
        batch.add("fd00:96::1".parse().unwrap(), AddressScope::Universe);
        let body = batch.batch.body(0).unwrap();
        assert_eq!(body[..ADDRESS_HEADER], [10, 128, 0, 0, 7, 0, 0, 0]);
        let lifetimes = [[20, 0, 6, 0], [0; 4], [0xff; 4], [0; 4], [0; 4]].concat();
        assert!(body.windows(20).any(|it| it == lifetimes), "IFA_CACHEINFO: {body:?}");
        assert_eq!(body[body.len() - 8..], [8, 0, 8, 0, 0x02, 0x02, 0, 0], "IFA_FLAGS");
    }

    #[test]
    fn what_is_written_is_read() {
        for address in ["10.96.0.1", "fd00:96::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            let mut batch = AddressBatch::new(7);
            batch.remove(address);
            let read = decode_address(batch.batch.body(0).unwrap()).unwrap().unwrap();
            assert_eq!((read.index, read.address, read.scope), (7, address, 0));
            assert_eq!(read.prefix, if address.is_ipv4() { 32 } else { 128 });
        }
    }

    #[test]
    fn short_messages_are_errors() {
        assert!(decode_address(&[2, 32, 0]).is_err());
        assert!(decode_link(&[0; 15]).is_err());
        assert!(decode_address(&[2, 32, 0, 0, 1, 0, 0, 0, 6, 0, 2, 0, 10, 96]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _any = (decode_address(&body), decode_link(&body));
        }
    }

    #[test]
    fn this_machine_has_a_loopback_address() {
        let addresses = Links::open().unwrap().addresses().unwrap();
        assert!(addresses.iter().any(|found| found.address.is_loopback()), "{addresses:?}");
    }
}
