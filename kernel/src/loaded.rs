//! IPVS and ipset, where the kernel has them.

use std::path::Path;

use super::ReadError;

/// True if the kernel has not loaded IPVS, and so has no virtual server: a question over netlink would
/// load it.
fn is_ipvs_missing() -> bool {
    let table = Path::new("/proc/thread-self/net/ip_vs");
    table.parent().is_some_and(Path::exists) && !table.exists()
}

/// Opens IPVS; none: the kernel has none, or has not loaded it.
pub(super) fn ipvs() -> Result<Option<ipvs::Client>, ReadError> {
    if is_ipvs_missing() {
        return Ok(None);
    }
    match ipvs::Client::open() {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(ReadError::new("IPVS", error)),
    }
}

/// Opens ipset; none: the kernel has none.
pub(super) fn ipset() -> Result<Option<ipset::Client>, ReadError> {
    match ipset::Client::open() {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(ReadError::new("ipset", error)),
    }
}
