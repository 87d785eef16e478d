//! Versions of the parts of the kernel and of the programs that write it, as they say themselves.

use plan::model::Family;

use super::Linux;
use crate::rules::{Backend, IptablesVersion};

/// Versions as the kernel and the programs say them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versions {
    /// The programs of each family: `iptables` or `ip6tables`, the version, and where they keep rules.
    pub iptables: Vec<(Family, IptablesVersion, Backend)>,
    /// IPVS; none: the mode does without it, or it did not answer.
    pub ipvs: Option<String>,
    /// ipset's protocol that was agreed on; none: the mode does without sets.
    pub ipset_protocol: Option<u8>,
}

impl Linux {
    /// Returns the versions. Sends one request to IPVS, and runs no program.
    pub fn versions(&mut self) -> Versions {
        let rules = self.rules.lock();
        let mut iptables: Vec<_> = rules
            .programs
            .iter()
            .map(|(family, rules)| (*family, rules.version(), rules.backend()))
            .collect();
        drop(rules);
        iptables.sort_unstable_by_key(|(family, ..)| *family);
        let info = self.ipvs.as_mut().and_then(|client| client.info().ok());
        Versions {
            iptables,
            ipvs: info.map(|info| info.version.to_string()),
            ipset_protocol: self.ipset.as_ref().map(ipset::Client::protocol),
        }
    }
}
