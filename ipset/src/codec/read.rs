//! Answers.

use std::net::IpAddr;

use netlink::{Attribute, DecodeError, attributes};

use super::HEADER_LENGTH;
use crate::entry::{Entry, EntryOptions, Mark, Network, Protocol};
use crate::name::Name;
use crate::set::{Family, Header, Identity, ListedEntry, Revisions, SetOptions, SetType};
use crate::uapi::{attr, cadt, create, data, ipaddr};

/// `struct nlmsghdr` in bytes (include/uapi/linux/netlink.h).
const MESSAGE_HEADER_LENGTH: usize = 16;

/// One message of a listing. A large set takes several; only the first has the header.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fragment {
    /// The set.
    pub name: Name,
    /// Everything but the entries; absent in a continuation, and if only names were asked for.
    pub header: Option<Header>,
    /// Some of the entries.
    pub entries: Vec<ListedEntry>,
    /// Number of entries of a shape that [`Entry`] does not have.
    pub undecoded: usize,
}

/// Reads an answer to `IPSET_CMD_LIST`.
///
/// # Errors
/// When an attribute that is needed is absent or too short.
pub fn decode_fragment(body: &[u8]) -> Result<Fragment, DecodeError> {
    let (mut partial, mut described, mut entries, mut undecoded) =
        (PartialIdentity::default(), None::<Description>, Vec::new(), 0);
    for attribute in attributes(after_header(body)) {
        let attribute = attribute?;
        match attribute.kind {
            attr::DATA => described = Some(description(attribute.value)?),
            attr::ADT => {
                for line in attribute.nested() {
                    match decode_entry(line?.value)? {
                        Some(entry) => entries.push(entry),
                        None => undecoded += 1,
                    }
                }
            }
            _ => partial.take(&attribute)?,
        }
    }
    let name = partial.name.ok_or_else(|| missing("set name"))?;
    let header = match partial.set_type {
        Some(_) => {
            let Description { options, references, memory, elements } =
                described.unwrap_or_default();
            Some(Header { identity: partial.complete()?, options, references, memory, elements })
        }
        None => None,
    };
    Ok(Fragment { name, header, entries, undecoded })
}

/// Reads an answer to `IPSET_CMD_HEADER`.
///
/// # Errors
/// When an attribute that is needed is absent or too short.
pub fn decode_identity(body: &[u8]) -> Result<Identity, DecodeError> {
    let mut partial = PartialIdentity::default();
    for attribute in attributes(after_header(body)) {
        partial.take(&attribute?)?;
    }
    partial.complete()
}

/// Reads an answer to `IPSET_CMD_TYPE`.
///
/// # Errors
/// When an attribute that is needed is absent or too short.
pub fn decode_revisions(body: &[u8]) -> Result<Revisions, DecodeError> {
    let (min, max) = two_bytes(body, attr::REVISION_MIN, attr::REVISION)?;
    let max = max.ok_or_else(|| missing("newest revision"))?;
    // A kernel with one revision need not say which is the oldest.
    Ok(Revisions { min: min.unwrap_or(max), max })
}

/// Reads an answer to `IPSET_CMD_PROTOCOL`: the oldest and the newest version.
///
/// # Errors
/// When an attribute that is needed is absent or too short.
pub fn decode_protocol_versions(body: &[u8]) -> Result<(u8, u8), DecodeError> {
    let (min, max) = two_bytes(body, attr::PROTOCOL_MIN, attr::PROTOCOL)?;
    let max = max.ok_or_else(|| missing("protocol version"))?;
    Ok((min.unwrap_or(max), max))
}

/// Reads which line of a request the kernel refused, from the request as it sent it back, netlink
/// header included. Lines count from 1; `None` if it names none.
#[must_use]
pub fn failing_line(request: &[u8]) -> Option<u32> {
    attributes(request.get(MESSAGE_HEADER_LENGTH + HEADER_LENGTH..)?)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind == attr::LINENO)
        .and_then(|attribute| attribute.u32().ok())
        .filter(|line| *line != 0)
}

/// Reads one entry: the attributes inside `IPSET_ATTR_DATA`. `None` if it is of a shape that
/// [`Entry`] does not have.
///
/// # Errors
/// When an attribute is too short.
pub fn decode_entry(bytes: &[u8]) -> Result<Option<ListedEntry>, DecodeError> {
    let (mut parts, mut options) = (Parts::default(), EntryOptions::default());
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        if !parts.take(&attribute)? {
            take_option(&mut options, &attribute)?;
        }
    }
    let options = (!options.is_empty()).then(|| Box::new(options));
    Ok(parts.entry()?.map(|entry| ListedEntry { entry, options }))
}

/// Attributes that say which set it is.
#[derive(Debug, Default)]
struct PartialIdentity {
    name: Option<Name>,
    set_type: Option<SetType>,
    revision: Option<u8>,
    family: Option<u8>,
}

#[derive(Debug, Default)]
struct Description {
    options: SetOptions,
    references: u32,
    memory: u64,
    elements: Option<u32>,
}

/// Attributes that an entry is made of.
#[derive(Debug, Default)]
struct Parts {
    first: Option<IpAddr>,
    second: Option<IpAddr>,
    prefix_length: Option<u8>,
    protocol: Option<u8>,
    port: Option<u16>,
    /// There are others, so that no shape fits.
    other: bool,
}

impl PartialIdentity {
    fn take(&mut self, attribute: &Attribute<'_>) -> Result<(), DecodeError> {
        match attribute.kind {
            attr::SETNAME => self.name = Some(name(attribute)?),
            attr::TYPENAME => self.set_type = Some(SetType::from_name(name(attribute)?)),
            attr::REVISION => self.revision = Some(attribute.u8()?),
            attr::FAMILY => self.family = Some(attribute.u8()?),
            _ => {}
        }
        Ok(())
    }

    fn complete(self) -> Result<Identity, DecodeError> {
        Ok(Identity {
            name: self.name.ok_or_else(|| missing("set name"))?,
            set_type: self.set_type.ok_or_else(|| missing("type name"))?,
            revision: self.revision.ok_or_else(|| missing("revision"))?,
            family: Family::from_number(self.family.ok_or_else(|| missing("family"))?),
        })
    }
}

/// Reads `IPSET_ATTR_DATA` of a set.
fn description(bytes: &[u8]) -> Result<Description, DecodeError> {
    let mut description = Description::default();
    let (mut first_port, mut last_port) = (None, None);
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        let options = &mut description.options;
        match attribute.kind {
            data::PORT => first_port = Some(attribute.u16_be()?),
            data::PORT_TO => last_port = Some(attribute.u16_be()?),
            data::TIMEOUT => options.timeout = Some(attribute.u32_be()?),
            data::CADT_FLAGS => {
                let flags = attribute.u32_be()?;
                options.counters = flags & cadt::WITH_COUNTERS != 0;
                options.comment = flags & cadt::WITH_COMMENT != 0;
                options.force_add = flags & cadt::WITH_FORCEADD != 0;
                options.skbinfo = flags & cadt::WITH_SKBINFO != 0;
            }
            create::HASHSIZE => options.hash_size = Some(attribute.u32_be()?),
            create::MAXELEM => options.max_elements = Some(attribute.u32_be()?),
            create::NETMASK => options.netmask = Some(attribute.u8()?),
            create::ELEMENTS => description.elements = Some(attribute.u32_be()?),
            create::REFERENCES => description.references = attribute.u32_be()?,
            create::MEMSIZE => description.memory = u64::from(attribute.u32_be()?),
            _ => {}
        }
    }
    description.options.ports = first_port.zip(last_port).map(|(first, last)| first..=last);
    Ok(description)
}

impl Parts {
    /// Takes an attribute that tells entries apart; `false` for any other.
    fn take(&mut self, attribute: &Attribute<'_>) -> Result<bool, DecodeError> {
        match attribute.kind {
            data::IP => self.first = Some(address(attribute)?),
            data::IP2 => self.second = Some(address(attribute)?),
            data::CIDR2 => self.prefix_length = Some(attribute.u8()?),
            data::PORT => self.port = Some(attribute.u16_be()?),
            data::PROTO => self.protocol = Some(attribute.u8()?),
            data::IP_TO
            | data::CIDR
            | data::PORT_TO
            | data::MARK
            | data::ETHER
            | data::NAME
            | data::IP2_TO
            | data::IFACE => self.other = true,
            data::CADT_FLAGS => {
                // An exception from a network is not an entry, nor is a bridge's port an address.
                self.other |= attribute.u32_be()? & (cadt::NOMATCH | cadt::PHYSDEV) != 0;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn entry(self) -> Result<Option<Entry>, DecodeError> {
        if self.other {
            return Ok(None);
        }
        let transport = self.protocol.map(Protocol).zip(self.port);
        Ok(match (self.first, transport, self.second, self.prefix_length) {
            (Some(address), None, None, None) if self.port.is_none() => Some(Entry::Ip(address)),
            (Some(address), Some((protocol, port)), None, None) => {
                Some(Entry::IpPort { address, protocol, port })
            }
            (Some(address), Some((protocol, port)), Some(second), None) => {
                Some(Entry::IpPortIp { address, protocol, port, second })
            }
            (Some(address), Some((protocol, port)), Some(second), Some(length)) => {
                let network = Network::new(second, length)
                    .ok_or_else(|| DecodeError::new("entry", "its prefix length is too large"))?;
                Some(Entry::IpPortNet { address, protocol, port, network })
            }
            (None, None, None, None) if self.protocol.is_none() => self.port.map(Entry::Port),
            _ => None,
        })
    }
}

/// Takes an attribute that is attached to an entry, and passes over any other.
fn take_option(options: &mut EntryOptions, attribute: &Attribute<'_>) -> Result<(), DecodeError> {
    let u64_be = || attribute.array::<8>().map(u64::from_be_bytes);
    match attribute.kind {
        data::TIMEOUT => options.timeout = Some(attribute.u32_be()?),
        data::BYTES => options.counters.get_or_insert_default().bytes = u64_be()?,
        data::PACKETS => options.counters.get_or_insert_default().packets = u64_be()?,
        data::COMMENT => {
            let bytes = attribute.value.split(|byte| *byte == 0).next().unwrap_or_default();
            options.comment = Some(String::from_utf8_lossy(bytes).into_owned());
        }
        data::SKBMARK => {
            let [v0, v1, v2, v3, m0, m1, m2, m3] = attribute.array()?;
            options.mark = Some(Mark {
                value: u32::from_be_bytes([v0, v1, v2, v3]),
                mask: u32::from_be_bytes([m0, m1, m2, m3]),
            });
        }
        data::SKBPRIO => options.priority = Some(attribute.u32_be()?),
        data::SKBQUEUE => options.queue = Some(attribute.u16_be()?),
        _ => {}
    }
    Ok(())
}

fn address(attribute: &Attribute<'_>) -> Result<IpAddr, DecodeError> {
    for inner in attribute.nested() {
        let inner = inner?;
        match inner.kind {
            ipaddr::IPV4 => return Ok(inner.ipv4()?.into()),
            ipaddr::IPV6 => return Ok(inner.ipv6()?.into()),
            _ => {}
        }
    }
    Err(missing("address"))
}

fn name(attribute: &Attribute<'_>) -> Result<Name, DecodeError> {
    let bytes = attribute.value.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Name::new(bytes)?)
}

fn two_bytes(body: &[u8], one: u16, other: u16) -> Result<(Option<u8>, Option<u8>), DecodeError> {
    let mut found = (None, None);
    for attribute in attributes(after_header(body)) {
        let attribute = attribute?;
        if attribute.kind == one {
            found.0 = Some(attribute.u8()?);
        } else if attribute.kind == other {
            found.1 = Some(attribute.u8()?);
        }
    }
    Ok(found)
}

fn after_header(body: &[u8]) -> &[u8] {
    body.get(HEADER_LENGTH..).unwrap_or_default()
}

fn missing(what: &str) -> DecodeError {
    DecodeError::new("ipset message", format!("it has no {what}"))
}
