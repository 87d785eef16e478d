//! Frontends whose traffic passes a chain, and the Services behind chains and frontends.

use super::DesiredChains;
use super::shared::RuleOwner;
use crate::chains::{ChainId, ChainName, ChainSubject};
use crate::kernel_objects::Frontend;
use crate::model::ServiceName;

// === impl DesiredChains ===

impl DesiredChains {
    /// The frontends whose traffic may pass a chain: of a shared one, all of the family; of another
    /// one, those that its Service claims. None if no Service asks for the chain.
    pub(crate) fn frontends_behind(&self, chain: &ChainId) -> Vec<Frontend> {
        let is_of_family = |frontend: &Frontend| frontend.family() == chain.family;
        if matches!(chain.name, ChainName::Shared(_)) {
            return self.frontends().filter(|it| is_of_family(it)).copied().collect();
        }
        let owner = self.owner_of_chain(chain).and_then(|owner| self.services.get(owner));
        let claimed = owner.into_iter().flat_map(|kept| &kept.claims).map(|claim| claim.frontend);
        claimed.filter(is_of_family).collect()
    }

    /// True if a Service has chains.
    pub(crate) fn has_service(&self, service: &ServiceName) -> bool {
        self.services.contains_key(service)
    }

    /// The frontends that a Service claims, whether it has them or waits for them.
    pub(crate) fn claimed_by(&self, service: &ServiceName) -> impl Iterator<Item = Frontend> {
        let kept = self.services.get(service).into_iter();
        kept.flat_map(|kept| &kept.claims).map(|claim| claim.frontend)
    }

    /// The Services that claim a frontend: its owner, then those that wait, in their order.
    pub(crate) fn claimants_of(&self, frontend: &Frontend) -> impl Iterator<Item = &ServiceName> {
        self.claimants.all(frontend)
    }

    /// The Service that asks for a chain, or for a rule of a shared chain. None: no Service does, or
    /// it is a shared chain as a whole, or one of its last rules.
    pub(crate) fn owner_of(&self, subject: &ChainSubject) -> Option<&ServiceName> {
        match subject {
            ChainSubject::Chain(chain) => self.owner_of_chain(chain),
            ChainSubject::Rule(chain, digest) => match self.shared.get(chain)?.owner(*digest)? {
                RuleOwner::Frontend(frontend) => self.owner(frontend),
                RuleOwner::Service(service) => self.services.get_key_value(service).map(|it| it.0),
            },
        }
    }
}
