//! Distributions whose host a guest is made into before its program starts.

/// Packet filters of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Distribution {
    /// As every guest is.
    #[default]
    Debian,
    /// Its `iptables` is that of x_tables, as in user mode.
    Legacy,
    /// It has the modules of RHEL 10's package `kernel-modules-core` alone, and no program of packet filters.
    EnterpriseLinux,
}

impl Distribution {
    /// Shell text that makes a guest into it, if that takes anything.
    pub(crate) fn setup(self) -> Option<String> {
        let text = match self {
            Self::Debian => return None,
            Self::Legacy => {
                "for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do \
                 ln -sf xtables-legacy-multi /usr/sbin/$name; done"
            }
            Self::EnterpriseLinux => include_str!("enterprise-linux.sh"),
        };
        Some(text.to_owned())
    }

    /// Variable by which programs in the guest know it, if they need to.
    pub(crate) fn variable(self) -> Option<(String, String)> {
        let is_known = self == Self::EnterpriseLinux;
        is_known.then(|| ("KUBE_IPVS_ENTERPRISE_LINUX".to_owned(), "1".to_owned()))
    }

    /// Its name; none for what every guest is.
    pub(crate) const fn name(self) -> Option<&'static str> {
        match self {
            Self::Debian => None,
            Self::Legacy => Some("legacy"),
            Self::EnterpriseLinux => Some("Enterprise Linux"),
        }
    }
}
