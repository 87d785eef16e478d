//! The Services behind what is planned.

use super::Planner;
use crate::ipvs::fragment::Fragment;
use crate::kernel_objects::Frontend;
use crate::model::ServiceName;
use crate::op::Subject;

impl Planner {
    /// Returns the frontends that a Service claims, whether it has them or waits for them.
    #[must_use]
    pub fn claimed_by(&self, service: &ServiceName) -> Vec<Frontend> {
        let fragment = self.desired.fragment(service);
        let claims = fragment.into_iter().flat_map(|Fragment { claims, .. }| claims);
        claims.map(|claim| claim.frontend).chain(self.chains.claimed_by(service)).collect()
    }

    /// Returns the Service that asks for a virtual server, for an entry about a frontend, or for a
    /// chain or a rule of one. None: no Service does, or the subject may be of several.
    #[must_use]
    pub fn owner_of(&self, subject: &Subject) -> Option<&ServiceName> {
        match subject {
            Subject::VirtualServer(frontend) => self.desired.owner(frontend),
            Subject::Entry(set, entry) => match entry.frontend() {
                Some(frontend) => self.desired.owner(&frontend),
                None => self
                    .marked_by(*set, entry)
                    .into_iter()
                    .find_map(|frontend| self.desired.owner(&frontend)),
            },
            Subject::Chain(subject) => self.chains.owner_of(subject),
            _ => None,
        }
    }
}
