//! Values in registers: keys of sets, values of maps, and what rules compare with.

use std::fmt;
use std::net::IpAddr;

/// Bits of a field in the number of a concatenated type (`TYPE_BITS` in nft's include/datatype.h).
const TYPE_BITS: u32 = 6;
/// Registers have 4 bytes, and each field of a concatenation begins a register (`NFT_REG32_SIZE`).
const REGISTER_LENGTH: usize = 4;

/// Bytes as they are in registers: one field, or several, each of which is padded with zeros to 4 bytes.
///
/// Integers are in network byte order as in packets, but for marks and states of connection tracking, which are in
/// the machine's. The kernel takes at most 64 bytes (`NFT_DATA_VALUE_MAXLEN`).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Data(Vec<u8>);

/// A field of a key or of a map's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Field {
    /// An IPv4 address, 4 bytes.
    Ipv4Address,
    /// An IPv6 address, 16 bytes.
    Ipv6Address,
    /// A protocol above IP, 1 byte.
    Protocol,
    /// A port, 2 bytes.
    Port,
    /// A packet's mark, 4 bytes in the machine's byte order.
    Mark,
}

/// Type of a set's keys, or of a map's values: one field or several.
///
/// The number is for `nft` alone, which prints elements by it; the kernel knows the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataType {
    number: u32,
    length: u32,
}

impl Data {
    /// These bytes as they are, which are not padded.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// A packet's mark, in the machine's byte order.
    #[must_use]
    pub fn mark(mark: u32) -> Self {
        Self(mark.to_ne_bytes().to_vec())
    }

    /// Appends an address.
    #[must_use]
    pub fn with_address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.with(&address.octets()),
            IpAddr::V6(address) => self.with(&address.octets()),
        }
    }

    /// Appends the number of a protocol above IP (`IPPROTO_TCP` is 6).
    #[must_use]
    pub fn with_protocol(self, protocol: u8) -> Self {
        self.with(&[protocol])
    }

    /// Appends a port.
    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        self.with(&port.to_be_bytes())
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn with(mut self, field: &[u8]) -> Self {
        let is_first = self.0.is_empty();
        self.pad();
        self.0.extend_from_slice(field);
        if !is_first {
            self.pad();
        }
        self
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(REGISTER_LENGTH), 0);
    }
}

/// In hexadecimal: the bytes do not say what they are.
impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Field {
    /// `enum datatypes` of nft's include/datatype.h.
    fn number(self) -> u32 {
        match self {
            Self::Ipv4Address => 7,
            Self::Ipv6Address => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
        }
    }

    fn length(self) -> u32 {
        match self {
            Self::Ipv4Address | Self::Mark => 4,
            Self::Ipv6Address => 16,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }
}

impl DataType {
    /// A type of these fields in this order. One field alone has its own length, several are padded.
    #[must_use]
    pub fn new(fields: &[Field]) -> Self {
        let padded = |field: &Field| field.length().next_multiple_of(REGISTER_LENGTH as u32);
        match fields {
            [field] => Self { number: field.number(), length: field.length() },
            _ => Self {
                number: (fields.iter())
                    .fold(0, |number, field| number << TYPE_BITS | field.number()),
                length: fields.iter().map(padded).sum(),
            },
        }
    }

    pub(crate) fn from_kernel(number: u32, length: u32) -> Self {
        Self { number, length }
    }

    /// Returns the number by which `nft` knows the type.
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }

    /// Returns the number of bytes of a value.
    #[must_use]
    pub fn length(self) -> u32 {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_begin_at_multiples_of_four() {
        let key = Data::default()
            .with_address([10, 96, 0, 10].into())
            .with_protocol(6)
            .with_port(80)
            .with_address([10, 244, 1, 5].into());
        assert_eq!(key.to_string(), "0x0a60000a06000000005000000af40105");
        assert_eq!(Data::default().with_port(443).to_string(), "0x01bb", "one alone is as it is");
    }

    #[test]
    fn types_have_the_numbers_and_lengths_that_nft_gives_them() {
        let of = |fields: &[Field]| {
            let data_type = DataType::new(fields);
            (data_type.number(), data_type.length())
        };
        assert_eq!(of(&[Field::Port]), (13, 2));
        assert_eq!(of(&[Field::Ipv4Address, Field::Protocol, Field::Port]), (0x7_30d, 12));
        let with_source = [Field::Ipv6Address, Field::Protocol, Field::Port, Field::Ipv6Address];
        assert_eq!(of(&with_source), (0x20_c348, 40));
    }
}
