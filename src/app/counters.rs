//! Packet counters of the rules of mode iptables, as metrics. They are read when they are asked for,
//! as kube-proxy reads them.

use parking_lot::Mutex;

use plan::iptables::constant::{INVALID_DROPPED, LOCALHOST_ACCEPTED};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, Opts};
use tracing::debug;

use kernel::nfacct::NfacctClient;

/// Counters by their names in the kernel, and in metrics, with their meanings.
const COUNTERS: [(&str, &str, &str); 2] = [
    (
        INVALID_DROPPED,
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "Number of packets dropped because conntrack classifies them as invalid.",
    ),
    (
        LOCALHOST_ACCEPTED,
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "Number of packets to NodePorts on loopback addresses.",
    ),
];

/// Collector of all counters. One that does not exist is left out.
pub(super) struct PacketCounters {
    client: Mutex<NfacctClient>,
    metrics: Vec<(&'static str, IntCounter)>,
}

impl PacketCounters {
    /// Opens the kernel's counters in the calling thread's network namespace.
    pub(super) fn new() -> anyhow::Result<Self> {
        let metrics = COUNTERS.into_iter().map(|(counter, name, help)| {
            Ok((counter, IntCounter::with_opts(Opts::new(name, help))?))
        });
        Ok(Self {
            client: Mutex::new(NfacctClient::open()?),
            metrics: metrics.collect::<Result<_, prometheus::Error>>()?,
        })
    }
}

#[cfg(test)]
impl PacketCounters {
    /// Returns all of them, as if the kernel had each.
    pub(in crate::app) fn all(&self) -> Vec<MetricFamily> {
        self.metrics.iter().flat_map(|(_, metric)| metric.collect()).collect()
    }
}

impl Collector for PacketCounters {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics.iter().flat_map(|(_, metric)| metric.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut client = self.client.lock();
        let mut families = Vec::new();
        for (counter, metric) in &self.metrics {
            match client.packets(counter) {
                Ok(Some(packets)) => {
                    metric.reset();
                    metric.inc_by(packets);
                    families.extend(metric.collect());
                }
                Ok(None) => debug!("no counter {counter}"),
                Err(error) => debug!("cannot read the counter {counter}: {error}"),
            }
        }
        families
    }
}
