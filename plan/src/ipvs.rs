//! The backend of mode ipvs: virtual servers, entries of sets, and addresses on `kube-ipvs0`.
//!
//! - [`compile`]: an [`exposure`](crate::exposure) to a [`fragment`], the kernel objects that one
//!   Service asks for;
//! - [`desired`]: all fragments, with what they share counted, and the changes from one to the next;
//! - [`diff`]: desired and actual state to operations; `ownership`: virtual servers that are ours.

pub mod compile;
pub mod desired;
pub mod diff;
pub mod fragment;
pub(crate) mod ownership;
