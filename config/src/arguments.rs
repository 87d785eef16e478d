//! Flags as they are given. Those of fields keep their text, which is set in a document later; those that
//! are no field have a type.

use std::path::PathBuf;

use clap::Args;

use serve::version::VERSION;

/// Flags of a command line. The reference has the help of these.
#[derive(Debug, Clone, Default, Args)]
pub struct Arguments {
    #[arg(long)]
    pub config: Option<String>,
    #[arg(long)]
    pub write_config_to: Option<String>,
    #[arg(long)]
    pub cleanup: Option<bool>,
    #[arg(long)]
    pub init_only: Option<bool>,
    #[arg(long)]
    pub hand_over: Option<bool>,
    #[arg(long)]
    pub master: Option<String>,
    #[arg(long)]
    pub healthz_port: Option<i32>,
    #[arg(long)]
    pub metrics_port: Option<i32>,
    #[arg(long)]
    pub boot_id_file: Option<String>,
    #[arg(long)]
    pub machine_id_file: Option<String>,
    #[arg(long, require_equals = true, num_args = 0..=1, default_missing_value = "true")]
    pub version: Option<String>,
    /// Flags that were given, by name, with their values as they were written.
    #[arg(skip)]
    pub given: Vec<(String, Vec<String>)>,
}

/// Action that the program carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Balance, until it is told to end.
    Run,
    /// Do what needs all privileges, and end.
    InitOnly,
    /// Remove what is in the kernel, and end.
    Cleanup,
    /// Remove what kube-proxy's mode ipvs does not know, leave the rest serving, and end.
    HandOver,
    /// Write the configuration to this file, and end.
    WriteConfig(PathBuf),
}

impl Arguments {
    #[must_use]
    pub fn reported_version(&self) -> &str {
        match self.version.as_deref() {
            Some(version) if version.starts_with('v') => version,
            _ => &VERSION,
        }
    }

    /// Returns the values of a flag, each as it was written. None: it was not given.
    #[must_use]
    pub fn values(&self, name: &str) -> Option<&[String]> {
        let given = self.given.iter().find(|(given, _)| given == name);
        given.map(|(_, values)| values.as_slice())
    }

    /// Returns the value of a flag, as it was written.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name)?.last().map(String::as_str)
    }

    /// The configuration file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.config.as_deref().filter(|path| !path.is_empty())
    }
}

impl Action {
    pub(super) fn of(arguments: &Arguments) -> Self {
        match arguments.write_config_to.as_deref() {
            Some(path) if !path.is_empty() => Self::WriteConfig(path.into()),
            _ if arguments.cleanup == Some(true) => Self::Cleanup,
            _ if arguments.hand_over == Some(true) => Self::HandOver,
            _ if arguments.init_only == Some(true) => Self::InitOnly,
            _ => Self::Run,
        }
    }
}
