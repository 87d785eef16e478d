//! What is wrong with the input, in words for the person who can mend it.

use std::fmt;
use std::net::IpAddr;

use crate::kernel::Frontend;
use crate::model::{Family, ServiceName};

/// Something that keeps a part of a Service from being served as written. The rest of it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Problem {
    /// An address that no Service may have: unspecified, loopback, link-local, multicast.
    ImpossibleAddress {
        /// Where it was written, such as `spec.externalIPs`.
        field: &'static str,
        /// The address.
        address: IpAddr,
    },
    /// Another Service, with a better reason or an older one, has this address and port already.
    FrontendTaken {
        /// What both claim.
        frontend: Frontend,
        /// Who has it.
        owner: ServiceName,
    },
    /// Two ports of the same Service claim the same address and port; the one with the better
    /// reason has it, or the first one.
    FrontendTwice {
        /// What both claim.
        frontend: Frontend,
    },
    /// The twin of a frontend, which is for the cluster's own clients, is another Service's.
    TwinTaken {
        /// The frontend.
        frontend: Frontend,
        /// Its twin.
        twin: Frontend,
        /// Who has that.
        owner: ServiceName,
    },
    /// The kernel does not have the scheduler that the Service chose.
    SchedulerMissing {
        /// Its name.
        scheduler: String,
    },
    /// No address of this node may serve node ports of this family.
    NoNodePortAddress {
        /// The family.
        family: Family,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ImpossibleAddress { field, address } => write!(
                f,
                "{field}: {address} is not an address that a Service can have \
                 (unspecified, loopback, link-local or multicast); it is left out"
            ),
            Self::FrontendTaken { frontend, owner } => write!(
                f,
                "{frontend} belongs to Service {owner} (cluster addresses and node ports come \
                 first, then load balancers, then external addresses, and of the same kind the \
                 oldest); give one of the two another address or port"
            ),
            Self::FrontendTwice { frontend } => write!(
                f,
                "{frontend} is claimed by two ports of this Service, and only one has it: \
                 give the other another port or protocol"
            ),
            Self::TwinTaken { frontend, twin, owner } => write!(
                f,
                "clients in the cluster reach only this node's endpoints by {frontend}: its twin \
                 {twin} is Service {owner}'s, whose address differs from it in the first bits only; \
                 choose a network with a shorter prefix (shortCircuit) or another address"
            ),
            Self::SchedulerMissing { scheduler } => write!(
                f,
                "this node's kernel has no IPVS scheduler {scheduler:?} (module ip_vs_{scheduler}); \
                 the default one is used instead"
            ),
            Self::NoNodePortAddress { family } => write!(
                f,
                "no {family} address of this node may serve node ports: \
                 none is inside the configured node port addresses"
            ),
        }
    }
}
