//! The desk: parts of the program that answers are made from.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use plan::mode::Mode;
use plan::settings::Settings;
use tokio::sync::Mutex;
use tokio::sync::mpsc::Sender;

use super::answers::top::Readings;
use super::journal::Journal;
use super::lately::Repairs;
use super::log::LogLines;
use super::pods::PodFinder;
use config::Configuration;
use kernel::linux::Versions;
use reconcile::inquiry::Inquiries;
use source::kubernetes::ClientMetrics;

/// Function that returns the numbers of TCP connections and of UDP clients of the relay.
pub type RelayedNow = Box<dyn Fn() -> [u64; 2] + Send + Sync>;

/// Everything that the program's answers are made from.
pub struct Desk {
    /// The way to the loop.
    pub inquiries: Inquiries,
    /// Journal of what was done lately, in this mode and in those before.
    pub journal: Journal,
    /// The last lines of the program's log.
    pub log: LogLines,
    /// Readings of counters, as long as someone asks for rates.
    pub readings: Readings,
    /// Configuration that is served with.
    pub configuration: Configuration,
    /// Settings with the families and abilities that the host has.
    pub settings: Settings,
    /// Reason for which the mode is not the preferred one; none: it is.
    pub fallen_back: Option<String>,
    /// True while the configuration file has something that cannot be used.
    pub configuration_rejected: Arc<AtomicBool>,
    /// Limits of the host that Services feel, in words.
    pub limits: Vec<String>,
    /// Metrics of following the API server; none: the source is a folder of manifests.
    pub api: Option<ClientMetrics>,
    /// Way to find Pods by name.
    pub pods: PodFinder,
    /// The way to order another mode.
    pub orders: Sender<Mode>,
    /// Clients of the relay; none: there is no relay.
    pub relayed: Option<RelayedNow>,
    /// Turn of those who drain endpoints by hand.
    pub draining: Mutex<()>,
    /// Counts of repairs lately.
    pub repairs: Repairs,
    /// Versions of the kernel's parts and of the programs that write it.
    pub versions: Versions,
    /// Time at which this mode began to serve.
    pub since: (Instant, SystemTime),
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("settings", &self.settings).finish_non_exhaustive()
    }
}
