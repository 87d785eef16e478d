//! The kernels a guest can run.

use std::fmt;

use clap::ValueEnum;

/// A kernel series that Debian ships for cloud machines. The newest is the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 11: the oldest long-term series in use.
    #[value(name = "5.10")]
    V5_10,
    /// Debian 12.
    #[default]
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13.
    #[value(name = "6.12")]
    V6_12,
    /// The long-term series after Debian 13.
    #[value(name = "6.18")]
    V6_18,
    /// The newest Linux 7 of Debian.
    #[value(name = "7")]
    V7,
}

impl Kernel {
    /// The series as it starts a kernel release: `6.1` of `6.1.0-40-cloud-amd64`, `7` of
    /// `7.3.4+deb13-cloud-amd64`.
    pub(crate) fn series(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V6_18 => "6.18",
            Self::V7 => "7",
        }
    }

    /// The Debian suites that carry this series, the one with the smaller index first. A suite
    /// whose key this machine does not have is passed over for the next.
    pub(crate) fn suites(self) -> &'static [&'static str] {
        match self {
            Self::V5_10 => &["bullseye"],
            Self::V6_1 => &["bookworm"],
            Self::V6_12 => &["bookworm-backports", "trixie"],
            Self::V6_18 => &["trixie-backports"],
            Self::V7 => &["trixie-backports", "sid"],
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.series())
    }
}
