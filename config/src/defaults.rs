//! Defaults that depend on other fields. All others stand with their fields.

use std::net::IpAddr;

use super::document::KubeProxyConfiguration;
use super::settings::Section as _;
use syntax::address;

/// Port of the health server.
pub const HEALTHZ_PORT: u16 = 10_256;

/// Port of the metrics server.
pub const METRICS_PORT: u16 = 10_249;

impl KubeProxyConfiguration {
    /// With kube-proxy's values where there are none.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        self.fill_defaults();
        let (healthz, metrics) = match address::ip(&self.bind_address) {
            Some(IpAddr::V4(_)) => ("0.0.0.0", "127.0.0.1"),
            _ => ("::", "::1"),
        };
        for (address, default, port) in [
            (&mut self.healthz_bind_address, healthz, HEALTHZ_PORT),
            (&mut self.metrics_bind_address, metrics, METRICS_PORT),
        ] {
            let given = if address.is_empty() { default } else { address.as_str() };
            *address = address::with_port(given, port);
        }
        self
    }
}
