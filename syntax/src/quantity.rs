//! Kubernetes' quantities, as far as a number of bytes needs them: `0`, `512`, `64Ki`, `1M`.

use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, with the text that it was given as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantity {
    text: String,
    bytes: u64,
}

/// Text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size such as 512, 64Ki or 1M")]
pub struct InvalidQuantity(String);

const SUFFIXES: [(&str, u64); 13] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];

impl Quantity {
    /// True if the quantity is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.bytes == 0
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self { text: "0".to_owned(), bytes: 0 }
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let invalid = || InvalidQuantity(text.to_owned());
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let factor = SUFFIXES.iter().find(|(name, _)| *name == suffix).map(|(_, factor)| *factor);
        let bytes = number
            .parse::<u64>()
            .ok()
            .zip(factor)
            .and_then(|(number, factor)| number.checked_mul(factor))
            .ok_or_else(invalid)?;
        Ok(Self { text: text.to_owned(), bytes })
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_and_binary_suffixes() {
        for (text, bytes) in [("0", 0), ("512", 512), ("2k", 2_000), ("64Ki", 65_536)] {
            assert_eq!(text.parse::<Quantity>().unwrap().bytes, bytes, "{text}");
        }
        for text in ["", "Ki", "1.5Ki", "-1", "1KiB", "99999999999999999999", "99E"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }
}
