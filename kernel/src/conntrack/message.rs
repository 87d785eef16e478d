//! ctnetlink's messages: `struct nfgenmsg`, then attributes.
//!
//! Source: include/uapi/linux/netfilter/{nfnetlink,nfnetlink_conntrack}.h.

use std::net::{IpAddr, SocketAddr};

use netlink::{AttributeWriter, Batch, DecodeError, MessageWriter, attributes};
use plan::flows::Flow;
use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol};

use crate::family::{AF_INET, AF_INET6};

/// `NFNL_SUBSYS_CTNETLINK` is the upper byte of the message type.
const SUBSYSTEM: u16 = 1 << 8;
/// `IPCTNL_MSG_CT_GET`
pub(super) const GET: u16 = SUBSYSTEM | 1;
/// `IPCTNL_MSG_CT_DELETE`. Without a tuple it would empty the whole table.
const DELETE: u16 = SUBSYSTEM | 2;
/// `struct nfgenmsg`: family, version (0), resource (0).
pub(super) const HEADER: usize = 4;

pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;

const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;

const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;

const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

const CTA_FILTER_ORIG_FLAGS: u16 = 1;
/// Parts of the filter's tuple that count (net/netfilter/nf_internals.h, `CTA_FILTER_F_*`).
const FILTER_PROTO_NUM: u32 = 1 << 3;
const FILTER_PROTO_DST_PORT: u32 = 1 << 5;

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_SCTP: u8 = 132;

/// An entry of connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConntrackEntry {
    pub(super) flow: Flow,
    /// Address and port that the client sends from.
    pub(super) source: SocketAddr,
    /// Distinguishes it from one that takes its place.
    pub(super) id: u32,
}

/// One direction of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tuple {
    pub(super) protocol: Protocol,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
}

/// Flows that a listing is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filter {
    family: Family,
    protocol: Option<Protocol>,
    /// Port that clients send to.
    port: Option<u16>,
}

impl Filter {
    pub(super) const fn all(family: Family) -> Self {
        Self { family, protocol: None, port: None }
    }

    pub(super) const fn protocol(family: Family, protocol: Protocol) -> Self {
        Self { family, protocol: Some(protocol), port: None }
    }

    pub(super) const fn port(family: Family, protocol: Protocol, port: u16) -> Self {
        Self { family, protocol: Some(protocol), port: Some(port) }
    }

    /// Those to a frontend, as far as the kernel can choose: see `super`.
    pub(super) fn to(frontend: &Frontend) -> Self {
        let Frontend { protocol, port, .. } = *frontend;
        // The kernel heeds ports for TCP and UDP only.
        let port = (protocol != Protocol::Sctp).then_some(port);
        Self { family: frontend.family(), protocol: Some(protocol), port }
    }

    pub(super) fn passes(&self, flow: &Flow) -> bool {
        Family::of(flow.destination.ip()) == self.family
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.port.is_none_or(|port| port == flow.destination.port())
    }

    pub(super) fn write(&self, message: &mut MessageWriter<'_>) {
        write_header(message, self.family);
        let Some(protocol) = self.protocol else { return };
        let mut flags = FILTER_PROTO_NUM;
        let mut attributes = message.attributes();
        attributes.nested(CTA_TUPLE_ORIG, |tuple| {
            tuple.nested(CTA_TUPLE_PROTO, |proto| {
                proto.u8(CTA_PROTO_NUM, number(protocol));
                if let Some(port) = self.port {
                    proto.u16_be(CTA_PROTO_DST_PORT, port);
                    flags |= FILTER_PROTO_DST_PORT;
                }
            });
        });
        attributes.nested(CTA_FILTER, |filter| filter.u32(CTA_FILTER_ORIG_FLAGS, flags));
    }
}

/// Asks for an entry's deletion: of this very one, not of one that has taken its place.
pub(super) fn push_delete(batch: &mut Batch, entry: &ConntrackEntry) {
    let ConntrackEntry { flow, source, id } = *entry;
    let tuple = Tuple { protocol: flow.protocol, source, destination: flow.destination };
    batch.push(DELETE, 0, |message| {
        write_header(message, Family::of(flow.destination.ip()));
        let mut attributes = message.attributes();
        attributes.nested(CTA_TUPLE_ORIG, |attributes| tuple.write(attributes));
        attributes.u32_be(CTA_ID, id);
    });
}

/// Reads an entry. None: it is of another protocol, or in a zone.
///
/// Zones of connection tracking (Open vSwitch makes them) show the same packets once more, before
/// or after they were redirected for us.
pub(super) fn decode(body: &[u8]) -> Result<Option<ConntrackEntry>, DecodeError> {
    let broken = |problem: &str| DecodeError::new("conntrack entry", problem);
    let rest = body.get(HEADER..).ok_or_else(|| broken("shorter than struct nfgenmsg"))?;
    let (mut original, mut reply, mut id) = (None, None, None);
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            CTA_TUPLE_ORIG => match Tuple::decode(attribute.value)? {
                Some(tuple) => original = Some(tuple),
                None => return Ok(None),
            },
            CTA_TUPLE_REPLY => reply = Tuple::decode(attribute.value)?,
            CTA_ID => id = Some(u32::from_be_bytes(attribute.array()?)),
            CTA_ZONE if attribute.u16_be()? != 0 => return Ok(None),
            _ => {}
        }
    }
    let Some(Tuple { protocol, source, destination }) = original else { return Ok(None) };
    let reply_source = match reply {
        Some(reply) if reply.protocol == protocol => reply.source,
        _ => return Ok(None),
    };
    let id = id.ok_or_else(|| broken("without CTA_ID"))?;
    Ok(Some(ConntrackEntry { flow: Flow { protocol, destination, reply_source }, source, id }))
}

impl Tuple {
    pub(super) fn write(&self, attributes: &mut AttributeWriter<'_>) {
        let (source, destination) = match Family::of(self.destination.ip()) {
            Family::V4 => (CTA_IP_V4_SRC, CTA_IP_V4_DST),
            Family::V6 => (CTA_IP_V6_SRC, CTA_IP_V6_DST),
        };
        attributes.nested(CTA_TUPLE_IP, |addresses| {
            addresses.address(source, self.source.ip());
            addresses.address(destination, self.destination.ip());
        });
        attributes.nested(CTA_TUPLE_PROTO, |proto| {
            proto.u8(CTA_PROTO_NUM, number(self.protocol));
            proto.u16_be(CTA_PROTO_SRC_PORT, self.source.port());
            proto.u16_be(CTA_PROTO_DST_PORT, self.destination.port());
        });
    }

    /// None: it is of a protocol without ports, or in a zone.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        let (mut addresses, mut ports, mut protocol) = ((None, None), (None, None), None);
        for attribute in attributes(bytes) {
            let attribute = attribute?;
            match attribute.kind {
                CTA_TUPLE_IP => addresses = decode_addresses(attribute.value)?,
                CTA_TUPLE_PROTO => {
                    for attribute in attribute.nested() {
                        let attribute = attribute?;
                        match attribute.kind {
                            CTA_PROTO_NUM => protocol = protocol_of(attribute.u8()?),
                            CTA_PROTO_SRC_PORT => ports.0 = Some(attribute.u16_be()?),
                            CTA_PROTO_DST_PORT => ports.1 = Some(attribute.u16_be()?),
                            _ => {}
                        }
                    }
                }
                CTA_TUPLE_ZONE if attribute.u16_be()? != 0 => return Ok(None),
                _ => {}
            }
        }
        let ((Some(source), Some(destination)), (Some(from), Some(to)), Some(protocol)) =
            (addresses, ports, protocol)
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            protocol,
            source: SocketAddr::new(source, from),
            destination: SocketAddr::new(destination, to),
        }))
    }
}

/// Source and destination.
fn decode_addresses(bytes: &[u8]) -> Result<(Option<IpAddr>, Option<IpAddr>), DecodeError> {
    let mut addresses = (None, None);
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            CTA_IP_V4_SRC => addresses.0 = Some(attribute.ipv4()?.into()),
            CTA_IP_V4_DST => addresses.1 = Some(attribute.ipv4()?.into()),
            CTA_IP_V6_SRC => addresses.0 = Some(attribute.ipv6()?.into()),
            CTA_IP_V6_DST => addresses.1 = Some(attribute.ipv6()?.into()),
            _ => {}
        }
    }
    Ok(addresses)
}

pub(super) fn write_header(message: &mut MessageWriter<'_>, family: Family) {
    let family = match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    };
    message.body().extend_from_slice(&[family, 0, 0, 0]);
}

const fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => IPPROTO_TCP,
        Protocol::Udp => IPPROTO_UDP,
        Protocol::Sctp => IPPROTO_SCTP,
    }
}

const fn protocol_of(number: u8) -> Option<Protocol> {
    match number {
        IPPROTO_TCP => Some(Protocol::Tcp),
        IPPROTO_UDP => Some(Protocol::Udp),
        IPPROTO_SCTP => Some(Protocol::Sctp),
        _ => None,
    }
}
