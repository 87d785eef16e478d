//! Rates of traffic.

use std::cmp::Ordering;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::Sort;

/// Traffic of a second.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    /// New connections.
    pub connections: f64,
    /// Packets from clients.
    pub packets_in: f64,
    /// Packets to clients, as far as they pass through this node.
    pub packets_out: f64,
    /// Bytes from clients.
    pub bytes_in: f64,
    /// Bytes to clients, as far as they pass through this node.
    pub bytes_out: f64,
}

// === impl Rates ===

impl AddAssign for Rates {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

// === impl Sort ===

impl Sort {
    /// Compares two, the larger one first. By name: they are the same.
    pub(super) fn compare(self, one: &Rates, other: &Rates) -> Ordering {
        let value = |rates: &Rates| match self {
            Self::Connections => rates.connections,
            Self::Packets => rates.packets_in + rates.packets_out,
            Self::Bytes => rates.bytes_in + rates.bytes_out,
            Self::Name => 0.0,
        };
        value(other).total_cmp(&value(one))
    }
}
