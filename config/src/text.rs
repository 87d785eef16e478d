//! Texts of fields, parsed when they are read.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Words, each with its gloss for the reference.
pub type Words = &'static [(&'static str, &'static str)];

/// Value that a field holds as text.
pub trait Text: Sized {
    /// Words that the text may be, each with a gloss for the reference. None: any other text.
    const WORDS: Words = &[];

    /// Reads a text that is not empty.
    fn read(text: &str) -> Result<Self, String>;

    /// Writes what [`read`](Self::read) reads.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// Text of a field. Validation refuses an invalid one, together with all else that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Parsed<T> {
    /// Absent or empty.
    #[default]
    Unset,
    /// Its value.
    Valid(T),
    /// A text that is no value.
    Invalid {
        /// Text as it was written.
        text: String,
        /// Condition that it must meet.
        problem: String,
    },
}

impl<T> Parsed<T> {
    /// Returns the value, if there is one.
    pub const fn valid(&self) -> Option<&T> {
        match self {
            Self::Valid(value) => Some(value),
            Self::Unset | Self::Invalid { .. } => None,
        }
    }

    /// Returns a text that is no value, with what it must be.
    pub fn invalid(&self) -> Option<(&str, &str)> {
        match self {
            Self::Invalid { text, problem } => Some((text, problem)),
            Self::Unset | Self::Valid(_) => None,
        }
    }
}

impl<T: Clone + Default> Parsed<T> {
    /// Returns the value, which is the default where there is none.
    pub fn value(&self) -> T {
        self.valid().cloned().unwrap_or_default()
    }

    /// Sets an unset value to its default.
    pub fn or_default(&mut self) {
        if matches!(self, Self::Unset) {
            *self = Self::Valid(T::default());
        }
    }
}

impl<T> From<T> for Parsed<T> {
    fn from(value: T) -> Self {
        Self::Valid(value)
    }
}

impl<T: Text> Parsed<T> {
    /// Reads a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        match text {
            "" => Self::Unset,
            text => match T::read(text) {
                Ok(value) => Self::Valid(value),
                Err(problem) => Self::Invalid { text: text.to_owned(), problem },
            },
        }
    }
}

impl<T: Text> fmt::Display for Parsed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => Ok(()),
            Self::Valid(value) => value.write(f),
            Self::Invalid { text, .. } => f.write_str(text),
        }
    }
}

impl<T: Text> Serialize for Parsed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Text> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::new(&text))
    }
}

/// Reads a text that YAML takes for something else unless it is quoted. `off` is false to
/// everything that speaks YAML 1.1, such as what templates are filled in with; `3` is a number.
pub(super) fn of_scalar<'de, T, D>(deserializer: D) -> Result<Parsed<T>, D::Error>
where
    T: Text,
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "neither a word nor a number")]
    enum Scalar {
        Text(String),
        Truth(bool),
        Number(u32),
    }
    Ok(match Scalar::deserialize(deserializer)? {
        Scalar::Text(text) => Parsed::new(&text),
        Scalar::Truth(true) => Parsed::new("on"),
        Scalar::Truth(false) => Parsed::new("off"),
        Scalar::Number(number) => Parsed::new(&number.to_string()),
    })
}

/// Parses the values that Go's `strconv.ParseBool` accepts.
pub(crate) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// The known name that is nearest to another one, if one is near enough to be meant.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    let most = 1 + name.len() / 4;
    known
        .map(|known| (strsim::damerau_levenshtein(&lower, &known.to_lowercase()), known))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, known)| known)
}
