//! The configuration as an operator meets it: files, flags, and what comes of them.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test, all of these are failures like any other"
)]

mod check;
mod modes;
mod own;
mod page;
mod precedence;
mod reading;
mod validation;
mod writing;

use std::ffi::OsString;
use std::io::Write as _;

use config::cli;
use config::{Arguments, Configuration, ConfigurationError};
use tempfile::NamedTempFile;

/// The beginning of every file.
const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn arguments(words: &[&str]) -> Arguments {
    let words = ["kube-ipvs"].iter().chain(words).map(OsString::from);
    cli::parse(words).unwrap_or_else(|answer| panic!("{answer:?}"))
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn load(words: &[&str]) -> Result<Configuration, ConfigurationError> {
    Configuration::load(&arguments(words))
}

/// From a file with this after its head, and these flags.
fn load_file(rest: &str, words: &[&str]) -> Result<Configuration, ConfigurationError> {
    let file = file(&format!("{HEAD}{rest}"));
    let path = file.path().to_str().unwrap();
    load(&[&["--config", path], words].concat())
}

fn from_flags(words: &[&str]) -> Configuration {
    load(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn from_file(rest: &str, words: &[&str]) -> Configuration {
    load_file(rest, words).unwrap_or_else(|error| panic!("{rest}: {error}"))
}
