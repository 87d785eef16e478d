//! Connections that were led elsewhere than their clients sent to, as connection tracking has them.

use std::net::SocketAddr;

use netlink::{Attribute, DecodeError, attributes};
use plan::flows::Flow;
use plan::kernel_objects::Frontend;
use plan::model::{Family, Protocol};
use plan::settings::FastPath;

use super::message::{self, Filter, HEADER, Tuple};
use super::{ConntrackClient, Error};

const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_TIMESTAMP: u16 = 20;
const CTA_TIMESTAMP_START: u16 = 1;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_SCTP: u16 = 3;
/// `CTA_PROTOINFO_TCP_STATE`, and the same of SCTP.
const STATE: u16 = 1;
/// `IPS_SEEN_REPLY`
const SEEN_REPLY: u32 = 1 << 1;
/// `IPS_DST_NAT`: what IPVS leads elsewhere does not have it.
const DESTINATION_TRANSLATED: u32 = 1 << 5;
/// `IPS_OFFLOAD`
const OFFLOADED: u32 = 1 << 14;

/// State if the kernel reports none.
const NO_STATE: &str = "NONE";

/// `enum tcp_conntrack` (include/uapi/linux/netfilter/nf_conntrack_tcp.h), as /proc prints it.
const TCP: [&str; 10] = [
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
];

/// `enum sctp_conntrack` (include/uapi/linux/netfilter/nf_conntrack_sctp.h).
const SCTP: [&str; 10] = [
    "NONE",
    "CLOSED",
    "COOKIE_WAIT",
    "COOKIE_ECHOED",
    "ESTABLISHED",
    "SHUTDOWN_SENT",
    "SHUTDOWN_RECD",
    "SHUTDOWN_ACK_SENT",
    "HEARTBEAT_SENT",
    "HEARTBEAT_ACKED",
];

/// A connection whose destination was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedConnection {
    pub protocol: Protocol,
    pub client: SocketAddr,
    /// Address and port that the client sends to.
    pub destination: SocketAddr,
    pub endpoint: SocketAddr,
    /// Address and port that the endpoint takes for the client's.
    pub seen: SocketAddr,
    /// State in the kernel's word; of UDP, `REPLIED` or `UNREPLIED`, and `OFFLOAD` where the kernel reports none because the
    /// flow table has the connection.
    pub state: &'static str,
    /// Path of its packets; [`FastPath::Off`]: IPVS carries them.
    pub path: FastPath,
    /// Number of seconds until it is forgotten, if no packet comes; 0 while the flow table has it.
    pub expires: u32,
    /// Time at which it began, in nanoseconds since 1970, where the kernel notes that
    /// (`net.netfilter.nf_conntrack_timestamp`).
    pub began: Option<u64>,
}

/// Connections to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub family: Family,
    /// Those to one frontend; none: all.
    pub frontend: Option<Frontend>,
    /// Most connections to list.
    pub most: usize,
}

/// Connections that were listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrackedConnections {
    pub found: Vec<TrackedConnection>,
    /// Number of those that were wanted, and were one too many.
    pub n_more: usize,
}

impl ConntrackClient {
    /// Lists connections whose destination was changed, those that `has` says yes to. The kernel walks
    /// its whole table for it.
    pub fn connections(
        &mut self,
        wanted: &Wanted,
        has: impl Fn(&TrackedConnection) -> bool,
    ) -> Result<TrackedConnections, Error> {
        // Kernels before 5.8 ignore the filter, and 5.8 itself refuses it.
        let filter = match wanted.frontend {
            Some(frontend) if self.can_filter => Filter::to(&frontend),
            _ => Filter::all(wanted.family),
        };
        match self.list_connections(&filter, wanted, &has) {
            Err(error) if filter != Filter::all(wanted.family) && error.refusal().is_some() => {
                self.can_filter = false;
                self.list_connections(&Filter::all(wanted.family), wanted, &has)
            }
            listed => listed,
        }
    }

    fn list_connections(
        &mut self,
        filter: &Filter,
        wanted: &Wanted,
        has: &impl Fn(&TrackedConnection) -> bool,
    ) -> Result<TrackedConnections, Error> {
        self.socket.fold_dump(
            message::GET,
            |message| filter.write(message),
            |listed: &mut TrackedConnections, body| {
                let connection = TrackedConnection::decode(body)?;
                let Some(connection) = connection.filter(|it| wanted.has(it) && has(it)) else {
                    return Ok(());
                };
                if listed.found.len() == wanted.most {
                    listed.n_more += 1;
                } else {
                    listed.found.push(connection);
                }
                Ok(())
            },
        )
    }
}

impl Wanted {
    fn has(&self, connection: &TrackedConnection) -> bool {
        Family::of(connection.destination.ip()) == self.family
            && self.frontend.is_none_or(|frontend| frontend == connection.frontend())
    }
}

impl TrackedConnection {
    pub(super) fn flow(&self) -> Flow {
        let Self { protocol, destination, endpoint: reply_source, .. } = *self;
        Flow { protocol, destination, reply_source }
    }

    /// True if IPVS would count it as active: it is established, and not of UDP. IPVS counts a connection as inactive
    /// (`__ip_vs_update_dest` in net/netfilter/ipvs/ip_vs_ctl.c) until its protocol says otherwise, and UDP never does
    /// (`udp_state_transition` in ip_vs_proto_udp.c).
    pub(super) fn is_active(&self) -> bool {
        let is_established = self.path == FastPath::Offload
            || matches!(self.state, "ESTABLISHED" | "HEARTBEAT_SENT" | "HEARTBEAT_ACKED");
        is_established && self.protocol != Protocol::Udp
    }

    /// Returns what the client takes for the server.
    pub fn frontend(&self) -> Frontend {
        let Self { protocol, destination, .. } = *self;
        Frontend { address: destination.ip(), protocol, port: destination.port() }
    }

    /// Reads an entry. None: its destination is what the client sent to, or it is of another protocol,
    /// or in a zone.
    pub(super) fn decode(body: &[u8]) -> Result<Option<Self>, DecodeError> {
        let Some(entry) = message::decode(body)? else { return Ok(None) };
        if entry.flow.reply_source == entry.flow.destination {
            return Ok(None);
        }
        let mut connection = Self {
            protocol: entry.flow.protocol,
            client: entry.source,
            destination: entry.flow.destination,
            endpoint: entry.flow.reply_source,
            seen: entry.source,
            state: NO_STATE,
            path: FastPath::Off,
            expires: 0,
            began: None,
        };
        for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
            let attribute = attribute?;
            match attribute.kind {
                message::CTA_TUPLE_REPLY => {
                    if let Some(reply) = Tuple::decode(attribute.value)? {
                        connection.seen = reply.destination;
                    }
                }
                CTA_STATUS => connection.take_status(attribute.u32_be()?),
                CTA_PROTOINFO => connection.read_state(&attribute)?,
                CTA_TIMEOUT => connection.expires = attribute.u32_be()?,
                CTA_TIMESTAMP => connection.began = began(&attribute)?,
                _ => {}
            }
        }
        if connection.path == FastPath::Offload && connection.state == NO_STATE {
            connection.state = "OFFLOAD";
        }
        Ok(Some(connection))
    }

    fn take_status(&mut self, status: u32) {
        if self.protocol == Protocol::Udp {
            self.state = if status & SEEN_REPLY != 0 { "REPLIED" } else { "UNREPLIED" };
        }
        self.path = match status {
            _ if status & OFFLOADED != 0 => FastPath::Offload,
            _ if status & DESTINATION_TRANSLATED != 0 => FastPath::Conntrack,
            _ => FastPath::Off,
        };
    }

    fn read_state(&mut self, attribute: &Attribute<'_>) -> Result<(), DecodeError> {
        for of_protocol in attribute.nested() {
            let of_protocol = of_protocol?;
            let names = match of_protocol.kind {
                CTA_PROTOINFO_TCP => TCP,
                CTA_PROTOINFO_SCTP => SCTP,
                _ => continue,
            };
            for value in of_protocol.nested() {
                let value = value?;
                if value.kind == STATE {
                    let number = usize::from(value.u8()?);
                    self.state = names.get(number).copied().unwrap_or("UNKNOWN");
                }
            }
        }
        Ok(())
    }
}

fn began(attribute: &Attribute<'_>) -> Result<Option<u64>, DecodeError> {
    for time in attribute.nested() {
        let time = time?;
        if time.kind == CTA_TIMESTAMP_START {
            return Ok(Some(u64::from_be_bytes(time.array()?)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use netlink::{AttributeWriter, Batch};
    use proptest::prelude::*;

    use super::*;

    fn tuple(protocol: Protocol, source: &str, destination: &str) -> Tuple {
        Tuple {
            protocol,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    /// An entry as the kernel lists it, of this protocol and state.
    fn listed(protocol: Protocol, endpoint: &str, seen: &str, state: u8) -> Vec<u8> {
        let mut batch = Batch::new();
        batch.push(message::GET, 0, |message| {
            message::write_header(message, Family::V4);
            let mut attributes = message.attributes();
            let original = tuple(protocol, "192.168.0.100:20000", "10.96.0.10:80");
            attributes.nested(message::CTA_TUPLE_ORIG, |it| original.write(it));
            let reply = tuple(protocol, endpoint, seen);
            attributes.nested(message::CTA_TUPLE_REPLY, |it| reply.write(it));
            attributes.u32_be(CTA_STATUS, 0x18c | (u32::from(state == 3) * SEEN_REPLY));
            attributes.u32_be(CTA_TIMEOUT, 86_399);
            let kind = match protocol {
                Protocol::Tcp => CTA_PROTOINFO_TCP,
                _ => CTA_PROTOINFO_SCTP,
            };
            if protocol != Protocol::Udp {
                let state = |it: &mut AttributeWriter<'_>| it.u8(STATE, state);
                attributes.nested(CTA_PROTOINFO, |info| info.nested(kind, state));
            }
            attributes.u32_be(12, 7);
            attributes.nested(CTA_TIMESTAMP, |time| {
                time.bytes(CTA_TIMESTAMP_START, &1_700_000_000_000_000_000_u64.to_be_bytes());
            });
        });
        batch.body(0).unwrap().to_vec()
    }

    #[test]
    fn a_connection_is_read_with_the_source_that_its_endpoint_sees() {
        let body = listed(Protocol::Tcp, "10.244.1.11:8080", "192.0.2.1:51000", 3);
        let expected = TrackedConnection {
            protocol: Protocol::Tcp,
            client: "192.168.0.100:20000".parse().unwrap(),
            destination: "10.96.0.10:80".parse().unwrap(),
            endpoint: "10.244.1.11:8080".parse().unwrap(),
            seen: "192.0.2.1:51000".parse().unwrap(),
            state: "ESTABLISHED",
            path: FastPath::Off,
            expires: 86_399,
            began: Some(1_700_000_000_000_000_000),
        };
        assert_eq!(TrackedConnection::decode(&body), Ok(Some(expected)));
    }

    #[test]
    fn what_reached_its_own_destination_is_passed_over() {
        let body = listed(Protocol::Tcp, "10.96.0.10:80", "192.168.0.100:20000", 3);
        assert_eq!(TrackedConnection::decode(&body), Ok(None));
    }

    #[test]
    fn states_are_named_by_protocol() {
        let state = |protocol, number| {
            let body = listed(protocol, "10.244.1.11:8080", "192.168.0.100:20000", number);
            TrackedConnection::decode(&body).unwrap().unwrap().state
        };
        assert_eq!(state(Protocol::Tcp, 7), "TIME_WAIT");
        assert_eq!(state(Protocol::Sctp, 4), "ESTABLISHED");
        assert_eq!(state(Protocol::Sctp, 99), "UNKNOWN");
    }

    #[test]
    fn of_udp_the_state_is_whether_it_was_answered() {
        let state = |number| {
            let body = listed(Protocol::Udp, "10.244.1.11:53", "192.168.0.100:20000", number);
            TrackedConnection::decode(&body).unwrap().unwrap().state
        };
        assert_eq!((state(3), state(0)), ("REPLIED", "UNREPLIED"));
    }

    #[test]
    fn what_carries_a_connection_is_read_from_its_status() {
        let mut connection = TrackedConnection::decode(&listed(
            Protocol::Tcp,
            "10.244.1.11:8080",
            "192.0.2.1:51000",
            3,
        ));
        let connection = connection.as_mut().unwrap().as_mut().unwrap();
        for (status, path) in
            [(0x18e, FastPath::Off), (0x1ae, FastPath::Conntrack), (0x41ae, FastPath::Offload)]
        {
            connection.take_status(status);
            assert_eq!(connection.path, path);
        }
    }

    proptest! {
        #[test]
        fn a_damaged_connection_is_read_without_a_panic(
            cut in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut bytes = listed(Protocol::Tcp, "10.244.1.11:8080", "192.0.2.1:51000", 3);
            let place = cut.index(bytes.len());
            let _damaged = TrackedConnection::decode(&bytes[..place]);
            bytes[place] = byte;
            let _damaged = TrackedConnection::decode(&bytes);
        }
    }
}
