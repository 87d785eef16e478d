//! Durations as Go writes them: `1h30m`, `500ms`, `0s`. Configuration files and flags have them so.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanoseconds, as Go's `time.Duration`: there are negative ones, which no setting may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(i64);

/// Text that is not a duration. In Go's words, which kube-proxy's users know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// Nothing of it is a duration, or it is longer than 292 years.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number without a unit: `30` where `30s` is meant.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit that is none of `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// Text in the place of the unit.
        unit: String,
        text: String,
    },
}

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000 * MICROSECOND;
const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

impl GoDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: i32) -> Self {
        // At most 2^31 * 10^9, which fits.
        Self(seconds as i64 * SECOND)
    }

    #[must_use]
    pub const fn from_nanos(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The same as the standard library has it; no time at all for a negative one.
    #[must_use]
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// This, or another where this is zero.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self == Self::ZERO { other } else { self }
    }
}

/// More than 292 years become 292 years.
impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let invalid = || InvalidDuration::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total = 0_i128;
        while !rest.is_empty() {
            let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
            let (unit, after) = split(after, |c| !(c.is_ascii_digit() || c == '.'));
            total += part(text, number, unit)?;
            rest = after;
        }
        let total = if negative { -total } else { total };
        i64::try_from(total).map(Self).map_err(|_| invalid())
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let total = self.0.unsigned_abs();
        let second = SECOND.unsigned_abs();
        if total == 0 {
            return f.write_str("0s");
        }
        if total < second {
            for (unit, name) in [(MILLISECOND, "ms"), (MICROSECOND, "µs")] {
                if total >= unit.unsigned_abs() {
                    return decimal(f, total, unit.unsigned_abs(), name);
                }
            }
            return write!(f, "{total}ns");
        }
        let (hours, minutes) = (total / HOUR.unsigned_abs(), total / MINUTE.unsigned_abs());
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{}m", minutes % 60)?;
        }
        decimal(f, total % MINUTE.unsigned_abs(), second, "s")
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// A number and its unit, in nanoseconds. What is finer than a nanosecond is cut off.
fn part(text: &str, number: &str, unit: &str) -> Result<i128, InvalidDuration> {
    let invalid = || InvalidDuration::Invalid(text.to_owned());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Longer numbers are too long for a duration anyway; this keeps the arithmetic in its range.
    let too_long = whole.len() > 20 || fraction.contains('.');
    if too_long || (whole.is_empty() && fraction.is_empty()) {
        return Err(invalid());
    }
    let unit = match unit {
        "" => return Err(InvalidDuration::MissingUnit(text.to_owned())),
        "ns" => 1,
        // The micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        unit => {
            let (unit, text) = (unit.to_owned(), text.to_owned());
            return Err(InvalidDuration::UnknownUnit { unit, text });
        }
    };
    let digits = |digits: &str| -> Result<i128, InvalidDuration> {
        if digits.is_empty() { Ok(0) } else { digits.parse().map_err(|_| invalid()) }
    };
    let fraction: String = fraction.chars().take(15).collect();
    let scale = 10_i128.pow(u32::try_from(fraction.len()).map_err(|_| invalid())?);
    let unit = i128::from(unit);
    Ok(digits(whole)? * unit + digits(&fraction)? * unit / scale)
}

/// A number of units with as many decimals as it takes.
fn decimal(f: &mut fmt::Formatter<'_>, value: u64, unit: u64, name: &str) -> fmt::Result {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return write!(f, "{whole}{name}");
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{rest:0width$}");
    write!(f, "{whole}.{}{name}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_in_go() {
        for (text, nanoseconds, written) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("15m", 900 * SECOND, "15m0s"),
            ("24h", 86_400 * SECOND, "24h0m0s"),
            ("1h1s", 3_601 * SECOND, "1h0m1s"),
            ("1m30s", 90 * SECOND, "1m30s"),
            ("1.5s", 1_500 * MILLISECOND, "1.5s"),
            (".5h", 1_800 * SECOND, "30m0s"),
            ("1.s", SECOND, "1s"),
            ("500ms", 500 * MILLISECOND, "500ms"),
            ("1.001ms", 1_001 * MICROSECOND, "1.001ms"),
            ("10us", 10 * MICROSECOND, "10µs"),
            ("10µs", 10 * MICROSECOND, "10µs"),
            ("7ns", 7, "7ns"),
            ("-1s", -SECOND, "-1s"),
            ("+1s", SECOND, "1s"),
            ("9223372036854775807ns", i64::MAX, "2562047h47m16.854775807s"),
        ] {
            let duration: GoDuration = text.parse().unwrap();
            assert_eq!(duration.as_nanos(), nanoseconds, "{text}");
            assert_eq!(duration.to_string(), written, "{text}");
            assert_eq!(written.parse(), Ok(duration), "{written}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused_in_gos_words() {
        for (text, problem) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("30", "time: missing unit in duration \"30\""),
            ("1m30", "time: missing unit in duration \"1m30\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("s", "time: invalid duration \"s\""),
            (".s", "time: invalid duration \".s\""),
            ("1.2.3s", "time: invalid duration \"1.2.3s\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("99999999999999999999999999999999999999999h", "time: invalid duration"),
        ] {
            let said = text.parse::<GoDuration>().unwrap_err().to_string();
            assert!(said.starts_with(problem), "{said}");
        }
    }

    #[test]
    fn a_negative_duration_is_none_for_the_program() {
        assert_eq!(GoDuration::from_secs(-1).to_std(), Duration::ZERO);
        assert_eq!(GoDuration::from_secs(2).to_std(), Duration::from_secs(2));
    }
}
