//! Number of objects that the kernel should have, and fill level of the sets.

use plan::ipvs::desired::Desired;
use plan::model::Family;
use plan::op::Op;
use plan::planner::Planner;
use plan::sets::SetId;
use prometheus::{IntGauge, IntGaugeVec};

use super::maker::Maker;

/// Number of objects that the kernel should have.
#[derive(Debug)]
pub struct Programmed {
    virtual_servers: IntGauge,
    real_servers: IntGauge,
    addresses: IntGauge,
    services_with_problems: IntGauge,
    services_not_served: IntGauge,
    sets: Vec<Fill>,
}

/// Fill level of a set.
#[derive(Debug)]
struct Fill {
    set: SetId,
    entries: IntGauge,
    capacity: IntGauge,
}

impl Programmed {
    pub(super) fn new(make: &Maker<'_>, families: &[Family]) -> Result<Self, prometheus::Error> {
        let entries: IntGaugeVec = make.gauges(
            "kube_ipvs_set_entries",
            "Desired number of entries of an ipset, without unowned entries.",
            "set",
        )?;
        let capacity: IntGaugeVec = make.gauges(
            "kube_ipvs_set_capacity",
            "Capacity of an ipset in entries (maxelem). The set grows when seven eighths are in use.",
            "set",
        )?;
        let fill = |set: SetId| Fill {
            set,
            entries: entries.with_label_values(&[set.name()]),
            capacity: capacity.with_label_values(&[set.name()]),
        };
        Ok(Self {
            virtual_servers: make
                .gauge("kube_ipvs_virtual_servers", "Desired number of IPVS virtual servers.")?,
            real_servers: make
                .gauge("kube_ipvs_real_servers", "Desired number of IPVS real servers.")?,
            addresses: make.gauge(
                "kube_ipvs_addresses",
                "Desired number of addresses of the \
                                                          interface kube-ipvs0.",
            )?,
            services_with_problems: make.gauge(
                "kube_ipvs_services_with_problems",
                "Number of Services that cannot be served as specified, or have an annotation \
                 without effect. The log and an Event of each Service have the reason.",
            )?,
            services_not_served: make.gauge(
                "kube_ipvs_services_not_served",
                "Number of Services of which an address or port is not served on this node. The log and an Event \
                 of each Service have the reason.",
            )?,
            sets: families.iter().copied().flat_map(SetId::all).map(fill).collect(),
        })
    }

    /// Sets the numbers of the desired state.
    pub fn set(&self, planner: &Planner) {
        let desired: &Desired = planner.desired();
        self.virtual_servers.set(gauge(desired.n_virtual_servers()));
        self.real_servers.set(gauge(desired.n_real_servers()));
        self.addresses.set(gauge(desired.n_addresses()));
        self.services_with_problems.set(gauge(planner.n_with_problems()));
        self.services_not_served.set(gauge(planner.n_not_served()));
        for Fill { set, entries, capacity } in &self.sets {
            entries.set(gauge(desired.n_entries(*set)));
            capacity.set(i64::from(planner.set_sizes().capacity(*set).entries()));
        }
    }

    /// An operation was carried out.
    pub fn done(&self, op: &Op) {
        if let Op::CreateSet(of, size) | Op::GrowSet(of, size) = op {
            for Fill { capacity, .. } in self.sets.iter().filter(|fill| fill.set == *of) {
                capacity.set(i64::from(size.capacity.entries()));
            }
        }
    }
}

fn gauge(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
