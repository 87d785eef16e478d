//! Every command against a real kernel, read back with this crate and with ipvsadm.
//!
//! Needs root, a kernel with ip_vs, and the programs `ip`, `ipvsadm` and `modprobe`: built with the feature
//! `kernel-tests` only, and then it fails where those are missing. Each test has a network
//! namespace of its own.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

mod batches;
mod counts;
mod network;
mod real_servers;
mod refusals;
mod settings;
mod virtual_servers;

pub(crate) use network::Network;
