//! The iptables backend: chains of rules for each service port, as kube-proxy's iptables mode has
//! them.
//!
//! - [`chain`]: the chains and their names; [`fragment`]: what one Service asks for in this mode;
//! - [`op`]: one change of a chain as a value; [`actual`]: the chains that were found.

pub mod actual;
pub mod chain;
pub mod fragment;
pub mod op;
