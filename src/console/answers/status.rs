//! `/v1/status`: one screen about the program and its node.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::State;
use jiff::Timestamp;
use plan::mode::Mode;
use plan::sets::SetId;
use serde::{Deserialize, Serialize};

use super::events::EventLine;
use super::{Answer, Content, FailureAnswer};
use crate::console::Desk;
use crate::console::journal::Happened;
use crate::reconcile::inquiry::View;
use crate::version::{COMMIT, VERSION};

/// Most pending writes, and errors, that are shown.
const MOST: usize = 10;

/// State of the program and its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The program.
    pub program: ProgramStatus,
    /// The mode.
    pub mode: ModeStatus,
    /// Source of the input.
    pub source: SourceStatus,
    /// Objects to balance.
    pub input: InputStatus,
    /// Progress of the kernel.
    pub kernel: KernelStatus,
    /// Connections that are left to end.
    pub draining: DrainStatus,
    /// Sets of mode ipvs.
    pub sets: Vec<SetStatus>,
    /// Errors lately, the newest first.
    pub errors: Vec<EventLine>,
}

/// The program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    /// Its version.
    pub version: String,
    /// The commit that was built; empty: the build was not told.
    pub commit: String,
    /// Its process.
    pub pid: u32,
    /// The node's name.
    pub node: String,
    /// Time for which it has served in this mode.
    pub seconds: f64,
    /// The kernel's release.
    pub kernel_release: String,
}

/// The mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModeStatus {
    /// Mode that the node serves in.
    pub served: String,
    /// Word in the configuration.
    pub configured: String,
    /// Reason for which it is not the preferred one.
    pub fallen_back: Option<String>,
    /// Families that are served.
    pub families: Vec<String>,
    /// True if rules of the mode before lead for longer than they should.
    pub is_held_up: bool,
    /// Virtual servers that ipvs mode left and that still have connections.
    pub left_by_ipvs: Option<usize>,
}

/// Source of the input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// A folder of manifests, if there is no API server.
    pub manifests: Option<String>,
    /// State of following the API server, a line for each kind of object.
    pub following: Vec<String>,
}

/// Objects to balance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputStatus {
    /// Services.
    pub services: usize,
    /// EndpointSlices.
    pub slices: usize,
    /// Endpoints in slices.
    pub endpoints: usize,
    /// Services with a warning.
    pub with_warnings: usize,
    /// Services that wait to be written.
    pub waiting: usize,
    /// Seconds for which the oldest change has waited.
    pub waiting_seconds: Option<f64>,
}

/// Progress of the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    /// True if it was once as it should be, as far as it let us.
    pub in_sync_once: bool,
    /// Virtual servers that it should have.
    pub virtual_servers: usize,
    /// Real servers that it should have.
    pub real_servers: usize,
    /// Service addresses that it should have.
    pub addresses: usize,
    /// Operations that were sent.
    pub operations: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Operations that repaired what other programs had changed.
    pub drift_repaired: u64,
    /// Passes of the audit.
    pub audit_passes: u64,
    /// Failed readings of the kernel.
    pub failed_readings: u64,
    /// Writes that are retried, all of them.
    pub pending: usize,
    /// Some of them.
    pub pending_first: Vec<PendingWrite>,
    /// Sysctls that do not have the value that Services need.
    pub sysctl_mismatches: usize,
    /// Sysctls that were set again.
    pub sysctls_put_back: u64,
    /// Flows that led nowhere and were removed.
    pub flows_removed: u64,
}

/// Write that the kernel refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingWrite {
    /// The operation.
    pub operation: String,
    /// Reason for the refusal.
    pub reason: String,
    /// Number of attempts.
    pub attempts: u32,
}

/// Connections that are left to end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// Virtual servers with a draining real server.
    pub virtual_servers: usize,
    /// Connections of draining real servers, as they were read last.
    pub connections: u64,
    /// Drains by hand (`kube-ipvs drain`).
    #[serde(default)]
    pub by_hand: usize,
}

/// A set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetStatus {
    /// Its name.
    pub name: String,
    /// Entries that it should have.
    pub entries: usize,
    /// Entries that it may have.
    pub capacity: u64,
}

impl Content for Status {
    const KIND: &'static str = "Status";
}

/// The loop's part of it.
struct OfLoop {
    input: InputStatus,
    kernel: KernelStatus,
    draining: DrainStatus,
    sets: Vec<SetStatus>,
    is_held_up: bool,
    left_by_ipvs: Option<usize>,
}

/// Answers.
///
/// # Errors
/// When the loop has ended.
pub async fn answer(State(desk): State<Arc<Desk>>) -> Result<Answer<Status>, FailureAnswer> {
    status(&desk).await.map(Answer::new)
}

/// Returns the state of the program and its node.
///
/// # Errors
/// When the loop has ended.
pub async fn status(desk: &Desk) -> Result<Status, FailureAnswer> {
    let of_loop = desk.inquiries.ask(of_loop).await?;
    let settings = &desk.settings;
    let errors = desk.journal.newest(MOST, Happened::is_error);
    let following = desk.following.as_ref().map(|following| following()).unwrap_or_default();
    let manifests = desk.configuration.manifests.as_ref();
    Ok(Status {
        program: ProgramStatus {
            version: VERSION.clone(),
            commit: COMMIT.to_owned(),
            pid: std::process::id(),
            node: settings.node_name.to_string(),
            seconds: desk.since.0.elapsed().as_secs_f64(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
        },
        mode: ModeStatus {
            served: settings.mode.name().to_owned(),
            configured: desk.configuration.configured_mode.clone(),
            fallen_back: desk.fallen_back.clone(),
            families: settings.families.iter().map(ToString::to_string).collect(),
            is_held_up: of_loop.is_held_up,
            left_by_ipvs: of_loop.left_by_ipvs,
        },
        source: SourceStatus {
            manifests: manifests.map(|folder| folder.display().to_string()),
            following: following.lines().map(ToOwned::to_owned).collect(),
        },
        input: of_loop.input,
        kernel: of_loop.kernel,
        draining: of_loop.draining,
        sets: of_loop.sets,
        errors: errors.iter().map(EventLine::of).collect(),
    })
}

fn of_loop(view: &View<'_>) -> OfLoop {
    let (planner, status) = (view.planner, view.status);
    let (count, desired) = (planner.count_input(), planner.desired());
    let pending = view.pending.iter().take(MOST);
    OfLoop {
        input: InputStatus {
            services: count.services,
            slices: count.slices,
            endpoints: count.endpoints,
            with_warnings: planner.n_with_problems(),
            waiting: planner.backlog(),
            waiting_seconds: view.waiting.as_ref().map(Duration::as_secs_f64),
        },
        kernel: KernelStatus {
            in_sync_once: status.in_sync_once,
            virtual_servers: desired.n_virtual_servers(),
            real_servers: desired.n_real_servers(),
            addresses: desired.n_addresses(),
            operations: status.operations,
            refused: status.failures,
            drift_repaired: status.drift_repaired,
            audit_passes: status.passes,
            failed_readings: status.failed_readings,
            pending: status.pending,
            pending_first: pending
                .map(|(_, pending)| PendingWrite {
                    operation: pending.op.to_string(),
                    reason: pending.refusal.to_string(),
                    attempts: pending.attempts,
                })
                .collect(),
            sysctl_mismatches: status.sysctl_mismatches,
            sysctls_put_back: status.sysctls_put_back,
            flows_removed: status.flows_removed,
        },
        draining: DrainStatus {
            virtual_servers: view.n_with_draining(),
            connections: view.n_draining_connections(),
            by_hand: view.hand_drains.len(),
        },
        sets: sets(view),
        is_held_up: status.is_held_up,
        left_by_ipvs: status.n_left_by_ipvs,
    }
}

/// Returns the sets that have entries, or should.
fn sets(view: &View<'_>) -> Vec<SetStatus> {
    let planner = view.planner;
    if planner.settings().mode != Mode::Ipvs {
        return Vec::new();
    }
    let families = planner.settings().families.iter();
    let sets = families.flat_map(|family| SetId::all(*family));
    let sizes = planner.set_sizes();
    sets.map(|set| SetStatus {
        name: set.to_string(),
        entries: planner.desired().n_entries(set),
        capacity: u64::from(sizes.capacity(set).entries()),
    })
    .collect()
}

/// Returns a time as RFC 3339 has it.
#[must_use]
pub fn timestamp(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "?".to_owned(), |at| format!("{at:.3}"))
}
