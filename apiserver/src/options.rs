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
    /// Treatment of requests for streaming lists.
    pub watch_list: WatchList,
    /// True if objects carry `metadata.managedFields`, as those of a real server do.
    pub managed_fields: bool,
    /// True to serve HTTP/2 beside HTTP/1.
    pub http2: bool,
    /// Number of changes kept; older versions get a 410.
    pub history: usize,
}

/// The server's treatment of `sendInitialEvents`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchList {
    /// It serves streaming lists.
    #[default]
    On,
    /// It knows the parameter, and refuses it with 422: 1.27 and newer with the feature gate off,
    /// which was the default of 1.27 to 1.31 and of 1.33.
    GateOff,
    /// It does not know the parameter, and refuses `resourceVersionMatch` of a watch with 422:
    /// older than 1.27.
    Unknown,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            anonymous: false,
            tokens: Vec::new(),
            bookmark_period: Duration::from_secs(60),
            watch_list: WatchList::On,
            managed_fields: false,
            http2: true,
            history: 100_000,
        }
    }
}
