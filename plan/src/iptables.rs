//! The iptables backend: chains of rules for each service port, as kube-proxy's iptables mode has
//! them.
//!
//! - [`compile`]: an [`exposure`](crate::exposure) to a [`fragment`], the
//!   [`chains`](crate::chains) and rules that one Service asks for; `text`: rules as text;
//! - [`constant`]: the chains and rules that depend on no Service; [`tail`]: the last rules of a
//!   shared chain, which belong to no Service either, but follow the node's addresses;
//! - [`desired`]: all fragments, and the changes from one to the next; `adoption`: how chains that
//!   are there are adopted.

pub(crate) mod adoption;
pub mod compile;
pub mod constant;
pub mod desired;
pub mod fragment;
pub mod tail;
mod text;
