//! The constant layer of IPVS mode in nf_tables: sets and rules in tables of our own.
//!
//! Since Linux 6.9 the socket owns the tables: no other program changes them, and a flush of everything spares them. They
//! outlive the process, and its next start claims them.
//!
//! An element that is there may be added again, which changes nothing.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use nftables::{Batch, Client, Data, Element, Error, Name, SetSpec, Table, TableFlags, TableId};
use plan::actual::ActualSet;
use plan::capacity::Capacity;
use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::Entry;
use plan::model::Family;
use plan::op::Op;
use plan::rule_set::RuleSet;
use plan::rule_set::nft::{self, SourceRanges};
use plan::sets::{SetId, SetType};

use super::flow_tables::{self, FlowTables};
use super::pacing::Pacing;
use super::words::{self, Translator};
use crate::{ReadError, Refusal, RefusalClass};

/// Name of a table that is only tried.
const TRIED: &str = "kube-ipvs-try";

/// Looks for the end of the process that has a table, and the time from one to the next.
const RELEASE_ATTEMPTS: u32 = 20;
const RELEASE_PAUSE: Duration = Duration::from_millis(100);

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
    /// Desired rules of each family.
    desired: HashMap<Family, RuleSet>,
    /// Lengths of networks that have a set.
    ranges: SourceRanges,
    /// Families whose rules were written, or found complete, and lead to all sets of networks that there are.
    has_rules: HashSet<Family>,
    /// Number of elements of each set that was read or made, with what was written since.
    counts: HashMap<SetId, u32>,
    /// The tables that the counts are of, by their handles.
    handles: HashMap<Family, u64>,
    /// Generation of the kernel's rules up to which no other program changed ours, where tables have no owners.
    generation: Option<u32>,
    pacing: Pacing,
    flow_tables: FlowTables,
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
    /// Opens tables to write them, and finds out how this kernel takes them. Those that are there are claimed.
    ///
    /// # Errors
    /// When the kernel does not take them, or another process owns one.
    pub fn open(families: &[Family]) -> Result<Self, ReadError> {
        let mut tables = Self::open_named(nft::TABLE)?;
        tables.find_flags(families).map_err(unread)?;
        for family in families {
            let Some(found) = tables.find_released(*family).map_err(unread)? else { continue };
            let id = tables.table(*family);
            if let Some(port) = found.owner {
                let reason = format!(
                    "the table {id} belongs to another process (netlink port {port}, often its \
                     pid): stop the other kube-ipvs of this node"
                );
                return Err(ReadError::new("nf_tables", reason));
            }
            let mut batch = Batch::new();
            if tables.flags.contains(TableFlags::PERSIST)
                && !found.flags.contains(TableFlags::PERSIST)
            {
                // A table that has lost its owner keeps this flag. One without it cannot be given an owner any more
                // (`nf_tables_updtable` in net/netfilter/nf_tables_api.c).
                tracing::warn!("another program restored the table {id}; kube-ipvs recreates it");
                batch.delete_table(&id);
            } else {
                batch.create_table(&id, tables.flags);
            }
            tables.client.commit(batch).map_err(unread)?;
        }
        match tables.find_sets(families)? {
            None => Ok(tables),
            // Linux 5.10 takes a set of another type for the one that it is asked for.
            Some(set) => Err(ReadError::new(
                format!("set {set} of the tables {}", nft::TABLE),
                "its element type is not that of kube-ipvs, so another program created it: \
                 kube-ipvs --cleanup removes the tables",
            )),
        }
    }

    /// Opens tables to read them alone.
    ///
    /// # Errors
    /// When this kernel has no nf_tables, or the sets cannot be listed.
    pub fn open_to_read(families: &[Family]) -> Result<Self, ReadError> {
        let mut tables = Self::open_named(nft::TABLE)?;
        let _foreign = tables.find_sets(families)?;
        Ok(tables)
    }

    /// Checks that this kernel takes a table of these rules. Nothing is made.
    ///
    /// # Errors
    /// With the object that the kernel lacks something for.
    pub fn try_rules(rule_set: RuleSet) -> Result<(), ReadError> {
        let family = rule_set.family();
        let mut tables = Self::open_named(TRIED)?;
        tables.find_flags(&[family]).map_err(unread)?;
        tables.desire(rule_set);
        let batch = tables.batch_of_rules(family);
        let batch = batch.map_err(|refusal| ReadError::new("nf_tables", refusal))?;
        tables.client.check(&batch).map_err(unread)
    }

    fn open_named(name: &str) -> Result<Self, ReadError> {
        Ok(Self {
            client: Client::open().map_err(unread)?,
            name: Name::new(name).map_err(|error| ReadError::new("nf_tables", error))?,
            flags: TableFlags::OWNER | TableFlags::PERSIST,
            desired: HashMap::default(),
            ranges: SourceRanges::default(),
            has_rules: HashSet::default(),
            counts: HashMap::default(),
            handles: HashMap::default(),
            generation: None,
            pacing: Pacing::default(),
            flow_tables: FlowTables::default(),
        })
    }

    /// Leaves out flags that this kernel does not know. A table of another name tells, since ours may have an owner.
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
        let Ok(name) = Name::new(TRIED) else { return Ok(()) };
        let mut batch = Batch::new();
        for family in families {
            let table = TableId::new(words::family_of(*family), name.clone());
            batch.create_table(&table, self.flags);
        }
        self.client.check(&batch)
    }

    /// Finds the lengths that an earlier process has made sets for. Returns the name of a set of another type than ours.
    fn find_sets(&mut self, families: &[Family]) -> Result<Option<Name>, ReadError> {
        let mut foreign = None;
        for family in families {
            let found = match self.client.list_sets(&self.table(*family)) {
                Err(error) if error.is_not_found() => continue,
                found => found.map_err(unread)?,
            };
            for set in found {
                let length = nft::length_of(*family, set.name.as_str());
                let spec = match (length, SetId::by_name(set.name.as_str())) {
                    (Some(_), _) => words::set_spec(nft::networks(*family)),
                    (None, Some(set)) => words::set_spec(set),
                    (None, None) => continue,
                };
                if set.spec != spec {
                    foreign = Some(set.name);
                } else if let Some(length) = length {
                    self.ranges.add(*family, length);
                }
            }
        }
        Ok(foreign)
    }

    /// Returns a family's table; none if it is not there.
    fn find(&mut self, family: Family) -> Result<Option<Table>, Error> {
        match self.client.table(&self.table(family)) {
            Err(error) if error.is_not_found() => Ok(None),
            table => table.map(Some),
        }
    }

    /// The same, and waits a moment for the end of a process that has the table. A child of it that has not begun its own
    /// program yet keeps the socket open, too.
    fn find_released(&mut self, family: Family) -> Result<Option<Table>, Error> {
        let mut left = RELEASE_ATTEMPTS;
        loop {
            let found = self.find(family)?;
            left -= 1;
            if left == 0 || found.as_ref().is_none_or(|table| table.owner.is_none()) {
                return Ok(found);
            }
            thread::sleep(RELEASE_PAUSE);
        }
    }

    /// Counts netlink requests and sends so far.
    #[must_use]
    pub fn traffic(&self) -> netlink::Traffic {
        self.client.traffic()
    }

    fn table(&self, family: Family) -> TableId {
        TableId::new(words::family_of(family), self.name.clone())
    }

    /// Sets the desired rules of a family.
    pub fn desire(&mut self, rule_set: RuleSet) {
        if self.desired.get(&rule_set.family()) != Some(&rule_set) {
            self.has_rules.remove(&rule_set.family());
            self.desired.insert(rule_set.family(), rule_set);
        }
    }

    /// Writes the rules of a family, all of them, in one transaction.
    ///
    /// # Errors
    /// The kernel's refusal. Nothing has changed then, unless it is about a flow table that is to go.
    pub fn write_rules(&mut self, family: Family) -> Result<(), Refusal> {
        let batch = self.batch_of_rules(family)?;
        self.commit(batch).map_err(|error| refusal(&error))?;
        if !self.has_flow_table(family) {
            self.delete_flow_table(family)?;
        }
        self.has_rules.insert(family);
        self.flow_tables.forget();
        self.follow_devices();
        Ok(())
    }

    /// Deletes the flow table that no rule refers to any more. A list would not show it if it has many devices.
    fn delete_flow_table(&mut self, family: Family) -> Result<(), Refusal> {
        let mut batch = Batch::new();
        let name = Name::new(nft::FLOW_TABLE).map_err(|error| unencodable(&error))?;
        batch.delete_flow_table(&self.table(family), &name);
        match self.commit(batch) {
            Err(error) if !error.is_not_found() => Err(refusal(&error)),
            _ => Ok(()),
        }
    }

    /// Has the flow tables see the packets of all devices of the node.
    pub fn follow_devices(&mut self) {
        if !self.desired.values().any(RuleSet::has_flow_table) {
            return;
        }
        let mut flow_tables = std::mem::take(&mut self.flow_tables);
        let followed = match flow_tables.wanted_devices() {
            Ok(None) => None,
            Ok(Some(devices)) => Some(self.change_devices(&devices).map_err(Into::into)),
            Err(error) => Some(Err(error.into())),
        };
        if let Some(followed) = followed {
            flow_tables.note(followed);
        }
        self.flow_tables = flow_tables;
    }

    fn change_devices(&mut self, wanted: &BTreeSet<String>) -> Result<(), Error> {
        let with_one = self.desired.iter().filter(|(_, rules)| rules.has_flow_table());
        let families: Vec<Family> = with_one.map(|(family, _)| *family).collect();
        for family in families {
            let table = self.table(family);
            let found = match self.client.list_flow_tables(&table) {
                // The audit finds out.
                Err(error) if error.is_not_found() => continue,
                found => found?,
            };
            // One whose devices do not fit into a message is not listed: 180 of them need not
            // (`nf_tables_dump_flowtable` in net/netfilter/nf_tables_api.c). Those that it has are no error.
            let listed = found.into_iter().find(|it| it.name.as_str() == nft::FLOW_TABLE);
            let devices = listed.map(|it| it.devices).unwrap_or_default();
            let commit = &mut |batch| self.commit(batch);
            flow_tables::change_devices(&table, &devices, wanted, commit)?;
        }
        Ok(())
    }

    /// Waits before the transaction if many were before and other programs have tables. Before the rules are there, sets
    /// are filled at once.
    fn commit_paced(&mut self, batch: Batch) -> Result<(), Error> {
        if !self.has_rules.is_empty() {
            let delay = self.pacing.delay(Instant::now());
            if !delay.is_zero()
                && self.client.list_tables()?.iter().any(|it| it.id.name != self.name)
            {
                thread::sleep(delay);
            }
        }
        self.commit(batch)
    }

    fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        if self.flags.contains(TableFlags::OWNER) {
            return self.client.commit(batch);
        }
        let before = self.client.generation()?.id;
        self.client.commit(batch)?;
        let after = self.client.generation()?.id;
        // Not if another program has written meanwhile.
        if self.generation == Some(before) && after == before.wrapping_add(1) {
            self.generation = Some(after);
        }
        Ok(())
    }

    fn batch_of_rules(&mut self, family: Family) -> Result<Batch, Refusal> {
        let chains = self.desired_chains(family);
        let mut present = self.client.list_chains().map_err(|error| refusal(&error))?;
        let table = self.table(family);
        let mut batch = Batch::new();
        batch.create_table(&table, self.flags);
        for (name, spec) in sets(family, &self.ranges).map_err(|error| unencodable(&error))? {
            batch.create_set(&table, &name, spec);
        }
        present.retain(|chain| chain.table == table);
        present.iter().for_each(|chain| batch.flush_chain(&table, &chain.name));
        if self.has_flow_table(family) {
            flow_tables::create(&mut batch, &table).map_err(|error| unencodable(&error))?;
        }
        for found in present {
            let is_same = |chain: &&nft::Chain| {
                chain.name == found.name.as_str() && chain.hook.map(words::base_chain) == found.base
            };
            if !chains.iter().any(|chain| is_same(&chain)) {
                batch.delete_chain(&table, &found.name);
            }
        }
        let mut names = Vec::with_capacity(chains.len());
        for chain in &chains {
            let name = Name::new(chain.name).map_err(|error| unencodable(&error))?;
            match chain.hook {
                None => batch.create_chain(&table, &name),
                Some(hook) => batch.create_base_chain(&table, &name, words::base_chain(hook)),
            }
            names.push(name);
        }
        for (chain, name) in chains.iter().zip(&names) {
            append(&mut batch, (family, &table), chain, name)?;
        }
        Ok(batch)
    }

    fn has_flow_table(&self, family: Family) -> bool {
        self.desired.get(&family).is_some_and(RuleSet::has_flow_table)
    }

    fn desired_chains(&self, family: Family) -> Vec<nft::Chain> {
        self.desired.get(&family).map(|rules| rules.nft_chains(&self.ranges)).unwrap_or_default()
    }

    /// Compares the rules of a family with the desired ones. Returns what differs, in words; none: they are the same.
    pub fn compare_rules(&mut self, family: Family) -> Result<Option<String>, ReadError> {
        let unread = |error: &dyn Display| ReadError::new(format!("{family} rules"), error);
        let (table, translator) = (self.table(family), Translator(family));
        let mut present = self.client.list_chains().map_err(|error| unread(&error))?;
        present.retain(|chain| chain.table == table);
        let mut rules: HashMap<Name, Vec<Vec<nftables::Expression>>> = HashMap::default();
        if !present.is_empty() {
            for rule in self.client.list_rules(&table, None).map_err(|error| unread(&error))? {
                rules.entry(rule.chain).or_default().push(rule.expressions);
            }
        }
        let mut differences = Vec::new();
        // The rule that leads to one keeps it.
        if !present.is_empty() && !self.has_flow_table(family) {
            let found = self.client.list_flow_tables(&table).map_err(|error| unread(&error))?;
            if found.iter().any(|it| it.name.as_str() == nft::FLOW_TABLE) {
                differences.push(format!("the flow table of table {table} is unowned"));
            }
        }
        for chain in self.desired_chains(family) {
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
            present.iter().map(|chain| format!("chain {} of table {table} is unowned", chain.name)),
        );
        if differences.is_empty() {
            self.has_rules.insert(family);
            return Ok(None);
        }
        Ok(Some(differences.join("; ")))
    }

    /// Looks for signs that another program changed a family's table, at constant cost, and forgets what is not certain
    /// any more. Returns whether the rules are certainly untouched.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn is_untouched(&mut self, family: Family) -> Result<bool, Error> {
        let Some(table) = self.find(family)? else {
            self.handles.remove(&family);
            self.forget(family);
            return Ok(false);
        };
        let is_another =
            self.handles.insert(family, table.handle).is_some_and(|it| it != table.handle);
        let is_owned = self.flags.contains(TableFlags::OWNER);
        let is_lost = is_owned && table.owner != Some(self.client.port()?);
        if is_another || is_lost {
            self.forget(family);
        }
        if is_lost {
            // The socket was opened again.
            let mut batch = Batch::new();
            batch.create_table(&table.id, self.flags);
            self.client.commit(batch)?;
        } else if !is_owned {
            self.look_for_changes()?;
        }
        Ok(self.has_rules.contains(&family))
    }

    /// Has rules and the list of sets read again if anything in nf_tables changed that was not ours. Kernels without owners
    /// of tables count no elements either: the audit sees one that another program took out.
    fn look_for_changes(&mut self) -> Result<(), Error> {
        let now = self.client.generation()?.id;
        if self.generation.replace(now) == Some(now) {
            return Ok(());
        }
        self.has_rules.clear();
        let families: HashSet<Family> = self.counts.keys().map(|set| set.family).collect();
        for family in families {
            let found = self.client.list_sets(&self.table(family))?;
            let is_there = |set: &SetId| found.iter().any(|it| it.name.as_str() == set.name());
            self.counts.retain(|set, _| set.family != family || is_there(set));
        }
        Ok(())
    }

    fn forget(&mut self, family: Family) {
        self.has_rules.remove(&family);
        self.counts.retain(|set, _| set.family != family);
    }

    /// Returns the number of elements of a set; none: it is not known.
    #[must_use]
    pub fn count(&self, set: SetId) -> Option<u32> {
        self.counts.get(&set).copied()
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
            let error = match self.commit_paced(batch) {
                Ok(()) => {
                    left.iter().for_each(|(_, op)| self.note(op));
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
                let refusal = refusal(&error);
                left.iter().for_each(|(place, _)| fail(*place, refusal.clone()));
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

    /// Takes in that an operation was carried out.
    fn note(&mut self, op: &Op) {
        if let Some((family, length)) = network_length(op) {
            self.ranges.add(family, length);
        }
        match op {
            Op::CreateSet(set, _) => drop(self.counts.entry(*set).or_default()),
            Op::AddEntry(set, _) => {
                if let Some(count) = self.counts.get_mut(set) {
                    *count = count.saturating_add(1);
                }
            }
            Op::RemoveEntry(set, _) => {
                if let Some(count) = self.counts.get_mut(set) {
                    *count = count.saturating_sub(1);
                }
            }
            _ => {}
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
        let rules = self.desired.get(&family).filter(|_| self.has_rules.contains(&family));
        let chains = rules.map(|rules| rules.nft_chains(ranges)).unwrap_or_default();
        for chain in chains.iter().filter(|chain| chain.name == nft::SOURCE_RANGES) {
            let name = Name::new(chain.name).map_err(|error| unencodable(&error))?;
            batch.flush_chain(&table, &name);
            append(batch, (family, &table), chain, &name)?;
        }
        Ok(())
    }

    /// As [`read_set`](Self::read_set), where another socket writes: looks for the sets of networks first.
    pub fn read_set_anew(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        if set.set_type() == SetType::HashAddressPortNet {
            self.find_sets(&[set.family])?;
        }
        self.read_set(set)
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
        let capacity = Capacity::new(u32::MAX);
        let found = exists.then_some(ActualSet { entries, n_unknown, capacity });
        self.learn_count(set, found.as_ref());
        Ok(found)
    }

    /// Takes in what a set has, as it was read.
    pub fn learn_count(&mut self, set: SetId, found: Option<&ActualSet>) {
        match found {
            Some(ActualSet { entries, n_unknown, .. }) => {
                let count = u32::try_from(entries.len() + n_unknown).unwrap_or(u32::MAX);
                self.counts.insert(set, count);
            }
            None => drop(self.counts.remove(&set)),
        }
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

fn unread(error: Error) -> ReadError {
    ReadError::new("nf_tables", error)
}
