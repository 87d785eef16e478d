//! Actions that are done once, instead of balancing.

use std::path::Path;

use anyhow::{Context as _, bail};
use tracing::{info, warn};

use config::Configuration;
use node::cleanup;
use node::host;

/// Gets the host ready: what needs more privileges than balancing does.
pub(super) fn init_only(configuration: &Configuration) -> anyhow::Result<()> {
    let host = host::prepare(configuration, &[])?;
    if let Some(fallen_back) = &host.fallen_back {
        warn!("{fallen_back}");
    }
    info!("host prepared (--init-only); kube-ipvs exits");
    Ok(())
}

/// Removes everything that kube-proxy or we have in the kernel.
pub(super) fn clean_up(configuration: &Configuration) -> anyhow::Result<()> {
    let mut report = cleanup::all(&configuration.settings);
    report.kept.extend(host::sysctls::changed());
    report.log();
    if !report.is_complete() {
        bail!("encountered an error while tearing down rules; earlier log lines name what is left");
    }
    if report.removed.is_empty() {
        info!("nothing to remove: the kernel has no state of kube-proxy or kube-ipvs");
    }
    Ok(())
}

/// Leaves the node to kube-proxy's mode ipvs: removes only what that does not know.
pub(super) fn hand_over(configuration: &Configuration) -> anyhow::Result<()> {
    let report = cleanup::hand_over(&configuration.settings);
    report.log();
    if !report.is_complete() {
        bail!(
            "some objects that kube-proxy's IPVS mode does not know are left; earlier log lines \
             name them. Services are still served"
        );
    }
    info!(
        "no objects that kube-proxy's IPVS mode does not know are left; Services are still served"
    );
    Ok(())
}

/// Writes the configuration in force to a file.
pub(super) fn write_configuration(
    configuration: &Configuration,
    path: &Path,
) -> anyhow::Result<()> {
    let text = configuration.to_yaml().context("write the configuration as YAML")?;
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    info!("Wrote configuration to {}", path.display());
    Ok(())
}
