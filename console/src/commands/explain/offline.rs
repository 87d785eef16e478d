//! Explanations without the program: of manifests, by a planner of the command's own.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use plan::event::Event;
use plan::planner::Planner;

use crate::answers::explain::{Asked, Explanation, explain_with};
use crate::harmless::harmless;
use crate::outcome::Failure;
use crate::output::notable;
use crate::pods::find_in_folder;
use config::Configuration;
use config::cli;
use source::Options;
use source::manifests::{FileChange, FileName, Folder};

/// Extensions of manifests.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Explains a Service of a folder of manifests, as it would be on this node. The node's addresses are
/// those of its Node, if that is among them.
pub(super) fn explain(
    folder: &Path,
    node: Option<&str>,
    configuration: Option<&Path>,
    asked: &Asked,
) -> Result<Explanation, Failure> {
    let configuration = load(node, configuration)?;
    let options = Options {
        node_name: Arc::clone(&configuration.settings.node_name),
        scheduler: configuration.settings.scheduler.clone(),
        follow_nodes: configuration.follow_nodes,
    };
    let mut planner = Planner::new(configuration.settings);
    for event in read(folder, &options)? {
        if let Event::NodeApplied(node) = &event {
            planner.apply(Event::LocalAddresses(node.addresses.clone()));
        }
        planner.apply(event);
    }
    planner.plan();
    let find = |namespace: &str, name: &str| find_in_folder(folder, namespace, name);
    explain_with(&planner, asked, find).map_err(Into::into)
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

/// Reads all manifests of a folder. One that cannot be used is a mistake: the explanation would be
/// of something else.
fn read(folder: &Path, options: &Options) -> Result<Vec<Event>, Failure> {
    let unread = |error: &dyn std::fmt::Display| {
        Failure::Asked(format!("cannot read the manifests in {}: {error}", folder.display()))
    };
    let mut changes: Vec<(FileName, FileChange)> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| unread(&error))? {
        let path = entry.map_err(|error| unread(&error))?.path();
        let is_manifest =
            path.extension().is_some_and(|it| EXTENSIONS.iter().any(|ext| it == *ext));
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| is_manifest)
        else {
            continue;
        };
        let content = std::fs::read(&path).map_err(|error| unread(&error))?;
        changes.push((name.into(), FileChange::Read(content)));
    }
    changes.sort_by(|(one, _), (other, _)| one.cmp(other));
    let scan = Folder::new(folder, options).apply(changes);
    for warning in &scan.warnings {
        let warning = warning.to_string();
        anstream::eprintln!("{}: {}", notable("Warning"), harmless(&warning));
    }
    Ok(scan.events)
}
