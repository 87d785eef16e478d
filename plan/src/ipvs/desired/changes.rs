//! State from before a change, of everything that the change has touched: comparing it with what is
//! after gives the operations, however often something went back and forth in between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::counted::Counted;
use super::{Change, Count, Desired, Entries};
use crate::claimants::Contenders;
use crate::kernel_objects::{Entry, Frontend, RealServer, VirtualServer};
use crate::model::{Protocol, ServiceName};
use crate::op::Op;
use crate::sets::SetId;
use crate::virtual_server::{self, DesiredFrontend};

/// State from before. Ordered maps, so that the operations come in the same order every time.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// None: no Service owned it.
    frontends: BTreeMap<Frontend, Option<Former>>,
    addresses: BTreeMap<IpAddr, Presence>,
    entries: BTreeMap<(SetId, Entry), Presence>,
    pub(super) contenders: Contenders,
}

/// Claim that a frontend had before.
#[derive(Debug)]
struct Former {
    owner: ServiceName,
    server: VirtualServer,
    real_servers: Arc<[RealServer]>,
    internal_frontend_of: Option<Frontend>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Absent,
    Present,
}

impl Changes {
    /// To be called before a claim to this frontend changes.
    pub(super) fn before_frontend(&mut self, desired: &Desired, frontend: Frontend) {
        self.frontends.entry(frontend).or_insert_with(|| {
            let claim = desired.owning_claim(&frontend)?;
            Some(Former {
                owner: desired.owner(&frontend)?.clone(),
                server: claim.server.clone(),
                real_servers: Arc::clone(&claim.real_servers),
                internal_frontend_of: claim.internal_frontend_of,
            })
        });
    }

    pub(super) fn bind(&mut self, addresses: &mut Counted<IpAddr>, address: IpAddr) {
        if addresses.add(address) {
            self.addresses.entry(address).or_insert(Presence::Absent);
        }
    }

    pub(super) fn unbind(&mut self, addresses: &mut Counted<IpAddr>, address: IpAddr) {
        if addresses.remove(&address) {
            self.addresses.entry(address).or_insert(Presence::Present);
        }
    }

    pub(super) fn count<'a>(
        &mut self,
        entries: &mut Entries,
        added: impl Iterator<Item = &'a (SetId, Entry)>,
    ) {
        for (set, entry) in added {
            if entries.entry(*set).or_default().add(*entry) {
                self.entries.entry((*set, *entry)).or_insert(Presence::Absent);
            }
        }
    }

    pub(super) fn uncount<'a>(
        &mut self,
        entries: &mut Entries,
        removed: impl Iterator<Item = &'a (SetId, Entry)>,
    ) {
        for (set, entry) in removed {
            if entries.entry(*set).or_default().remove(entry) {
                self.entries.entry((*set, *entry)).or_insert(Presence::Present);
            }
        }
    }

    /// Compares with what is after.
    pub(super) fn finish(self, desired: &Desired) -> Change {
        let mut ops = Vec::new();
        for ((set, entry), before) in self.entries {
            match (before, desired.has_entry(set, &entry)) {
                (Presence::Absent, true) => ops.push(Op::AddEntry(set, entry)),
                (Presence::Present, false) => ops.push(Op::RemoveEntry(set, entry)),
                _ => {}
            }
        }
        let (mut flows, mut given_up) = (BTreeSet::new(), Vec::new());
        let (mut count_before, mut count_after) = (Count::default(), Count::default());
        for (frontend, former) in self.frontends {
            let before = desired_frontend(former.as_ref().map(|f| (&f.server, &f.real_servers)));
            let after = desired.at(&frontend);
            count_before.add(before);
            count_after.add(after);
            virtual_server::between(frontend, before, after, desired.seed(), &mut ops);
            if let Some(owner) = former.as_ref().map(|former| &former.owner)
                && desired.owner(&frontend) != Some(owner)
            {
                given_up.push((frontend, owner.clone()));
            }
            // A TCP connection to an endpoint that is gone ends by itself.
            if frontend.protocol != Protocol::Tcp && before != after {
                let was = former.and_then(|former| former.internal_frontend_of);
                let seen = was.or_else(|| desired.owning_claim(&frontend)?.internal_frontend_of);
                flows.insert(seen.unwrap_or(frontend));
            }
        }
        for (address, before) in self.addresses {
            match (before, desired.has_address(address)) {
                (Presence::Absent, true) => ops.push(Op::BindAddress(address)),
                (Presence::Present, false) => ops.push(Op::UnbindAddress(address)),
                _ => {}
            }
        }
        let contenders = self.contenders.into_services();
        Change { ops, contenders, flows, given_up, before: count_before, after: count_after }
    }
}

impl Count {
    fn add(&mut self, desired_frontend: DesiredFrontend<'_>) {
        if let DesiredFrontend::Open(_, real_servers) = desired_frontend {
            self.open += 1;
            self.real_servers += real_servers.len();
        }
    }
}

/// Returns the desired state that a claim, if there is one, stands for.
pub(super) fn desired_frontend<'a>(
    claim: Option<(&'a VirtualServer, &'a Arc<[RealServer]>)>,
) -> DesiredFrontend<'a> {
    match claim {
        None => DesiredFrontend::Unclaimed,
        Some((_, real_servers)) if real_servers.is_empty() => DesiredFrontend::Closed,
        Some((server, real_servers)) => DesiredFrontend::Open(server, real_servers),
    }
}
