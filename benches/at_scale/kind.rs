//! The mode that is measured, and the kind of iptables that holds its rules.

use clap::{Args, ValueEnum};
use kube_ipvs::kernel::rules::Variant;
use plan::mode::Mode;

/// Mode and kind of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct Kind {
    /// Mode of the loop.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub(crate) mode: MeasuredMode,
    /// Kind of iptables.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub(crate) variant: MeasuredVariant,
}

/// See [`Mode`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasuredMode {
    #[default]
    Ipvs,
    Iptables,
}

/// See [`Variant`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasuredVariant {
    #[default]
    Auto,
    Nft,
    Legacy,
}

// === impl Kind ===

impl Kind {
    pub(crate) fn mode(self) -> Mode {
        match self.mode {
            MeasuredMode::Ipvs => Mode::Ipvs,
            MeasuredMode::Iptables => Mode::Iptables,
        }
    }

    pub(crate) fn variant(self) -> Variant {
        match self.variant {
            MeasuredVariant::Auto => Variant::Auto,
            MeasuredVariant::Nft => Variant::Nft,
            MeasuredVariant::Legacy => Variant::Legacy,
        }
    }

    /// Returns the arguments that say this to another process.
    pub(crate) fn arguments(self) -> [String; 2] {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        [
            format!("--mode={}", name(&|| self.mode.to_possible_value())),
            format!("--variant={}", name(&|| self.variant.to_possible_value())),
        ]
    }
}

// === impl MeasuredVariant ===

impl MeasuredVariant {
    /// Returns the name of its program for IPv4: `iptables-nft`.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Auto => "iptables",
            Self::Nft => "iptables-nft",
            Self::Legacy => "iptables-legacy",
        }
    }
}
