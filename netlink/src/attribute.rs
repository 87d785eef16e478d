//! Netlink attributes (`struct nlattr`, include/uapi/linux/netlink.h): written into a growing
//! buffer, read from a borrowed one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLA_F_NESTED, NLA_F_NET_BYTEORDER, NLA_TYPE_MASK};

/// An attribute's header in bytes: length (u16) and type (u16).
const HEADER_LENGTH: usize = 4;

/// Bytes that are not what the subsystem's header file says they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    what: &'static str,
    problem: String,
}

/// Appends attributes to a message.
///
/// Lengths are 16 bits wide in the kernel's format. A value that does not fit marks the whole
/// message as too long, and sending it then fails with a clear error instead of sending a length
/// that wrapped around.
#[derive(Debug)]
pub struct AttributeWriter<'a> {
    buffer: &'a mut Vec<u8>,
    too_long: &'a mut bool,
}

/// One attribute as it came from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attribute<'a> {
    /// The type, without the two flag bits.
    pub kind: u16,
    /// True if the sender marked integers as big-endian (`NLA_F_NET_BYTEORDER`).
    pub network_byte_order: bool,
    /// The payload, without padding.
    pub value: &'a [u8],
}

/// Reads the attributes in `bytes` one after the other.
///
/// The iterator yields an error, and ends, at the first attribute whose length does not fit.
pub fn attributes(
    bytes: &[u8],
) -> impl Iterator<Item = Result<Attribute<'_>, DecodeError>> + use<'_> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = cut(rest);
        rest = cut.as_ref().map_or(&[], |(_, after)| after);
        Some(cut.map(|(attribute, _)| attribute))
    })
}

/// Cuts the first attribute off.
fn cut(bytes: &[u8]) -> Result<(Attribute<'_>, &[u8]), DecodeError> {
    let broken = |problem: &str| DecodeError::new("attribute", problem);
    let [l0, l1, k0, k1] =
        *bytes.first_chunk::<HEADER_LENGTH>().ok_or_else(|| broken("shorter than its header"))?;
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let kind = u16::from_ne_bytes([k0, k1]);
    let value = bytes
        .get(HEADER_LENGTH..length)
        .ok_or_else(|| broken("its length does not fit what holds it"))?;
    let after = bytes.get(length.next_multiple_of(HEADER_LENGTH)..).unwrap_or_default();
    let network_byte_order = kind & NLA_F_NET_BYTEORDER != 0;
    Ok((Attribute { kind: kind & NLA_TYPE_MASK, network_byte_order, value }, after))
}

impl DecodeError {
    /// `what` names the thing that was being read, `problem` says what is wrong with it.
    #[must_use]
    pub fn new(what: &'static str, problem: impl Into<String>) -> Self {
        Self { what, problem: problem.into() }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.problem)
    }
}

impl std::error::Error for DecodeError {}

impl<'a> AttributeWriter<'a> {
    pub(crate) fn new(buffer: &'a mut Vec<u8>, too_long: &'a mut bool) -> Self {
        Self { buffer, too_long }
    }

    /// The payload as it is.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        let start = self.open(kind);
        self.buffer.extend_from_slice(value);
        self.close(start);
    }

    /// No payload: the attribute's presence is its meaning.
    pub fn flag(&mut self, kind: u16) {
        self.bytes(kind, &[]);
    }

    /// One byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// 16 bits in the machine's byte order.
    pub fn u16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// 16 bits in network byte order, without the flag that says so.
    pub fn u16_be(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// 32 bits in the machine's byte order.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// 32 bits in network byte order, without the flag that says so.
    pub fn u32_be(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// 64 bits in the machine's byte order.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Text, ended by a zero byte. Text is cut at a zero byte of its own.
    pub fn string(&mut self, kind: u16, value: &str) {
        let start = self.open(kind);
        self.buffer.extend(value.bytes().take_while(|byte| *byte != 0));
        self.buffer.push(0);
        self.close(start);
    }

    /// An address: 4 or 16 bytes, network byte order.
    pub fn address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.bytes(kind, &address.octets()),
            IpAddr::V6(address) => self.bytes(kind, &address.octets()),
        }
    }

    /// Attributes inside an attribute.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut AttributeWriter<'_>)) {
        let start = self.open(kind | NLA_F_NESTED);
        fill(&mut AttributeWriter { buffer: self.buffer, too_long: self.too_long });
        self.close(start);
    }

    /// Returns the number of bytes the message has so far.
    #[must_use]
    pub fn message_length(&self) -> usize {
        self.buffer.len()
    }

    /// `kind` with the flag that says "the payload is big-endian", which some subsystems ask for.
    #[must_use]
    pub const fn in_network_byte_order(kind: u16) -> u16 {
        kind | NLA_F_NET_BYTEORDER
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0, 0]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) {
        match u16::try_from(self.buffer.len().saturating_sub(start)) {
            Ok(length) => {
                if let Some(place) = self.buffer.get_mut(start..start + 2) {
                    place.copy_from_slice(&length.to_ne_bytes());
                }
            }
            Err(_) => *self.too_long = true,
        }
        pad(self.buffer);
    }
}

/// Messages and attributes begin on a multiple of four bytes (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
pub(crate) fn pad(buffer: &mut Vec<u8>) {
    buffer.resize(buffer.len().next_multiple_of(HEADER_LENGTH), 0);
}

impl<'a> Attribute<'a> {
    /// One byte.
    ///
    /// # Errors
    /// When the payload is empty.
    pub fn u8(&self) -> Result<u8, DecodeError> {
        Ok(u8::from_ne_bytes(self.array()?))
    }

    /// 16 bits in the machine's byte order, or big-endian if the sender marked them so.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn u16(&self) -> Result<u16, DecodeError> {
        let bytes = self.array()?;
        Ok(if self.network_byte_order {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_ne_bytes(bytes)
        })
    }

    /// 16 bits in network byte order.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn u16_be(&self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// 32 bits in the machine's byte order, or big-endian if the sender marked them so.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn u32(&self) -> Result<u32, DecodeError> {
        let bytes = self.array()?;
        Ok(if self.network_byte_order {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_ne_bytes(bytes)
        })
    }

    /// 32 bits in network byte order.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn u32_be(&self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// 64 bits in the machine's byte order, or big-endian if the sender marked them so.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn u64(&self) -> Result<u64, DecodeError> {
        let bytes = self.array()?;
        Ok(if self.network_byte_order {
            u64::from_be_bytes(bytes)
        } else {
            u64::from_ne_bytes(bytes)
        })
    }

    /// Text up to the first zero byte or the payload's end.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub fn string(&self) -> Result<&'a str, DecodeError> {
        let text = self.value.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text)
            .map_err(|error| DecodeError::new("text attribute", error.to_string()))
    }

    /// An IPv4 address: the first four bytes.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn ipv4(&self) -> Result<Ipv4Addr, DecodeError> {
        Ok(Ipv4Addr::from(self.array::<4>()?))
    }

    /// An IPv6 address: the first sixteen bytes.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn ipv6(&self) -> Result<Ipv6Addr, DecodeError> {
        Ok(Ipv6Addr::from(self.array::<16>()?))
    }

    /// The attributes inside this one.
    pub fn nested(&self) -> impl Iterator<Item = Result<Attribute<'a>, DecodeError>> + use<'a> {
        attributes(self.value)
    }

    /// The first `N` bytes.
    ///
    /// # Errors
    /// When the payload is shorter.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], DecodeError> {
        self.value.first_chunk::<N>().copied().ok_or_else(|| {
            DecodeError::new(
                "attribute",
                format!("type {} has {} bytes, {N} are needed", self.kind, self.value.len()),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fill: impl FnOnce(&mut AttributeWriter<'_>)) -> (Vec<u8>, bool) {
        let (mut buffer, mut too_long) = (Vec::new(), false);
        fill(&mut AttributeWriter::new(&mut buffer, &mut too_long));
        (buffer, too_long)
    }

    #[test]
    fn what_is_written_is_read() {
        let (bytes, too_long) = written(|writer| {
            writer.u8(1, 7);
            writer.u16_be(2, 443);
            writer.string(3, "wrr");
            writer.nested(4, |inner| {
                inner.u32(1, 99);
                inner.address(2, IpAddr::from([10, 0, 0, 1]));
            });
            writer.u64(5, u64::MAX);
            writer.flag(6);
        });
        assert!(!too_long);
        assert_eq!(bytes.len() % 4, 0);
        let all: Vec<Attribute<'_>> = attributes(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(all.iter().map(|a| a.kind).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(all[0].u8(), Ok(7));
        assert_eq!(all[1].u16_be(), Ok(443));
        assert_eq!(all[2].string(), Ok("wrr"));
        let inner: Vec<Attribute<'_>> = all[3].nested().collect::<Result<_, _>>().unwrap();
        assert_eq!(inner[0].u32(), Ok(99));
        assert_eq!(inner[1].ipv4(), Ok(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(all[4].u64(), Ok(u64::MAX));
        assert!(all[5].value.is_empty());
    }

    #[test]
    fn a_short_payload_is_an_error_that_names_it() {
        let (bytes, _) = written(|writer| writer.u16(9, 1));
        let attribute = attributes(&bytes).next().unwrap().unwrap();
        assert_eq!(
            attribute.u32().unwrap_err().to_string(),
            "attribute: type 9 has 2 bytes, 4 are needed"
        );
    }

    #[test]
    fn a_length_past_the_end_ends_the_reading_with_one_error() {
        let (mut bytes, _) = written(|writer| {
            writer.u32(1, 1);
            writer.u32(2, 2);
        });
        bytes[8] = 200;
        let all: Vec<_> = attributes(&bytes).collect();
        assert_eq!(all.len(), 2);
        assert!(all[0].is_ok() && all[1].is_err());
    }

    #[test]
    fn a_marked_integer_is_read_big_endian() {
        let (bytes, _) = written(|writer| {
            writer.u32_be(AttributeWriter::in_network_byte_order(3), 5);
        });
        let attribute = attributes(&bytes).next().unwrap().unwrap();
        assert_eq!((attribute.kind, attribute.u32()), (3, Ok(5)));
    }

    #[test]
    fn what_does_not_fit_in_sixteen_bits_is_marked() {
        let (_, too_long) = written(|writer| writer.bytes(1, &vec![0; 65_536]));
        assert!(too_long);
        let (_, too_long) = written(|writer| {
            writer.nested(1, |inner| (0..20).for_each(|_| inner.bytes(1, &[0; 4_000])));
        });
        assert!(too_long);
    }
}
