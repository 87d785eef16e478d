//! Behaviour of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Options of [`Server::start`](crate::Server::start).
#[derive(Clone, Debug)]
pub struct Options {
    /// Address to listen on; port 0 lets the kernel choose a port.
    pub listen: SocketAddr,
    /// Requests without credentials are served. Otherwise they get a 401.
    pub anonymous: bool,
    /// The bearer tokens that are accepted; the test can change them later.
    pub tokens: Vec<String>,
    /// The period of bookmarks. The real server sends one a minute.
    pub bookmark_period: Duration,
    /// The release of Kubernetes that it answers as.
    pub release: Release,
    /// True if objects carry `metadata.managedFields`, as those of a real server do.
    pub managed_fields: bool,
    /// True if it has Protobuf beside JSON, as every API server of Kubernetes.
    pub protobuf: bool,
    /// False: answers have no header `Content-Type`, as behind a proxy that drops it.
    pub content_type: bool,
    /// True to serve HTTP/2 beside HTTP/1.
    pub http2: bool,
    /// Number of changes kept; older versions get a 410.
    pub history: usize,
}

/// A release of Kubernetes, and with it what a server knows and refuses.
///
/// All of them validate a request's options before its field selector (`ListResource` in
/// apiserver/pkg/endpoints/handlers/get.go), have had bookmarks (1.17), `resourceVersionMatch` of
/// lists (1.19) and the cause `ResourceVersionTooLarge` (1.18), and ignore the `limit` of a list of
/// version 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// The first with discovery.k8s.io/v1. It passes over `sendInitialEvents`, which it does not
    /// know, and refuses `resourceVersionMatch` of a watch; of a Service's fields it selects by name
    /// and namespace.
    V1_21,
    /// As 1.21 in all of that.
    V1_26,
    /// It knows `sendInitialEvents` (since 1.27), and refuses it: the feature gate `WatchList` is
    /// off by default up to 1.31, and in 1.33.
    V1_30,
    /// It refuses `sendInitialEvents` as well, and selects Services by `spec.clusterIP` and
    /// `spec.type` (since 1.31).
    V1_33,
    /// It streams lists (1.32, 1.34 and later).
    V1_36,
}

/// The server's treatment of `sendInitialEvents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchList {
    /// It serves streaming lists.
    On,
    /// It knows the parameter, and refuses it with 422.
    GateOff,
    /// It does not know the parameter, and refuses `resourceVersionMatch` of a watch with 422.
    Unknown,
}

impl Release {
    /// All of them, from the oldest on.
    pub const ALL: [Self; 5] = [Self::V1_21, Self::V1_26, Self::V1_30, Self::V1_33, Self::V1_36];

    /// True if it sends a list as the beginning of a watch.
    pub fn streams_lists(self) -> bool {
        self.watch_list() == WatchList::On
    }

    /// True if it has the kind ServiceCIDR in networking.k8s.io/v1 (since 1.33).
    pub(crate) fn serves_service_cidrs(self) -> bool {
        self >= Self::V1_33
    }

    pub(crate) fn watch_list(self) -> WatchList {
        match self {
            Self::V1_21 | Self::V1_26 => WatchList::Unknown,
            Self::V1_30 | Self::V1_33 => WatchList::GateOff,
            Self::V1_36 => WatchList::On,
        }
    }

    /// True if Services can be selected by `spec.clusterIP` and `spec.type` (kubernetes#123905).
    pub fn selects_services(self) -> bool {
        self >= Self::V1_33
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            anonymous: false,
            tokens: Vec::new(),
            bookmark_period: Duration::from_secs(60),
            release: Release::V1_36,
            managed_fields: false,
            protobuf: true,
            content_type: true,
            http2: true,
            history: 100_000,
        }
    }
}
