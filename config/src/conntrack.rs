//! Settings of the kernel's connection tracking.

use std::time::Duration;

use super::document;
use syntax::duration::GoDuration;

/// The kernel's connection tracking. What is absent stays as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections for each processor core.
    pub max_per_core: Option<u32>,
    /// Connections at least, where `max_per_core` is given.
    pub min: u32,
    /// `nf_conntrack_tcp_timeout_established`.
    pub tcp_established: Option<Duration>,
    /// `nf_conntrack_tcp_timeout_close_wait`.
    pub tcp_close_wait: Option<Duration>,
    /// True if `nf_conntrack_tcp_be_liberal` is set.
    pub tcp_be_liberal: bool,
    /// `nf_conntrack_udp_timeout`.
    pub udp: Option<Duration>,
    /// `nf_conntrack_udp_timeout_stream`.
    pub udp_stream: Option<Duration>,
}

/// Returns what the document says of it, without what it leaves to the kernel.
pub(super) fn conntrack(document: &document::Conntrack) -> Conntrack {
    let unless_zero =
        |duration: GoDuration| Some(duration.to_std()).filter(|duration| !duration.is_zero());
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    Conntrack {
        max_per_core: number(document.max_per_core).filter(|max| *max > 0),
        min: number(document.min).unwrap_or_default(),
        tcp_established: document.tcp_established_timeout.and_then(unless_zero),
        tcp_close_wait: document.tcp_close_wait_timeout.and_then(unless_zero),
        tcp_be_liberal: document.tcp_be_liberal,
        udp: unless_zero(document.udp_timeout),
        udp_stream: unless_zero(document.udp_stream_timeout),
    }
}
