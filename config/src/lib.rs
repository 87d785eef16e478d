//! The configuration: kube-proxy's, to the letter, and a little of our own.
//!
//! ```text
//!   flags ──────────────┐
//!                       ├─▶ document ──▶ validated ──▶ Configuration
//!   file ──▶ defaults ──┘
//! ```
//!
//! A file replaces the flags, but for those that count beside it. What holds in the end is one
//! document again, which can be written and served, and from which the program's parts get what
//! they need ([`Configuration`]).

pub mod arguments;
pub mod cli;
pub mod defaults;
pub mod document;
mod file;
pub mod flags;
pub mod gates;
pub mod kube_ipvs;
pub mod mode;
mod networks;
pub mod read;
pub mod reference;
mod resolved;
mod service_routes;
pub mod setting;
pub mod settings;
pub mod text;
mod tree;
pub mod validate;
pub mod warnings;
pub mod watch;
pub mod words;

use std::fmt;
use std::path::Path;

use plan::mode::Mode;

pub use arguments::{Action, Arguments};
use document::KubeProxyConfiguration;
pub use file::ConfigurationFile;
use kube_ipvs::KubeIpvsConfiguration;
use mode::ModeChoice;
use read::Documents;
pub use resolved::{
    ApiServer, CONTROLLER, Configuration, Conntrack, IpvsTimeouts, Logging, Served,
};
pub use service_routes::ServiceRoutes;
use text::Parsed;
use validate::Violation;
pub use words::LogFormat;
use words::ProxyMode;

/// Reason for which there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// It could not be put together.
    #[error("failed complete: {0}")]
    Complete(String),
    /// It cannot be so.
    #[error("failed validate: {}{}", listed(.violations), noted(.notes))]
    Validate {
        /// Reasons.
        violations: Vec<Violation>,
        /// Notes on settings that have no effect, which may be the reason.
        notes: Vec<String>,
    },
}

impl Configuration {
    /// Puts together what files and flags say.
    ///
    /// # Errors
    /// When a file cannot be read, or what it says together with the flags cannot be: all of it at
    /// once.
    pub fn load(arguments: &Arguments) -> Result<Self, ConfigurationError> {
        let file = arguments.file().map(|path| ConfigurationFile::read(Path::new(path)));
        let file = file.transpose().map_err(ConfigurationError::Complete)?;
        Self::assemble(arguments, file, None)
    }

    /// Puts the same together for another mode, which has no fallback. The file is not read again.
    ///
    /// # Errors
    /// When settings of that mode cannot be as they are.
    pub fn for_mode(&self, arguments: &Arguments, mode: Mode) -> Result<Self, ConfigurationError> {
        Self::assemble(arguments, self.file.clone(), Some(mode))
    }

    /// True if the running process can take on the `new` configuration: if the mode, its fallback or the path of packets
    /// changes. All parts are then made anew, but for the log.
    #[must_use]
    pub fn can_become(&self, new: &Self) -> bool {
        let changes_mode = self.configured_mode != new.configured_mode || self.modes != new.modes;
        let changes_path = self.fast_path != new.fast_path;
        (changes_mode || changes_path) && self.logging == new.logging
    }

    fn assemble(
        arguments: &Arguments,
        file: Option<ConfigurationFile>,
        chosen: Option<Mode>,
    ) -> Result<Self, ConfigurationError> {
        let complete = |problem: String| ConfigurationError::Complete(problem);
        let mut notes = flags::notes(arguments);
        let mut documents = match &file {
            Some(file) => {
                let documents = file.documents().map_err(complete)?;
                let path = file.path.display();
                notes.extend(documents.notes.iter().map(|note| format!("{path}: {note}")));
                Documents { kube_proxy: documents.kube_proxy.with_defaults(), ..documents }
            }
            None => Documents { kube_proxy: flags::without_file(), ..Documents::default() },
        };
        flags::set(arguments, &mut documents).map_err(complete)?;
        let Documents { kube_proxy: mut document, mut own, .. } = documents;
        let mut configured_mode = document.mode.clone();
        configured_mode.or_default();
        if let Some(mode) = chosen {
            document.mode = ProxyMode::Of(mode).into();
            own.fallback = Parsed::Unset;
        }
        if let Some(name) = arguments.value("hostname-override").filter(|name| !name.is_empty()) {
            let name = name.trim().to_lowercase();
            if name.is_empty() {
                return Err(complete("empty hostname-override is invalid".to_owned()));
            }
            document.hostname_override = name;
        }
        let action = Action::of(arguments);
        notes.extend(mode::notes(arguments, &document, &own.clone().with_defaults()));
        let used: Vec<_> = validate::used(&document).chain(validate::routed(&own)).collect();
        let yielded = own.yield_internal_frontends(&used);
        let own = own.with_defaults();
        if ModeChoice::new(&document, &own).may(Mode::has_virtual_servers) {
            notes.extend(yielded);
        }
        let cidrs = cluster_cidrs(arguments, &document);
        let mut violations =
            validate::validate(&document, &ModeChoice::new(&document, &own), &cidrs);
        if action == Action::Cleanup {
            // What other modes have left is removed whatever the mode.
            violations.retain(|violation| !violation.is_about_another_mode());
        }
        violations.extend(validate::validate_own(&own, &document));
        if !violations.is_empty() {
            return Err(ConfigurationError::Validate { violations, notes });
        }
        if !document.logging.vmodule.is_empty()
            && let Some(why) =
                reference::of_flag("vmodule").and_then(|(s, _)| s.effect.none_because())
        {
            notes.push(format!("logging.vmodule has no effect: {why}"));
        }
        let document = in_force(document, &own);
        let configured_mode = configured_mode.to_string();
        resolved::Merged { configured_mode, document, own, file, notes, action }
            .resolve(arguments)
            .map_err(ConfigurationError::Complete)
    }

    /// The configuration in force as text, which is a file that says the same.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        let kube_proxy = serde_saphyr::to_string(&self.document)?;
        let own = serde_saphyr::to_string(&self.own)?;
        Ok(format!("{}\n---\n{}\n", kube_proxy.trim_end(), own.trim_end()))
    }

    /// Returns the answer of `/configz`.
    pub fn to_configz(&self) -> serde_json::Result<serde_json::Value> {
        let mut all = serde_json::Map::new();
        let (group, _) = document::API_VERSION.split_once('/').unwrap_or_default();
        all.insert(group.to_owned(), serde_json::to_value(&self.document)?);
        let (group, _) = kube_ipvs::API_VERSION.split_once('/').unwrap_or_default();
        all.insert(group.to_owned(), serde_json::to_value(&self.own)?);
        Ok(serde_json::Value::Object(all))
    }
}

/// An empty field lists nothing; an empty flag is a list with an empty network, which kube-proxy
/// refuses.
fn cluster_cidrs(arguments: &Arguments, document: &KubeProxyConfiguration) -> Vec<String> {
    let flag_is_given = arguments.file().is_none() && arguments.values("cluster-cidr").is_some();
    if document.cluster_cidr.is_empty() && !flag_is_given {
        return Vec::new();
    }
    document.cluster_cidr.split(',').map(str::to_owned).collect()
}

/// With the modes chosen, and nothing left of those that were not: so kube-proxy writes it.
fn in_force(
    mut document: KubeProxyConfiguration,
    own: &KubeIpvsConfiguration,
) -> KubeProxyConfiguration {
    mode::keep_periods_of(&ModeChoice::new(&document, own), &mut document);
    document.mode.or_default();
    document.detect_local_mode.or_default();
    document
}

fn listed(lines: &[impl fmt::Display]) -> String {
    lines.iter().map(|line| format!("\n- {line}")).collect()
}

fn noted(notes: &[String]) -> String {
    if notes.is_empty() { String::new() } else { format!("\nbesides:{}", listed(notes)) }
}
