//! Faults at a place that a test chooses: at any request, before anything is done about it.

use plan::actual::Actual;
use plan::model::Family;
use plan::op::Op;

use super::super::{Refusal, RefusalClass};

/// Decides about every request. It may change what the kernel holds, as somebody else would.
pub(super) type Interference = Box<dyn FnMut(Request<'_>, &mut Actual) -> Answer + Send>;

/// Request to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// To be read.
    Reading(Reading),
    /// To be changed.
    Writing(&'a Op),
    /// To forget the stale flows of a family.
    Flows(Family),
}

/// Part of the state that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reading {
    /// The signs that cost little.
    DriftCheck,
    /// The list of virtual servers.
    Frontends,
    /// Some virtual servers.
    VirtualServers,
    /// A set.
    Set,
    /// The addresses.
    Addresses,
    /// A family's rules.
    RuleSet(Family),
}

/// Answer to a request.
pub enum Answer {
    /// The answer that the kernel's state demands.
    Honest,
    /// No. A reading fails.
    Refused(Refusal),
    /// An operation is carried out, or not, and nobody learns which. A reading fails.
    Lost {
        /// True if the operation is carried out.
        carried_out: bool,
    },
    /// A reading shows what this leaves, and says nothing of it: IPVS does not tell when a listing
    /// was disturbed. An operation is answered as it should be.
    Incomplete(Box<dyn FnOnce(&mut Actual)>),
}

// === impl Reading ===

impl Reading {
    /// Everything that can be read.
    pub const ALL: [Self; 7] = [
        Self::DriftCheck,
        Self::Frontends,
        Self::VirtualServers,
        Self::Set,
        Self::Addresses,
        Self::RuleSet(Family::V4),
        Self::RuleSet(Family::V6),
    ];
}

// === impl Answer ===

impl Answer {
    /// A refusal of this class.
    #[must_use]
    pub fn refused(class: RefusalClass) -> Self {
        Self::Refused(Refusal::new(class, "injected"))
    }
}
