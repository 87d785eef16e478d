//! Local routes in the place of addresses, for a family at a time, and back.
//!
//! Routes come before the addresses go that they stand for, and go after these have come. In between,
//! the rules have the routes, and serve bound addresses as well.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Planner;
use crate::hash::HashSet;
use crate::model::{Family, ServiceName};
use crate::op::Op;
use crate::routes::{self, RouteOp};

/// Most Services that one call looks at.
pub(super) const MOST_LOOKED_AT: usize = 1_024;

impl Planner {
    /// Sets the networks of a family that have a local route, and those of them in which addresses are
    /// bound all the same. The next plan has the routes and rules.
    /// [`plan_outdated`](Self::plan_outdated) has the Services planned again that it makes a difference
    /// to.
    pub fn set_service_routes(&mut self, family: Family, routes: Vec<IpNet>, bound: Vec<IpNet>) {
        let families = &self.settings.families;
        let all = || families.iter().flat_map(|family| self.settings.routes(*family)).collect();
        let former: HashSet<IpNet> = all();
        let is_of_others = |net: &IpNet| Family::of_net(net) != family;
        for (networks, new) in
            [(&mut self.settings.service_routes, routes), (&mut self.settings.bound_routes, bound)]
        {
            networks.retain(is_of_others);
            networks.extend(new);
        }
        if !routes::compare(&former, &self.settings).is_empty() {
            self.former_routes.get_or_insert(former);
            self.store.note_other_rules(family);
        }
    }

    /// Returns the networks of a family that have a local route.
    #[must_use]
    pub fn service_routes(&self, family: Family) -> Vec<IpNet> {
        let routes = self.settings.service_routes.iter();
        routes.filter(|net| Family::of_net(net) == family).copied().collect()
    }

    /// True if routes have changed since the last plan.
    #[must_use]
    pub fn has_unplanned_routes(&self) -> bool {
        self.former_routes.is_some()
    }

    /// Has Services planned again, a number of them at most, of which addresses of a family are bound
    /// and need not be, or are not bound and should be: of those that come after this one, or of all.
    /// Returns them, and the last one that was looked at; none at the end.
    pub fn plan_outdated(
        &mut self,
        family: Family,
        after: Option<&ServiceName>,
        at_most: usize,
    ) -> (Vec<ServiceName>, Option<ServiceName>) {
        let mut names = self.store.names(after);
        let (mut outdated, mut last) = (Vec::new(), None);
        for _ in 0..MOST_LOOKED_AT {
            if outdated.len() == at_most {
                break;
            }
            last = names.next();
            let Some(service) = last else { break };
            if self.is_outdated(service, family) {
                outdated.push(service.clone());
            }
        }
        let last = last.cloned();
        drop(names);
        self.store.compile_again(outdated.clone());
        (outdated, last)
    }

    /// True if a Service waits to be planned, or to be planned to its end.
    #[must_use]
    pub fn waits(&self, service: &ServiceName) -> bool {
        self.store.waits(service)
    }

    fn is_outdated(&self, service: &ServiceName, family: Family) -> bool {
        let Some(fragment) = self.desired.fragment(service) else { return false };
        let settings = &self.settings;
        let is_of_family = |address: IpAddr| Family::of(address) == family;
        let mut bound = fragment.addresses.iter().filter(|it| is_of_family(**it));
        let mut claims = fragment.claims.iter().filter(|it| is_of_family(it.frontend.address));
        bound.any(|address| !settings.is_to_be_bound(*address))
            || claims.any(|claim| {
                let address = claim.frontend.address;
                let is_bound = match claim.internal_frontend_of {
                    Some(_) => claim.bound().is_some(),
                    None => fragment.addresses.binary_search(&address).is_ok(),
                };
                settings.is_routed(address) && is_bound != settings.is_to_be_bound(address)
            })
    }

    /// Takes the families whose constant rules are to be written, and since when, and the operations
    /// on routes. Where routes only go, the rules follow in the next plan: until then they refuse what
    /// would come to the node by an address that no Service has.
    pub(super) fn take_changes_of_node(&mut self) -> (BTreeMap<Family, u64>, Vec<Op>) {
        let mut rules = self.store.take_dirty_rules();
        let Some(former) = self.former_routes.take() else { return (rules, Vec::new()) };
        let ops = routes::compare(&former, &self.settings).into_iter().map(Op::Route);
        let mut ops: Vec<Op> = ops.collect();
        ops.sort_by_key(Op::phase);
        for family in Family::BOTH {
            let mut of_family = ops.iter().filter(|op| op.subject().family() == Some(family));
            let go = |op: &Op| matches!(op, Op::Route(RouteOp::Remove(_)));
            if of_family.clone().any(go) && of_family.all(go) && rules.remove(&family).is_some() {
                self.store.note_other_rules(family);
            }
        }
        (rules, ops)
    }
}
