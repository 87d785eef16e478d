//! Names of sets and of set types.

use std::fmt;
use std::str::FromStr;

use crate::error::ParseError;

/// The longest name in bytes: `IPSET_MAXNAMELEN` less the zero byte that ends it
/// (include/uapi/linux/netfilter/ipset/ip_set.h).
pub const MAX_NAME_LENGTH: usize = 31;

/// The name of a set, or of a set type: 1 to 31 bytes, none of them zero.
///
/// The kernel requires no encoding, so a name that another program chose may be any bytes. It
/// displays with what is not UTF-8 replaced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; MAX_NAME_LENGTH]);

impl Name {
    /// A name of these bytes.
    ///
    /// # Errors
    /// When there are none, more than 31, or one of them is zero.
    pub fn new(name: impl AsRef<[u8]>) -> Result<Self, ParseError> {
        let bytes = name.as_ref();
        let broken = |problem| ParseError::new("name", String::from_utf8_lossy(bytes), problem);
        if bytes.is_empty() {
            return Err(broken("it is empty"));
        }
        if bytes.contains(&0) {
            return Err(broken("it has a zero byte"));
        }
        let mut name = [0; MAX_NAME_LENGTH];
        name.get_mut(..bytes.len())
            .ok_or_else(|| broken("it is longer than 31 bytes"))?
            .copy_from_slice(bytes);
        Ok(Self(name))
    }

    /// The bytes, without an ending zero.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

impl FromStr for Name {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::new(text)
    }
}

impl TryFrom<&str> for Name {
    type Error = ParseError;

    fn try_from(text: &str) -> Result<Self, ParseError> {
        Self::new(text)
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_to_thirty_one_bytes() {
        let longest = "KUBE-6-LOAD-BALANCER-SOURCE-CID";
        assert_eq!(Name::new(longest).unwrap(), longest);
        assert_eq!(Name::new(longest).unwrap().to_string(), longest);
        let error = Name::new("KUBE-6-LOAD-BALANCER-SOURCE-CIDR").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`KUBE-6-LOAD-BALANCER-SOURCE-CIDR` is not a name: it is longer than 31 bytes"
        );
        assert!(Name::new("").is_err());
        assert!(Name::new("a\0b").is_err());
    }

    #[test]
    fn a_foreign_name_need_not_be_text() {
        let name = Name::new([b'a', 0xff]).unwrap();
        assert_eq!(name.as_bytes(), [b'a', 0xff]);
        assert_eq!(name.to_string(), "a\u{fffd}");
    }

    #[test]
    fn names_sort_as_text() {
        assert!(Name::new("A").unwrap() < Name::new("AB").unwrap());
        assert!(Name::new("AB").unwrap() < Name::new("B").unwrap());
    }
}
