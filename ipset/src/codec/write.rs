//! Requests.

use std::net::IpAddr;

use netlink::{AttributeWriter, MessageWriter};

use super::begin;
use crate::entry::{Entry, EntryOptions, Protocol};
use crate::name::Name;
use crate::set::{SetOptions, SetSpec, SetType};
use crate::uapi::{MAX_COMMENT_SIZE, attr, cadt, create, data, ipaddr};

/// An attribute's length has 16 bits, and all entries of a message are in one attribute. This
/// leaves room for one entry more, comment included.
const MOST_BYTES: usize = 60_000;
/// Past this many entries, larger messages gain nothing measurable; and a refusal carries the
/// whole message back.
const MOST_ENTRIES: usize = 1_000;

/// The entries that one message can hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) set: Name,
    pub(crate) entries: &'a [Entry],
    /// Options of some of them, by their place among all entries of the batch, sorted.
    pub(crate) options: &'a [(usize, EntryOptions)],
    /// The first entry's place among all entries of the batch.
    pub(crate) first: usize,
}

/// Why an entry cannot be sent, if it cannot: the kernel would refuse a whole message for it
/// without saying which line is at fault.
pub(crate) fn entry_too_long(options: &EntryOptions) -> Option<&'static str> {
    let comment = options.comment.as_deref().unwrap_or_default();
    (comment.len() > MAX_COMMENT_SIZE).then_some("its comment is longer than 255 bytes")
}

/// `IPSET_CMD_PROTOCOL`
pub(crate) fn versions(message: &mut MessageWriter<'_>, protocol: u8) {
    begin(message, protocol);
}

/// `IPSET_CMD_TYPE`
pub(crate) fn revisions_of(
    message: &mut MessageWriter<'_>,
    protocol: u8,
    set_type: SetType,
    family: u8,
) {
    begin(message, protocol);
    let mut attributes = message.attributes();
    zero_terminated(&mut attributes, attr::TYPENAME, set_type.as_bytes());
    attributes.u8(attr::FAMILY, family);
}

/// `IPSET_CMD_DESTROY`, `IPSET_CMD_FLUSH` (all sets without a name), `IPSET_CMD_HEADER`
pub(crate) fn one_name(message: &mut MessageWriter<'_>, protocol: u8, set: Option<Name>) {
    begin(message, protocol);
    if let Some(set) = set {
        zero_terminated(&mut message.attributes(), attr::SETNAME, set.as_bytes());
    }
}

/// `IPSET_CMD_RENAME`, `IPSET_CMD_SWAP`
pub(crate) fn two_names(message: &mut MessageWriter<'_>, protocol: u8, first: Name, second: Name) {
    begin(message, protocol);
    let mut attributes = message.attributes();
    zero_terminated(&mut attributes, attr::SETNAME, first.as_bytes());
    zero_terminated(&mut attributes, attr::SETNAME2, second.as_bytes());
}

/// `IPSET_CMD_LIST`
pub(crate) fn list(message: &mut MessageWriter<'_>, protocol: u8, set: Option<Name>, flags: u32) {
    one_name(message, protocol, set);
    if flags != 0 {
        message.attributes().u32_be(marked(attr::FLAGS), flags);
    }
}

/// `IPSET_CMD_CREATE`
pub(crate) fn create(
    message: &mut MessageWriter<'_>,
    protocol: u8,
    set: Name,
    (spec, revision): (&SetSpec, u8),
) {
    begin(message, protocol);
    let mut attributes = message.attributes();
    zero_terminated(&mut attributes, attr::SETNAME, set.as_bytes());
    zero_terminated(&mut attributes, attr::TYPENAME, spec.set_type.as_bytes());
    attributes.u8(attr::REVISION, revision);
    attributes.u8(attr::FAMILY, spec.family.number());
    attributes.nested(attr::DATA, |data| write_options(data, spec));
}

/// `IPSET_CMD_TEST`
pub(crate) fn test(message: &mut MessageWriter<'_>, protocol: u8, set: Name, entry: &Entry) {
    one_name(message, protocol, Some(set));
    message.attributes().nested(attr::DATA, |data| write_entry(data, entry, None));
}

/// `IPSET_CMD_ADD`, `IPSET_CMD_DEL`: as many of the entries as fit, and returns how many those
/// are.
///
/// One entry goes by itself. Several go in `IPSET_ATTR_ADT`, each with a line number counted from
/// 1, which the kernel sends back for the first that it refuses.
pub(crate) fn entries(message: &mut MessageWriter<'_>, protocol: u8, lines: &Lines<'_>) -> usize {
    one_name(message, protocol, Some(lines.set));
    let mut options = lines.options.iter().peekable();
    let mut options_of = |place: usize| {
        while options.next_if(|(other, _)| *other < place).is_some() {}
        options.next_if(|(other, _)| *other == place).map(|(_, options)| options)
    };
    if let [entry] = lines.entries {
        let options = options_of(lines.first);
        message.attributes().nested(attr::DATA, |data| write_entry(data, entry, options));
        return 1;
    }
    let mut attributes = message.attributes();
    let mut written = 0;
    // The kernel writes the failing line's number into this one when it sends the request back.
    attributes.u32(attr::LINENO, 0);
    attributes.nested(attr::ADT, |adt| {
        let start = adt.message_length();
        for (entry, line) in lines.entries.iter().take(MOST_ENTRIES).zip(1_u32..) {
            if adt.message_length() - start > MOST_BYTES {
                break;
            }
            let options = options_of(lines.first + written);
            adt.nested(attr::DATA, |data| {
                write_entry(data, entry, options);
                data.u32(data::LINENO, line);
            });
            written += 1;
        }
    });
    written
}

fn write_options(writer: &mut AttributeWriter<'_>, spec: &SetSpec) {
    let options = &spec.options;
    if spec.set_type == SetType::BitmapPort {
        // Both ends are mandatory.
        let ports = options.ports.clone().unwrap_or(0..=u16::MAX);
        writer.u16_be(marked(data::PORT), *ports.start());
        writer.u16_be(marked(data::PORT_TO), *ports.end());
    }
    if let Some(timeout) = options.timeout {
        writer.u32_be(marked(data::TIMEOUT), timeout);
    }
    let flags = flags_of(options);
    if flags != 0 {
        writer.u32_be(marked(data::CADT_FLAGS), flags);
    }
    if let Some(hash_size) = options.hash_size {
        writer.u32_be(marked(create::HASHSIZE), hash_size);
    }
    if let Some(max_elements) = options.max_elements {
        writer.u32_be(marked(create::MAXELEM), max_elements);
    }
    if let Some(netmask) = options.netmask {
        writer.u8(create::NETMASK, netmask);
    }
}

fn flags_of(options: &SetOptions) -> u32 {
    [
        (options.counters, cadt::WITH_COUNTERS),
        (options.comment, cadt::WITH_COMMENT),
        (options.force_add, cadt::WITH_FORCEADD),
        (options.skbinfo, cadt::WITH_SKBINFO),
    ]
    .into_iter()
    .filter_map(|(wanted, flag)| wanted.then_some(flag))
    .sum()
}

fn write_entry(writer: &mut AttributeWriter<'_>, entry: &Entry, options: Option<&EntryOptions>) {
    match *entry {
        Entry::Ip(first) => address(writer, data::IP, first),
        Entry::IpPort { address: first, protocol, port } => {
            address_and_port(writer, first, (protocol, port));
        }
        Entry::IpPortIp { address: first, protocol, port, second } => {
            address_and_port(writer, first, (protocol, port));
            address(writer, data::IP2, second);
        }
        Entry::IpPortNet { address: first, protocol, port, network } => {
            address_and_port(writer, first, (protocol, port));
            address(writer, data::IP2, network.address());
            writer.u8(data::CIDR2, network.prefix_length());
        }
        Entry::Port(port) => writer.u16_be(marked(data::PORT), port),
    }
    if let Some(options) = options {
        write_entry_options(writer, options);
    }
}

fn write_entry_options(writer: &mut AttributeWriter<'_>, options: &EntryOptions) {
    if let Some(timeout) = options.timeout {
        writer.u32_be(marked(data::TIMEOUT), timeout);
    }
    if let Some(counters) = options.counters {
        writer.bytes(marked(data::BYTES), &counters.bytes.to_be_bytes());
        writer.bytes(marked(data::PACKETS), &counters.packets.to_be_bytes());
    }
    if let Some(comment) = &options.comment {
        writer.string(data::COMMENT, comment);
    }
    if let Some(mark) = options.mark {
        let both = u64::from(mark.value) << 32 | u64::from(mark.mask);
        writer.bytes(marked(data::SKBMARK), &both.to_be_bytes());
    }
    if let Some(priority) = options.priority {
        writer.u32_be(marked(data::SKBPRIO), priority);
    }
    if let Some(queue) = options.queue {
        writer.u16_be(marked(data::SKBQUEUE), queue);
    }
}

fn address_and_port(
    writer: &mut AttributeWriter<'_>,
    first: IpAddr,
    (protocol, port): (Protocol, u16),
) {
    address(writer, data::IP, first);
    writer.u16_be(marked(data::PORT), port);
    writer.u8(data::PROTO, protocol.0);
}

fn address(writer: &mut AttributeWriter<'_>, kind: u16, address: IpAddr) {
    let family = if address.is_ipv4() { ipaddr::IPV4 } else { ipaddr::IPV6 };
    writer.nested(kind, |inner| inner.address(marked(family), address));
}

fn zero_terminated(writer: &mut AttributeWriter<'_>, kind: u16, text: &[u8]) {
    let mut bytes = [0; crate::name::MAX_NAME_LENGTH + 1];
    for (place, byte) in bytes.iter_mut().zip(text) {
        *place = *byte;
    }
    writer.bytes(kind, bytes.get(..=text.len()).unwrap_or(&bytes));
}

fn marked(kind: u16) -> u16 {
    AttributeWriter::in_network_byte_order(kind)
}
