//! The constant rules: written, and found complete.

use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSet;

use super::{Linux, ReadError, Refusal, RefusalClass, RuleSetReading};

impl Linux {
    pub(super) fn write_rule_set(&mut self, op: &Op) -> Result<(), Refusal> {
        let Op::WriteRuleSet(family) = op else { return Ok(()) };
        let (Some(rules), Some(rule_set), Some(watch)) =
            (self.rules.get(family), self.rule_sets.get(family), self.watches.get_mut(family))
        else {
            return Err(Refusal::new(
                RefusalClass::NotSupported,
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
                if of != family {
                    watch.wrote_elsewhere(before, Some(n_transactions));
                }
            }
        }
        Ok(())
    }

    pub(super) fn compare_rule_set(&mut self, family: Family) -> Result<RuleSetReading, ReadError> {
        let (Some(rule_set), Some(rules), Some(watch)) =
            (self.rule_sets.get(&family), self.rules.get(&family), self.watches.get_mut(&family))
        else {
            return Ok(RuleSetReading::default());
        };
        let comparison = watch
            .check_and_read(rules, rule_set)
            .map_err(|error| ReadError::new(format!("{family} rules"), error))?;
        let mut differences = String::new();
        if !comparison.matches() {
            differences = comparison.to_string();
            tracing::debug!(%family, "rules differ: {differences}");
        }
        Ok(RuleSetReading {
            is_complete: comparison.matches(),
            differences,
            is_led_by_rules: comparison.is_led_by_rules,
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
