//! Chains of the modes iptables and userspace as kernel objects: their names, changes of them, and what is found.

mod actual;
mod name;
mod op;
mod scope;

pub use actual::ActualChains;
pub use name::{
    ChainHash, ChainId, ChainName, PortChain, PortalChain, ServicePortName, SharedChain,
};
pub use op::{ChainDigest, ChainDigester, ChainOp, ChainSubject, RuleDigest};
pub use scope::ChainScope;
