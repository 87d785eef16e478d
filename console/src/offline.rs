//! The plan and the kernel without a running program: as a program with these flags would find them at
//! its start. Of manifests, the plan alone: no kernel is read.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::plan::event::Event;
use ::plan::planner::{self, Planner};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::answers::diff::Diff;
use super::answers::plan::{Planned, PlannedOperation};
use super::answers::takeover::Takeover;
use super::comparison::{Compared, Comparison, Plan, services_by_address, services_of};
use super::outcome::Failure;
use super::words::{Beside, describe};
use config::Configuration;
use kernel::ReadError;
use kernel::reader::KernelReader;
use node::cleanup::left;
use node::host::foresight;
use node::host::survey::sysctls_to_set;
use source::kubernetes::{self, Kubernetes};
use source::manifests::{FileChange, FileName, Folder, FolderScan, Manifests};
use source::{Options, SourceEvent};

/// Longest time for the source to deliver everything.
const LIMIT: Duration = Duration::from_secs(60);

/// Events that the source may be ahead.
const QUEUE: usize = 1_024;

/// Name that stands for the standard input.
const STDIN: &str = "-";

/// Extensions of the manifests in a folder.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// A node as a program would find it at its start.
#[derive(Debug)]
pub struct Node {
    configuration: Configuration,
    /// Everything that there is.
    events: Vec<Event>,
    reader: KernelReader,
    notes: Vec<String>,
}

/// Manifests as they are planned on a node without a kernel.
#[derive(Debug)]
pub struct PlannedManifests {
    pub planner: Planner,
    /// Result of planning all of them at once.
    pub plan: planner::Plan,
    /// True if the node's own Node is among them: its addresses are the node's.
    pub has_node: bool,
    /// Problems of the manifests.
    pub warnings: Vec<String>,
}

impl PlannedManifests {
    /// Plans files, and the manifests of folders, for a configuration. `-` is the standard input.
    pub fn read(paths: &[PathBuf], configuration: Configuration) -> Result<Self, Failure> {
        let mut changes: Vec<(FileName, FileChange)> = Vec::new();
        for path in paths {
            let read = contents(path).map_err(|error| {
                Failure::Asked(format!("cannot read the manifests in {}: {error}", path.display()))
            });
            changes.extend(read?);
        }
        let mut folder = Folder::new("", &options(&configuration));
        let FolderScan { events, warnings } = folder.apply(changes);
        let mut planner = Planner::new(configuration.settings);
        let mut has_node = false;
        for event in events {
            if let Event::NodeApplied(node) = &event {
                has_node = true;
                planner.apply(Event::LocalAddresses(node.addresses.clone()));
            }
            planner.apply(event);
        }
        let plan = planner.plan();
        let warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(Self { planner, plan, has_node, warnings })
    }
}

impl From<PlannedManifests> for Planned {
    fn from(planned: PlannedManifests) -> Self {
        let PlannedManifests { planner, plan, has_node, mut warnings } = planned;
        let (settings, desired) = (planner.settings(), planner.desired());
        let frontends = desired.frontends();
        let by_address =
            services_by_address(frontends.filter_map(|at| Some((at, desired.owner(at)?))));
        let mut ops = plan.ops;
        planner.insert_growth(&mut ops);
        let operations = ops.iter().map(|op| {
            let subject = op.subject();
            let services = services_of(&subject, planner.owner_of(&subject), &&by_address);
            PlannedOperation::new(op.to_string(), describe(op, &Beside::default()), &services)
        });
        let problems = plan.problems.into_iter().flat_map(|(service, problems)| {
            problems.into_iter().map(move |problem| format!("{service}: {problem}"))
        });
        warnings.extend(problems);
        let node = settings.node_name.to_string();
        let unknown = format!(
            "no Node {node} is in the manifests: NodePorts have no address; add its manifest"
        );
        Self {
            mode: settings.mode.to_string(),
            node,
            operations: operations.collect(),
            notes: if has_node { Vec::new() } else { vec![unknown] },
            warnings,
        }
    }
}

/// Returns the contents of a file, or of a folder's manifests in the order of their names.
fn contents(path: &Path) -> std::io::Result<Vec<(FileName, FileChange)>> {
    if path == Path::new(STDIN) {
        let mut content = Vec::new();
        std::io::stdin().read_to_end(&mut content)?;
        return Ok(vec![("stdin".into(), FileChange::Read(content))]);
    }
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|it| it.path()));
        files = entries.collect::<Result<_, _>>()?;
        files.retain(|it| it.extension().is_some_and(|it| EXTENSIONS.iter().any(|ext| it == *ext)));
        files.sort();
    }
    let read = files.into_iter().map(|file| {
        let content = std::fs::read(&file)?;
        Ok((file.display().to_string().into(), FileChange::Read(content)))
    });
    read.collect()
}

impl Node {
    /// Takes all that the source of a configuration delivers, and reads the node's addresses, and what
    /// could be ours.
    pub fn read(configuration: Configuration) -> Result<Self, Failure> {
        let settings = foresight::settings(&configuration);
        let configuration = Configuration { settings, ..configuration };
        let mut reader = KernelReader::open(&configuration.settings, configuration.variant)
            .map_err(|error| unread_part(&error))?;
        let local = reader.read_addresses().map_err(|error| unread_part(&error))?.local;
        let local = local.into_iter().collect();
        let (mut events, mut notes) = (vec![Event::LocalAddresses(local)], Vec::new());
        for event in delivered(&configuration)? {
            match event {
                SourceEvent::Change(event) => events.push(event),
                SourceEvent::Warning(warning) => notes.push(warning.to_string()),
                _ => {}
            }
        }
        Ok(Self { configuration, events, reader, notes })
    }

    /// Returns what a takeover would change.
    pub fn takeover(mut self) -> Result<Takeover, Failure> {
        let mode = self.configuration.settings.mode;
        if self.configuration.cleanup_other_modes {
            let beside =
                left::rules_beside(&self.configuration.settings, self.configuration.variant)
                    .map_err(|error| unread_part(&error))?;
            if !beside.is_empty() {
                self.notes.push(format!("{beside} would be removed after the takeover"));
            }
        }
        let notes = std::mem::take(&mut self.notes);
        Ok(Takeover::new(mode.to_string(), self.compared()?, notes))
    }

    /// Returns the differences of the kernel from the plan.
    pub fn diff(mut self) -> Result<Diff, Failure> {
        let mode = self.configuration.settings.mode.to_string();
        let notes = std::mem::take(&mut self.notes);
        Ok(Diff { notes, ..Diff::new(mode, self.compared()?) })
    }

    /// Compares the kernel with the plan.
    fn compared(self) -> Result<Compared, Failure> {
        let mut planner = Planner::new(self.configuration.settings.clone());
        self.events.into_iter().for_each(|event| planner.apply(event));
        drop(planner.plan());
        let plan = Plan::AtStart(Box::new(planner));
        let sysctls = sysctls_to_set(&self.configuration);
        let compared = runtime()?.block_on(Comparison::new(plan, self.reader).run());
        let compared = compared.map_err(|error| Failure::Unanswered(error.to_string()))?;
        Ok(compared.with_sysctls(sysctls))
    }
}

fn unread_part(error: &ReadError) -> Failure {
    Failure::Unanswered(error.to_string())
}

fn options(configuration: &Configuration) -> Options {
    Options {
        node_name: Arc::clone(&configuration.settings.node_name),
        scheduler: configuration.settings.scheduler.clone(),
        follow_nodes: configuration.follow_nodes,
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::Unanswered(error.to_string()))
}

/// Returns everything that the source delivers until it is complete.
fn delivered(configuration: &Configuration) -> Result<Vec<SourceEvent>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Unanswered(error.to_string());
    let options = options(configuration);
    let runtime = runtime()?;
    let delivered = runtime.block_on(async {
        let (sink, mut events) = mpsc::channel(QUEUE);
        if let Some(folder) = &configuration.manifests {
            let manifests = Manifests::new(folder, &options).map_err(|error| failed(&error))?;
            tokio::spawn(manifests.run(sink));
        } else {
            let clients = kubernetes::clients(&configuration.client_options()).await;
            let clients = clients.map_err(|error| failed(&error))?;
            tokio::spawn(Kubernetes::new(&clients, options).run(sink));
        }
        let mut delivered = Vec::new();
        let complete = async {
            while let Some(event) = events.recv().await {
                if event == SourceEvent::Complete {
                    return true;
                }
                delivered.push(event);
            }
            false
        };
        match timeout(LIMIT, complete).await {
            Ok(true) => Ok(delivered),
            Ok(false) => Err(failed(&"the source of Services has ended; this is a bug")),
            Err(_) => Err(failed(&format!(
                "the source of Services has not delivered everything within {LIMIT:?}; check that \
                 the API server is reachable, and that this kubeconfig may list Services, \
                 EndpointSlices and Nodes"
            ))),
        }
    });
    // Requests under way are not waited for.
    runtime.shutdown_background();
    delivered
}
