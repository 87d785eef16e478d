//! The plan and the kernel without a running program: as a program with these flags would find them at
//! its start.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ::plan::actual::Actual;
use ::plan::event::Event;
use ::plan::hash::HashMap;
use ::plan::mode::Mode;
use ::plan::model::{Family, ServiceName};
use ::plan::op::{Op, Subject};
use ::plan::planner::Planner;
use ::plan::preview::Previewed;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::answers::diff::{Diff, DiffLine};
use super::answers::plan::{self, PlanRequest, Planned, PlannedOperation};
use super::answers::takeover::Takeover;
use super::comparison::{open_reader, services_by_address};
use super::outcome::Failure;
use super::present::Change;
use super::rehearsal::{Rehearsed, services_of};
use super::words::{Beside, Described, describe, describe_sysctls};
use crate::cleanup::left;
use crate::config::Configuration;
use crate::host::foresight;
use crate::host::survey::sysctls_to_set;
use crate::kernel::ReadError;
use crate::kernel::leftovers::Leftovers;
use crate::kernel::rules::Rules;
use crate::source::kubernetes::{self, Kubernetes};
use crate::source::manifests::Manifests;
use crate::source::{Options, SourceEvent};

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
    actual: Actual,
    notes: Vec<String>,
}

/// Differences of the kernel from the plan.
struct Differences {
    planner: Planner,
    /// Operations that end them, by phases, in words, with the Services that ask for their objects.
    described: Vec<(Op, Described, Vec<ServiceName>)>,
    /// Parts that could not be read, each with the reason.
    unread: Vec<String>,
}

// === impl Node ===

impl Node {
    /// Takes all that the source of a configuration delivers, and reads the node's addresses, and what
    /// could be ours.
    ///
    /// # Errors
    /// When the source or the kernel cannot be read.
    pub fn read(configuration: Configuration) -> Result<Self, Failure> {
        let settings = foresight::settings(&configuration);
        let configuration = Configuration { settings, ..configuration };
        let found = Leftovers::open()
            .and_then(|mut leftovers| leftovers.read())
            .map_err(|error| unread_part(&error))?;
        let local = found.actual.local_addresses.iter().copied().collect();
        let (mut events, mut notes) = (vec![Event::LocalAddresses(local)], Vec::new());
        for event in delivered(&configuration)? {
            match event {
                SourceEvent::Change(event) => events.push(event),
                SourceEvent::Warning(warning) => notes.push(warning.to_string()),
                _ => {}
            }
        }
        Ok(Self { configuration, events, actual: found.actual, notes })
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
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn takeover(mut self) -> Result<Takeover, Failure> {
        let Differences { planner, described, unread } = self.differences()?;
        let mode = planner.settings().mode;
        let failing =
            unread.into_iter().map(|error| format!("{error}; a takeover would fail there"));
        self.notes.extend(failing);
        if self.configuration.cleanup_other_modes {
            let beside = left::rules_beside(mode, self.configuration.variant)
                .map_err(|error| unread_part(&error))?;
            if !beside.is_empty() {
                self.notes.push(format!("{beside} would be removed after the takeover"));
            }
        }
        let sysctls = sysctls_to_set(&self.configuration);
        let sysctls = describe_sysctls(&sysctls)
            .map(|(operation, described)| PlannedOperation::new(operation, described, &[]));
        let others = described.into_iter().map(|(op, described, services)| {
            PlannedOperation::new(op.to_string(), described, &services)
        });
        // A start sets sysctls first.
        let operations = sysctls.chain(others);
        Ok(Takeover::new(mode.to_string(), operations.collect(), self.notes))
    }

    /// Returns the differences of the kernel from the plan.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn diff(mut self) -> Result<Diff, Failure> {
        let Differences { planner, described, unread } = self.differences()?;
        let sysctls = sysctls_to_set(&self.configuration);
        let sysctls = describe_sysctls(&sysctls)
            .map(|(operation, described)| DiffLine::new(operation, described, &[]));
        let others = described
            .into_iter()
            .map(|(op, described, services)| DiffLine::new(op.to_string(), described, &services));
        let lines = sysctls.chain(others);
        let mode = planner.settings().mode.to_string();
        Ok(Diff::without_program(mode, lines.collect(), unread, self.notes))
    }

    /// Compares the kernel with the plan.
    fn differences(&mut self) -> Result<Differences, Failure> {
        self.read_virtual_servers().map_err(|error| unread_part(&error))?;
        let planner = self.planner();
        let (mut ops, mut texts, mut unread) = (Vec::new(), HashMap::default(), Vec::new());
        for family in &planner.settings().families {
            match self.compare_rules(&planner, *family, &mut ops) {
                Ok(text) => drop(texts.insert(*family, text)),
                Err(error) => unread.push(error.to_string()),
            }
        }
        if planner.settings().mode == Mode::Ipvs {
            let others = planner.diff(&self.actual).into_iter();
            ops.extend(others.filter(|op| !matches!(op, Op::WriteRuleSet(_))));
        }
        ops.sort_by_key(Op::phase);
        let desired = planner.desired();
        let owners = desired.frontends().filter_map(|at| Some((at, desired.owner(at)?)));
        let by_address = [services_by_address(owners)];
        let described = ops.into_iter().map(|op| {
            let rules = match &op {
                Op::WriteRuleSet(family) => texts.get(family).map_or("", String::as_str),
                _ => "",
            };
            let virtual_server = match op.subject() {
                Subject::VirtualServer(at) => self.actual.virtual_servers.get(&at),
                _ => None,
            };
            let described = describe(&op, &Beside { virtual_server, rules, ..Beside::default() });
            let services = services_of(&op, &[&planner], &by_address);
            (op, described, services)
        });
        let described = described.collect();
        Ok(Differences { planner, described, unread })
    }

    /// Returns a planner that has planned everything.
    fn planner(&self) -> Planner {
        let mut planner = Planner::new(self.configuration.settings.clone());
        self.events.iter().for_each(|event| planner.apply(event.clone()));
        drop(planner.plan());
        planner
    }

    /// Reads the virtual servers that there are: so far, only their frontends are known.
    fn read_virtual_servers(&mut self) -> Result<(), ReadError> {
        let frontends: Vec<_> = self.actual.virtual_servers.keys().copied().collect();
        if frontends.is_empty() {
            return Ok(());
        }
        let configuration = &self.configuration;
        let mut reader = open_reader(&configuration.settings, configuration.variant)?;
        let found = reader.read_virtual_servers(&frontends)?;
        self.actual.virtual_servers.clear();
        for (frontend, found) in frontends.into_iter().zip(found) {
            self.actual.virtual_servers.extend(found?.map(|found| (frontend, found)));
        }
        Ok(())
    }

    /// Adds the operations on a family's rules and chains. Returns the differences of the constant
    /// rules, in words.
    fn compare_rules(
        &self,
        planner: &Planner,
        family: Family,
        ops: &mut Vec<Op>,
    ) -> Result<String, ReadError> {
        let unread = |error: &dyn Error| ReadError::new(format!("{family} rules"), error);
        let rules = Rules::open(family, self.configuration.variant);
        let rules = rules.map_err(|error| unread(&error))?;
        let rule_set = planner.rule_set(family).map_err(|error| unread(&error))?;
        let comparison = rules.check(&rule_set).map_err(|error| unread(&error))?;
        if !comparison.matches() {
            ops.push(Op::WriteRuleSet(family));
        }
        let mode = planner.settings().mode;
        if mode.leads_by_rules() {
            let chains = rules.chains(mode).map_err(|error| unread(&error))?;
            ops.extend(planner.compare_chains(family, &chains));
        }
        Ok(comparison.to_string())
    }
}

fn unread_part(error: &ReadError) -> Failure {
    Failure::Unanswered(error.to_string())
}

/// Returns everything that the source delivers until it is complete.
fn delivered(configuration: &Configuration) -> Result<Vec<SourceEvent>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Unanswered(error.to_string());
    let options = Options {
        node_name: Arc::clone(&configuration.settings.node_name),
        scheduler: configuration.settings.scheduler.clone(),
        follow_nodes: configuration.follow_nodes,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
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
