//! Planners with some of the Services, to find out what a change would write.
//!
//! An excerpt shares nothing with the planner that it was taken from. It is planned once as the
//! Services are, and once with the change: the difference is what the change would write, if the
//! excerpt has the Services that claim the same frontends ([`Planner::claimants_of`]), and if what
//! other Services need as well is left out ([`Planner::n_users`]).

use super::Planner;
use crate::event::Event;
use crate::ipvs::fragment::Fragment;
use crate::kernel_objects::Frontend;
use crate::model::{Service, ServiceName};
use crate::op::Subject;
use crate::store::ServiceInput;

impl Planner {
    /// Returns a planner with the same settings and facts about the node, and no Services.
    #[must_use]
    pub fn excerpt(&self) -> Self {
        let mut excerpt = Self::new(self.settings.clone());
        excerpt.store = self.store.without_services();
        excerpt.set_sizes = self.set_sizes.clone();
        excerpt.led_by_rules.clone_from(&self.led_by_rules);
        excerpt.begin_tails();
        excerpt
    }

    /// Returns a copy of the input of a Service, for an excerpt. None: nothing is known under its
    /// name.
    #[must_use]
    pub fn input_of(&self, service: &ServiceName) -> Option<ServiceInput> {
        self.store.input(service)
    }

    /// Takes the input of a Service that this planner does not have, to be planned next.
    pub fn take_input(&mut self, input: ServiceInput) {
        self.store.take_input(input, &self.settings);
    }

    /// Returns a Service as it was applied last.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.store.service(name).map(|(service, _)| service)
    }

    /// Returns the Services that an event of a Service or a slice may change. None: it is an event of
    /// the node, and may change all of them.
    #[must_use]
    pub fn concerned_by(&self, event: &Event) -> Option<Vec<ServiceName>> {
        self.store.concerned_by(event, &self.settings)
    }

    /// Returns the frontends that a Service claims, whether it has them or waits for them.
    #[must_use]
    pub fn claimed_by(&self, service: &ServiceName) -> Vec<Frontend> {
        let fragment = self.desired.fragment(service);
        let claims = fragment.into_iter().flat_map(|Fragment { claims, .. }| claims);
        claims.map(|claim| claim.frontend).chain(self.chains.claimed_by(service)).collect()
    }

    /// Returns the Services that claim a frontend: the one that has it first.
    #[must_use]
    pub fn claimants_of(&self, frontend: &Frontend) -> Vec<ServiceName> {
        let of_chains = self.chains.claimants_of(frontend);
        self.desired.claimants_of(frontend).chain(of_chains).cloned().collect()
    }

    /// Returns the number of Services, or of their frontends, that need an address or a set's entry.
    /// Everything else belongs to one Service, and has none here.
    #[must_use]
    pub fn n_users(&self, subject: &Subject) -> u32 {
        match subject {
            Subject::Address(address) => self.desired.n_users_of_address(*address),
            Subject::Entry(set, entry) => self.desired.n_users_of_entry(*set, entry),
            _ => 0,
        }
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
