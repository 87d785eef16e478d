//! Names of tables, chains, sets and flow tables, and text that is none.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use netlink::DecodeError;

/// The longest name in bytes: `NFT_NAME_MAXLEN` less the zero byte that ends it
/// (include/uapi/linux/netfilter/nf_tables.h).
pub const MAX_NAME_LENGTH: usize = 255;

/// The name of a table, or of an object in one: 1 to 255 bytes, none of them zero.
///
/// Cloning it copies no text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Text that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    what: &'static str,
    text: String,
    problem: &'static str,
}

impl Name {
    /// A name of this text.
    ///
    /// # Errors
    /// When it is empty, longer than 255 bytes, or has a zero byte.
    pub fn new(name: impl AsRef<str>) -> Result<Self, ParseError> {
        let name = name.as_ref();
        let broken = |problem| ParseError::new("name", name, problem);
        match name.len() {
            0 => Err(broken("it is empty")),
            length if length > MAX_NAME_LENGTH => Err(broken("it is longer than 255 bytes")),
            _ if name.contains('\0') => Err(broken("it has a zero byte")),
            _ => Ok(Self(name.into())),
        }
    }

    /// A name as the kernel says it. One that is not UTF-8 is another program's, and becomes one with those bytes
    /// replaced.
    pub(crate) fn from_kernel(bytes: &[u8]) -> Self {
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Self(String::from_utf8_lossy(text).into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for Name {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::new(text)
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl ParseError {
    pub(crate) fn new(what: &'static str, text: impl Into<String>, problem: &'static str) -> Self {
        Self { what, text: text.into(), problem }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a {}: {}", self.text, self.what, self.problem)
    }
}

impl std::error::Error for ParseError {}

impl From<ParseError> for DecodeError {
    fn from(error: ParseError) -> Self {
        Self::new(error.what, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_255_bytes_and_no_zero() {
        assert_eq!(Name::new("cluster-ips").unwrap().to_string(), "cluster-ips");
        assert_eq!(Name::new("").unwrap_err().to_string(), "`` is not a name: it is empty");
        assert!(Name::new("a".repeat(255)).is_ok() && Name::new("a".repeat(256)).is_err());
        assert!(Name::new("a\0b").is_err());
        assert_eq!(&Name::from_kernel(b"a\xff\0z"), "a\u{fffd}");
    }
}
