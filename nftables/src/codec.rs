//! Messages to and from the kernel, as bytes. Nothing here does input or output.
//!
//! The functions that read are public for programs that inspect captured traffic, and for fuzzing.
//! They take any bytes and never panic. `body` is always a netlink message without its header, so
//! it begins with `struct nfgenmsg` (include/uapi/linux/netfilter/nfnetlink.h).
//!
//! Integers are big-endian here, and not marked so. What is in registers is as in the packet.

mod read;
mod write;

use netlink::{MessageWriter, attributes};

use crate::data::Data;
use crate::error::Attempt;
use crate::name::Name;
use crate::object::{Family, TableId};
use crate::uapi::{self, message};

pub use read::{
    decode_chain, decode_elements, decode_flow_table, decode_generation, decode_rule, decode_set,
    decode_table,
};
pub(crate) use read::{disturbance, table_of};
pub(crate) use write::{
    chain, elements, flow_table, rule, rules_of, set, set_name, table, table_name,
};

/// `struct nfgenmsg` in bytes.
const HEADER_LENGTH: usize = 4;

/// A message type: the subsystem in the upper byte, the command in the lower.
pub(crate) fn message_type(command: u8) -> u16 {
    uapi::SUBSYSTEM << 8 | u16::from(command)
}

/// Writes `struct nfgenmsg`: address family, version 0, two bytes without meaning.
pub(crate) fn begin(message: &mut MessageWriter<'_>, family: Family) {
    message.body().extend_from_slice(&[family.number(), 0, 0, 0]);
}

/// Writes `struct nfgenmsg` for objects of all families (`NFPROTO_UNSPEC`).
pub(crate) fn begin_all(message: &mut MessageWriter<'_>) {
    message.body().extend_from_slice(&[0; HEADER_LENGTH]);
}

/// Writes the body of a message that opens or closes a transaction: `struct nfgenmsg`, whose last two bytes are the
/// subsystem.
pub(crate) fn begin_batch(message: &mut MessageWriter<'_>, generation: Option<u32>) {
    let [high, low] = uapi::SUBSYSTEM.to_be_bytes();
    message.body().extend_from_slice(&[0, 0, high, low]);
    if let Some(id) = generation {
        message.attributes().u32_be(uapi::BATCH_GENERATION, id);
    }
}

/// Says what a change tries, by its message.
pub(crate) fn attempt(command: u8, body: &[u8]) -> Attempt {
    let family = body.first().and_then(|number| Family::from_kernel(*number));
    let found = |kind: u16| {
        let bytes = body.get(HEADER_LENGTH..).unwrap_or_default();
        attributes(bytes).map_while(Result::ok).find(|attribute| attribute.kind == kind)
    };
    let name = |kind| found(kind).map(|attribute| Name::from_kernel(attribute.value));
    // The first attribute of each message is the table's name.
    let table = family.zip(name(uapi::table::NAME)).map(|(family, name)| TableId { family, name });
    let (what, name, key) = match command {
        message::NEWTABLE => ("create table", None, None),
        message::DELTABLE => ("delete table", None, None),
        message::NEWCHAIN => ("create chain", name(uapi::chain::NAME), None),
        message::DELCHAIN => ("delete chain", name(uapi::chain::NAME), None),
        message::NEWRULE => ("append a rule to chain", name(uapi::rule::CHAIN), None),
        message::DELRULE => ("delete rules of chain", name(uapi::rule::CHAIN), None),
        message::NEWSET => ("create set", name(uapi::set::NAME), None),
        message::DELSET => ("delete set", name(uapi::set::NAME), None),
        message::NEWSETELEM => (
            "add elements to set",
            name(uapi::element::SET),
            first_key(found(uapi::element::ELEMENTS)),
        ),
        message::DELSETELEM => (
            "delete elements of set",
            name(uapi::element::SET),
            first_key(found(uapi::element::ELEMENTS)),
        ),
        message::NEWFLOWTABLE => ("create flow table", name(uapi::flow_table::NAME), None),
        message::DELFLOWTABLE => ("delete flow table", name(uapi::flow_table::NAME), None),
        _ => ("change nf_tables", None, None),
    };
    Attempt::Do { what, table, name, key }
}

fn first_key(elements: Option<netlink::Attribute<'_>>) -> Option<Data> {
    let mut inner = elements?;
    for kind in [uapi::LIST_ELEMENT, uapi::element::KEY, uapi::data::VALUE] {
        inner = inner.nested().map_while(Result::ok).find(|attribute| attribute.kind == kind)?;
    }
    Some(Data::from_bytes(inner.value))
}

#[cfg(test)]
mod tests;
