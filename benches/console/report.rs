//! Times, as a table shows them.

use std::fmt;
use std::time::Duration;

/// Times of the same thing.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

// === impl Times ===

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        let place = self.0.partition_point(|other| *other <= time);
        self.0.insert(place, time);
    }

    pub(crate) fn median(&self) -> Duration {
        self.at(50)
    }

    /// Returns the time that so many percent of them do not exceed.
    fn at(&self, percent: usize) -> Duration {
        let place = (self.0.len() * percent).div_ceil(100).max(1) - 1;
        self.0.get(place).copied().unwrap_or_default()
    }
}

impl fmt::Display for Times {
    /// Three columns: the median, the 99th percentile, the longest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = [50, 99, 100].map(|percent| text(self.at(percent)));
        f.write_str(&cells.join(" | "))
    }
}

/// Returns a time with three figures.
pub(crate) fn text(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1_000.0;
    match milliseconds {
        ..10.0 => format!("{milliseconds:.2} ms"),
        ..100.0 => format!("{milliseconds:.1} ms"),
        _ => format!("{milliseconds:.0} ms"),
    }
}
