//! Frontends that one Service claims, for one reason or several.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::net::IpAddr;
use std::sync::Arc;

use crate::claimants::{ClaimKind, Origin};
use crate::ipvs::fragment::Claim;
use crate::kernel_objects::{Entry, Frontend, RealServer, VirtualServer};
use crate::model::Protocol;
use crate::scheduler::SchedulerName;
use crate::sets::SetId;

/// The claims of one Service.
pub(super) struct Claims {
    /// Time at which the Service was made, in seconds since 1970.
    created: i64,
    /// Parameters of balancing of all of them.
    server: VirtualServer,
    claims: BTreeMap<Frontend, Claimed>,
}

/// Content of a claim to a frontend: its reason, real servers and set entries.
pub(super) struct Served<'a> {
    pub(super) origin: Origin,
    pub(super) real_servers: &'a Arc<[RealServer]>,
    pub(super) entries: Vec<(SetId, Entry)>,
    /// The entry that has the rules refuse what is sent there, if there are no real servers.
    pub(super) refusal: Option<(SetId, Entry)>,
    pub(super) internal_frontend_of: Option<Frontend>,
    pub(super) kind: ClaimKind,
}

/// A claim, all of whose entries are not known yet.
struct Claimed {
    /// The index of the service port that claims.
    index: usize,
    claim: Claim,
    entries: Vec<(SetId, Entry)>,
}

impl Claims {
    pub(super) fn new(created: i64, server: VirtualServer) -> Self {
        Self { created, server, claims: BTreeMap::new() }
    }

    pub(super) fn scheduler(&self) -> &SchedulerName {
        &self.server.scheduler
    }

    /// The same address may be there for several reasons, such as an external address that is a
    /// load-balancer's too: then all entries count, and the first reason's real servers with what
    /// they make necessary. Returns that reason, unless another port has the frontend.
    pub(super) fn add(
        &mut self,
        index: usize,
        frontend: Frontend,
        served: Served<'_>,
    ) -> Option<Origin> {
        let Served { origin, real_servers, mut entries, refusal, internal_frontend_of, kind } =
            served;
        match self.claims.entry(frontend) {
            Slot::Vacant(slot) => {
                entries.extend(refusal);
                let server = self.server.clone();
                let real_servers = Arc::clone(real_servers);
                let claim = Claim {
                    frontend,
                    origin,
                    created: self.created,
                    server,
                    real_servers,
                    entries: Box::default(),
                    internal_frontend_of,
                    kind,
                };
                slot.insert(Claimed { index, claim, entries });
                Some(origin)
            }
            Slot::Occupied(mut slot) => {
                let claimed = slot.get_mut();
                if claimed.index != index
                    || claimed.claim.internal_frontend_of != internal_frontend_of
                {
                    return None;
                }
                claimed.entries.extend(entries);
                Some(claimed.claim.origin)
            }
        }
    }

    /// True if a frontend at this address is claimed.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        let first = Frontend { address, protocol: Protocol::Tcp, port: 0 };
        let next = self.claims.range(first..).next();
        next.is_some_and(|(frontend, _)| frontend.address == address)
    }

    /// All of them, in the order of their frontends.
    pub(super) fn finish(self) -> Vec<Claim> {
        self.claims.into_values().map(Claimed::finish).collect()
    }
}

impl Claimed {
    fn finish(mut self) -> Claim {
        self.entries.sort_unstable();
        self.entries.dedup();
        Claim { entries: self.entries.into(), ..self.claim }
    }
}
