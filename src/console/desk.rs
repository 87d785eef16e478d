//! The desk: parts of the program that answers are made from.

use std::time::{Instant, SystemTime};

use plan::settings::Settings;

use super::answers::top::Readings;
use super::journal::Journal;
use crate::config::Configuration;
use crate::reconcile::inquiry::Inquiries;

/// Function that returns, for people, whether changes arrive from the API server.
pub type Following = Box<dyn Fn() -> String + Send + Sync>;

/// Everything that the program's answers are made from.
pub struct Desk {
    /// The way to the loop.
    pub inquiries: Inquiries,
    /// Journal of what was done lately.
    pub journal: Journal,
    /// Readings of counters, as long as someone asks for rates.
    pub readings: Readings,
    /// Configuration that is served with.
    pub configuration: Configuration,
    /// Settings with the families and abilities that the host has.
    pub settings: Settings,
    /// Reason for which the mode is not the preferred one; none: it is.
    pub fallen_back: Option<String>,
    /// State of following the API server; none: the source is a folder of manifests.
    pub following: Option<Following>,
    /// Time at which this mode began to serve.
    pub since: (Instant, SystemTime),
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("settings", &self.settings).finish_non_exhaustive()
    }
}
