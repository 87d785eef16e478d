//! Metrics of this program alone: the stages of its work, the kernel's answers, and what is
//! programmed.

pub mod audit;
pub(super) mod maker;
pub mod programmed;
pub mod queues;
pub mod stages;

use plan::model::Family;
use plan::op::Op;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::ServedMode;
use super::labels::{CLASSES, OPERATIONS, class, operation};
use audit::AuditMetrics;
use kernel::RefusalClass;
use maker::Maker;
use programmed::Programmed;
use queues::Queues;
use stages::Stages;

/// Label of the operation that puts a sysctl back, beside the planner's operations.
const SET_SYSCTL: &str = "set_sysctl";

/// Queues from the source to the input pump, and from there to the event loop.
const QUEUES: [&str; 2] = [SOURCE, LOOP];

/// Queue between the source and the input pump.
pub const SOURCE: &str = "source";

/// Queue between the input pump and the event loop.
pub const LOOP: &str = "loop";

/// Name of the gauge of the families that are served.
pub const FAMILY_SERVED: &str = "kube_ipvs_family_served";
/// Gauge of the TCP connections that the relay of mode userspace holds.
pub const RELAY_CONNECTIONS: &str = "kube_ipvs_relay_connections";
/// Gauge of the clients of UDP that the relay of mode userspace remembers.
pub const RELAY_UDP_CLIENTS: &str = "kube_ipvs_relay_udp_clients";

/// Kind of what the former mode left.
pub const VIRTUAL_SERVERS: &str = "virtual_servers";

/// The metrics whose names begin with `kube_ipvs_`.
#[derive(Debug)]
pub struct OwnMetrics {
    /// Duration of each stage.
    pub stages: Stages,
    /// Activity of the audit and the drift checks.
    pub audit: AuditMetrics,
    /// Number of objects that the kernel should have.
    pub programmed: Programmed,
    /// Waiting changes.
    pub queues: Queues,
    /// Services whose changes were left for the next round.
    pub backlog: IntGauge,
    /// Readings of the kernel that failed.
    pub read_failures: IntCounter,
    operations: IntCounterVec,
    pending: IntGaugeVec,
    drift: IntCounterVec,
    /// Sysctls without the value that Services need.
    pub sysctl_mismatches: IntGauge,
    /// Limits of this host.
    pub host: HostMetrics,
    /// Drains by hand that are in force.
    pub drained_endpoints: IntGauge,
    mode: IntGaugeVec,
    /// State that the mode has left in which the node served before, by kind.
    pub left_by_former_mode: IntGaugeVec,
    /// 1 while rules of the former mode lead connections for longer than they should.
    pub switch_held_up: IntGauge,
    /// 1 while the configuration file has changed into one that cannot be used.
    pub configuration_rejected: IntGauge,
    /// Services that answer to load balancers.
    pub health_checks: IntGauge,
    /// Addresses and ports where they should and cannot.
    pub health_check_listen_failures: IntGauge,
}

/// Limits of this host.
#[derive(Debug)]
pub struct HostMetrics {
    /// Number of things other than families.
    pub limits: IntGauge,
    family_served: IntGaugeVec,
}

impl HostMetrics {
    fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            limits: make.gauge(
                "kube_ipvs_host_limits",
                "Number of missing prerequisites of this host other than address families: a \
                 protocol, a sysctl, buckets of the conntrack table. The log and the Events \
                 HostLimited of the Node name them.",
            )?,
            family_served: make.gauges(
                FAMILY_SERVED,
                "1 if the node serves the address family, 0 if the kernel or iptables lacks a \
                 prerequisite. The Event FamilyNotServed of the Node names it.",
                "family",
            )?,
        })
    }

    /// Says which families the node serves.
    pub fn set_families(&self, served: &[Family]) {
        for family in Family::BOTH {
            let is_served = served.contains(&family);
            self.family_served.with_label_values(&[&family.to_string()]).set(is_served.into());
        }
    }
}

impl OwnMetrics {
    /// Registers them, each at zero.
    pub(super) fn new(registry: &Registry, families: &[Family]) -> Result<Self, prometheus::Error> {
        let make = Maker(registry);
        let made = Self {
            stages: Stages::new(&make)?,
            audit: AuditMetrics::new(&make)?,
            programmed: Programmed::new(&make, families)?,
            queues: Queues::new(registry, &QUEUES)?,
            backlog: make.gauge(
                "kube_ipvs_pending_services",
                "Number of Services with changes still pending after the last batch.",
            )?,
            read_failures: make.counter(
                "kube_ipvs_kernel_read_failures_total",
                "Number of failed reads of kernel \
                                                                  state.",
            )?,
            operations: make.counters(
                "kube_ipvs_operations_total",
                "Number of kernel operations, by operation and result: done, or the class of the \
                 error.",
                &["operation", "result"],
            )?,
            pending: make.gauges(
                "kube_ipvs_pending_retries",
                "Number of failed kernel operations that are being retried, by the class of the \
                 error. Includes operations whose result could not be read.",
                "class",
            )?,
            drift: make.counters(
                "kube_ipvs_drift_repaired_total",
                "Number of operations that repaired kernel state after another program changed it.",
                &["operation"],
            )?,
            sysctl_mismatches: make.gauge(
                "kube_ipvs_sysctl_mismatches",
                "Number of sysctls without the required value, because kube-ipvs cannot set them \
                 or another program keeps setting them. The log and an Event of the Node name \
                 them.",
            )?,
            drained_endpoints: make.gauge(
                "kube_ipvs_drained_endpoints",
                "Number of manual drains in force on this node (kube-ipvs drain). A drain of an \
                 address with all its ports counts once.",
            )?,
            mode: make.gauges_by(
                "kube_ipvs_mode",
                "Always 1; the labels have the configured mode and the mode in which the node \
                 serves.",
                &["configured", "effective"],
            )?,
            host: HostMetrics::new(&make)?,
            left_by_former_mode: make.gauges(
                "kube_ipvs_left_by_former_mode",
                "Number of virtual servers (kind virtual_servers) left from IPVS mode that still \
                 have connections, while the node serves in another mode; 0 if there are none.",
                "kind",
            )?,
            switch_held_up: make.gauge(
                "kube_ipvs_switch_held_up",
                "1 if a switch of mode is stalled: connections follow the outdated rules of the \
                 former mode, because IPVS mode lacks a prerequisite. The log and the Event \
                 ModeSwitchHeldUp of the Node name it.",
            )?,
            configuration_rejected: make.gauge(
                "kube_ipvs_configuration_rejected",
                "1 if the configuration file has changed and is invalid: kube-ipvs runs with the \
                 configuration read at startup, and would fail to restart. The log has the reason.",
            )?,
            health_checks: make.gauge(
                "kube_ipvs_service_health_checks",
                "Number of Services with a healthCheckNodePort that is served.",
            )?,
            health_check_listen_failures: make.gauge(
                "kube_ipvs_service_health_check_listen_failures",
                "Number of addresses and ports of healthCheckNodePorts on which kube-ipvs cannot \
                 listen.",
            )?,
        };
        made.begin_at_zero();
        Ok(made)
    }

    /// Says in which mode the node serves.
    pub fn set_mode(&self, mode: &ServedMode) {
        let ServedMode { configured, effective } = mode;
        self.mode.with_label_values(&[configured.as_str(), effective.name()]).set(1);
    }

    /// Counts an operation by its result: done, or how the kernel refused it.
    pub fn answered(&self, op: &Op, refused: Option<RefusalClass>) {
        let result = refused.as_ref().map_or("done", class);
        self.operations.with_label_values(&[operation(op), result]).inc();
    }

    /// Counts an operation that repairs a change by another program.
    pub fn drifted(&self, op: &Op) {
        self.drift.with_label_values(&[operation(op)]).inc();
    }

    /// Something else had changed a sysctl, which was set again.
    pub fn sysctl_put_back(&self) {
        self.drift.with_label_values(&[SET_SYSCTL]).inc();
    }

    /// Sets the number of pending retries, by the class of the refusal.
    pub fn set_pending(&self, pending: impl Iterator<Item = (RefusalClass, usize)>) {
        let mut counts: Vec<(&str, i64)> = CLASSES.iter().map(|class| (*class, 0)).collect();
        for (refused, n) in pending {
            let class = class(&refused);
            for (_, count) in counts.iter_mut().filter(|(label, _)| *label == class) {
                *count += i64::try_from(n).unwrap_or(i64::MAX);
            }
        }
        for (class, count) in counts {
            self.pending.with_label_values(&[class]).set(count);
        }
    }

    /// Creates the series at zero, so that their first event is seen as a change from zero.
    fn begin_at_zero(&self) {
        for operation in OPERATIONS {
            self.operations.with_label_values(&[operation, "done"]);
            self.drift.with_label_values(&[operation]);
        }
        self.drift.with_label_values(&[SET_SYSCTL]);
        self.left_by_former_mode.with_label_values(&[VIRTUAL_SERVERS]);
        for class in CLASSES {
            self.pending.with_label_values(&[class]);
        }
        self.host.set_families(&[]);
    }
}
