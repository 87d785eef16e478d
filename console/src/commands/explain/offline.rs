//! Explanations without the program: of manifests, by a planner of the command's own.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::answers::explain::{Asked, Explanation, explain_with};
use crate::commands::source::configuration_of;
use crate::harmless::harmless;
use crate::offline::PlannedManifests;
use crate::outcome::Failure;
use crate::output::notable;
use crate::pods::find_in_folder;

/// Explains a Service of a folder of manifests, as it would be on this node. The node's addresses are
/// those of its Node, if that is among them.
pub(super) fn explain(
    folder: &Path,
    node: Option<&str>,
    configuration: Option<&Path>,
    asked: &Asked,
) -> Result<Explanation, Failure> {
    let flag = |name: &str, value: &OsStr| [OsString::from(name), value.to_owned()];
    let config = configuration.map(|file| flag("--config", file.as_os_str()));
    let node = node.map(|node| flag("--hostname-override", node.as_ref()));
    let configuration = configuration_of(config.into_iter().chain(node).flatten())?;
    let planned = PlannedManifests::read(&[folder.to_owned()], configuration)?;
    for warning in &planned.warnings {
        anstream::eprintln!("{}: {}", notable("Warning"), harmless(warning));
    }
    let find = |namespace: &str, name: &str| find_in_folder(folder, namespace, name);
    explain_with(&planned.planner, asked, find).map_err(Into::into)
}
