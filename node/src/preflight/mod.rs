//! The preflight: can this host serve, and what would change if kube-ipvs took over from what runs
//! now.
//!
//! Nothing of Services is changed. The probes are those of the start: they load modules, and remove
//! what else they make. Everything else is read.
//!
//! - `abilities`: privileges, kernel, iptables;
//! - `present`: what runs now, and what other proxies have left;
//! - `network`: bridges, the FORWARD policy, reserved networks;
//! - `tuning`: sysctls, time limits of idle connections, ports, the size of connection tracking.

mod abilities;
mod network;
mod present;
mod tuning;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use plan::mode::Mode;
use serde::{Deserialize, Serialize};

use crate::host::survey::{self, Surveyed};
use config::Configuration;
use kernel::sysctl;

/// Result of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// Mode that the host was checked for.
    pub mode: String,
    /// Place of the configuration that was checked.
    pub configuration: String,
    /// True if nothing has failed.
    pub can_serve: bool,
    /// The checks, in the order in which problems are solved best.
    pub checks: Vec<Check>,
}

/// Something that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Name of the check.
    pub name: String,
    /// Result.
    pub state: CheckState,
    /// Observation, in words.
    pub found: String,
    /// Advice on what to do; none: nothing has to be done.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Something to know: a takeover changes it, or is not hindered by it.
    Note,
    /// Services are served, and something may not work as expected.
    Warning,
    /// Services cannot be served.
    Failed,
}

/// Checks the host for a configuration. `place` is where the configuration comes from, in words.
#[must_use]
pub fn run(configuration: &Configuration, place: &str) -> Preflight {
    let Surveyed { configuration, facts, rules, without_internal_frontends } =
        survey::survey(configuration);
    let configuration = &configuration;
    let proc_sys = Path::new(sysctl::ROOT);
    let mut checks: Vec<Check> =
        configuration.notes.iter().map(|note| Check::note("configuration", note)).collect();
    checks.extend(abilities::checks(configuration, &facts, &rules, &without_internal_frontends));
    let saved = present::saved();
    checks.extend(present::checks(configuration, &saved));
    checks.extend(network::checks(configuration, &saved, proc_sys));
    checks.extend(tuning::checks(configuration, &facts, proc_sys));
    Preflight::new(configuration.settings.mode, place, checks)
}

impl Preflight {
    fn new(mode: Mode, place: &str, checks: Vec<Check>) -> Self {
        Self {
            mode: mode.name().to_owned(),
            configuration: place.to_owned(),
            can_serve: checks.iter().all(|check| check.state != CheckState::Failed),
            checks,
        }
    }
}

impl Check {
    fn new(name: &str, state: CheckState, found: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state, found: found.into(), remedy: None }
    }

    fn ok(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Ok, found)
    }

    fn note(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Note, found)
    }

    fn warning(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(name, CheckState::Warning, found) }
    }

    /// The same with advice.
    fn advised(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// A check that could not be made.
    fn unread(name: &str, error: impl fmt::Display) -> Self {
        let found = format!("cannot be checked: {error}");
        Self::warning(name, found, "run the command as root, in the host's network namespace")
    }
}

impl CheckState {
    /// Returns the word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for CheckState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
