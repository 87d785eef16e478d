//! The rules: iptables' programs, what was found complete, and the lock around both. The constant rules
//! are written and found complete here.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use plan::hash::{HashMap, HashSet};
use plan::model::Family;
use plan::rule_set::RuleSet;

use super::{ReadError, Refusal, RefusalClass, RuleRepairer, RuleSetReading};
use crate::nftables::{own_chains_lead, remove_own_chains};
use crate::rules::fingerprint::RulesWatch;
use crate::rules::{Backend, Rules};

/// Rules that the kernel's thread and repairs share: one of them works with them at a time.
#[derive(Debug, Clone)]
pub(super) struct SharedRules(Arc<Mutex<LinuxRules>>);

/// Rules of each family.
#[derive(Debug)]
pub(super) struct LinuxRules {
    pub(super) programs: HashMap<Family, Rules>,
    rule_sets: HashMap<Family, RuleSet>,
    pub(super) watches: HashMap<Family, RulesWatch>,
}

impl SharedRules {
    /// Opens sockets in the calling thread's network namespace.
    pub(super) fn open(programs: HashMap<Family, Rules>) -> Result<Self, netlink::Error> {
        let watch = |(family, rules): (&Family, &Rules)| Ok((*family, RulesWatch::open(rules)?));
        let watches = programs.iter().map(watch).collect::<Result<_, netlink::Error>>()?;
        let rules = LinuxRules { programs, rule_sets: HashMap::default(), watches };
        Ok(Self(Arc::new(Mutex::new(rules))))
    }

    /// Waits for a repair under way.
    pub(super) fn lock(&self) -> MutexGuard<'_, LinuxRules> {
        self.0.lock()
    }

    /// Returns the families whose rules are certainly untouched: none during a repair, which is not waited
    /// for. The rules of the others are read by iptables' programs.
    pub(super) fn untouched(&self) -> HashSet<Family> {
        let Some(mut rules) = self.0.try_lock() else { return HashSet::default() };
        let mut untouched = HashSet::default();
        for (family, watch) in &mut rules.watches {
            match watch.untouched() {
                Ok(true) => drop(untouched.insert(*family)),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%family, "cannot read the rules' fingerprint: {error}");
                }
            }
        }
        untouched
    }
}

/// True if chains of mode ipvs in nf_tables lead connections although these rules are to.
fn is_behind_own_chains(rule_set: &RuleSet) -> Result<bool, nftables::Error> {
    Ok(rule_set.has_dispatch() && own_chains_lead(rule_set.family())?)
}

impl RuleRepairer for SharedRules {
    fn read_rule_set(&self, family: Family) -> Result<RuleSetReading, ReadError> {
        self.lock().compare_rule_set(family)
    }

    fn write_rule_set(&self, family: Family) -> Result<(), Refusal> {
        self.lock().write_rule_set(family)
    }
}

impl LinuxRules {
    /// True if each COMMIT writes a whole table.
    pub(super) fn are_of_x_tables(&self) -> bool {
        self.programs.values().all(|rules| rules.backend() == Backend::Legacy)
    }

    pub(super) fn write_rule_set(&mut self, family: Family) -> Result<(), Refusal> {
        let (Some(rules), Some(rule_set), Some(watch)) = (
            self.programs.get(&family),
            self.rule_sets.get(&family),
            self.watches.get_mut(&family),
        ) else {
            return Err(Refusal::new(
                RefusalClass::NotInstalled,
                format_args!("this host has no working iptables for {family}"),
            ));
        };
        let known = watch.take_differences();
        let before = watch.generation();
        let written = rules.write_checked_by(rule_set, known, || watch.check(rules, rule_set));
        let n_transactions = written.map_err(|error| Refusal::new(error.cause().class(), error))?;
        // If another program has written meanwhile, it is not known what.
        let expected = before.map(|before| before.wrapping_add(n_transactions));
        if watch.generation() == expected {
            for (of, watch) in &mut self.watches {
                if *of != family {
                    watch.wrote_elsewhere(before, Some(n_transactions));
                }
            }
        }
        if is_behind_own_chains(rule_set).unwrap_or(true) {
            remove_own_chains(family).map_err(|error| {
                let class = Refusal::class_of(error.raw_os_error());
                let what = format_args!(
                    "remove the chains of the nf_tables tables kube-ipvs, which precede these \
                     rules: {error}. If another kube-ipvs owns the tables, stop it"
                );
                Refusal::new(class, what)
            })?;
        }
        Ok(())
    }

    pub(super) fn compare_rule_set(&mut self, family: Family) -> Result<RuleSetReading, ReadError> {
        let (Some(rule_set), Some(rules), Some(watch)) = (
            self.rule_sets.get(&family),
            self.programs.get(&family),
            self.watches.get_mut(&family),
        ) else {
            return Ok(RuleSetReading::default());
        };
        let comparison = watch
            .check_and_read(rules, rule_set)
            .map_err(|error| ReadError::new(format!("{family} rules"), error))?;
        let is_behind = is_behind_own_chains(rule_set)
            .map_err(|error| ReadError::new(format!("{family} rules"), error))?;
        let mut differences = String::new();
        if !comparison.matches() {
            differences = comparison.to_string();
            tracing::debug!(%family, "rules differ: {differences}");
        }
        if is_behind {
            differences.push_str("\nchains of the nf_tables table kube-ipvs precede these rules");
        }
        Ok(RuleSetReading {
            is_complete: comparison.matches() && !is_behind,
            differences,
            is_led_by_rules: comparison.is_led_by_rules
                || is_behind && rule_set.mode().leads_by_rules(),
        })
    }

    pub(super) fn desire(&mut self, rule_set: RuleSet) {
        if let Some(watch) = self.watches.get_mut(&rule_set.family())
            && self.rule_sets.get(&rule_set.family()) != Some(&rule_set)
        {
            watch.forget();
        }
        self.rule_sets.insert(rule_set.family(), rule_set);
    }
}
