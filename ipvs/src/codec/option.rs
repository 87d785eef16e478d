//! Virtual servers as the option `IP_VS_SO_GET_SERVICES` tells them.

use std::net::Ipv4Addr;

use netlink::DecodeError;

use super::decode::{VIRTUAL_SERVER, firewall_mark, name};
use crate::flags::Flags;
use crate::id::{AddressFamily, Protocol, VirtualServerId};
use crate::name::Scheduler;
use crate::uapi::{SERVICE_ENTRIES, SERVICE_ENTRY_LENGTH};
use crate::virtual_server::{Netmask, VirtualServer};

/// Returns `struct ip_vs_get_services` with room for so many virtual servers, which the kernel fills.
pub(crate) fn service_entries(number: u32) -> Vec<u8> {
    let mut buffer = number.to_ne_bytes().to_vec();
    buffer.resize(SERVICE_ENTRIES + number as usize * SERVICE_ENTRY_LENGTH, 0);
    buffer
}

/// Reads what the kernel has filled. Room that it left stays zero, which no virtual server is.
pub(crate) fn decode_service_entries(buffer: &[u8]) -> Result<Vec<VirtualServer>, DecodeError> {
    let entries = buffer.get(SERVICE_ENTRIES..).unwrap_or_default();
    let entries = entries.chunks_exact(SERVICE_ENTRY_LENGTH);
    entries.take_while(|entry| entry.iter().any(|byte| *byte != 0)).map(decode_entry).collect()
}

/// Reads a `struct ip_vs_service_entry`: addresses, ports and netmasks are in network byte order.
fn decode_entry(entry: &[u8]) -> Result<VirtualServer, DecodeError> {
    let protocol = u16::from_ne_bytes(at(entry, 0)?);
    let address = Ipv4Addr::from(at::<4>(entry, 4)?);
    let port = u16::from_be_bytes(at(entry, 8)?);
    let mark = u32::from_ne_bytes(at(entry, 12)?);
    let scheduler = at::<16>(entry, 16)?;
    let flags = Flags::from_bits_retain(u32::from_ne_bytes(at(entry, 32)?));
    let text = scheduler.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text)
        .map_err(|_| DecodeError::new(VIRTUAL_SERVER, "its scheduler's name is not UTF-8"))?;
    let id = match mark {
        0 => {
            VirtualServerId::Address { protocol: Protocol(protocol), address: address.into(), port }
        }
        mark => firewall_mark(AddressFamily::Ipv4, mark)?,
    };
    Ok(VirtualServer {
        id,
        scheduler: name(text, Scheduler::new)?,
        flags: flags.difference(Flags::HASHED),
        persistence_timeout: u32::from_ne_bytes(at(entry, 36)?),
        netmask: Netmask::from_octets(at(entry, 40)?, AddressFamily::Ipv4)
            .ok_or_else(|| DecodeError::new(VIRTUAL_SERVER, "its netmask"))?,
        persistence_engine: None,
    })
}

fn at<const N: usize>(entry: &[u8], offset: usize) -> Result<[u8; N], DecodeError> {
    let bytes = entry.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.copied().ok_or_else(|| DecodeError::new(VIRTUAL_SERVER, "it is cut off"))
}
