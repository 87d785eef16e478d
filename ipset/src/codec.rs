//! Messages to and from the kernel, as bytes. Nothing here does input or output.
//!
//! The functions that read are public for programs that inspect captured traffic, and for fuzzing.
//! They take any bytes and never panic. `body` is always a netlink message without its header, so
//! it begins with `struct nfgenmsg` (include/uapi/linux/netfilter/nfnetlink.h).
//!
//! Integers are big-endian here, most of them marked so (`NLA_F_NET_BYTEORDER`). The kernel
//! refuses those that should be marked and are not.

mod read;
mod write;

use netlink::MessageWriter;

use crate::uapi;

pub use read::{
    Fragment, decode_entry, decode_fragment, decode_identity, decode_protocol_versions,
    decode_revisions, failing_line,
};
pub(crate) use write::{
    Lines, create, entries, entry_too_long, list, one_name, revisions_of, test, two_names, versions,
};

/// `struct nfgenmsg` in bytes.
const HEADER_LENGTH: usize = 4;

/// A message type: the subsystem in the upper byte, the command in the lower.
pub(crate) fn message_type(command: u8) -> u16 {
    uapi::SUBSYSTEM << 8 | u16::from(command)
}

/// Writes `struct nfgenmsg`: address family (always IPv4: the set's own family is an attribute),
/// version 0, two bytes without meaning; and the protocol version, which every request has.
fn begin(message: &mut MessageWriter<'_>, protocol: u8) {
    message.body().extend_from_slice(&[uapi::NFPROTO_IPV4, 0, 0, 0]);
    message.attributes().u8(uapi::attr::PROTOCOL, protocol);
}

#[cfg(test)]
mod tests;
