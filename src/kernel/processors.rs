//! Lists of processors as the kernel reads and prints them, such as `0-3,8`.

use std::fmt;
use std::str::FromStr;

/// `NR_CPUS` can be no more (arch/x86/Kconfig has the highest).
const MOST: u32 = 8_192;

/// Processors by their numbers. Written as the kernel prints it, whatever order it was read in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processors {
    /// First and last of each range, in order, with a gap between them.
    ranges: Vec<(u32, u32)>,
}

// === impl Processors ===

impl Processors {
    /// Returns the number of processors, at least one.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.ranges.iter().map(|(first, last)| last - first + 1).sum()
    }
}

impl FromStr for Processors {
    type Err = &'static str;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        const PROBLEM: &str = "must be numbers of processors and ranges of them, separated by \
                               commas, such as 0-3,8";
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < MOST);
        let mut parsed = Vec::new();
        for range in list.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = number(first).zip(number(last)).ok_or(PROBLEM)?;
            if first > last {
                return Err(PROBLEM);
            }
            parsed.push((first, last));
        }
        parsed.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for (first, last) in parsed {
            match ranges.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => ranges.push((first, last)),
            }
        }
        Ok(Self { ranges })
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_in_any_order_and_written_as_the_kernel_does() {
        for (list, written, count) in [
            ("0\n", "0", 1),
            ("0-3", "0-3", 4),
            ("8-9,0-3,6", "0-3,6,8-9", 7),
            ("0,1", "0-1", 2),
            ("0-4,2,3-7", "0-7", 8),
            ("8191", "8191", 1),
        ] {
            let processors: Processors = list.parse().unwrap();
            assert_eq!((processors.to_string().as_str(), processors.count()), (written, count));
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for list in ["", "3-1", "0-", "-1", "a", "0,,1", "0-4294967295", "8192", "0-7:1/2", "all"] {
            assert!(list.parse::<Processors>().is_err(), "{list:?}");
        }
    }
}
