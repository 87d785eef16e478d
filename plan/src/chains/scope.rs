//! The part of the chains that is compared at once.

use super::ChainId;
use crate::model::ServiceName;

/// The chains of a reading that are compared: all of them, or few enough that others are not kept waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainScope {
    /// All. Walks all Services.
    All,
    /// Those of these Services' ports and endpoints, but for those in excess.
    Own(Vec<ServiceName>),
    /// Those of service ports and endpoints that no Service asks for, among these.
    Excess(Vec<ChainId>),
    /// A chain that Services share.
    Shared(ChainId),
}
