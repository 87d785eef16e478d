//! Chains of Services: read whole, changed table by table.

use plan::chains::ActualChains;
use plan::chains::ChainOp;
use plan::mode::Mode;
use plan::model::Family;
use plan::op::Op;

use super::rules::LinuxRules;
use super::{ReadError, Refusal, RefusalClass};

impl LinuxRules {
    /// A family that this host cannot do has none.
    pub(super) fn chains_of(
        &mut self,
        family: Family,
        mode: Mode,
    ) -> Result<ActualChains, ReadError> {
        let (Some(rules), Some(watch)) =
            (self.programs.get(&family), self.watches.get_mut(&family))
        else {
            return Ok(ActualChains::default());
        };
        let found = watch.read_chains(rules, mode);
        found.map_err(|error| ReadError::new(format!("{family} chains"), error))
    }

    /// Neighbours of one table and family go together.
    pub(super) fn apply_chains(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let changes: Vec<&ChainOp> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Chain(change) => Some(change),
                _ => None,
            })
            .collect();
        let place = |change: &ChainOp| (change.chain().family, change.chain().table);
        let mut results = Vec::with_capacity(ops.len());
        for changes in changes.chunk_by(|one, next| place(one) == place(next)) {
            let Some(family) = changes.first().map(|change| change.chain().family) else {
                continue;
            };
            results.extend(self.write_chains(family, changes));
        }
        results
    }

    fn write_chains(&mut self, family: Family, changes: &[&ChainOp]) -> Vec<Result<(), Refusal>> {
        let (Some(rules), Some(watch)) =
            (self.programs.get(&family), self.watches.get_mut(&family))
        else {
            let reason = format!("this host has no working iptables for {family}");
            let refusal = Refusal::new(RefusalClass::NotInstalled, reason);
            return changes.iter().map(|_| Err(refusal.clone())).collect();
        };
        let before = watch.generation();
        let written = rules.write_chains(changes);
        watch.wrote(changes, &written, before);
        for (of, watch) in &mut self.watches {
            if *of != family {
                watch.wrote_elsewhere(before, written.transactions);
            }
        }
        written.results
    }
}
