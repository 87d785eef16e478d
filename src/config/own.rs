//! `KubeIpvsConfiguration`: what kube-proxy has no word for.
//!
//! It is a second document of the same file. kube-proxy reads the first one only (sigs.k8s.io/yaml
//! decodes with go.yaml.in/yaml, whose `Unmarshal` decodes "the first document found"), so that a
//! file with both stays a file that kube-proxy takes.

use serde::{Deserialize, Serialize};

use super::duration::GoDuration;

/// The group and version of our document.
pub const API_VERSION: &str = "kube-ipvs.io/v1alpha1";

/// The kind of our document.
pub const KIND: &str = "KubeIpvsConfiguration";

/// Our document.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "every field is described in docs/config.md")]
pub struct KubeIpvsConfiguration {
    pub api_version: String,
    pub cleanup_other_modes: Option<bool>,
    pub drain_deadline: Option<GoDuration>,
    pub iptables_variant: String,
    pub kind: String,
    pub manifests: String,
}

// === impl KubeIpvsConfiguration ===

impl KubeIpvsConfiguration {
    /// With our values where there are none.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        API_VERSION.clone_into(&mut self.api_version);
        KIND.clone_into(&mut self.kind);
        self.cleanup_other_modes.get_or_insert(true);
        self.drain_deadline.get_or_insert(GoDuration::from_secs(15 * 60));
        if self.iptables_variant.is_empty() {
            "auto".clone_into(&mut self.iptables_variant);
        }
        self
    }
}
