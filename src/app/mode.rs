//! The mode that the node serves in.

use anyhow::bail;
use plan::mode::Mode;

use crate::config::Configuration;

/// Refuses modes that are not complete.
pub(super) fn refuse_incomplete(configuration: &Configuration) -> anyhow::Result<()> {
    if configuration.modes.may_become(Mode::Iptables) {
        bail!(
            "mode iptables is not complete in this version of kube-ipvs: set mode: ipvs, and leave \
             fallback empty"
        );
    }
    Ok(())
}
