//! The constant layer of IPVS mode in nf_tables: sets and rules in tables of our own.
//!
//! Since Linux 6.9 the socket owns the tables: no other program changes them, and a flush of everything spares them. They
//! outlive the process, and its next start claims them.
//!
//! An element that is there may be added again, which changes nothing.

use std::fmt::Display;
use std::ops::Range;

use nftables::{Batch, Client, Data, Element, Error, Name, SetSpec, TableFlags, TableId};
use plan::actual::ActualSet;
use plan::capacity::Capacity;
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::Entry;
use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSetSettings;
use plan::rule_set::nft::{self, SourceRanges};
use plan::sets::{SetId, SetType};

use super::words::{self, Translator};
use crate::{ReadError, Refusal, RefusalClass};

/// Bytes that an element's message has at most: names, and a key of 40 bytes.
const ELEMENT_MESSAGE: usize = 160;

/// Tables of our own, by one socket.
#[derive(Debug)]
pub struct OwnTables {
    client: Client,
    /// Name of the tables.
    name: Name,
    /// Flags that this kernel takes for a table.
    flags: TableFlags,
    /// Settings that decide the rules of each family, as they are desired.
    desired: HashMap<Family, RuleSetSettings>,
    /// Lengths of networks that have a set.
    ranges: SourceRanges,
    /// Families whose rules lead to all sets of networks that there are.
    has_rules: HashSet<Family>,
}

/// A change of a set, in the words of nf_tables.
enum SetChange {
    Create(Name, SetSpec),
    Add(Name, Element),
    Delete(Name, Data),
    /// Sets of nf_tables grow by themselves.
    Nothing,
}

/// A transaction and, for each of its changes, the place of the operation that it is of.
type Built = (Batch, Vec<Option<usize>>);

impl OwnTables {
    /// Finds out how this kernel takes our tables. Nothing is made.
    ///
    /// # Errors
    /// When it does not take them, with the object that it lacks something for.
    pub fn open(families: &[Family]) -> Result<Self, ReadError> {
        let unread = |error: &dyn Display| ReadError::new("nf_tables", error);
        let mut tables = Self {
            client: Client::open().map_err(|error| unread(&error))?,
            name: Name::new(nft::TABLE).map_err(|error| unread(&error))?,
            flags: TableFlags::OWNER | TableFlags::PERSIST,
            desired: HashMap::default(),
            ranges: SourceRanges::default(),
            has_rules: HashSet::default(),
        };
        tables.find_flags(families).map_err(|error| unread(&error))?;
        tables.find_ranges(families).map_err(|error| unread(&error))?;
        Ok(tables)
    }

    /// Leaves out flags that this kernel does not know.
    fn find_flags(&mut self, families: &[Family]) -> Result<(), Error> {
        match self.check(families) {
            Err(error) if error.is_unsupported() => {
                self.flags = TableFlags::empty();
                self.check(families)
            }
            result => result,
        }
    }

    fn check(&mut self, families: &[Family]) -> Result<(), Error> {
        let mut batch = Batch::new();
        families.iter().for_each(|family| batch.create_table(&self.table(*family), self.flags));
        self.client.check(&batch)
    }

    /// Finds the lengths that an earlier process has made sets for.
    fn find_ranges(&mut self, families: &[Family]) -> Result<(), Error> {
        for family in families {
            let found = match self.client.list_sets(&self.table(*family)) {
                Err(error) if error.is_not_found() => continue,
                found => found?,
            };
            for set in found {
                if let Some(length) = nft::length_of(*family, set.name.as_str()) {
                    self.ranges.add(*family, length);
                }
            }
        }
        Ok(())
    }

    fn table(&self, family: Family) -> TableId {
        TableId::new(words::family_of(family), self.name.clone())
    }

    /// Sets the desired rules of a family.
    pub fn desire(&mut self, family: Family, settings: RuleSetSettings) {
        self.desired.insert(family, settings);
    }

    /// Writes the rules of a family, all of them, in one transaction.
    pub fn write_rules(&mut self, family: Family) -> Result<(), Refusal> {
        let Some(settings) = self.desired.get(&family) else { return Ok(()) };
        let chains = nft::chains(family, settings, &self.ranges);
        let present = self.client.list_chains().map_err(|error| refusal(&error))?;
        let table = self.table(family);
        let mut batch = Batch::new();
        batch.create_table(&table, self.flags);
        for (name, spec) in sets(family, &self.ranges).map_err(|error| unencodable(&error))? {
            batch.create_set(&table, &name, spec);
        }
        let mut names = Vec::with_capacity(chains.len());
        for chain in &chains {
            let name = Name::new(chain.name).map_err(|error| unencodable(&error))?;
            match chain.hook {
                None => batch.create_chain(&table, &name),
                Some(hook) => batch.create_base_chain(&table, &name, words::base_chain(hook)),
            }
            batch.flush_chain(&table, &name);
            names.push(name);
        }
        let surplus: Vec<&Name> = present
            .iter()
            .filter(|chain| chain.table == table && !names.contains(&chain.name))
            .map(|chain| &chain.name)
            .collect();
        surplus.iter().for_each(|name| batch.flush_chain(&table, name));
        surplus.iter().for_each(|name| batch.delete_chain(&table, name));
        for (chain, name) in chains.iter().zip(&names) {
            append(&mut batch, (family, &table), chain, name)?;
        }
        self.client.commit(batch).map_err(|error| refusal(&error))?;
        self.has_rules.insert(family);
        Ok(())
    }

    /// Compares the rules of a family with the desired ones. Returns what differs, in words; none: they are the same.
    pub fn compare_rules(&mut self, family: Family) -> Result<Option<String>, ReadError> {
        let unread = |error: &dyn Display| ReadError::new(format!("{family} rules"), error);
        let Some(settings) = self.desired.get(&family) else { return Ok(None) };
        let (table, translator) = (self.table(family), Translator(family));
        let mut present = self.client.list_chains().map_err(|error| unread(&error))?;
        present.retain(|chain| chain.table == table);
        let mut rules: HashMap<Name, Vec<Vec<nftables::Expression>>> = HashMap::default();
        for rule in self.client.list_rules(&table, None).map_err(|error| unread(&error))? {
            rules.entry(rule.chain).or_default().push(rule.expressions);
        }
        let mut differences = Vec::new();
        for chain in nft::chains(family, settings, &self.ranges) {
            let name = Name::new(chain.name).map_err(|error| unread(&error))?;
            let Some(at) = present.iter().position(|found| found.name == name) else {
                differences.push(format!("chain {name} of table {table} is missing"));
                continue;
            };
            if present.swap_remove(at).base != chain.hook.map(words::base_chain) {
                differences
                    .push(format!("chain {name} of table {table} has another hook or priority"));
            }
            let desired: Result<Vec<_>, _> =
                chain.rules.iter().map(|rule| translator.rule(rule)).collect();
            let found = rules.remove(&name).unwrap_or_default();
            if desired.map_err(|error| unread(&error))? != found {
                differences.push(format!("rules of chain {name} of table {table} differ"));
            }
        }
        differences.extend(
            present
                .iter()
                .map(|chain| format!("chain {} of table {table} is not ours", chain.name)),
        );
        if differences.is_empty() {
            self.has_rules.insert(family);
            return Ok(None);
        }
        Ok(Some(differences.join("; ")))
    }

    /// Carries out operations on sets, in their order, and returns a result for each.
    pub fn apply(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let mut results: Vec<Result<(), Refusal>> = ops.iter().map(|_| Ok(())).collect();
        let at_once = (self.client.longest_batch() / ELEMENT_MESSAGE).max(1);
        let mut begin = 0;
        while begin < ops.len() {
            let end = ops.len().min(begin + at_once);
            self.apply_at_once(ops, begin..end, &mut results);
            begin = end;
        }
        results
    }

    /// Carries out some of the operations in one transaction. If some are refused, the others are tried again without
    /// them.
    fn apply_at_once(
        &mut self,
        ops: &[Op],
        range: Range<usize>,
        results: &mut [Result<(), Refusal>],
    ) {
        let mut left: Vec<(usize, &Op)> =
            range.filter_map(|place| Some((place, ops.get(place)?))).collect();
        let mut fail = |place: usize, refusal: Refusal| {
            if let Some(result) = results.get_mut(place) {
                *result = Err(refusal);
            }
        };
        while !left.is_empty() {
            let (batch, places) = match self.batch_of(&left) {
                Ok(built) => built,
                Err((place, refusal)) => {
                    fail(place, refusal);
                    left.retain(|(of, _)| *of != place);
                    continue;
                }
            };
            let error = match self.client.commit(batch) {
                Ok(()) => {
                    for (_, op) in &left {
                        if let Some((family, length)) = network_length(op) {
                            self.ranges.add(family, length);
                        }
                    }
                    return;
                }
                Err(error) => error,
            };
            let mut refused: HashMap<usize, Refusal> = error
                .refusals()
                .iter()
                .filter_map(|one| {
                    let place = (*places.get(one.place?)?)?;
                    Some((place, Refusal::new(Refusal::class_of(Some(one.errno)), one)))
                })
                .collect();
            if refused.is_empty() {
                // It is about the transaction, or a table, or not known.
                left.iter().for_each(|(place, _)| fail(*place, refusal(&error)));
                return;
            }
            left.retain(|(place, op)| {
                let Some(refusal) = refused.remove(place) else { return true };
                // What is to be removed is gone, or its set is.
                let is_done =
                    matches!(op, Op::RemoveEntry(..)) && refusal.class == RefusalClass::Conflict;
                if !is_done {
                    fail(*place, refusal);
                }
                false
            });
        }
    }

    /// Returns a transaction of the operations. One that cannot be written is returned instead, with its place.
    fn batch_of(&self, ops: &[(usize, &Op)]) -> Result<Built, (usize, Refusal)> {
        let (mut batch, mut places) = (Batch::new(), Vec::new());
        let families: HashSet<Family> =
            ops.iter().filter_map(|(_, op)| Some(op.set()?.family)).collect();
        families.iter().for_each(|family| batch.create_table(&self.table(*family), self.flags));
        let mut ranges = self.ranges.clone();
        for (place, op) in ops {
            let cannot = |error: nftables::ParseError| (*place, unencodable(&error));
            if let Some((family, length)) = network_length(op)
                && ranges.add(family, length)
            {
                self.add_length(&mut batch, family, length, &ranges)
                    .map_err(|refusal| (*place, refusal))?;
            }
            places.resize(batch.len(), None);
            let Some(set) = op.set() else { continue };
            let table = self.table(set.family);
            match set_change(op).map_err(cannot)? {
                SetChange::Create(name, spec) => batch.create_set(&table, &name, spec),
                SetChange::Add(name, element) => batch.add_elements(&table, &name, &[element]),
                SetChange::Delete(name, key) => batch.delete_elements(&table, &name, &[key]),
                SetChange::Nothing => {}
            }
            places.resize(batch.len(), Some(*place));
        }
        Ok((batch, places))
    }

    /// Makes the set of networks of a length, and leads to it if there are rules.
    fn add_length(
        &self,
        batch: &mut Batch,
        family: Family,
        length: u8,
        ranges: &SourceRanges,
    ) -> Result<(), Refusal> {
        let table = self.table(family);
        let name = Name::new(nft::set_name(family, length)).map_err(|error| unencodable(&error))?;
        batch.create_set(&table, &name, words::set_spec(nft::networks(family)));
        let Some(settings) = self.desired.get(&family).filter(|_| self.has_rules.contains(&family))
        else {
            return Ok(());
        };
        let chain = nft::source_ranges(family, settings, ranges);
        let name = Name::new(chain.name).map_err(|error| unencodable(&error))?;
        batch.flush_chain(&table, &name);
        append(batch, (family, &table), &chain, &name)
    }

    /// Reads a set with its entries; none if there is no such set.
    pub fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        let table = self.table(set.family);
        let unread = |error: &dyn Display| ReadError::new(format!("set {set}"), error);
        let (mut entries, mut n_unknown, mut exists) = (HashSet::default(), 0, false);
        for (name, length) in self.parts_of(set).map_err(|error| unread(&error))? {
            let elements = match self.client.list_elements(&table, &name) {
                Err(error) if error.is_not_found() => continue,
                elements => elements.map_err(|error| unread(&error))?,
            };
            exists = true;
            for element in elements {
                match words::entry(set, length, &element) {
                    Some(entry) => drop(entries.insert(entry)),
                    None => n_unknown += 1,
                }
            }
        }
        Ok(exists.then_some(ActualSet { entries, n_unknown, capacity: Capacity::new(u32::MAX) }))
    }

    /// Returns the sets of nf_tables that a set is in: one, and of networks one more for each length.
    fn parts_of(&self, set: SetId) -> Result<Vec<(Name, Option<u8>)>, nftables::ParseError> {
        let mut parts = vec![(Name::new(set.name())?, None)];
        if set.set_type() == SetType::HashAddressPortNet {
            for length in self.ranges.lengths(set.family) {
                parts.push((Name::new(nft::set_name(set.family, length))?, Some(length)));
            }
        }
        Ok(parts)
    }
}

/// Returns the sets of a family and their types.
fn sets(
    family: Family,
    ranges: &SourceRanges,
) -> Result<Vec<(Name, SetSpec)>, nftables::ParseError> {
    let constant = SetId::all(family).map(|set| Ok((Name::new(set.name())?, words::set_spec(set))));
    let of_networks = ranges.lengths(family).map(|length| {
        Ok((Name::new(nft::set_name(family, length))?, words::set_spec(nft::networks(family))))
    });
    constant.chain(of_networks).collect()
}

/// Returns the family and the length of the network that an operation adds.
fn network_length(op: &Op) -> Option<(Family, u8)> {
    match op {
        Op::AddEntry(set, Entry::AddressPortNet(_, net)) => Some((set.family, net.prefix_len())),
        _ => None,
    }
}

fn set_change(op: &Op) -> Result<SetChange, nftables::ParseError> {
    let name_for = |set: &SetId, entry: &Entry| match entry {
        Entry::AddressPortNet(_, net) => Name::new(nft::set_name(set.family, net.prefix_len())),
        _ => Name::new(set.name()),
    };
    Ok(match op {
        Op::CreateSet(set, _) => SetChange::Create(Name::new(set.name())?, words::set_spec(*set)),
        Op::AddEntry(set, entry) => SetChange::Add(name_for(set, entry)?, words::element(entry)),
        Op::RemoveEntry(set, entry) => {
            SetChange::Delete(name_for(set, entry)?, words::element(entry).key)
        }
        _ => SetChange::Nothing,
    })
}

fn append(
    batch: &mut Batch,
    (family, table): (Family, &TableId),
    chain: &nft::Chain,
    name: &Name,
) -> Result<(), Refusal> {
    for rule in &chain.rules {
        let expressions = Translator(family).rule(rule).map_err(|error| unencodable(&error))?;
        batch.append_rule(table, name, &expressions);
    }
    Ok(())
}

fn unencodable(error: &nftables::ParseError) -> Refusal {
    Refusal::new(RefusalClass::Other, error)
}

fn refusal(error: &Error) -> Refusal {
    let class = if error.is_answer_lost() {
        RefusalClass::AnswerLost
    } else {
        Refusal::class_of(error.raw_os_error())
    };
    Refusal::new(class, error)
}
