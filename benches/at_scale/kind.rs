//! The mode that is measured, the kind of iptables that holds its rules, and what makes addresses local.

use std::net::Ipv4Addr;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use kernel::rules::Variant;
use plan::mode::Mode;
use plan::settings::{FastPath, RuleForm};

/// Network of all cluster addresses: 10.96.0.0/12.
pub(crate) const SERVICES: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 96, 0, 0), 12);

/// Mode, kind of iptables, and what makes addresses local.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct Kind {
    /// Mode of the loop.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub(crate) mode: MeasuredMode,
    /// Kind of iptables.
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub(crate) variant: MeasuredVariant,
    /// Have one local route in the place of an address for each Service (serviceRoutes).
    #[arg(long)]
    pub(crate) routes: bool,
    /// Have sets and rules in tables of nf_tables (ruleBackend).
    #[arg(long)]
    pub(crate) tables: bool,
    /// Lead all clients to internal frontends (fastPath), with tables.
    #[arg(long, requires = "tables")]
    pub(crate) fast_path: bool,
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

    pub(crate) fn rule_form(self) -> RuleForm {
        if self.tables { RuleForm::Nftables } else { RuleForm::Iptables }
    }

    pub(crate) fn fast_path(self) -> FastPath {
        if self.fast_path { FastPath::Conntrack } else { FastPath::Off }
    }

    /// Returns the networks with a local route.
    pub(crate) fn service_routes(self) -> Vec<IpNet> {
        let (address, length) = SERVICES;
        let route = self.routes.then(|| IpNet::new(address.into(), length).ok());
        route.flatten().into_iter().collect()
    }

    /// Returns the arguments that say this to another process.
    pub(crate) fn arguments(self) -> Vec<String> {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let mut arguments = vec![
            format!("--mode={}", name(&|| self.mode.to_possible_value())),
            format!("--variant={}", name(&|| self.variant.to_possible_value())),
        ];
        arguments.extend(self.routes.then(|| "--routes".to_owned()));
        arguments.extend(self.tables.then(|| "--tables".to_owned()));
        arguments.extend(self.fast_path.then(|| "--fast-path".to_owned()));
        arguments
    }
}

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
