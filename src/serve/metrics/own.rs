//! What only this program measures: the stages of its work, what the kernel answers, and what is
//! programmed.

use std::time::{Duration, SystemTime};

use plan::op::Op;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, exponential_buckets,
};

use super::{register, seconds};
use crate::kernel::RefusalClass;

/// Every class, in its order.
const CLASSES: [RefusalClass; 7] = [
    RefusalClass::Surprise,
    RefusalClass::AnswerLost,
    RefusalClass::SetFull,
    RefusalClass::Exhausted,
    RefusalClass::NotPermitted,
    RefusalClass::NotSupported,
    RefusalClass::Other,
];

/// Every value of the label `operation`, in the order of phases.
const OPERATIONS: [&str; 13] = [
    "create_link",
    "create_set",
    "write_rules",
    "add_entry",
    "create_virtual_server",
    "change_virtual_server",
    "add_real_server",
    "change_real_server",
    "bind_address",
    "unbind_address",
    "remove_real_server",
    "remove_virtual_server",
    "remove_entry",
];

/// What came of a connection to a node port on localhost: it was passed on; the Service could not be
/// reached; there were too many.
const LOCALHOST_RESULTS: [&str; 3] = ["passed", "failed", "refused"];

/// The metrics whose names begin with `kube_ipvs_`.
#[derive(Debug)]
pub struct OwnMetrics {
    stages: Stages,
    /// Readings of the kernel that failed.
    pub read_failures: IntCounter,
    last_comparison: Gauge,
    operations: IntCounterVec,
    owed: IntGaugeVec,
    drift: IntCounterVec,
    /// Virtual servers that the kernel should have.
    pub virtual_servers: IntGauge,
    /// Real servers that it should have.
    pub real_servers: IntGauge,
    /// Addresses that it should have.
    pub addresses: IntGauge,
    /// Services that something is wrong with.
    pub services_with_problems: IntGauge,
    /// Services that answer to load balancers.
    pub health_checks: IntGauge,
    /// Addresses and ports where they should and cannot.
    pub health_check_listen_failures: IntGauge,
    /// Connections to node ports on localhost that are open.
    pub localhost_connections: IntGauge,
    /// Those that there were, by what came of them: `passed`, `failed` or `refused`.
    pub localhost_connections_total: IntCounterVec,
    /// Ports on localhost that should be listened on, and cannot be.
    pub localhost_listen_failures: IntGauge,
}

/// How long each stage took.
#[derive(Debug)]
struct Stages {
    plan: Histogram,
    read: Histogram,
    write: Histogram,
}

/// Makes and registers metrics.
struct Maker<'a>(&'a Registry);

// === impl OwnMetrics ===

impl OwnMetrics {
    /// Registers them, each at zero.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let make = Maker(registry);
        let made = Self {
            stages: Stages::new(&make)?,
            read_failures: make
                .counter("kernel_read_failures_total", "Readings of the kernel that failed.")?,
            last_comparison: make.timestamp(
                "last_comparison_timestamp_seconds",
                "When the whole kernel state was last compared with what it should be, in seconds \
                 since 1970.",
            )?,
            operations: make.counters(
                "operations_total",
                "Operations on the kernel, by their kind and what came of them: done, or the class \
                 of the refusal.",
                &["operation", "result"],
            )?,
            owed: make.gauges(
                "owed",
                "Things whose last write the kernel refused, by the class of the refusal; they are \
                 tried again.",
                &["class"],
            )?,
            drift: make.counters(
                "drift_repaired_total",
                "Operations that put back what others had changed in the kernel.",
                &["operation"],
            )?,
            virtual_servers: make
                .gauge("virtual_servers", "Virtual servers that the kernel should have.")?,
            real_servers: make.gauge(
                "real_servers",
                "Real servers that the kernel should have, as of the last comparison with it.",
            )?,
            addresses: make.gauge("addresses", "Addresses that kube-ipvs0 should have.")?,
            services_with_problems: make.gauge(
                "services_with_problems",
                "Services of which something cannot be served as it is written; the log says what.",
            )?,
            health_checks: make.gauge(
                "service_health_checks",
                "Services with a port of their own for the checks of load balancers.",
            )?,
            health_check_listen_failures: make.gauge(
                "service_health_check_listen_failures",
                "Addresses and ports where such checks should be answered, and that cannot be \
                 listened on.",
            )?,
            localhost_connections: make.gauge(
                "localhost_connections",
                "Connections to node ports on localhost that are open.",
            )?,
            localhost_connections_total: make.counters(
                "localhost_connections_total",
                "Connections to node ports on localhost, by what came of them: passed on, failed \
                 because the Service could not be reached, or refused because there were too many.",
                &["result"],
            )?,
            localhost_listen_failures: make.gauge(
                "localhost_listen_failures",
                "Node ports that cannot be listened on at an address of localhost.",
            )?,
        };
        made.begin_at_zero();
        Ok(made)
    }

    /// What had changed was planned in this time.
    pub fn planned(&self, took: Duration) {
        self.stages.plan.observe(took.as_secs_f64());
    }

    /// The whole kernel state was read in this time.
    pub fn read(&self, took: Duration) {
        self.stages.read.observe(took.as_secs_f64());
    }

    /// Operations were written in this time.
    pub fn written(&self, took: Duration) {
        self.stages.write.observe(took.as_secs_f64());
    }

    /// The whole kernel state was compared with what it should be.
    pub fn compared(&self, now: SystemTime) {
        self.last_comparison.set(seconds(now));
    }

    /// What came of an operation: nothing, or how the kernel refused it.
    pub fn answered(&self, op: &Op, refused: Option<RefusalClass>) {
        let result = refused.map_or("done", class_label);
        self.operations.with_label_values(&[operation(op), result]).inc();
    }

    /// Somebody else had changed what this operation mends.
    pub fn drifted(&self, op: &Op) {
        self.drift.with_label_values(&[operation(op)]).inc();
    }

    /// What is owed now, by the class of its refusal.
    pub fn set_owed(&self, owed: impl Iterator<Item = RefusalClass>) {
        let mut counts = CLASSES.map(|class| (class, 0));
        for refused in owed {
            for (_, count) in counts.iter_mut().filter(|(class, _)| *class == refused) {
                *count += 1;
            }
        }
        for (class, count) in counts {
            self.owed.with_label_values(&[class_label(class)]).set(count);
        }
    }

    /// So that the first time something happens is seen as a change from zero.
    fn begin_at_zero(&self) {
        for operation in OPERATIONS {
            self.operations.with_label_values(&[operation, "done"]);
            self.drift.with_label_values(&[operation]);
        }
        for class in CLASSES {
            self.owed.with_label_values(&[class_label(class)]);
        }
        for result in LOCALHOST_RESULTS {
            self.localhost_connections_total.with_label_values(&[result]);
        }
    }
}

// === impl Stages ===

impl Stages {
    fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            plan: make
                .histogram("plan_duration_seconds", "How long it took to plan what had changed.")?,
            read: make.histogram(
                "kernel_read_duration_seconds",
                "How long it took to read the whole kernel state.",
            )?,
            write: make.histogram(
                "kernel_write_duration_seconds",
                "How long it took to write operations to the kernel that went together.",
            )?,
        })
    }
}

// === impl Maker ===

impl Maker<'_> {
    /// With buckets from a tenth of a millisecond to 13 seconds.
    fn histogram(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        let buckets = exponential_buckets(0.0001, 2.0, 18)?;
        let options = HistogramOpts::from(options(name, help)).buckets(buckets);
        register(self.0, Histogram::with_opts(options)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        register(self.0, IntGauge::with_opts(options(name, help))?)
    }

    fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, prometheus::Error> {
        register(self.0, IntGaugeVec::new(options(name, help), labels)?)
    }

    fn timestamp(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        register(self.0, Gauge::with_opts(options(name, help))?)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        register(self.0, IntCounter::with_opts(options(name, help))?)
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        register(self.0, IntCounterVec::new(options(name, help), labels)?)
    }
}

fn options(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("kube_ipvs")
}

fn class_label(class: RefusalClass) -> &'static str {
    match class {
        RefusalClass::Surprise => "surprise",
        RefusalClass::AnswerLost => "answer_lost",
        RefusalClass::SetFull => "set_full",
        RefusalClass::Exhausted => "exhausted",
        RefusalClass::NotPermitted => "not_permitted",
        RefusalClass::NotSupported => "not_supported",
        RefusalClass::NoScheduler => "no_scheduler",
        RefusalClass::Other => "other",
    }
}

fn operation(op: &Op) -> &'static str {
    match op {
        Op::CreateLink => "create_link",
        Op::CreateSet(..) => "create_set",
        Op::GrowSet(..) => "grow_set",
        Op::WriteLayer(_) => "write_rules",
        Op::AddEntry(..) => "add_entry",
        Op::CreateVirtualServer(..) => "create_virtual_server",
        Op::ChangeVirtualServer(..) => "change_virtual_server",
        Op::AddRealServer(..) => "add_real_server",
        Op::ChangeRealServer(..) => "change_real_server",
        Op::MoveRealServer(..) => "move_real_server",
        Op::DrainRealServer(..) => "drain_real_server",
        Op::BindAddress(_) => "bind_address",
        Op::UnbindAddress(_) => "unbind_address",
        Op::AddRoute(_) => "add_route",
        Op::RemoveRoute(_) => "remove_route",
        Op::RemoveRealServer(..) => "remove_real_server",
        Op::RemoveVirtualServer(_) | Op::RetireVirtualServer(_) => "remove_virtual_server",
        Op::RemoveEntry(..) => "remove_entry",
    }
}
