//! The iptables backend: chains of rules for each service port, as kube-proxy's iptables mode has
//! them.
//!
//! - [`fragment`]: the [`chains`](crate::chains) and rules that one Service asks for.

pub mod fragment;
