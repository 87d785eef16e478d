//! The iptables backend: chains of rules for each service port, as kube-proxy's iptables mode has
//! them.
//!
//! - [`compile`]: an [`exposure`](crate::exposure) to a [`fragment`], the
//!   [`chains`](crate::chains) and rules that one Service asks for; `text`: rules as text;
//! - [`constant`]: the chains and rules that depend on no Service.

pub mod compile;
pub mod constant;
pub mod fragment;
mod text;
