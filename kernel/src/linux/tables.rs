//! Sets and constant rules in tables of our own, behind the port.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use plan::actual::ActualSet;
use plan::hash::{HashMap, HashSet};
use plan::model::Family;
use plan::rule_set::is_of_services;
use plan::sets::SetId;

use super::{ReadError, Refusal, RuleRepairer, RuleSetReading, SetReader};
use crate::nftables::{KUBE_PROXY, OwnTables, families_with, own_chains_lead};
use crate::rules::{Backend, chain_names};

/// Tables that the kernel's thread, repairs and readings beside it share.
#[derive(Debug, Clone)]
pub(super) struct SharedTables {
    tables: Arc<Mutex<OwnTables>>,
    /// Reads large sets, which takes the kernel up to a second, while others are written.
    reader: Arc<Mutex<OwnTables>>,
}

impl SharedTables {
    /// `reader` reads alone.
    pub(super) fn new(tables: OwnTables, reader: OwnTables) -> Self {
        Self { tables: Arc::new(Mutex::new(tables)), reader: Arc::new(Mutex::new(reader)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OwnTables> {
        self.tables.lock()
    }

    /// Compares a family's rules, and finds out if those of another mode lead its connections.
    pub(super) fn compare(&self, family: Family) -> Result<RuleSetReading, ReadError> {
        let unread = |error| ReadError::new(format!("{family} rules"), error);
        let is_led_by_rules = is_led(family).map_err(unread)?;
        let differences = self.lock().compare_rules(family)?;
        Ok(RuleSetReading {
            is_complete: differences.is_none(),
            differences: differences.unwrap_or_default(),
            is_led_by_rules,
        })
    }

    /// Looks for signs that other programs changed the tables. Returns the families whose rules are untouched, and the
    /// number of entries of each set that is there.
    pub(super) fn look(&self, families: &[Family]) -> (HashSet<Family>, HashMap<SetId, u32>) {
        let mut tables = self.lock();
        let (mut untouched, mut entries) = (HashSet::default(), HashMap::default());
        for family in families {
            match tables.is_untouched(*family) {
                Ok(true) => drop(untouched.insert(*family)),
                Ok(false) => {}
                // The audit reads it, and reports what it meets.
                Err(error) => {
                    tracing::debug!(%family, "cannot read the nf_tables table kube-ipvs: {error}");
                }
            }
            entries.extend(SetId::all(*family).filter_map(|set| Some((set, tables.count(set)?))));
        }
        tables.follow_devices();
        (untouched, entries)
    }
}

/// True if another mode, ours or kube-proxy's, has chains of Services, and ours do not come before them. They need not be
/// reached: then the dispatch waits for nothing.
fn is_led(family: Family) -> Result<bool, nftables::Error> {
    if own_chains_lead(family)? {
        return Ok(false);
    }
    let is_of_rules = |backend| {
        let chains = chain_names(family, backend).unwrap_or_default();
        chains.iter().any(|(table, chain)| is_of_services(*table, chain))
    };
    Ok(Backend::BOTH.into_iter().any(is_of_rules) || families_with(KUBE_PROXY)?.contains(&family))
}

impl RuleRepairer for SharedTables {
    fn read_rule_set(&self, family: Family) -> Result<RuleSetReading, ReadError> {
        self.compare(family)
    }

    fn write_rule_set(&self, family: Family) -> Result<(), Refusal> {
        self.lock().write_rules(family)
    }
}

impl SetReader for SharedTables {
    /// A change meanwhile makes a reading void: the next one lets none come between.
    fn read_set(&self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        let Ok(found) = self.reader.lock().read_set_anew(set) else {
            return self.lock().read_set(set);
        };
        // An entry that is written again is counted again, and drift checks compare the count.
        self.lock().learn_count(set, found.as_ref());
        Ok(found)
    }
}
