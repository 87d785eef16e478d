//! The way back to kube-proxy's mode ipvs: what that does not know goes, and the rest goes on serving
//! until kube-proxy takes it over.

use std::net::IpAddr;

use ipnet::IpNet;
use plan::kernel_objects::{Entry, LINK};
use plan::model::Family;
use plan::rule_set::nft;
use plan::settings::Settings;

use super::CleanupReport;
use super::rules::RemovalScope;
use super::state::{self, LinkRemoval, StateRemoval};
use kernel::leftovers::{FoundLeftovers, Leftovers};
use kernel::nftables;
use kernel::rules::Rules;

/// Removes from the calling thread's network namespace what kube-proxy's mode ipvs does not know:
/// internal frontends, rules, chains and sets that are ours alone; and gives sets that have grown the
/// capacity that kube-proxy makes them with. To be called when no kube-ipvs runs, which would put all
/// of it back.
///
/// The `chosen` networks of internal frontends say which virtual servers are those of internal frontends.
/// A local route to one address, which a node has while it leaves mode ipvs, is replaced by that
/// address on the interface. With local routes to networks nothing is done: kube-proxy does not know
/// them, and without them no Service would be reached.
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
                "cannot read virtual servers, addresses and sets: {error}. Nothing is removed. Run \
                 --hand-over as root with CAP_NET_ADMIN"
            ));
            return report;
        }
    };
    match nftables::families_with(nft::TABLE) {
        Ok(families) if families.is_empty() => {}
        Ok(_) => {
            report.failures.push(format!(
                "nothing is removed, because the sets and rules are in nf_tables tables {}, which \
                 kube-proxy does not know: set ruleBackend: iptables, start kube-ipvs once in IPVS \
                 mode, stop it, and run --hand-over again",
                nft::TABLE
            ));
            return report;
        }
        Err(error) => {
            report.failures.push(format!("cannot list nf_tables tables: {error}"));
            return report;
        }
    }
    let (addresses, networks): (Vec<IpNet>, Vec<IpNet>) =
        found.actual.routes.iter().partition(|route| route.prefix_len() == route.max_prefix_len());
    if let Some(first) = networks.iter().min() {
        report.failures.push(format!(
            "nothing is removed, because there are {} local routes to networks of Services \
             ({first}), which kube-proxy does not know: set serviceRoutes: [] in the configuration, \
             start kube-ipvs once in IPVS mode, stop it when ip route show table local proto 107 \
             has no network, and run --hand-over again",
            networks.len()
        ));
        return report;
    }
    // Nothing must lead to an internal frontend that has gone.
    for rules in Family::BOTH.into_iter().flat_map(Rules::installed) {
        report.remove_rules(&rules, RemovalScope::OursAlone);
    }
    let removal = removal(&found, chosen);
    let failed = leftovers.remove_virtual_servers(&removal.virtual_servers);
    report.note(removal.virtual_servers.len().saturating_sub(failed.len()), "virtual server");
    if let Some(first) = failed.first() {
        report.failures.push(format!(
            "{} virtual servers of internal frontends are not removed: {first}. Run --hand-over again, or \
             remove them with ipvsadm -D",
            failed.len()
        ));
    }
    report.bind_instead_of(&mut leftovers, &found, addresses);
    report.remove_link(&mut leftovers, &removal.link);
    let failed = leftovers.remove_entries(&removal.entries);
    report.note(removal.entries.len().saturating_sub(failed.len()), "set entry");
    report.failures.extend(failed);
    report.destroy_sets(&mut leftovers, &removal.sets);
    report.shrink_sets(&mut leftovers, &found);
    report
}

/// Returns what kube-proxy's mode ipvs does not know of what was found: the part of all removable
/// state that is inside the networks of internal frontends, and the sets that kube-proxy does not have.
fn removal(found: &FoundLeftovers, chosen: &Settings) -> StateRemoval {
    // A Service's own address may be inside them as well.
    let served = found.actual.served_addresses();
    let inside = |address| {
        chosen.ipvs_internal_frontend_networks.may_have_had(address) && !served.contains(&address)
    };
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

impl CleanupReport {
    /// Binds the addresses of local routes to the interface, and removes the routes. An address is local
    /// all the time.
    fn bind_instead_of(
        &mut self,
        leftovers: &mut Leftovers,
        found: &FoundLeftovers,
        mut routes: Vec<IpNet>,
    ) {
        if routes.is_empty() {
            return;
        }
        let n_routes = routes.len();
        let refused = match &found.link_kind {
            Some(kind) if kind != "dummy" => Err(format!("it is of kind {kind:?}")),
            _ => {
                let addresses: Vec<IpAddr> = routes.iter().map(IpNet::addr).collect();
                leftovers.bind(&addresses)
            }
        };
        let why = match refused {
            Ok(refused) => {
                routes.retain(|route| !refused.contains_key(&route.addr()));
                let first = refused.into_iter().min_by_key(|(address, _)| *address);
                first.map(|(address, error)| format!("{address}: {error}"))
            }
            Err(why) => {
                routes.clear();
                Some(why)
            }
        };
        if let Some(why) = why {
            self.failures.push(format!(
                "cannot bind {} of {n_routes} addresses to {LINK}: {why}. They keep local routes, \
                 which kube-proxy does not know (ip route show table local proto 107). Run \
                 --hand-over again, or remove the routes once kube-proxy serves",
                n_routes - routes.len()
            ));
        }
        let failed = leftovers.remove_routes(&routes);
        self.note(routes.len().saturating_sub(failed.len()), "local route");
        self.failures.extend(failed);
    }

    fn shrink_sets(&mut self, leftovers: &mut Leftovers, found: &FoundLeftovers) {
        let mut n_shrunk = 0;
        for set in found.actual.sets.keys().filter(|set| set.kind.is_of_kube_proxy()) {
            match leftovers.shrink(*set) {
                Ok(had_grown) => n_shrunk += usize::from(had_grown),
                Err(reason) => self.failures.push(format!(
                    "the set {set} has outgrown kube-proxy's size and cannot be recreated: \
                     {reason}. It stays unchanged, and kube-proxy cannot use it. --cleanup removes \
                     it with all other state, which ends connections"
                )),
            }
        }
        self.note(n_shrunk, "capacity of a set beyond kube-proxy's");
    }
}
