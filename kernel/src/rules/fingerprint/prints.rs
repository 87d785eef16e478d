//! Prints of the chains of Services: known again rule by rule, and what explains a difference.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use plan::chains::{ChainId, ChainName, ChainOp};
use plan::hash::HashMap;
use plan::rule_set::Table;

/// The chains of Services, each with a hash of each of its rules. A chain without rules is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Prints(HashMap<ChainKey, Vec<u64>>);

/// Hash of a chain's table and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChainKey(u64);

/// Changes of ours by chain.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes(HashMap<ChainKey, (ChainId, Change)>);

/// Changes of ours to a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Change {
    /// Number of rules that it was written with, if it was: 0 if it was removed.
    written: Option<usize>,
    /// Rules put before all others, since it was written if it was.
    inserted: usize,
    /// Rules taken out, at most, since then.
    deleted: usize,
}

impl ChainKey {
    /// None if no chain of Services is named so.
    pub(super) fn of(table: Table, chain: &str) -> Option<Self> {
        ChainName::parse(table, chain).map(|_| Self::hashed(table, chain))
    }

    fn of_chain(chain: ChainId) -> Self {
        Self::hashed(chain.table, &chain.name.to_string())
    }

    fn hashed(table: Table, chain: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        (table, chain).hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Prints {
    /// Adds the next rule of a chain.
    pub(super) fn add(&mut self, chain: ChainKey, rule: u64) {
        self.0.entry(chain).or_default().push(rule);
    }

    /// Sets the rules of chains.
    pub(super) fn update(&mut self, chains: Vec<(ChainKey, Vec<u64>)>) {
        for (chain, rules) in chains {
            if rules.is_empty() {
                self.0.remove(&chain);
            } else {
                self.0.insert(chain, rules);
            }
        }
    }

    fn rules(&self, chain: ChainKey) -> &[u64] {
        self.0.get(&chain).map(Vec::as_slice).unwrap_or_default()
    }
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The chains that were changed.
    pub(super) fn chains(&self) -> impl Iterator<Item = (ChainKey, ChainId)> {
        self.0.iter().map(|(key, (chain, _))| (*key, *chain))
    }

    pub(super) fn add(&mut self, op: &ChainOp) {
        let chain = op.chain();
        let (_, change) =
            self.0.entry(ChainKey::of_chain(chain)).or_insert_with(|| (chain, Change::default()));
        match op {
            ChainOp::Write(_, rules) => {
                *change = Change { written: Some(rules.len()), ..Change::default() };
            }
            ChainOp::Remove(_) => *change = Change { written: Some(0), ..Change::default() },
            ChainOp::Insert(..) => change.inserted += 1,
            ChainOp::Delete(..) => change.deleted += 1,
        }
    }

    /// Adds later changes.
    pub(super) fn extend(&mut self, later: Self) {
        for (key, (chain, change)) in later.0 {
            let (_, known) = self.0.entry(key).or_insert_with(|| (chain, Change::default()));
            *known = known.then(change);
        }
    }

    /// True if these changes and no others lead from one state to the other.
    pub(super) fn explain(&self, before: &Prints, after: &Prints) -> bool {
        let chains = before.0.keys().chain(after.0.keys());
        chains.into_iter().all(|chain| {
            let (before, after) = (before.rules(*chain), after.rules(*chain));
            match self.0.get(chain) {
                Some((_, change)) => change.explains(before, after),
                None => before == after,
            }
        }) && self
            .0
            .iter()
            .all(|(chain, (_, change))| change.explains(before.rules(*chain), after.rules(*chain)))
    }
}

impl Change {
    fn then(self, later: Self) -> Self {
        match later.written {
            Some(_) => later,
            None => Self {
                written: self.written,
                inserted: self.inserted + later.inserted,
                deleted: self.deleted + later.deleted,
            },
        }
    }

    fn explains(self, before: &[u64], after: &[u64]) -> bool {
        if let Some(written) = self.written {
            // Which rules were written cannot be told from hashes of what the kernel made of them.
            let least = written.saturating_sub(self.deleted);
            return (least..=written + self.inserted).contains(&after.len());
        }
        let mut kept = 0;
        let mut known = before.iter().rev();
        while let Some(rule) = after.iter().rev().nth(kept) {
            if !known.any(|it| it == rule) {
                break;
            }
            kept += 1;
        }
        after.len() - kept <= self.inserted && before.len() - kept <= self.deleted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plan::chains::SharedChain;
    use plan::model::Family;

    use super::*;

    const SERVICES: ChainId = ChainId::shared(Family::V4, Table::Nat, SharedChain::Services);
    const NODE_PORTS: ChainId = ChainId::shared(Family::V4, Table::Nat, SharedChain::NodePorts);

    fn mk_prints(services: &[u64], node_ports: &[u64]) -> Prints {
        let mut prints = Prints::default();
        prints.update(vec![
            (ChainKey::of_chain(SERVICES), services.to_vec()),
            (ChainKey::of_chain(NODE_PORTS), node_ports.to_vec()),
        ]);
        prints
    }

    fn insert() -> ChainOp {
        ChainOp::Insert(SERVICES, "-j X".into())
    }

    fn delete() -> ChainOp {
        ChainOp::Delete(SERVICES, "-j X".into())
    }

    fn write(n: usize) -> ChainOp {
        ChainOp::Write(SERVICES, Arc::from(vec![Box::from("-j X"); n]))
    }

    #[test]
    fn changes_of_ours_explain_what_they_do_and_nothing_else() {
        let cases: [(&[ChainOp], &[u64], bool); 15] = [
            (&[], &[1, 2, 3], true),
            (&[], &[1, 3, 2], false),
            (&[insert()], &[9, 1, 2, 3], true),
            (&[insert()], &[1, 2, 3, 9], false),
            (&[insert()], &[8, 9, 1, 2, 3], false),
            (&[insert(), delete()], &[9, 1, 3], true),
            (&[insert(), delete()], &[1, 2, 3], true),
            (&[insert(), delete()], &[9, 1, 2], true),
            (&[insert(), delete()], &[9, 2], false),
            (&[delete()], &[1, 7, 3], false),
            (&[delete()], &[2, 3], true),
            (&[write(2)], &[4, 5], true),
            (&[write(2)], &[4, 5, 6], false),
            (&[insert(), write(1), insert()], &[4, 5], true),
            (&[write(1), ChainOp::Remove(SERVICES)], &[], true),
        ];
        let before = mk_prints(&[1, 2, 3], &[5]);
        for (ops, services, is_explained) in cases {
            let (mut changes, mut later) = (Changes::default(), Changes::default());
            for (at, op) in ops.iter().enumerate() {
                if at == 0 { changes.add(op) } else { later.add(op) }
            }
            changes.extend(later);
            let after = mk_prints(services, &[5]);
            assert_eq!(changes.explain(&before, &after), is_explained, "{ops:?} {services:?}");
            let elsewhere = mk_prints(services, &[6]);
            assert!(!changes.explain(&before, &elsewhere), "{ops:?} beside a foreign change");
        }
    }

    #[test]
    fn a_write_that_left_nothing_behind_is_noticed() {
        let mut changes = Changes::default();
        changes.add(&write(2));
        let before = mk_prints(&[], &[5]);
        assert!(!changes.explain(&before, &before));
        assert!(ChainKey::of(Table::Nat, "KUBE-SERVICES").is_some());
        assert!(ChainKey::of(Table::Nat, "KUBE-POSTROUTING").is_none());
    }
}
