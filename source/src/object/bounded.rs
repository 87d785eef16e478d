//! Lists of an object that end, whatever was sent.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A list of up to so many.
struct Bounded<T, const MOST: usize>(Vec<T>);

struct BoundedVisitor<T, const MOST: usize>(PhantomData<T>);

/// Decodes a list of at most `MOST` items. `null` is an empty one. Where an item takes 64 bytes and is written
/// as `{}`, the memory of a longer one is twenty times its text.
pub(crate) fn at_most<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list: Option<Bounded<T, MOST>> = Option::deserialize(deserializer)?;
    Ok(list.map(|list| list.0).unwrap_or_default())
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Bounded<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for BoundedVisitor<T, MOST> {
    type Value = Bounded<T, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == MOST {
                return Err(A::Error::custom(format_args!("more than {MOST} items")));
            }
            list.push(item);
        }
        Ok(Bounded(list))
    }
}
