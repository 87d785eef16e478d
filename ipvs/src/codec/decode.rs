//! Bytes into what they mean.

use std::net::IpAddr;
use std::num::NonZeroU32;

use netlink::{Attribute, DecodeError, attributes, generic};

use crate::flags::{Flags, TunnelFlags};
use crate::id::{AddressFamily, Protocol, VirtualServerId};
use crate::name::{InterfaceName, ParseError, PersistenceEngine, Scheduler};
use crate::real_server::{ForwardingMethod, RealServer, RealServerStatus, TunnelOptions};
use crate::settings::{Info, SyncDaemon, SyncRole, Timeouts, Version};
use crate::statistics::Statistics;
use crate::uapi::{attribute, daemon, destination, info, service, statistics};
use crate::virtual_server::{Netmask, VirtualServer, VirtualServerStatus};

pub(super) const VIRTUAL_SERVER: &str = "virtual server";
const REAL_SERVER: &str = "real server";
const SYNC_DAEMON: &str = "sync daemon";
const INFO: &str = "IPVS information";
const TIMEOUTS: &str = "IPVS timeouts";

/// Reads an answer to [`Request::GetService`] or [`Request::ListServices`].
///
/// [`Request::GetService`]: crate::codec::Request::GetService
/// [`Request::ListServices`]: crate::codec::Request::ListServices
///
/// # Errors
/// When something that the kernel always sends is missing or malformed. Only the persistence
/// engine and the statistics may be absent.
pub fn decode_virtual_server(body: &[u8]) -> Result<VirtualServerStatus, DecodeError> {
    let mut fields = ServiceFields::default();
    for attribute in inside(body, attribute::SERVICE, VIRTUAL_SERVER)? {
        fields.take(attribute?)?;
    }
    fields.finish()
}

/// Reads one message of an answer to [`Request::ListDestinations`].
///
/// `family` is the virtual server's: Linux before 3.18 does not say which one the real server's
/// is, and it was always the same.
///
/// [`Request::ListDestinations`]: crate::codec::Request::ListDestinations
///
/// # Errors
/// When something that the kernel always sends is missing or malformed. Only the address family,
/// the tunnel and the statistics may be absent.
pub fn decode_real_server(
    body: &[u8],
    family: AddressFamily,
) -> Result<RealServerStatus, DecodeError> {
    let mut fields = DestinationFields::default();
    for attribute in inside(body, attribute::DEST, REAL_SERVER)? {
        fields.take(attribute?)?;
    }
    fields.finish(family)
}

/// Reads one message of an answer to [`Request::ListDaemons`].
///
/// [`Request::ListDaemons`]: crate::codec::Request::ListDaemons
///
/// # Errors
/// When its role, interface or sync ID is missing or malformed.
pub fn decode_sync_daemon(body: &[u8]) -> Result<SyncDaemon, DecodeError> {
    let (mut role, mut interface, mut sync_id, mut group) = (None, None, None, None);
    let (mut datagram_length, mut port, mut ttl) = (0, 0, 0);
    for attribute in inside(body, attribute::DAEMON, SYNC_DAEMON)? {
        let attribute = attribute?;
        match attribute.kind {
            daemon::STATE => role = SyncRole::from_number(attribute.u32()?),
            daemon::MCAST_IFN => interface = Some(name(attribute.string()?, InterfaceName::new)?),
            daemon::SYNC_ID => sync_id = Some(attribute.u32()?),
            daemon::SYNC_MAXLEN => datagram_length = attribute.u16()?,
            daemon::MCAST_GROUP => group = Some(IpAddr::V4(attribute.ipv4()?)),
            daemon::MCAST_GROUP6 => group = Some(IpAddr::V6(attribute.ipv6()?)),
            daemon::MCAST_PORT => port = attribute.u16()?,
            daemon::MCAST_TTL => ttl = attribute.u8()?,
            _ => {}
        }
    }
    Ok(SyncDaemon {
        role: role.ok_or_else(|| missing(SYNC_DAEMON, "its role"))?,
        interface: interface.ok_or_else(|| missing(SYNC_DAEMON, "its interface"))?,
        sync_id: sync_id.ok_or_else(|| missing(SYNC_DAEMON, "its sync ID"))?,
        datagram_length,
        group,
        port,
        ttl,
    })
}

/// Reads the answer to [`Request::GetInfo`].
///
/// [`Request::GetInfo`]: crate::codec::Request::GetInfo
///
/// # Errors
/// When a part is missing or malformed.
pub fn decode_info(body: &[u8]) -> Result<Info, DecodeError> {
    let (mut version, mut size) = (None, None);
    for attribute in outermost(body, INFO)? {
        let attribute = attribute?;
        match attribute.kind {
            info::VERSION => version = Some(attribute.u32()?),
            info::CONN_TAB_SIZE => size = Some(attribute.u32()?),
            _ => {}
        }
    }
    Ok(Info {
        version: Version(version.ok_or_else(|| missing(INFO, "the version"))?),
        connection_table_size: size.ok_or_else(|| missing(INFO, "the table's size"))?,
    })
}

/// Reads the answer to [`Request::GetTimeouts`]. A kernel without TCP or UDP in IPVS leaves their
/// timeouts out, and they are 0 then.
///
/// [`Request::GetTimeouts`]: crate::codec::Request::GetTimeouts
///
/// # Errors
/// When one is malformed.
pub fn decode_timeouts(body: &[u8]) -> Result<Timeouts, DecodeError> {
    let mut timeouts = Timeouts::default();
    for attribute in outermost(body, TIMEOUTS)? {
        let attribute = attribute?;
        match attribute.kind {
            attribute::TIMEOUT_TCP => timeouts.tcp = attribute.u32()?,
            attribute::TIMEOUT_TCP_FIN => timeouts.tcp_fin = attribute.u32()?,
            attribute::TIMEOUT_UDP => timeouts.udp = attribute.u32()?,
            _ => {}
        }
    }
    Ok(timeouts)
}

/// A virtual server's attributes, which may come in any order.
#[derive(Default)]
pub(crate) struct ServiceFields<'a> {
    family: Option<u16>,
    protocol: Option<u16>,
    address: Option<Attribute<'a>>,
    port: Option<u16>,
    mark: Option<u32>,
    pub(crate) scheduler: Option<&'a str>,
    pub(crate) engine: Option<&'a str>,
    flags: Option<u32>,
    timeout: Option<u32>,
    netmask: Option<[u8; 4]>,
    narrow: Option<Attribute<'a>>,
    wide: Option<Attribute<'a>>,
}

/// A real server's attributes, which may come in any order.
#[derive(Default)]
struct DestinationFields<'a> {
    family: Option<u16>,
    address: Option<Attribute<'a>>,
    port: Option<u16>,
    forwarding: Option<u32>,
    tunnel: TunnelOptions,
    weight: Option<u32>,
    upper_threshold: Option<u32>,
    lower_threshold: Option<u32>,
    active: Option<u32>,
    inactive: Option<u32>,
    persistent: Option<u32>,
    narrow: Option<Attribute<'a>>,
    wide: Option<Attribute<'a>>,
}

impl<'a> ServiceFields<'a> {
    pub(crate) fn take(&mut self, attribute: Attribute<'a>) -> Result<(), DecodeError> {
        match attribute.kind {
            service::AF => self.family = Some(attribute.u16()?),
            service::PROTOCOL => self.protocol = Some(attribute.u16()?),
            service::ADDR => self.address = Some(attribute),
            service::PORT => self.port = Some(attribute.u16_be()?),
            service::FWMARK => self.mark = Some(attribute.u32()?),
            service::SCHED_NAME => self.scheduler = Some(attribute.string()?),
            service::PE_NAME => self.engine = Some(attribute.string()?),
            // `struct ip_vs_flags`: the flags, then a mask that is all ones in answers.
            service::FLAGS => self.flags = Some(attribute.u32()?),
            service::TIMEOUT => self.timeout = Some(attribute.u32()?),
            service::NETMASK => self.netmask = Some(attribute.array()?),
            service::STATS => self.narrow = Some(attribute),
            service::STATS64 => self.wide = Some(attribute),
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> Result<VirtualServerId, DecodeError> {
        let broken = |part| missing(VIRTUAL_SERVER, part);
        let number = self.family.ok_or_else(|| broken("its address family"))?;
        let family = known_family(number, VIRTUAL_SERVER)?;
        if let Some(mark) = self.mark {
            return firewall_mark(family, mark);
        }
        let protocol = self.protocol.ok_or_else(|| broken("its protocol"))?;
        let address = self.address.ok_or_else(|| broken("its address"))?;
        Ok(VirtualServerId::Address {
            protocol: Protocol(protocol),
            address: decode_address(&address, family)?,
            port: self.port.ok_or_else(|| broken("its port"))?,
        })
    }

    fn finish(self) -> Result<VirtualServerStatus, DecodeError> {
        let broken = |part| missing(VIRTUAL_SERVER, part);
        let id = self.id()?;
        let scheduler = self.scheduler.ok_or_else(|| broken("its scheduler"))?;
        let flags = Flags::from_bits_retain(self.flags.ok_or_else(|| broken("its flags"))?);
        let netmask = self.netmask.ok_or_else(|| broken("its netmask"))?;
        Ok(VirtualServerStatus {
            server: VirtualServer {
                id,
                scheduler: name(scheduler, Scheduler::new)?,
                flags: flags.difference(Flags::HASHED),
                persistence_timeout: self.timeout.ok_or_else(|| broken("its timeout"))?,
                netmask: Netmask::from_octets(netmask, id.family()).ok_or_else(|| {
                    DecodeError::new(VIRTUAL_SERVER, "its prefix length is past 255")
                })?,
                persistence_engine: self
                    .engine
                    .map(|engine| name(engine, PersistenceEngine::new))
                    .transpose()?,
            },
            hashed: flags.contains(Flags::HASHED),
            statistics: decode_statistics(self.wide.or(self.narrow))?,
        })
    }
}

impl<'a> DestinationFields<'a> {
    fn take(&mut self, attribute: Attribute<'a>) -> Result<(), DecodeError> {
        match attribute.kind {
            destination::ADDR_FAMILY => self.family = Some(attribute.u16()?),
            destination::ADDR => self.address = Some(attribute),
            destination::PORT => self.port = Some(attribute.u16_be()?),
            destination::FWD_METHOD => self.forwarding = Some(attribute.u32()?),
            destination::TUN_TYPE => self.tunnel.kind = attribute.u8()?.into(),
            destination::TUN_PORT => self.tunnel.port = attribute.u16_be()?,
            destination::TUN_FLAGS => {
                self.tunnel.flags = TunnelFlags::from_bits_retain(attribute.u16()?);
            }
            destination::WEIGHT => self.weight = Some(attribute.u32()?),
            destination::U_THRESH => self.upper_threshold = Some(attribute.u32()?),
            destination::L_THRESH => self.lower_threshold = Some(attribute.u32()?),
            destination::ACTIVE_CONNS => self.active = Some(attribute.u32()?),
            destination::INACT_CONNS => self.inactive = Some(attribute.u32()?),
            destination::PERSIST_CONNS => self.persistent = Some(attribute.u32()?),
            destination::STATS => self.narrow = Some(attribute),
            destination::STATS64 => self.wide = Some(attribute),
            _ => {}
        }
        Ok(())
    }

    fn finish(self, family: AddressFamily) -> Result<RealServerStatus, DecodeError> {
        let broken = |part| missing(REAL_SERVER, part);
        let family = match self.family {
            // 0 is what a kernel has that does not know better, too.
            None | Some(0) => family,
            Some(number) => known_family(number, REAL_SERVER)?,
        };
        let address = self.address.ok_or_else(|| broken("its address"))?;
        let number = self.forwarding.ok_or_else(|| broken("its forwarding method"))?;
        Ok(RealServerStatus {
            server: RealServer {
                address: decode_address(&address, family)?,
                port: self.port.ok_or_else(|| broken("its port"))?,
                forwarding: ForwardingMethod::from_number(number, self.tunnel),
                weight: self.weight.ok_or_else(|| broken("its weight"))?,
                upper_threshold: self.upper_threshold.ok_or_else(|| broken("a threshold"))?,
                lower_threshold: self.lower_threshold.ok_or_else(|| broken("a threshold"))?,
            },
            active_connections: self.active.ok_or_else(|| broken("a count"))?,
            inactive_connections: self.inactive.ok_or_else(|| broken("a count"))?,
            persistent_connections: self.persistent.ok_or_else(|| broken("a count"))?,
            statistics: decode_statistics(self.wide.or(self.narrow))?,
        })
    }
}

/// Both kinds: `IPVS_…_ATTR_STATS64` has 64 bits throughout, `IPVS_…_ATTR_STATS` for bytes only.
/// The kernel sends both.
fn decode_statistics(attribute: Option<Attribute<'_>>) -> Result<Statistics, DecodeError> {
    let mut result = Statistics::default();
    for attribute in attribute.iter().flat_map(Attribute::nested) {
        let attribute = attribute?;
        let place = match attribute.kind {
            statistics::CONNS => &mut result.connections,
            statistics::INPKTS => &mut result.incoming_packets,
            statistics::OUTPKTS => &mut result.outgoing_packets,
            statistics::INBYTES => &mut result.incoming_bytes,
            statistics::OUTBYTES => &mut result.outgoing_bytes,
            statistics::CPS => &mut result.connection_rate,
            statistics::INPPS => &mut result.incoming_packet_rate,
            statistics::OUTPPS => &mut result.outgoing_packet_rate,
            statistics::INBPS => &mut result.incoming_byte_rate,
            statistics::OUTBPS => &mut result.outgoing_byte_rate,
            _ => continue,
        };
        *place =
            if attribute.value.len() < 8 { attribute.u32()?.into() } else { attribute.u64()? };
    }
    Ok(result)
}

/// `union nf_inet_addr` has 16 bytes whatever the family; IPv4 uses the first four.
fn decode_address(attribute: &Attribute<'_>, family: AddressFamily) -> Result<IpAddr, DecodeError> {
    Ok(match family {
        AddressFamily::Ipv4 => IpAddr::V4(attribute.ipv4()?),
        AddressFamily::Ipv6 => IpAddr::V6(attribute.ipv6()?),
    })
}

fn known_family(number: u16, what: &'static str) -> Result<AddressFamily, DecodeError> {
    AddressFamily::from_number(number)
        .ok_or_else(|| DecodeError::new(what, format!("address family {number}")))
}

pub(super) fn firewall_mark(
    family: AddressFamily,
    mark: u32,
) -> Result<VirtualServerId, DecodeError> {
    let mark = NonZeroU32::new(mark)
        .ok_or_else(|| DecodeError::new(VIRTUAL_SERVER, "its firewall mark is zero"))?;
    Ok(VirtualServerId::FirewallMark { family, mark })
}

pub(super) fn name<T>(
    text: &str,
    make: impl FnOnce(&str) -> Result<T, ParseError>,
) -> Result<T, DecodeError> {
    make(text).map_err(|error| DecodeError::new("name", error.to_string()))
}

fn missing(what: &'static str, part: &str) -> DecodeError {
    DecodeError::new(what, format!("{part} is missing"))
}

fn outermost<'a>(
    body: &'a [u8],
    what: &'static str,
) -> Result<impl Iterator<Item = Result<Attribute<'a>, DecodeError>> + use<'a>, DecodeError> {
    let rest = body
        .get(generic::HEADER_LENGTH..)
        .ok_or_else(|| DecodeError::new(what, "shorter than the generic netlink header"))?;
    Ok(attributes(rest))
}

/// The attributes inside the outermost one of type `kind`.
pub(crate) fn inside<'a>(
    body: &'a [u8],
    kind: u16,
    what: &'static str,
) -> Result<impl Iterator<Item = Result<Attribute<'a>, DecodeError>> + use<'a>, DecodeError> {
    for attribute in outermost(body, what)? {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(attribute.nested());
        }
    }
    Err(missing(what, "the attribute that holds it"))
}

/// A real server's address and port, as in [`decode_real_server`], of a request to delete one.
pub(crate) fn decode_real_server_id(body: &[u8]) -> Result<std::net::SocketAddr, DecodeError> {
    let mut fields = DestinationFields::default();
    for attribute in inside(body, attribute::DEST, REAL_SERVER)? {
        fields.take(attribute?)?;
    }
    let address = fields.address.ok_or_else(|| missing(REAL_SERVER, "its address"))?;
    let number = fields.family.ok_or_else(|| missing(REAL_SERVER, "its address family"))?;
    let port = fields.port.ok_or_else(|| missing(REAL_SERVER, "its port"))?;
    let family = known_family(number, REAL_SERVER)?;
    Ok(std::net::SocketAddr::new(decode_address(&address, family)?, port))
}
