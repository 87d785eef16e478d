//! Decisions on endpoints, in words.

use std::fmt;

use plan::endpoints::{Decision, Topology};
use plan::model::{Endpoint, TrafficPolicy};
use serde::{Deserialize, Serialize};

/// Use of an endpoint, or the reason for which it is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Use {
    Used,
    /// It terminates, and is used all the same: no other is ready.
    LastResort,
    NotReady,
    /// It terminates, and others are ready.
    Terminating,
    /// It terminates, and does not serve any more.
    NotServing,
    /// Hints mean it for other nodes.
    ForOtherNodes,
    /// Hints mean it for other zones.
    ForOtherZones,
    /// It is on another node, and the traffic policy is Local.
    Elsewhere,
    /// An operator drains it by hand (`kube-ipvs drain`).
    DrainedByHand,
    /// It is no endpoint of the Service any more: the kernel still has it.
    Gone,
}

/// Extent to which hints choose among ready endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hints {
    None,
    /// Those for this node are used.
    Node,
    /// Those for this zone are used.
    Zone,
    /// There are some, and they are not followed: not every ready endpoint has one, or none names this
    /// node or its zone.
    NotFollowed,
}

impl Use {
    /// True if the endpoint gets new connections.
    #[must_use]
    pub const fn is_used(self) -> bool {
        matches!(self, Self::Used | Self::LastResort)
    }
}

impl From<Decision> for Use {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Used => Self::Used,
            Decision::UsedAsLastResort => Self::LastResort,
            Decision::NotReady => Self::NotReady,
            Decision::Terminating => Self::Terminating,
            Decision::NotServing => Self::NotServing,
            Decision::ForOtherNodes => Self::ForOtherNodes,
            Decision::ForOtherZones => Self::ForOtherZones,
            Decision::Elsewhere => Self::Elsewhere,
            Decision::DrainedByHand => Self::DrainedByHand,
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "used",
            Self::LastResort => "used as a last resort: terminating, and no other is ready",
            Self::NotReady => "not used: not ready",
            Self::Terminating => "not used: terminating, and others are ready",
            Self::NotServing => "not used: terminating, and no longer serving",
            Self::ForOtherNodes => "not used: its hints are for other nodes",
            Self::ForOtherZones => "not used: its hints are for other zones",
            Self::Elsewhere => "not used: on another node, and the traffic policy is Local",
            Self::DrainedByHand => "not used: drained manually",
            Self::Gone => "not used: no longer an endpoint of the Service",
        })
    }
}

impl Hints {
    /// Returns the extent to which hints choose for clients under a policy. They say nothing of
    /// endpoints for clients that must stay on this node.
    pub(super) fn of<'a>(
        topology: Topology,
        policy: TrafficPolicy,
        endpoints: impl IntoIterator<Item = &'a Endpoint>,
    ) -> Self {
        let has_some = endpoints.into_iter().any(|endpoint| endpoint.hints.is_some());
        match (topology, policy) {
            (_, TrafficPolicy::Local) => Self::None,
            (Topology::SameNode, _) => Self::Node,
            (Topology::SameZone, _) => Self::Zone,
            (Topology::Anywhere, _) if has_some => Self::NotFollowed,
            (Topology::Anywhere, _) => Self::None,
        }
    }
}

/// Returns the hints of an endpoint as people read them; none if it has none.
pub(super) fn hints_text(endpoint: &Endpoint) -> Option<String> {
    let hints = endpoint.hints.as_deref()?;
    let list = |what: &str, names: &[std::sync::Arc<str>]| {
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let texts = [list("nodes", &hints.nodes), list("zones", &hints.zones)];
    Some(texts.into_iter().flatten().collect::<Vec<_>>().join("; "))
}
