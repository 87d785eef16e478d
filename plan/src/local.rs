//! What follows from a Service being for this node's endpoints only, beside the kernel's state.

use std::collections::HashMap;
use std::num::NonZeroU16;

use crate::model::{Family, ServiceName};

/// What a load balancer is told about a Service on this node (`spec.healthCheckNodePort`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// Where it asks.
    pub port: NonZeroU16,
    /// How many different IPv4 addresses the Service's ready endpoints on this node have.
    pub local_v4: usize,
    /// The same for IPv6.
    pub local_v6: usize,
}

/// Where a Service has endpoints, but none that its traffic policy allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalGap {
    /// By `internalTrafficPolicy`, IPv4 and IPv6.
    internal: [bool; 2],
    /// By `externalTrafficPolicy`, IPv4 and IPv6.
    external: [bool; 2],
}

/// Which of the two traffic policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// `internalTrafficPolicy`.
    Internal,
    /// `externalTrafficPolicy`.
    External,
}

/// The Services that have such a gap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalGaps {
    /// No Services without a gap.
    services: HashMap<ServiceName, LocalGap>,
}

// === impl HealthCheck ===

impl HealthCheck {
    /// The addresses of a family.
    #[must_use]
    pub fn local(&self, family: Family) -> usize {
        match family {
            Family::V4 => self.local_v4,
            Family::V6 => self.local_v6,
        }
    }
}

// === impl LocalGap ===

impl LocalGap {
    /// Notes a gap.
    pub fn add(&mut self, side: Side, family: Family) {
        let [v4, v6] = match side {
            Side::Internal => &mut self.internal,
            Side::External => &mut self.external,
        };
        *match family {
            Family::V4 => v4,
            Family::V6 => v6,
        } = true;
    }

    fn has(&self, side: Side, family: Family) -> bool {
        let [v4, v6] = match side {
            Side::Internal => self.internal,
            Side::External => self.external,
        };
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }
}

// === impl LocalGaps ===

impl LocalGaps {
    /// Notes what a Service has now.
    pub fn note(&mut self, service: &ServiceName, gap: LocalGap) {
        if gap == LocalGap::default() {
            self.services.remove(service);
        } else {
            self.services.insert(service.clone(), gap);
        }
    }

    /// How many Services have such a gap. Walks those that have any.
    #[must_use]
    pub fn count(&self, side: Side, family: Family) -> usize {
        self.services.values().filter(|gap| gap.has(side, family)).count()
    }
}
