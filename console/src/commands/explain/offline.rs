//! Explanations without the program: of manifests, by a planner of the command's own.

use std::ffi::OsString;
use std::path::Path;

use crate::answers::explain::{Asked, Explanation, explain_with};
use crate::harmless::harmless;
use crate::offline::PlannedManifests;
use crate::outcome::Failure;
use crate::output::notable;
use crate::pods::find_in_folder;
use config::Configuration;
use config::cli;

/// Explains a Service of a folder of manifests, as it would be on this node. The node's addresses are
/// those of its Node, if that is among them.
pub(super) fn explain(
    folder: &Path,
    node: Option<&str>,
    configuration: Option<&Path>,
    asked: &Asked,
) -> Result<Explanation, Failure> {
    let configuration = load(node, configuration)?;
    let planned = PlannedManifests::read(&[folder.to_owned()], configuration)?;
    for warning in &planned.warnings {
        anstream::eprintln!("{}: {}", notable("Warning"), harmless(warning));
    }
    let find = |namespace: &str, name: &str| find_in_folder(folder, namespace, name);
    explain_with(&planned.planner, asked, find).map_err(Into::into)
}

/// Loads the configuration as the program does, for a node of this name.
fn load(node: Option<&str>, file: Option<&Path>) -> Result<Configuration, Failure> {
    let mut words = vec![OsString::from("kube-ipvs")];
    if let Some(file) = file {
        words.extend([OsString::from("--config"), file.into()]);
    }
    if let Some(node) = node {
        words.extend(["--hostname-override".into(), node.into()]);
    }
    let arguments = cli::parse(words).map_err(|answer| Failure::Asked(answer.text().to_owned()))?;
    Configuration::load(&arguments).map_err(|error| Failure::Asked(error.to_string()))
}
