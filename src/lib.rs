//! kube-ipvs: kube-proxy's IPVS mode, as a program for a node.
//!
//! This crate is the wiring. Its parts are crates beside it, each of which says at its root what it has;
//! ARCHITECTURE.md draws them.
//!
//! - [`app`]: connects the parts; the only module that knows all others;
//! - `events`: Events of the Kubernetes API;
//! - [`switch`]: switching a running process to another mode.

pub mod app;
pub mod events;
pub mod switch;
