//! Connections that conntrack carries: on the fast path, IPVS sees their first packets and forgets them.
//!
//! They count at the frontend that their clients ask. What IPVS knows of them counts at its internal frontend, and is left out.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use plan::kernel_objects::Frontend;
use tokio::time::Instant;

use super::{FailureAnswer, Reason, blocking};
use crate::Desk;
use kernel::conntrack::{ConntrackClient, TrackedCounts};
use kernel::counters::ConnectionCount;
use reconcile::inquiry::CHUNK;

/// Connections to some frontends that conntrack carries.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    /// Internal frontends among the frontends, each with the frontend that clients ask.
    led_to: HashMap<Frontend, Frontend>,
    pub(super) counts: TrackedCounts,
    /// Time that the count took.
    pub(super) took: Duration,
}

impl Tracked {
    /// Counts the connections to these frontends. None: the fast path is not in force, and IPVS knows all.
    ///
    /// # Errors
    /// When the loop or the kernel has no answer.
    pub(super) async fn read(
        desk: &Desk,
        frontends: &[Frontend],
    ) -> Result<Option<Self>, FailureAnswer> {
        if !desk.settings.has_fast_path() {
            return Ok(None);
        }
        let mut led_to = HashMap::new();
        for chunk in frontends.chunks(CHUNK) {
            let chunk = chunk.to_vec();
            let of_chunk = desk.inquiries.ask(move |view| {
                let asked = |it: Frontend| (it, view.planner.as_seen_by_clients(it));
                chunk.into_iter().map(asked).filter(|(it, asked)| it != asked).collect::<Vec<_>>()
            });
            led_to.extend(of_chunk.await?);
        }
        let asked = frontends.iter().map(|it| led_to.get(it).copied().unwrap_or(*it)).collect();
        let (counts, took) = blocking(move || {
            let began = Instant::now();
            let counts = ConntrackClient::open().and_then(|mut client| client.count(&asked));
            (counts, began.elapsed())
        })
        .await?;
        let counts = counts.map_err(|error| {
            let message = format!(
                "cannot count the connections on the fast path: conntrack: {error}; kube-ipvs \
                 needs the kernel module nf_conntrack_netlink and CAP_NET_ADMIN in the host's \
                 network namespace"
            );
            FailureAnswer::new(Reason::Unavailable, message)
        })?;
        Ok(Some(Self { led_to, counts, took }))
    }

    /// True if clients do not ask this frontend, and are led to it: all its connections are tracked.
    pub(super) fn is_led_to(&self, frontend: &Frontend) -> bool {
        self.led_to.contains_key(frontend)
    }

    /// Returns what clients ask to get to a virtual server.
    pub(super) fn asked(&self, frontend: &Frontend) -> Frontend {
        self.led_to.get(frontend).copied().unwrap_or(*frontend)
    }

    /// Returns the numbers of connections by the frontend that clients ask.
    pub(super) fn by_frontend(&self) -> HashMap<Frontend, ConnectionCount> {
        let mut sums: HashMap<Frontend, ConnectionCount> = HashMap::new();
        for (frontend, _, count) in self.counts.iter() {
            let sum = sums.entry(frontend).or_default();
            *sum = sum.plus(count);
        }
        sums
    }

    /// Returns the frontends that clients ask to get to these virtual servers, each once.
    pub(super) fn all_asked(&self, frontends: &[Frontend]) -> HashSet<Frontend> {
        frontends.iter().map(|frontend| self.asked(frontend)).collect()
    }
}

#[cfg(test)]
impl Tracked {
    /// Counts as if they were read.
    pub(super) fn of(
        led_to: impl IntoIterator<Item = (Frontend, Frontend)>,
        counts: impl IntoIterator<Item = (Frontend, std::net::SocketAddr, ConnectionCount)>,
    ) -> Self {
        Self {
            led_to: led_to.into_iter().collect(),
            counts: counts.into_iter().collect(),
            took: Duration::ZERO,
        }
    }
}
