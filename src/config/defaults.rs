//! Defaults of a document where nothing is written: kube-proxy's values.

use std::net::IpAddr;

use super::document::{API_VERSION, FlushFrequency, KIND, KubeProxyConfiguration};
use crate::syntax::address;
use crate::syntax::duration::GoDuration;

/// Port of the health server.
pub const HEALTHZ_PORT: u16 = 10_256;

/// Port of the metrics server.
pub const METRICS_PORT: u16 = 10_249;

/// Media type in which kube-proxy talks to the API server, if no other is configured.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

// === impl KubeProxyConfiguration ===

impl KubeProxyConfiguration {
    /// With kube-proxy's values where there are none.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        API_VERSION.clone_into(&mut self.api_version);
        KIND.clone_into(&mut self.kind);
        or_text(&mut self.bind_address, "0.0.0.0");
        self.default_addresses();
        self.default_connection();
        self.default_modes();
        self.default_conntrack();
        self.oom_score_adj.get_or_insert(-999);
        self.config_sync_period = self.config_sync_period.or(GoDuration::from_secs(15 * 60));
        self.logging.format.or_default();
        if self.logging.flush_frequency.duration() == GoDuration::ZERO {
            self.logging.flush_frequency = FlushFrequency::Text(GoDuration::from_secs(5));
        }
        self
    }

    fn default_addresses(&mut self) {
        let (healthz, metrics) = match address::ip(&self.bind_address) {
            Some(IpAddr::V4(_)) => ("0.0.0.0", "127.0.0.1"),
            _ => ("::", "::1"),
        };
        or_text(&mut self.healthz_bind_address, healthz);
        or_text(&mut self.metrics_bind_address, metrics);
        self.healthz_bind_address = address::with_port(&self.healthz_bind_address, HEALTHZ_PORT);
        self.metrics_bind_address = address::with_port(&self.metrics_bind_address, METRICS_PORT);
    }

    fn default_connection(&mut self) {
        let connection = &mut self.client_connection;
        or_text(&mut connection.content_type, CONTENT_TYPE);
        if connection.qps == 0.0 {
            connection.qps = 5.0;
        }
        if connection.burst == 0 {
            connection.burst = 10;
        }
    }

    fn default_modes(&mut self) {
        let (period, least) = (GoDuration::from_secs(30), GoDuration::from_secs(1));
        self.iptables.sync_period = self.iptables.sync_period.or(period);
        self.iptables.min_sync_period = self.iptables.min_sync_period.or(least);
        self.iptables.localhost_node_ports.get_or_insert(true);
        self.iptables.masquerade_bit.get_or_insert(14);
        self.nftables.sync_period = self.nftables.sync_period.or(period);
        self.nftables.min_sync_period = self.nftables.min_sync_period.or(least);
        self.nftables.masquerade_bit.get_or_insert(14);
        // ipvs.minSyncPeriod has no default: every change is written at once.
        self.ipvs.sync_period = self.ipvs.sync_period.or(period);
    }

    fn default_conntrack(&mut self) {
        let conntrack = &mut self.conntrack;
        conntrack.max_per_core.get_or_insert(32 * 1_024);
        conntrack.min.get_or_insert(128 * 1_024);
        conntrack.tcp_established_timeout.get_or_insert(GoDuration::from_secs(24 * 3_600));
        conntrack.tcp_close_wait_timeout.get_or_insert(GoDuration::from_secs(3_600));
    }
}

fn or_text(text: &mut String, default: &str) {
    if text.is_empty() {
        default.clone_into(text);
    }
}
