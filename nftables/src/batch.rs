//! Changes that are to be carried out together.

use netlink::MessageWriter;

use crate::codec;
use crate::data::Data;
use crate::error::{Attempt, Refused};
use crate::expression::Expression;
use crate::name::Name;
use crate::object::{BaseChain, Element, Family, SetSpec, TableFlags, TableId};
use crate::uapi::{self, message};

/// Changes in the order in which the kernel is to work through them. They are one transaction: the kernel carries out
/// all of them or, if it refuses one, none.
///
/// Packets see the state before or after a transaction, and nothing between.
#[derive(Debug)]
pub struct Batch {
    pub(crate) wire: netlink::Batch,
    /// Commands of the messages behind the first one, which opens the transaction.
    pub(crate) commands: Vec<u8>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// A transaction without changes.
    #[must_use]
    pub fn new() -> Self {
        Self::beginning(None)
    }

    /// A transaction that is refused if anything in the network namespace's nf_tables has changed since this
    /// generation: see [`Error::is_generation_over`](crate::Error::is_generation_over).
    #[must_use]
    pub fn of_generation(id: u32) -> Self {
        Self::beginning(Some(id))
    }

    fn beginning(generation: Option<u32>) -> Self {
        let mut wire = netlink::Batch::new();
        wire.push(uapi::BATCH_BEGIN, 0, |message| codec::begin_batch(message, generation));
        Self { wire, commands: Vec::new() }
    }

    /// Creates a table, or claims one that is there: the flags must then be those that it has.
    pub fn create_table(&mut self, table: &TableId, flags: TableFlags) {
        self.push(message::NEWTABLE, 0, table.family, |message| {
            codec::table(message, table, flags);
        });
    }

    /// Deletes a table with everything in it.
    pub fn delete_table(&mut self, table: &TableId) {
        self.push(message::DELTABLE, 0, table.family, |message| codec::table_name(message, table));
    }

    /// Creates a chain that packets come to by rules.
    pub fn create_chain(&mut self, table: &TableId, chain: &Name) {
        self.push(message::NEWCHAIN, uapi::NLM_F_CREATE, table.family, |message| {
            codec::chain(message, table, chain, None);
        });
    }

    /// Creates a chain that packets come to at a hook. If it is there, hook and type must be those that it has.
    pub fn create_base_chain(&mut self, table: &TableId, chain: &Name, base: BaseChain) {
        self.push(message::NEWCHAIN, uapi::NLM_F_CREATE, table.family, |message| {
            codec::chain(message, table, chain, Some(base));
        });
    }

    /// Deletes a chain without rules that nothing leads to.
    pub fn delete_chain(&mut self, table: &TableId, chain: &Name) {
        self.push(message::DELCHAIN, 0, table.family, |message| {
            codec::chain(message, table, chain, None);
        });
    }

    /// Appends a rule to a chain.
    pub fn append_rule(&mut self, table: &TableId, chain: &Name, expressions: &[Expression]) {
        let flags = uapi::NLM_F_CREATE | uapi::NLM_F_APPEND;
        self.push(message::NEWRULE, flags, table.family, |message| {
            codec::rule(message, table, chain, expressions);
        });
    }

    /// Deletes the rule with this handle.
    pub fn delete_rule(&mut self, table: &TableId, chain: &Name, handle: u64) {
        self.push(message::DELRULE, 0, table.family, |message| {
            codec::rules_of(message, table, Some(chain), Some(handle));
        });
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: &TableId, chain: &Name) {
        self.push(message::DELRULE, 0, table.family, |message| {
            codec::rules_of(message, table, Some(chain), None);
        });
    }

    /// Creates a set or map without a limit of elements. If it is there, Linux before 6.1 does not compare it with
    /// `spec`.
    pub fn create_set(&mut self, table: &TableId, set: &Name, spec: SetSpec) {
        // A number that no other set of the transaction has.
        let id = u32::try_from(self.commands.len() + 1).unwrap_or(u32::MAX);
        self.push(message::NEWSET, uapi::NLM_F_CREATE, table.family, |message| {
            codec::set(message, table, set, spec, id);
        });
    }

    /// Deletes a set that no rule refers to.
    pub fn delete_set(&mut self, table: &TableId, set: &Name) {
        self.push(message::DELSET, 0, table.family, |message| {
            codec::elements(message, table, set, &[]);
        });
    }

    /// Adds elements to a set or map by one message. An element that is there with the same value stays as it is,
    /// one with another value refuses the transaction.
    ///
    /// A message has at most 64 KiB: 2,700 keys of 12 bytes, or 1,200 of 40.
    pub fn add_elements(&mut self, table: &TableId, set: &Name, elements: &[Element]) {
        self.push(message::NEWSETELEM, uapi::NLM_F_CREATE, table.family, |message| {
            codec::elements(message, table, set, elements);
        });
    }

    /// Deletes elements from a set or map by one message. One that is not there refuses the transaction.
    pub fn delete_elements(&mut self, table: &TableId, set: &Name, keys: &[Data]) {
        let elements: Vec<Element> = keys.iter().cloned().map(Element::new).collect();
        self.push(message::DELSETELEM, 0, table.family, |message| {
            codec::elements(message, table, set, &elements);
        });
    }

    /// Deletes all elements of a set or map.
    pub fn flush_set(&mut self, table: &TableId, set: &Name) {
        self.push(message::DELSETELEM, 0, table.family, |message| {
            codec::elements(message, table, set, &[]);
        });
    }

    /// Creates a flow table, or adds devices to one that is there. A device that does not exist refuses the
    /// transaction.
    pub fn create_flow_table(
        &mut self,
        table: &TableId,
        flow_table: &Name,
        priority: i32,
        devices: &[&str],
    ) {
        self.push(message::NEWFLOWTABLE, uapi::NLM_F_CREATE, table.family, |message| {
            codec::flow_table(message, table, flow_table, Some((priority, devices)));
        });
    }

    /// Removes devices from a flow table of this priority. Connections in it stay. A device that it does not have refuses
    /// the transaction.
    pub fn remove_flow_table_devices(
        &mut self,
        table: &TableId,
        flow_table: &Name,
        priority: i32,
        devices: &[&str],
    ) {
        self.push(message::DELFLOWTABLE, 0, table.family, |message| {
            codec::flow_table(message, table, flow_table, Some((priority, devices)));
        });
    }

    /// Deletes a flow table that no rule refers to.
    pub fn delete_flow_table(&mut self, table: &TableId, flow_table: &Name) {
        self.push(message::DELFLOWTABLE, 0, table.family, |message| {
            codec::flow_table(message, table, flow_table, None);
        });
    }

    /// Returns the number of changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// True if there is no change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Returns the number of bytes of the transaction, which [`Client::longest_batch`](crate::Client::longest_batch)
    /// bounds.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.wire.byte_len()
    }

    /// Returns the changes that the kernel refused. `refused` has the places of netlink's messages, of which the first
    /// opens the transaction.
    pub(crate) fn refusals(&self, refused: Vec<(usize, netlink::Error)>) -> Vec<Refused> {
        let of = |(place, error): (usize, netlink::Error)| {
            let refusal = error.refusal().cloned();
            let place = place.checked_sub(1);
            Refused {
                place,
                attempt: place.map_or(Attempt::Commit, |place| self.attempt(place)),
                errno: refusal.as_ref().map_or(0, |refusal| refusal.errno),
                explanation: refusal.and_then(|refusal| refusal.explanation),
            }
        };
        refused.into_iter().map(of).collect()
    }

    /// Says what the change at this place tries.
    pub(crate) fn attempt(&self, place: usize) -> Attempt {
        let command = self.commands.get(place).copied().unwrap_or(u8::MAX);
        codec::attempt(command, self.wire.body(place + 1).unwrap_or_default())
    }

    fn push(
        &mut self,
        command: u8,
        flags: u16,
        family: Family,
        write: impl FnOnce(&mut MessageWriter<'_>),
    ) {
        self.wire.push(codec::message_type(command), flags, |message| {
            codec::begin(message, family);
            write(message);
        });
        self.commands.push(command);
    }
}
