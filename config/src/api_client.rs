//! Options of the API server's client.

use super::resolved::Configuration;
use source::kubernetes::ClientOptions;

/// `reportingController` of Events, and the beginning of the user agent: what dashboards, alerts
/// and audit logs know.
pub const CONTROLLER: &str = "kube-proxy";

impl Configuration {
    /// Returns the options of the API server's client.
    #[must_use]
    pub fn client_options(&self) -> ClientOptions {
        let server = &self.api_server;
        ClientOptions {
            kubeconfig: server.kubeconfig.clone(),
            master: server.url.clone(),
            qps: server.qps,
            burst: i32::try_from(server.burst).unwrap_or(i32::MAX),
            user_agent: format!("{CONTROLLER}/{}", self.reported_version),
        }
    }
}
