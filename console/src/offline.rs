//! The plan and the kernel without a running program: as a program with these flags would find them at
//! its start.

use std::sync::Arc;
use std::time::Duration;

use ::plan::event::Event;
use ::plan::model::ServiceName;
use ::plan::planner::Planner;
use ::plan::preview::Previewed;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::answers::diff::Diff;
use super::answers::plan::{self, PlanRequest, Planned};
use super::answers::takeover::Takeover;
use super::comparison::{Compared, Comparison, Plan};
use super::outcome::Failure;
use super::present::Change;
use super::rehearsal::Rehearsed;
use config::Configuration;
use kernel::ReadError;
use kernel::reader::KernelReader;
use node::cleanup::left;
use node::host::foresight;
use node::host::survey::sysctls_to_set;
use source::kubernetes::{self, Kubernetes};
use source::manifests::Manifests;
use source::{Options, SourceEvent};

/// Longest time for the source to deliver everything.
const LIMIT: Duration = Duration::from_secs(60);

/// Events that the source may be ahead.
const QUEUE: usize = 1_024;

/// A node as a program would find it at its start.
#[derive(Debug)]
pub struct Node {
    configuration: Configuration,
    /// Everything that there is.
    events: Vec<Event>,
    reader: KernelReader,
    notes: Vec<String>,
}

impl Node {
    /// Takes all that the source of a configuration delivers, and reads the node's addresses, and what
    /// could be ours.
    ///
    /// # Errors
    /// When the source or the kernel cannot be read.
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

    /// Returns what a request would change.
    ///
    /// # Errors
    /// When a manifest cannot be read.
    pub fn plan(self, request: &PlanRequest) -> Result<Planned, Failure> {
        let manifests = plan::read(request)?;
        let (before, mut after) = (self.planner(), self.planner());
        let change = if request.delete {
            manifests.deleted()
        } else {
            let there = |name: ServiceName| {
                let service = before.service(&name)?.clone();
                Some((name, service))
            };
            let present = manifests.services().into_iter().filter_map(there).collect();
            manifests.applied(&present, &self.configuration.settings.scheduler)
        };
        let Change { events, notes, warnings } = change;
        let concerned = events.iter().filter_map(|event| before.concerned_by(event));
        let concerned = concerned.flatten().collect();
        events.into_iter().for_each(|event| after.apply(event));
        let planned = after.plan();
        let ops = planned.ops.clone();
        let rehearsed = Rehearsed::new(Previewed { plan: planned, before, after }, ops, concerned);
        Ok(Planned::new(rehearsed, [self.notes, notes].concat(), warnings))
    }

    /// Returns what a takeover would change.
    pub fn takeover(mut self) -> Result<Takeover, Failure> {
        let mode = self.configuration.settings.mode;
        if self.configuration.cleanup_other_modes {
            let beside = left::rules_beside(mode, self.configuration.variant)
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
        let plan = Plan::AtStart(Box::new(self.planner()));
        let sysctls = sysctls_to_set(&self.configuration);
        let compared = runtime()?.block_on(Comparison::new(plan, self.reader).run());
        let compared = compared.map_err(|error| Failure::Unanswered(error.to_string()))?;
        Ok(compared.with_sysctls(sysctls))
    }

    /// Returns a planner that has planned everything.
    fn planner(&self) -> Planner {
        let mut planner = Planner::new(self.configuration.settings.clone());
        self.events.iter().for_each(|event| planner.apply(event.clone()));
        drop(planner.plan());
        planner
    }
}

fn unread_part(error: &ReadError) -> Failure {
    Failure::Unanswered(error.to_string())
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::Unanswered(error.to_string()))
}

/// Returns everything that the source delivers until it is complete.
fn delivered(configuration: &Configuration) -> Result<Vec<SourceEvent>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Unanswered(error.to_string());
    let options = Options {
        node_name: Arc::clone(&configuration.settings.node_name),
        scheduler: configuration.settings.scheduler.clone(),
        follow_nodes: configuration.follow_nodes,
    };
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
            Ok(false) => Err(failed(&"the source of Services has ended, which is a bug")),
            Err(_) => Err(failed(&format!(
                "the source of Services has not delivered everything in {LIMIT:?}; is the API server \
                 reachable, and may this kubeconfig list Services, EndpointSlices and Nodes?"
            ))),
        }
    });
    // Requests under way are not waited for.
    runtime.shutdown_background();
    delivered
}
