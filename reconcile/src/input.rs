//! Input of the loop.

use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use plan::event::Event;
use plan::hand_drain::HandDrain;
use plan::model::Family;

/// Input from a source, or from an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Something changed.
    Change(Event),
    /// The change of endpoints that comes next goes back to what happened then.
    Triggered(Family, SystemTime),
    /// Everything that there is has been delivered once.
    Complete,
    /// An operator drains endpoints by hand, for this long.
    Drain(Box<HandDrain>, Duration),
    /// An operator ends a drain by hand.
    Undrain(Box<HandDrain>),
    /// Cluster IPs of a family are to be local by routes to these networks, and by an address each
    /// elsewhere.
    ServiceRoutes(Family, Vec<IpNet>),
}
