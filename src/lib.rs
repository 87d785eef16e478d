//! kube-ipvs: kube-proxy's IPVS mode, as a program for a node.
//!
//! This crate is the edges and the wiring: planning is in `plan`, netlink in `ipvs`, `ipset` and
//! `netlink`. [`app`] is the only module that knows all others; [`source`] and [`kernel`] never
//! see each other, and [`reconcile`] sees the planner and the kernel's port only.

pub mod announce;
pub mod app;
pub mod cleanup;
pub mod cli;
pub mod config;
mod host;
pub mod kernel;
pub mod localhost;
pub mod reconcile;
pub mod serve;
pub mod source;
mod spread;
mod version;
