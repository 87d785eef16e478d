//! Frontends whose traffic passes a chain.

use super::DesiredChains;
use crate::chains::{ChainId, ChainName};
use crate::kernel_objects::Frontend;

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
}
