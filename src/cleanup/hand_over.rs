//! The way back to kube-proxy's mode ipvs: what that does not know goes, and the rest goes on serving
//! until kube-proxy takes it over.

use plan::kernel_objects::Entry;
use plan::model::Family;
use plan::settings::Settings;

use super::CleanupReport;
use super::rules::RemovalScope;
use super::state::{self, LinkRemoval, StateRemoval};
use crate::kernel::leftovers::{FoundLeftovers, Leftovers};
use crate::kernel::rules::Rules;

/// Removes from the calling thread's network namespace what kube-proxy's mode ipvs does not know:
/// short circuits, rules, chains and sets that are ours alone; and gives sets that have grown the
/// capacity that kube-proxy makes them with. To be called when no kube-ipvs runs, which would put all
/// of it back.
///
/// The `chosen` networks of short circuits say which virtual servers are those of short circuits.
/// With local routes in the kernel nothing is done: kube-proxy does not know them, and without them
/// no Service would be reached.
#[must_use]
pub fn hand_over(chosen: &Settings) -> CleanupReport {
    let mut report = CleanupReport::default();
    let read = Leftovers::open().and_then(|mut leftovers| {
        let found = leftovers.read()?;
        Ok((leftovers, found))
    });
    let (mut leftovers, found) = match read {
        Ok(read) => read,
        Err(error) => {
            report.failures.push(format!(
                "cannot read virtual servers, addresses and sets: {error}. Nothing is removed. \
                 --hand-over needs root with CAP_NET_ADMIN"
            ));
            return report;
        }
    };
    let routes = found.actual.routes.len();
    if routes > 0 {
        report.failures.push(format!(
            "{routes} local routes lead to the Services, which kube-proxy does not know, so nothing is \
             removed: take serviceRoutes out of the configuration, let kube-ipvs start once without \
             it, stop it, and run --hand-over again"
        ));
        return report;
    }
    // Nothing must lead to a short circuit that has gone.
    for rules in Family::BOTH.into_iter().flat_map(Rules::installed) {
        report.remove_rules(&rules, RemovalScope::OursAlone);
    }
    let removal = removal(&found, chosen);
    let failed = leftovers.remove_virtual_servers(&removal.virtual_servers);
    report.note(removal.virtual_servers.len().saturating_sub(failed.len()), "virtual server");
    if let Some(first) = failed.first() {
        report.failures.push(format!(
            "{} virtual servers of short circuits are not removed: {first}. Run --hand-over again, or \
             remove them with ipvsadm -D",
            failed.len()
        ));
    }
    report.remove_link(&mut leftovers, &removal.link);
    let failed = leftovers.remove_entries(&removal.entries);
    report.note(removal.entries.len().saturating_sub(failed.len()), "set entry");
    report.failures.extend(failed);
    report.destroy_sets(&mut leftovers, &removal.sets);
    report.shrink_sets(&mut leftovers, &found);
    report
}

/// Returns what kube-proxy's mode ipvs does not know of what was found: the part of all removable
/// state that is inside the networks of short circuits, and the sets that kube-proxy does not have.
fn removal(found: &FoundLeftovers, chosen: &Settings) -> StateRemoval {
    let inside = |address| chosen.ipvs_short_circuit_networks.around(address).is_some();
    let all = state::removal(found, chosen);
    let addresses = found.actual.addresses.iter().copied().filter(|it| inside(*it)).collect();
    let is_inside = |entry: &Entry| entry.address().is_some_and(inside);
    let shared = found.actual.sets.iter().filter(|(set, _)| set.kind.is_of_kube_proxy());
    let entries = shared.flat_map(|(set, there)| {
        let entries = there.entries.iter().filter(|entry| is_inside(entry));
        entries.map(|entry| (*set, *entry))
    });
    let sets = all.sets.into_iter().filter(|set| !set.kind.is_of_kube_proxy());
    StateRemoval {
        virtual_servers: all
            .virtual_servers
            .into_iter()
            .filter(|frontend| inside(frontend.address))
            .collect(),
        link: match all.link {
            LinkRemoval::Whole | LinkRemoval::Addresses(_) => LinkRemoval::Addresses(addresses),
            LinkRemoval::None | LinkRemoval::Foreign(_) => LinkRemoval::None,
        },
        entries: entries.collect(),
        sets: sets.collect(),
        ..StateRemoval::default()
    }
}

// === impl CleanupReport ===

impl CleanupReport {
    fn shrink_sets(&mut self, leftovers: &mut Leftovers, found: &FoundLeftovers) {
        let mut n_shrunk = 0;
        for set in found.actual.sets.keys().filter(|set| set.kind.is_of_kube_proxy()) {
            match leftovers.shrink(*set) {
                Ok(had_grown) => n_shrunk += usize::from(had_grown),
                Err(reason) => self.failures.push(format!(
                    "the set {set} has grown, and kube-proxy cannot use it: {reason}. It stays as it is. \
                     --cleanup removes it with everything else, which ends connections"
                )),
            }
        }
        self.note(n_shrunk, "capacity of a set beyond kube-proxy's");
    }
}
