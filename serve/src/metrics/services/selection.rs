//! Choice of the Services that have metrics of their own: `serviceMetrics`.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use plan::model::ServiceName;

/// Most Services of `top:N`.
const MOST: usize = 10_000;

/// Longest name of a namespace, as Kubernetes takes it.
const LONGEST_NAME: usize = 63;

/// Services that have metrics of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MeasuredServices {
    /// None.
    #[default]
    Off,
    /// Those with the most traffic of the last hours, at most this number.
    Top(NonZeroUsize),
    All,
    Namespaces(BTreeSet<String>),
}

impl MeasuredServices {
    /// True if a Service may have metrics of its own.
    #[must_use]
    pub fn includes(&self, service: &ServiceName) -> bool {
        match self {
            Self::Off => false,
            Self::Top(_) | Self::All => true,
            Self::Namespaces(names) => names.contains(&*service.namespace),
        }
    }

    /// The largest number of Services that have metrics of their own.
    #[must_use]
    pub const fn most(&self) -> usize {
        match self {
            Self::Off => 0,
            Self::Top(most) => most.get(),
            Self::All | Self::Namespaces(_) => usize::MAX,
        }
    }
}

/// Reads `off`, `top:N`, `all` or `namespaces:A,B`.
impl FromStr for MeasuredServices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "off" => Ok(Self::Off),
            None if text == "all" => Ok(Self::All),
            Some(("top", number)) => {
                let number = number.parse().ok().filter(|n: &NonZeroUsize| n.get() <= MOST);
                let number = number.ok_or(format!("top:N takes a number from 1 to {MOST}"))?;
                Ok(Self::Top(number))
            }
            Some(("namespaces", names)) => {
                let names: BTreeSet<String> = names.split(',').map(str::to_owned).collect();
                if let Some(wrong) = names.iter().find(|name| !is_namespace(name)) {
                    return Err(format!("{wrong:?} is not a namespace name"));
                }
                Ok(Self::Namespaces(names))
            }
            _ => Err("must be off, top:N, all or namespaces:NAME,…".to_owned()),
        }
    }
}

/// Writes what [`FromStr`] reads.
impl fmt::Display for MeasuredServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Top(most) => write!(f, "top:{most}"),
            Self::All => f.write_str("all"),
            Self::Namespaces(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                write!(f, "namespaces:{}", names.join(","))
            }
        }
    }
}

/// True for a label of DNS, as RFC 1123 has it.
fn is_namespace(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=LONGEST_NAME).contains(&name.len())
        && name.chars().all(|c| is_plain(c) || c == '-')
        && name.starts_with(is_plain)
        && name.ends_with(is_plain)
}
