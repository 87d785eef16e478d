//! `/v1/status`: one screen about the program and its node.

mod lacks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use axum::extract::State;
use plan::model::Family;
use plan::op::PartKind;
use plan::rule_set::nft;
use plan::sets::SetId;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::events::EventLine;
use super::{Answer, Content, FailureAnswer, timestamp};
use crate::Desk;
use crate::journal::Happened;
use crate::lately::{HOUR, Repairs, TEN_MINUTES};
use kernel::linux::Versions;
use kernel::rules::{Backend, IptablesVersion};
use reconcile::inquiry::View;
use serve::version::{COMMIT, VERSION};
use source::kubernetes::{ClientMetrics, FollowedKind};

/// Time for which the loop's answer is waited for.
const LOOP_PATIENCE: Duration = Duration::from_secs(5);

/// Time for which failed readings count.
const LATELY: Duration = Duration::from_secs(600);

/// Most pending writes, and errors, that are shown.
const MOST: usize = 10;

/// State of the program and its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Things for which the node is not whole, each a sentence; none: it is.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// True if the event loop does not answer: its part is missing, all that follows `source` but `errors`.
    #[serde(default)]
    pub is_loop_stuck: bool,
    pub program: ProgramStatus,
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    pub version: String,
    /// The commit that was built; empty: the build was not told.
    pub commit: String,
    /// Its process.
    pub pid: u32,
    /// The node's name.
    pub node: String,
    /// Time for which it has served in this mode.
    pub seconds: f64,
    pub kernel_release: String,
    /// Programs that write rules: name, version and the place where they keep rules.
    #[serde(default)]
    pub iptables: Vec<IptablesStatus>,
    /// Version of IPVS; none: the mode does without it.
    #[serde(default)]
    pub ipvs_version: Option<String>,
    /// Version of ipset's protocol; none: the mode does without sets, or they are in nf_tables.
    #[serde(default)]
    pub ipset_protocol: Option<u8>,
    /// Tables of nf_tables that have the sets and rules; none: they are in ipset and iptables. A kernel with owners of
    /// tables lets no other program change them.
    #[serde(default)]
    pub nftables: Option<String>,
    /// Path of established connections: `conntrack` or `offload`; none: IPVS carries them.
    #[serde(default)]
    pub fast_path: Option<String>,
}

/// An iptables program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IptablesStatus {
    /// Family whose rules it writes.
    pub family: String,
    pub version: String,
    /// Variant: `nf_tables` or `legacy`.
    pub variant: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModeStatus {
    /// Mode that the node serves in.
    pub served: String,
    /// Word in the configuration.
    pub configured: String,
    /// Reason for which it is not the preferred one.
    pub fallen_back: Option<String>,
    /// Things that this host lacks, with what is not served for it.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Families that are served.
    pub families: Vec<String>,
    /// True if rules of the former mode lead for longer than they should.
    pub is_held_up: bool,
    /// Virtual servers that ipvs mode left and that still have connections.
    pub left_by_ipvs: Option<usize>,
    /// Clients of the relay; absent: the node has not served in mode userspace.
    #[serde(default)]
    pub relayed: Option<RelayedClients>,
}

/// Clients of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RelayedClients {
    /// Number of TCP connections.
    pub connections: u64,
    /// Number of clients of UDP that are remembered.
    pub udp_clients: u64,
}

/// Source of the input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// A folder of manifests, if there is no API server.
    pub manifests: Option<String>,
    /// State of following the API server, a line for each kind of object.
    pub following: Vec<String>,
    /// The API server.
    #[serde(default)]
    pub server: Option<String>,
    /// State of following the API server, for each kind of object.
    #[serde(default)]
    pub kinds: Vec<KindStatus>,
}

/// State of following a kind of object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KindStatus {
    pub kind: String,
    /// True while changes arrive.
    pub is_following: bool,
    /// Time since which that is so, as RFC 3339 has it; none: changes never arrived.
    pub since: Option<String>,
    /// Seconds since then.
    pub seconds: Option<f64>,
    /// Time at which the server last sent something about the kind, bookmarks included.
    pub last_heard: Option<String>,
    /// Seconds since then: this node is behind by no more than that.
    pub lag_seconds: Option<f64>,
    /// Number of lists that were begun, by their reasons.
    pub lists: BTreeMap<String, u64>,
}

/// Objects to balance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputStatus {
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelStatus {
    /// True if it was once as it should be, as far as it let us.
    pub in_sync_once: bool,
    /// Virtual servers that it should have.
    pub virtual_servers: usize,
    #[serde(default)]
    pub node_port_virtual_servers: usize,
    /// Real servers that it should have.
    pub real_servers: usize,
    /// Service addresses that it should have.
    pub addresses: usize,
    /// Operations that were sent.
    pub operations: u64,
    pub refused: u64,
    /// Operations that repaired what other programs had changed.
    pub drift_repaired: u64,
    /// Those of the last ten minutes, to the minute.
    #[serde(default)]
    pub drift_last_ten_minutes: u64,
    /// Those of the last hour, to the minute.
    #[serde(default)]
    pub drift_last_hour: u64,
    /// Time of the last one, as RFC 3339 has it.
    #[serde(default)]
    pub drift_last: Option<String>,
    pub audit_passes: u64,
    /// Failed readings of the kernel.
    pub failed_readings: u64,
    /// Writes that are retried, all of them.
    pub pending: usize,
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
    pub operation: String,
    /// Reason for the refusal.
    pub reason: String,
    /// Number of attempts.
    pub attempts: u32,
}

/// Connections that are left to end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetStatus {
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
#[derive(Default)]
struct OfLoop {
    input: InputStatus,
    kernel: KernelStatus,
    draining: DrainStatus,
    sets: Vec<SetStatus>,
    is_held_up: bool,
    left_by_ipvs: Option<usize>,
}

pub async fn answer(State(desk): State<Arc<Desk>>) -> Result<Answer<Status>, FailureAnswer> {
    status(&desk).await.map(Answer::new)
}

/// Returns the state of the program and its node.
pub async fn status(desk: &Desk) -> Result<Status, FailureAnswer> {
    // With a loop that waits for the kernel, everything else is wanted all the more.
    let asked = timeout(LOOP_PATIENCE, desk.inquiries.ask(of_loop)).await;
    let is_loop_stuck = asked.is_err();
    let mut of_loop = asked.unwrap_or_else(|_| Ok(OfLoop::default()))?;
    of_loop.kernel.set_repairs(&desk.repairs);
    let settings = &desk.settings;
    let errors = desk.journal.newest(MOST, Happened::is_error);
    let following = desk.api.as_ref().map(ClientMetrics::page).unwrap_or_default();
    let kinds = desk.api.as_ref().map(ClientMetrics::kinds).unwrap_or_default();
    let now = SystemTime::now();
    let versions = &desk.versions;
    let manifests = desk.configuration.manifests.as_ref();
    let mut status = Status {
        lacks: Vec::new(),
        is_loop_stuck,
        program: ProgramStatus {
            version: VERSION.clone(),
            commit: COMMIT.to_owned(),
            pid: std::process::id(),
            node: settings.node_name.to_string(),
            seconds: desk.since.0.elapsed().as_secs_f64(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            iptables: iptables(versions),
            ipvs_version: versions.ipvs.clone(),
            ipset_protocol: versions.ipset_protocol,
            nftables: settings.has_tables().then(|| nft::TABLE.to_owned()),
            fast_path: settings
                .has_fast_path()
                .then(|| settings.fast_path_in_force().name().to_owned()),
        },
        mode: ModeStatus {
            served: settings.mode.name().to_owned(),
            configured: desk.configuration.configured_mode.clone(),
            fallen_back: desk.fallen_back.clone(),
            limits: desk.limits.clone(),
            families: settings.families.iter().map(ToString::to_string).collect(),
            is_held_up: of_loop.is_held_up,
            left_by_ipvs: of_loop.left_by_ipvs,
            relayed: desk.relayed.as_ref().map(|relayed| {
                let [connections, udp_clients] = relayed();
                RelayedClients { connections, udp_clients }
            }),
        },
        source: SourceStatus {
            manifests: manifests.map(|folder| folder.display().to_string()),
            following: following.lines().map(ToOwned::to_owned).collect(),
            server: desk.api.as_ref().map(|api| api.server().to_owned()),
            kinds: kinds.into_iter().map(|kind| KindStatus::new(kind, now)).collect(),
        },
        input: of_loop.input,
        kernel: of_loop.kernel,
        draining: of_loop.draining,
        sets: of_loop.sets,
        errors: errors.iter().map(EventLine::of).collect(),
    };
    let failed_readings = desk.journal.count(LATELY, is_failed_reading);
    let is_rejected = desk.configuration_rejected.load(Ordering::Relaxed);
    status.lacks = lacks::of(&status, failed_readings, is_rejected);
    Ok(status)
}

fn is_failed_reading(happened: &Happened) -> bool {
    matches!(happened, Happened::ReadingFailed(_))
}

fn iptables(versions: &Versions) -> Vec<IptablesStatus> {
    let status = |(family, version, backend): &(Family, IptablesVersion, Backend)| IptablesStatus {
        family: family.to_string(),
        version: version.to_string(),
        variant: backend.to_string(),
    };
    versions.iptables.iter().map(status).collect()
}

impl KindStatus {
    fn new(of: FollowedKind, now: SystemTime) -> Self {
        let age = |at: SystemTime| now.duration_since(at).unwrap_or_default().as_secs_f64();
        Self {
            kind: of.kind.to_owned(),
            is_following: of.is_following,
            since: of.since.map(timestamp),
            seconds: of.since.map(age),
            last_heard: of.heard.map(timestamp),
            lag_seconds: of.heard.map(age),
            lists: of.lists,
        }
    }
}

impl KernelStatus {
    fn set_repairs(&mut self, repairs: &Repairs) {
        self.drift_last_ten_minutes = repairs.within(TEN_MINUTES);
        self.drift_last_hour = repairs.within(HOUR);
        self.drift_last = repairs.last().map(timestamp);
    }
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
            node_port_virtual_servers: planner.n_node_port_servers(),
            real_servers: desired.n_real_servers(),
            addresses: desired.n_addresses(),
            operations: status.operations,
            refused: status.failures,
            drift_repaired: status.drift_repaired,
            drift_last_ten_minutes: 0,
            drift_last_hour: 0,
            drift_last: None,
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
    if !planner.settings().mode.uses(PartKind::Sets) {
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
