//! Removal of the kernel state of kube-ipvs and kube-proxy, and of no other program's.
//!
//! [`all`] is `--cleanup`: everything of every mode, for a node that is to have another proxy, or
//! none. [`hand_over`] is for a node that goes back to kube-proxy's mode ipvs. [`ipvs_mode`] is for a
//! node that has left IPVS mode. [`other_modes`] is for a node that comes to us from another mode:
//! what that left behind goes once our own rules carry the traffic.
//!
//! The modules `rules` and `state` decide from what was read what is to be removed, without doing
//! anything; this module removes it. A failure does not end the removal: the rest is removed, and
//! all failures are reported at the end.

mod counters;
mod hand_over;
pub mod left;
mod rules;
pub mod sockets;
mod state;

use std::fmt;
use std::time::Duration;

use plan::hash::HashMap;
use plan::kernel_objects::LINK;
use plan::mode::Mode;
use plan::model::Family;
use plan::op::PartKind;
use plan::rule_set::nft;
use plan::sets::SetId;
use plan::settings::Settings;

use crate::mode;
use kernel::ReadError;
use kernel::leftovers::Leftovers;
use kernel::linux::Linux;
use kernel::nftables;
use kernel::rules::{Backend, Rules, chain_names};
use syntax::counted::counted;

pub use hand_over::hand_over;

use rules::RemovalScope;
use state::LinkRemoval;

/// nf_tables lets go of a removed rule's sets some time after the removal, from a work queue
/// (`nf_tables_trans_destroy_work` in net/netfilter/nf_tables_api.c).
const RELEASE_ATTEMPTS: u32 = 20;
const RELEASE_WAIT: Duration = Duration::from_millis(100);

/// Result of a cleanup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CleanupReport {
    /// Things that were removed, in words.
    pub removed: Vec<String>,
    /// Things that stay although they have a name of ours, with the reason.
    pub kept: Vec<String>,
    /// Failures, each with what to do about it.
    pub failures: Vec<String>,
}

/// Removes everything that kube-proxy (in any mode) or kube-ipvs made, in the calling thread's
/// network namespace. Of `chosen`, the excluded networks and those of internal frontends matter:
/// everything in an excluded network belongs to other programs and stays.
///
/// Nothing to remove, a kernel without IPVS and a host without iptables are successes.
#[must_use]
pub fn all(chosen: &Settings) -> CleanupReport {
    let mut report = CleanupReport::default();
    report.remove_tables(nftables::KUBE_PROXY);
    report.remove_all_of_ipvs(chosen, |_| RemovalScope::Everything);
    report.remove_counters();
    report
}

/// Removes what IPVS mode and other modes made, ours or kube-proxy's, and the chosen mode does not
/// use. To be called when no virtual server of ours is left: if there is one all the same, or that
/// cannot be read, everything stays, because connections may need it. For `in_use` see
/// [`other_modes`].
#[must_use]
pub fn ipvs_mode(chosen: &Settings, in_use: &HashMap<Family, Backend>) -> CleanupReport {
    let mut report = CleanupReport::default();
    if let Some(in_the_way) = in_the_way(ipvs_state(chosen)) {
        report.failures.push(format!(
            "the state of IPVS mode is not removed, because connections may need it: {in_the_way}"
        ));
        return report;
    }
    let mode = mode::of_settings(chosen);
    report.remove_all_of_ipvs(chosen, |rules| {
        scope(mode.itself, in_use.get(&rules.family()), rules.backend())
    });
    if !mode.has_counters {
        report.remove_counters();
    }
    report
}

/// Returns why nothing of what IPVS mode left may be removed; none: all of it may.
fn in_the_way(state: Result<IpvsState, ReadError>) -> Option<String> {
    match state {
        Ok(state) if state.virtual_servers == 0 => None,
        Ok(state) => Some(format!("the kernel still has {state}")),
        Err(error) => Some(error.to_string()),
    }
}

/// State of mode ipvs on a node, of ours or of kube-proxy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IpvsState {
    /// Number of addresses on the interface.
    pub addresses: usize,
    /// Number of virtual servers with an ownership marker.
    pub virtual_servers: usize,
    /// Number of local routes.
    pub routes: usize,
}

/// Reads how much state of mode ipvs there is, in the calling thread's network namespace. A kernel
/// without IPVS or ipset has none of that kind.
pub fn ipvs_state(chosen: &Settings) -> Result<IpvsState, ReadError> {
    let found = Leftovers::open()?.read()?;
    let removal = state::removal(&found, chosen);
    let addresses = found.actual.addresses.iter().filter(|address| !chosen.excludes(**address));
    Ok(IpvsState {
        addresses: if found.link_kind.as_deref() == Some("dummy") { addresses.count() } else { 0 },
        virtual_servers: removal.virtual_servers.len(),
        routes: removal.routes.len(),
    })
}

/// Removes what kube-proxy's other modes made and ours does not use, and what the other form of rules in mode ipvs has.
/// To be called when our own rules carry the traffic; `in_use` says in which kind of iptables each family has them. In the
/// other kind everything of kube-proxy's goes. In other modes than ipvs, what IPVS mode left stays until [`ipvs_mode`].
#[must_use]
pub fn other_modes(chosen: &Settings, in_use: &HashMap<Family, Backend>) -> CleanupReport {
    let mut report = CleanupReport::default();
    report.remove_tables(nftables::KUBE_PROXY);
    if !chosen.has_tables() {
        report.remove_tables(nft::TABLE);
    }
    for family in Family::BOTH {
        for backend in Backend::BOTH {
            let kept = mode::of_settings(chosen).kept_at_takeover;
            let scope = scope(kept, in_use.get(&family), backend);
            // At most starts there is nothing, and that takes no program to see.
            let chains = chain_names(family, backend);
            if chains.is_none_or(|chains| rules::lists_any(&chains, scope)) {
                match Rules::open(family, backend.into()) {
                    Ok(rules) => report.remove_rules(&rules, scope),
                    Err(error) if chosen.has_tables() => report.failures.push(format!(
                        "chains of a proxy are left in the {family} iptables tables, and iptables \
                         cannot be run to remove them: {error}. Reboot the host, or run kube-ipvs \
                         --cleanup where iptables is installed"
                    )),
                    Err(_) => {}
                }
            }
        }
    }
    // In another mode, `ipvs_mode` removes these.
    if chosen.mode.uses(PartKind::VirtualServers) {
        report.remove_counters();
        let opened = Leftovers::open().and_then(|mut leftovers| {
            let has_others = chosen.has_tables() && Linux::has_ipsets();
            let found = has_others.then(|| leftovers.read()).transpose()?;
            let sets = found.map(|found| state::removal(&found, chosen).sets);
            Ok((leftovers, sets.unwrap_or_default()))
        });
        match opened {
            Ok((mut leftovers, sets)) => report.destroy_sets(&mut leftovers, &sets),
            Err(error) => report.failures.push(format!("cannot list former sets: {error}")),
        }
    }
    report
}

/// Returns what is to go from one kind of iptables: everything of kube-proxy's if the family has
/// our rules in another kind, else what other modes than those `used` made. Where the family has no
/// rules of ours, it is not known what else the kind is good for.
fn scope(used: &'static [Mode], in_use: Option<&Backend>, backend: Backend) -> RemovalScope {
    match in_use {
        Some(ours) if *ours != backend => RemovalScope::Everything,
        _ => RemovalScope::ModesBut(used),
    }
}

impl IpvsState {
    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for IpvsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addresses, virtual_servers, routes } = self;
        write!(
            f,
            "{virtual_servers} virtual servers, {addresses} addresses on {LINK}, {routes} local \
             routes"
        )
    }
}

impl CleanupReport {
    /// True if everything was removed that was to be.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }

    /// Adds another report to this one.
    pub fn extend(&mut self, other: Self) {
        self.removed.extend(other.removed);
        self.kept.extend(other.kept);
        self.failures.extend(other.failures);
    }

    /// Logs the report: everything that was removed on one line, each failure on its own.
    pub fn log(&self) {
        if !self.removed.is_empty() {
            tracing::info!("removed: {}", self.removed.join("; "));
        }
        for kept in &self.kept {
            tracing::info!("{kept}");
        }
        for failure in &self.failures {
            tracing::error!("{failure}");
        }
    }

    /// Removes virtual servers, addresses and sets, and of each kind of iptables the rules of a scope.
    fn remove_all_of_ipvs(&mut self, chosen: &Settings, scope: impl Fn(&Rules) -> RemovalScope) {
        let opened = Leftovers::open().and_then(|mut leftovers| {
            let found = leftovers.read()?;
            Ok((leftovers, state::removal(&found, chosen)))
        });
        let mut state = match opened {
            Ok(state) => Some(state),
            Err(error) => {
                self.failures.push(format!(
                    "cannot read virtual servers, addresses and sets: {error}. None of them is \
                     removed, because their owner is known only from all three together. Run \
                     --cleanup as root with CAP_NET_ADMIN"
                ));
                None
            }
        };
        let is_removed = state
            .as_mut()
            .is_some_and(|(leftovers, removal)| self.remove_state(leftovers, removal));
        for rules in Family::BOTH.into_iter().flat_map(Rules::installed) {
            self.remove_rules(&rules, scope(&rules));
        }
        if is_removed {
            self.remove_tables(nft::TABLE);
        }
        if let Some((mut leftovers, removal)) = state.filter(|_| is_removed) {
            self.destroy_sets(&mut leftovers, &removal.sets);
        }
    }

    /// Removes the tables of nf_tables of this name.
    fn remove_tables(&mut self, name: &str) {
        let result = nftables::families_with(name).and_then(|families| {
            families.into_iter().try_for_each(|family| {
                nftables::remove_table(family, name)?;
                self.removed.push(format!("the nftables table {name} ({family})"));
                Ok(())
            })
        });
        if let Err(error) = result {
            self.failures.push(format!(
                "cannot remove the nftables tables {name}: {error}. If a process owns them, stop \
                 it. Remove them with: nft delete table ip {name}; nft delete table ip6 {name}"
            ));
        }
    }

    /// Removes virtual servers, then routes and the interface. Returns whether the sets can go as
    /// well.
    ///
    /// Sets, addresses and routes mark a virtual server as ours, so they stay as long as one of
    /// ours does: another run will know it by them.
    fn remove_state(&mut self, leftovers: &mut Leftovers, removal: &state::StateRemoval) -> bool {
        self.kept.extend(removal.kept.iter().map(|kept| format!("{kept}, stays")));
        let failed = leftovers.remove_virtual_servers(&removal.virtual_servers);
        self.note(removal.virtual_servers.len().saturating_sub(failed.len()), "virtual server");
        if let Some(first) = failed.first() {
            self.failures.push(format!(
                "{} virtual servers are not removed: {first}. The interface {LINK}, local routes \
                 and the sets stay, too, because they mark these virtual servers as owned by \
                 kube-ipvs. Run --cleanup again",
                failed.len()
            ));
            return false;
        }
        let failed = leftovers.remove_routes(&removal.routes);
        self.note(removal.routes.len().saturating_sub(failed.len()), "local route");
        self.failures.extend(failed);
        self.remove_link(leftovers, &removal.link);
        let failed = leftovers.remove_entries(&removal.entries);
        self.note(removal.entries.len().saturating_sub(failed.len()), "set entry");
        self.failures.extend(failed);
        true
    }

    fn remove_link(&mut self, leftovers: &mut Leftovers, removal: &LinkRemoval) {
        match removal {
            LinkRemoval::None => {}
            LinkRemoval::Whole => match leftovers.delete_link() {
                Ok(()) => self.removed.push(format!("the interface {LINK}")),
                Err(error) => self.failures.push(format!(
                    "cannot delete the interface {LINK}: {error}. Delete it with: ip link delete \
                     {LINK}"
                )),
            },
            LinkRemoval::Addresses(addresses) => {
                let failed = leftovers.unbind(addresses);
                self.note(addresses.len().saturating_sub(failed.len()), "address");
                self.failures.extend(failed);
            }
            LinkRemoval::Foreign(kind) => self.failures.push(format!(
                "{LINK} is not a dummy interface but {kind:?}: kube-ipvs did not create it and \
                 does not remove it. If no other program uses it, delete it with: ip link delete \
                 {LINK}"
            )),
        }
    }

    fn remove_rules(&mut self, rules: &Rules, scope: RemovalScope) {
        let which = format!("{} {} rules", rules.family(), rules.backend());
        let saved = match rules.saved() {
            Ok(saved) => saved,
            Err(error) => {
                return self.failures.push(format!(
                    "cannot read the {which}: {error}; they are not \
                                                   removed"
                ));
            }
        };
        for table in rules::unreadable(&saved) {
            self.failures.push(format!(
                "{which}: the table {table} has rules that iptables cannot list (created by nft, \
                 or with an extension that is not installed), and may have rules of kube-ipvs. \
                 Look with `nft list table` or `iptables -L`, and remove the rules of the KUBE-… \
                 chains yourself"
            ));
        }
        for removal in rules::removals(&saved, scope) {
            for held in &removal.held {
                self.kept.push(format!(
                    "{which}: the chain {} of {} is not removed, because a rule of another program \
                     jumps to it: {}",
                    held.chain, removal.table, held.by
                ));
            }
            let Some(input) = &removal.input else { continue };
            match rules.restore(input) {
                Ok(()) => self.removed.push(format!("{which} in {removal}")),
                Err(error) => {
                    self.failures
                        .push(format!("cannot remove the {which} in {}: {error}", removal.table));
                }
            }
        }
    }

    /// Destroys sets, and those of earlier versions.
    fn destroy_sets(&mut self, leftovers: &mut Leftovers, sets: &[SetId]) {
        let mut sets: Vec<&str> = sets.iter().map(|set| set.name()).collect();
        sets.extend(leftovers.former_sets());
        let mut left = leftovers.destroy(&sets);
        for _ in 0..RELEASE_ATTEMPTS {
            if !left.iter().any(|set| set.in_use) {
                break;
            }
            std::thread::sleep(RELEASE_WAIT);
            let again: Vec<&str> = left.iter().map(|not| not.set).collect();
            left = leftovers.destroy(&again);
        }
        self.note(sets.len() - left.len(), "set");
        let (in_use, other): (Vec<_>, Vec<_>) = left.into_iter().partition(|not| not.in_use);
        if !in_use.is_empty() {
            let names: Vec<&str> = in_use.iter().map(|not| not.set).collect();
            self.failures.push(format!(
                "cannot remove the sets {}, because rules still use them: find the rules \
                 (iptables-save | grep KUBE-, also with ip6tables-save, -legacy and nft), remove \
                 them and run this again",
                names.join(" ")
            ));
        }
        self.failures.extend(other.into_iter().map(|not| not.reason));
        self.failures.extend(leftovers.destroy_temporary_sets());
    }

    fn note(&mut self, count: usize, what: &str) {
        if count > 0 {
            self.removed.push(counted(count, what));
        }
    }
}

impl fmt::Display for CleanupReport {
    /// All of it, a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let removed = self.removed.iter().map(|what| format!("removed: {what}"));
        let kept = self.kept.iter().map(|what| format!("kept: {what}"));
        let failures = self.failures.iter().map(|what| format!("failed: {what}"));
        let lines: Vec<String> = removed.chain(kept).chain(failures).collect();
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ipvs_mode_left_stays_with_a_virtual_server_or_without_an_answer() {
        let state = IpvsState { addresses: 3, virtual_servers: 0, routes: 1 };
        assert_eq!(in_the_way(Ok(state)), None);
        let left = in_the_way(Ok(IpvsState { virtual_servers: 1, ..state })).unwrap();
        assert!(left.contains("1 virtual servers"), "{left}");
        assert!(in_the_way(Err(ReadError::new("virtual servers", "it is silent"))).is_some());
    }

    #[test]
    fn all_goes_only_from_the_kind_of_iptables_that_a_family_does_not_use() {
        for mode in Mode::ALL {
            let others = RemovalScope::ModesBut(mode::of(mode).itself);
            for (in_use, nft, legacy) in [
                (Some(Backend::Nft), others, RemovalScope::Everything),
                (Some(Backend::Legacy), RemovalScope::Everything, others),
                (None, others, others),
            ] {
                let found = [Backend::Nft, Backend::Legacy]
                    .map(|kind| scope(mode::of(mode).itself, in_use.as_ref(), kind));
                assert_eq!(found, [nft, legacy], "{mode} {in_use:?}");
            }
        }
    }
}
