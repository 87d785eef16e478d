//! Version of this program.

use std::sync::LazyLock;

/// Commit that was built, if the build was told: `KUBE_IPVS_COMMIT`, a hash in hexadecimal digits.
pub const COMMIT: &str = match option_env!("KUBE_IPVS_COMMIT") {
    Some(commit) => commit,
    None => "",
};

/// Version with the commit as build metadata (semver.org, 10): `v0.1.0+1a2b3c4`.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let plus = if COMMIT.is_empty() { "" } else { "+" };
    format!("v{}{plus}{COMMIT}", env!("CARGO_PKG_VERSION"))
});
