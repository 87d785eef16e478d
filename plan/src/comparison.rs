//! The comparison of the kernel with the plan, a part at a time.
//!
//! A caller reads a [`Part`] and asks [`Planner::compare`] for the operations that end the differences. The audit
//! carries them out; `kube-ipvs diff`, and a takeover that is only foreseen, show them.

use std::sync::Arc;

use crate::actual::{Actual, ActualSet, ActualVirtualServer, Addresses, ListedVirtualServer};
use crate::chains::{ActualChains, ChainScope};
use crate::growth::SetSizes;
use crate::ipvs::diff;
use crate::kernel_objects::Frontend;
use crate::model::Family;
use crate::op::{Op, Subject};
use crate::planner::Planner;
use crate::routes::{self, RouteOp};
use crate::sets::SetId;
use crate::settings::Settings;

/// A part of the kernel that is compared in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The node's addresses, and in ipvs mode the interface with its addresses, and the routes.
    Addresses,
    /// A family's constant rules.
    RuleSet(Family),
    /// A family's chains of Services.
    Chains(Family),
    /// These sets.
    Sets(Arc<[SetId]>),
    /// List of the virtual servers that exist.
    Frontends,
    /// These virtual servers, with their real servers.
    VirtualServers(Arc<[Frontend]>),
}

/// State of a part, or of some of it, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// The addresses of all interfaces, and the routes.
    Addresses(Addresses),
    /// A family's constant rules, and what differs, in words; none: all of them are there.
    RuleSet(Family, Option<String>),
    /// A family's chains, of which these are compared.
    Chains(Family, Arc<ActualChains>, ChainScope),
    /// A set; none: it is not there.
    Set(SetId, Option<ActualSet>),
    /// Virtual servers that exist, and operations that are about to remove ownership markers: what these mark
    /// is ours.
    Frontends(Vec<ListedVirtualServer>, Arc<[Op]>),
    /// A virtual server; none: it is not there.
    VirtualServer(Frontend, Option<ActualVirtualServer>),
}

impl Part {
    /// Returns the parts of a mode, in the order in which what differs is best understood: the virtual servers
    /// are to follow, which only the plan knows, some at a time.
    #[must_use]
    pub fn all(settings: &Settings) -> Vec<Self> {
        let families = || settings.families.iter().copied();
        let mut parts: Vec<Self> = families().map(Self::RuleSet).collect();
        if settings.mode.leads_by_rules() {
            parts.extend(families().map(Self::Chains));
        } else {
            parts.push(Self::Addresses);
            let sets = families().flat_map(SetId::all);
            parts.extend(sets.map(|set| Self::Sets([set].into())));
            parts.push(Self::Frontends);
        }
        parts
    }

    /// True if a subject is compared with this part. Virtual servers are known by their frontends.
    #[must_use]
    pub fn has(&self, subject: &Subject) -> bool {
        match self {
            Self::Addresses => {
                matches!(subject, Subject::Link | Subject::Address(_) | Subject::Route(_))
            }
            Self::RuleSet(family) => *subject == Subject::RuleSet(*family),
            Self::Chains(family) => {
                matches!(subject, Subject::Chain(it) if it.chain().family == *family)
            }
            Self::Sets(sets) => match subject {
                Subject::Set(it) | Subject::Entry(it, _) => sets.contains(it),
                _ => false,
            },
            Self::Frontends | Self::VirtualServers(_) => false,
        }
    }
}

impl Planner {
    /// Returns the operations that turn what was read into the desired state, by phases.
    #[must_use]
    pub fn compare(&self, reading: &Reading) -> Vec<Op> {
        let mut ops = match reading {
            Reading::Addresses(found) => self.compare_addresses(found),
            Reading::RuleSet(_, None) => Vec::new(),
            Reading::RuleSet(family, Some(_)) => vec![Op::WriteRuleSet(*family)],
            Reading::Chains(family, found, scope) => self.compare_chains(*family, found, scope),
            Reading::Set(set, found) => self.compare_set(*set, found.as_ref()),
            Reading::Frontends(listed, removals) => {
                self.orphaned(listed.iter().map(|it| it.frontend), removals)
            }
            Reading::VirtualServer(frontend, found) => self.repair(frontend, found.as_ref()),
        };
        ops.sort_by_key(Op::phase);
        ops
    }

    /// Takes note of a set's capacity and number of entries, as they were read.
    pub fn note(&mut self, reading: &Reading) {
        if let Reading::Set(set, found) = reading {
            self.note_set(*set, found.as_ref());
        }
    }

    fn compare_addresses(&self, found: &Addresses) -> Vec<Op> {
        let settings = self.settings();
        let mut ops = diff::addresses(self.desired(), &found.bound, settings);
        ops.extend(routes::compare(&found.routes, settings).into_iter().map(Op::Route));
        let incomplete = found.incomplete_routes.iter().copied();
        let is_desired = |it: &_| settings.routes(Family::of_net(it)).contains(it);
        ops.extend(incomplete.filter(is_desired).map(Op::add_route));
        if !found.link {
            ops.push(Op::CreateLink);
        }
        ops
    }

    fn compare_set(&self, set: SetId, found: Option<&ActualSet>) -> Vec<Op> {
        let mut sizes = SetSizes::default();
        sizes.found(set, found);
        let mut ops = diff::set(self.desired(), found, self.settings(), set);
        sizes.insert_growth(&mut ops, self.settings().limits.set_size);
        ops
    }

    /// Returns the operations that remove virtual servers which no Service asks for, and which are ours by the
    /// desired state or by the ownership markers that are about to be removed.
    fn orphaned(&self, found: impl Iterator<Item = Frontend>, removals: &[Op]) -> Vec<Op> {
        let local_addresses = self.local_addresses().clone();
        let unmarked = Actual { local_addresses, ..unmarked_by(removals) };
        let desired = self.desired();
        let ours = found.filter(|frontend| {
            desired.owner(frontend).is_none() && self.is_ours(frontend, &unmarked)
        });
        let mut ours: Vec<Frontend> = ours.collect();
        ours.sort_unstable();
        ours.into_iter().map(Op::RemoveVirtualServer).collect()
    }
}

/// Returns those of these operations that remove ownership markers. The virtual servers that they mark are ours,
/// and are to be removed with them.
#[must_use]
pub fn marker_removals<'a>(ops: impl IntoIterator<Item = &'a Op>) -> Arc<[Op]> {
    let removes_marker = |op: &&Op| {
        matches!(op, Op::UnbindAddress(_) | Op::Route(RouteOp::Remove(_)) | Op::RemoveEntry(..))
    };
    ops.into_iter().filter(removes_marker).cloned().collect()
}

/// Returns the ownership markers that these operations remove.
fn unmarked_by(ops: &[Op]) -> Actual {
    let mut unmarked = Actual::default();
    for op in ops {
        match op {
            Op::UnbindAddress(address) => drop(unmarked.addresses.insert(*address)),
            Op::Route(RouteOp::Remove(route)) => drop(unmarked.routes.insert(*route)),
            Op::RemoveEntry(set, entry) => {
                unmarked.sets.entry(*set).or_default().entries.insert(*entry);
            }
            _ => {}
        }
    }
    unmarked
}
