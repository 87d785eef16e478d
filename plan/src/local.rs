//! Consequences of a Service being for this node's endpoints only, beside the kernel's state.

use std::num::NonZeroU16;

use crate::hash::HashMap;
use crate::mode::Mode;
use crate::model::{Family, ServiceName};

/// Answer to a load balancer about a Service on this node (`spec.healthCheckNodePort`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// Port that the load balancer asks.
    pub port: NonZeroU16,
    /// Number of different IPv4 addresses that the Service's ready endpoints on this node have;
    /// none if the Service has no cluster address of the family: nothing answers there then.
    pub local_v4: Option<usize>,
    /// The same for IPv6.
    pub local_v6: Option<usize>,
}

/// Number of a Service's ports, by traffic policy, that have endpoints, but none that the policy
/// allows. At most 1 where Services are counted and not their ports, as kube-proxy does in mode ipvs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalGap {
    /// By `internalTrafficPolicy`, IPv4 and IPv6.
    internal: [u16; 2],
    /// By `externalTrafficPolicy`, IPv4 and IPv6.
    external: [u16; 2],
}

/// Kind of traffic policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// `internalTrafficPolicy`.
    Internal,
    /// `externalTrafficPolicy`.
    External,
}

/// The Services that have such a gap, counted: most nodes have one of nearly every Service that is
/// for its own nodes only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalGaps {
    /// No Services without a gap.
    services: HashMap<ServiceName, LocalGap>,
    counts: HashMap<(Side, Family), usize>,
}

impl HealthCheck {
    /// The addresses of a family; none if it does not answer there.
    #[must_use]
    pub fn local(&self, family: Family) -> Option<usize> {
        match family {
            Family::V4 => self.local_v4,
            Family::V6 => self.local_v6,
        }
    }
}

impl LocalGap {
    /// Notes the gap of a port.
    pub fn add(&mut self, side: Side, family: Family, mode: Mode) {
        let [v4, v6] = match side {
            Side::Internal => &mut self.internal,
            Side::External => &mut self.external,
        };
        let count = match family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        *count = if mode.properties().counts_gaps_by_port { count.saturating_add(1) } else { 1 };
    }

    fn count(&self, side: Side, family: Family) -> usize {
        let [v4, v6] = match side {
            Side::Internal => self.internal,
            Side::External => self.external,
        };
        usize::from(match family {
            Family::V4 => v4,
            Family::V6 => v6,
        })
    }
}

impl LocalGaps {
    /// Notes what a Service has now.
    pub fn note(&mut self, service: &ServiceName, gap: LocalGap) {
        let former = if gap == LocalGap::default() {
            self.services.remove(service)
        } else {
            self.services.insert(service.clone(), gap)
        };
        let former = former.unwrap_or_default();
        for side in [Side::Internal, Side::External] {
            for family in Family::BOTH {
                let count = self.counts.entry((side, family)).or_default();
                *count = (*count + gap.count(side, family)) - former.count(side, family);
            }
        }
    }

    /// Returns the number of Services, or of their ports, that have such a gap.
    #[must_use]
    pub fn count(&self, side: Side, family: Family) -> usize {
        self.counts.get(&(side, family)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_what_each_service_has() {
        let mut gaps = LocalGaps::default();
        let mut both = LocalGap::default();
        both.add(Side::External, Family::V4, Mode::Ipvs);
        both.add(Side::External, Family::V6, Mode::Ipvs);
        both.add(Side::External, Family::V6, Mode::Ipvs);
        let mut one = LocalGap::default();
        one.add(Side::Internal, Family::V4, Mode::Ipvs);
        let [a, b] = ["a", "b"].map(|name| ServiceName::new("ns", name));
        let none = LocalGap::default();
        for (service, gap, internal, external) in [
            (&a, none, [0, 0], [0, 0]),
            (&a, both, [0, 0], [1, 1]),
            (&b, both, [0, 0], [2, 2]),
            (&a, both, [0, 0], [2, 2]),
            (&a, one, [1, 0], [1, 1]),
            (&b, none, [1, 0], [0, 0]),
            (&b, none, [1, 0], [0, 0]),
            (&a, none, [0, 0], [0, 0]),
        ] {
            gaps.note(service, gap);
            let counts = |side| Family::BOTH.map(|family| gaps.count(side, family));
            assert_eq!((counts(Side::Internal), counts(Side::External)), (internal, external));
        }
        assert!(gaps.services.is_empty());
    }

    #[test]
    fn mode_iptables_counts_ports() {
        let mut gaps = LocalGaps::default();
        let mut of_ports = LocalGap::default();
        of_ports.add(Side::External, Family::V4, Mode::Iptables);
        let mut one = of_ports;
        one.add(Side::Internal, Family::V4, Mode::Iptables);
        of_ports.add(Side::External, Family::V4, Mode::Iptables);
        let [a, b] = ["a", "b"].map(|name| ServiceName::new("ns", name));
        for (service, gap, expected) in
            [(&a, of_ports, 2), (&b, one, 3), (&a, one, 2), (&b, LocalGap::default(), 1)]
        {
            gaps.note(service, gap);
            assert_eq!(gaps.count(Side::External, Family::V4), expected);
        }
    }
}
