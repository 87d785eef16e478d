//! The rules that `iptables-nft` keeps in nf_tables.
//!
//! Every transaction of a network namespace raises its generation, whatever it changed. When it was
//! raised, our chains are read, each by itself, and hashed without counters. (Handles would not do:
//! a rule that replaces another has the same one.)
//!
//! Source: include/uapi/linux/netfilter/nf_tables.h.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use netlink::{Batch, DecodeError, Error, MessageWriter, Protocol, Socket, attributes};
use plan::model::Family;
use plan::rule_set::Table;
use rustix::io::Errno;

use super::prints::{ChainKey, Changes, Prints};
use super::{Fingerprint, Look, Watched};

/// `NFNL_SUBSYS_NFTABLES` (include/uapi/linux/netfilter/nfnetlink.h), in the upper byte of a message type.
const SUBSYSTEM: u16 = 10;
/// `NFT_MSG_GETCHAIN`, `NFT_MSG_GETRULE`, `NFT_MSG_GETGEN`
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
const GET_GENERATION: u16 = SUBSYSTEM << 8 | 16;
/// `NFTA_CHAIN_TABLE`, `NFTA_CHAIN_NAME`
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
/// `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CHAIN`
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CHAIN: u16 = 2;
/// `struct nfgenmsg`: family, version, subsystem (big-endian u16).
const HEADER: usize = 4;
/// `NFTA_RULE_COMPAT`
const RULE_COMPATIBILITY: u16 = 5;
/// `NFTA_GEN_ID`
const GENERATION_ID: u16 = 1;

/// One family's tables.
#[derive(Debug)]
pub(super) struct NftTables {
    socket: Socket,
    family: u8,
    /// The generation that the last fingerprint is of, or an older one.
    generation: Option<u32>,
}

/// Part of a rule that it takes to know the rule again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NftRule {
    /// Hash of its expressions.
    text: u64,
    /// The chain that it leads to.
    to: Option<String>,
}

/// Chains that were read, each with the prints of its rules.
type ReadBack = Vec<(ChainKey, Vec<u64>)>;

/// Returns the chains of a family in the tables of ours. A kernel without nf_tables has none.
pub(in crate::rules) fn chain_names(family: Family) -> Result<Vec<(Table, String)>, Error> {
    match NftTables::open(family).and_then(|mut tables| tables.chains()) {
        Err(error) if lacks_nftables(&error) => Ok(Vec::new()),
        listed => listed,
    }
}

/// True if a chain is there and has a rule.
pub(in crate::rules) fn has_rules(
    family: Family,
    table: Table,
    chain: &str,
) -> Result<bool, Error> {
    Ok(!NftTables::open(family)?.rules(table, chain)?.is_empty())
}

/// Returns the chains that the rules of a chain lead to, in the order of the rules.
pub(in crate::rules) fn destinations(
    family: Family,
    table: Table,
    chain: &str,
) -> Result<Vec<String>, Error> {
    let rules = NftTables::open(family)?.rules(table, chain)?;
    Ok(rules.into_iter().filter_map(|rule| rule.to).collect())
}

impl NftTables {
    pub(super) fn open(family: Family) -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter)?;
        Ok(Self { socket, family: family_number(family), generation: None })
    }

    /// True if nothing was written since the last fingerprint was taken.
    pub(super) fn unchanged(&mut self) -> bool {
        self.generation.is_some() && self.current_generation().ok() == self.generation
    }

    /// Looks at everything that counts.
    pub(super) fn look(&mut self, watched: &Watched) -> Result<Look, Error> {
        // Read first: any later change raises the generation.
        self.generation = None;
        let generation = self.current_generation()?;
        let constant = self.fingerprint(watched)?;
        let services = if watched.services { self.prints()? } else { Prints::default() };
        self.generation = Some(generation);
        let mark = (self.current_generation()? == generation).then(|| generation.into());
        Ok(Look { mark, constant, services })
    }

    /// Reads chains that were just changed by so many transactions. None if others have written
    /// since the last look.
    pub(super) fn read_back(
        &mut self,
        changes: &Changes,
        before: Option<u32>,
        transactions: u32,
    ) -> Result<Option<ReadBack>, Error> {
        if before.is_none() || self.generation != before {
            return Ok(None);
        }
        let expected = before.map(|before| before.wrapping_add(transactions));
        let mut prints = Vec::with_capacity(changes.len());
        for (key, chain) in changes.chains() {
            let rules = self.rules(chain.table, &chain.name.to_string())?;
            prints.push((key, rules.into_iter().map(|rule| rule.text).collect()));
        }
        if Some(self.current_generation()?) != expected {
            return Ok(None);
        }
        self.generation = expected;
        Ok(Some(prints))
    }

    /// Takes in that so many transactions concerned nothing that counts here.
    pub(super) fn advance(&mut self, before: u32, transactions: u32) {
        if self.generation == Some(before) {
            self.generation = Some(before.wrapping_add(transactions));
        }
    }

    /// Returns the chains of Services, each with its rules.
    ///
    /// Each chain is read by itself. To list all rules of a table takes the kernel time that grows with
    /// the square of their number: for each datagram it counts from the first rule to where it was
    /// (`__nf_tables_dump_rules` in net/netfilter/nf_tables_api.c).
    fn prints(&mut self) -> Result<Prints, Error> {
        let mut prints = Prints::default();
        for (table, chain) in self.chains()? {
            let Some(key) = ChainKey::of(table, &chain) else { continue };
            for rule in self.rules(table, &chain)? {
                prints.add(key, rule.text);
            }
        }
        Ok(prints)
    }

    /// Lists the chains that there are, in the tables of ours.
    fn chains(&mut self) -> Result<Vec<(Table, String)>, Error> {
        let family = self.family;
        self.socket.dump(GET_CHAIN, |message| write_header(message, family), chain)
    }

    /// Takes the fingerprint of our chains and the jumps into them; none while jumps are missing.
    fn fingerprint(&mut self, watched: &Watched) -> Result<Option<Fingerprint>, Error> {
        let mut hasher = DefaultHasher::new();
        for table in Table::ALL {
            let ours = watched.destinations(table);
            for chain in watched.chains(table) {
                chain.hash(&mut hasher);
                for rule in self.rules(table, chain)? {
                    rule.text.hash(&mut hasher);
                }
            }
            for chain in watched.origins(table) {
                chain.hash(&mut hasher);
                let is_ours = |to: &str| ours.contains(&to);
                let mut jumps = self.rules(table, chain)?;
                jumps.retain(|rule| rule.to.as_deref().is_some_and(is_ours));
                for jump in &jumps {
                    jump.text.hash(&mut hasher);
                }
                let found: Vec<String> = jumps.into_iter().filter_map(|jump| jump.to).collect();
                if !watched.has_all_jumps(table, chain, &found) {
                    return Ok(None);
                }
            }
        }
        Ok(Some(hasher.finish()))
    }

    pub(super) fn current_generation(&mut self) -> Result<u32, Error> {
        let mut batch = Batch::new();
        batch.push(GET_GENERATION, 0, |message| write_header(message, 0));
        let answers = self.socket.request(&batch, generation)?;
        let none = || DecodeError::new("generation", "the kernel said yes and nothing else");
        answers.into_iter().next().ok_or_else(|| none().into())
    }

    /// A chain that is not there has none. None of ours can go while a jump leads to it.
    fn rules(&mut self, table: Table, chain: &str) -> Result<Vec<NftRule>, Error> {
        let family = self.family;
        self.socket.dump(
            GET_RULE,
            |message| {
                write_header(message, family);
                let mut attributes = message.attributes();
                attributes.string(RULE_TABLE, table.name());
                attributes.string(RULE_CHAIN, chain);
            },
            rule,
        )
    }
}

fn generation(body: &[u8]) -> Result<Option<u32>, DecodeError> {
    for attribute in attributes(after_header(body)) {
        let attribute = attribute?;
        if attribute.kind == GENERATION_ID {
            return attribute.u32_be().map(Some);
        }
    }
    Ok(None)
}

/// The table and the name of a chain; none if the table is not one of ours.
fn chain(body: &[u8]) -> Result<Option<(Table, String)>, DecodeError> {
    let name = text(body, CHAIN_TABLE)?;
    let table = Table::ALL.into_iter().find(|table| table.name() == name);
    table.map(|table| Ok((table, text(body, CHAIN_NAME)?))).transpose()
}

/// The text of an attribute behind the header; empty if there is none.
fn text(body: &[u8], kind: u16) -> Result<String, DecodeError> {
    let found = find(after_header(body), kind)?.unwrap_or_default();
    let text = found.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn rule(body: &[u8]) -> Result<Option<NftRule>, DecodeError> {
    let (mut hasher, mut to) = (DefaultHasher::new(), None);
    for attribute in attributes(after_header(body)) {
        let attribute = attribute?;
        match attribute.kind {
            // For which protocol a match of x_tables is.
            RULE_COMPATIBILITY => attribute.value.hash(&mut hasher),
            RULE_EXPRESSIONS => {
                for expression in attribute.nested() {
                    let expression = expression?.value;
                    if !is_called(expression, "counter")? {
                        expression.hash(&mut hasher);
                        to = destination(expression)?.or(to);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(Some(NftRule { text: hasher.finish(), to }))
}

/// The chain that an expression leads to: one that is called `immediate` and has a verdict.
fn destination(expression: &[u8]) -> Result<Option<String>, DecodeError> {
    if !is_called(expression, "immediate")? {
        return Ok(None);
    }
    let way = [EXPRESSION_DATA, IMMEDIATE_DATA, DATA_VERDICT, VERDICT_CHAIN];
    let Some(value) = find_inside(expression, &way)? else { return Ok(None) };
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(name).into_owned()))
}

/// True if this is an answer of nfnetlink about a subsystem that it does not have
/// (`nfnetlink_rcv_msg` in net/netfilter/nfnetlink.c).
fn lacks_nftables(error: &Error) -> bool {
    error.refusal().is_some() && is(error, &[Errno::INVAL, Errno::OPNOTSUPP])
}

fn write_header(message: &mut MessageWriter<'_>, family: u8) {
    message.body().extend_from_slice(&[family, 0, 0, 0]);
}

/// `NFPROTO_IPV4` and `NFPROTO_IPV6` (include/uapi/linux/netfilter.h).
const fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// Returns the attributes of a message.
fn after_header(body: &[u8]) -> &[u8] {
    body.get(HEADER..).unwrap_or_default()
}

/// Returns the value of the first attribute of this kind.
fn find(bytes: &[u8], kind: u16) -> Result<Option<&[u8]>, DecodeError> {
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute.value));
        }
    }
    Ok(None)
}

/// Returns the value of an attribute in an attribute, as deep as there are kinds.
fn find_inside<'a>(bytes: &'a [u8], kinds: &[u16]) -> Result<Option<&'a [u8]>, DecodeError> {
    let mut value = bytes;
    for kind in kinds {
        let Some(inner) = find(value, *kind)? else { return Ok(None) };
        value = inner;
    }
    Ok(Some(value))
}

/// True if this is the name of an expression of a rule.
fn is_called(expression: &[u8], name: &str) -> Result<bool, DecodeError> {
    let found = find(expression, EXPRESSION_NAME)?.unwrap_or_default();
    Ok(found.split(|byte| *byte == 0).next() == Some(name.as_bytes()))
}

fn is(error: &Error, numbers: &[Errno]) -> bool {
    numbers.iter().any(|number| error.raw_os_error() == Some(number.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NFTA_LIST_ELEM`
    const LIST_ELEMENT: u16 = 1;
    /// `NFTA_IMMEDIATE_DREG`, `NFTA_VERDICT_CODE`
    const IMMEDIATE_REGISTER: u16 = 1;
    const VERDICT_CODE: u16 = 1;

    fn mk_rule(packets: u32, mark: u32, to: &str) -> Batch {
        let mut batch = Batch::new();
        batch.push(GET_RULE, 0, |message| {
            write_header(message, 2);
            let mut attributes = message.attributes();
            attributes.string(RULE_TABLE, "nat");
            attributes.nested(RULE_EXPRESSIONS, |list| {
                for (name, value) in [("counter", packets), ("meta", mark)] {
                    list.nested(LIST_ELEMENT, |it| {
                        it.string(EXPRESSION_NAME, name);
                        it.nested(EXPRESSION_DATA, |data| data.u32_be(1, value));
                    });
                }
                list.nested(LIST_ELEMENT, |it| {
                    it.string(EXPRESSION_NAME, "immediate");
                    it.nested(EXPRESSION_DATA, |data| {
                        data.u32_be(IMMEDIATE_REGISTER, 0);
                        data.nested(IMMEDIATE_DATA, |data| {
                            data.nested(DATA_VERDICT, |verdict| {
                                verdict.u32_be(VERDICT_CODE, 0xffff_fffd);
                                verdict.string(VERDICT_CHAIN, to);
                            });
                        });
                    });
                });
            });
        });
        batch
    }

    fn read(packets: u32, mark: u32, to: &str) -> NftRule {
        rule(mk_rule(packets, mark, to).body(0).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn a_rule_is_known_by_what_it_says_but_for_counters() {
        let first = read(1, 2, "KUBE-SERVICES");
        assert_eq!(first.to.as_deref(), Some("KUBE-SERVICES"));
        assert_eq!(read(9, 2, "KUBE-SERVICES"), first);
        assert_ne!(read(1, 3, "KUBE-SERVICES").text, first.text);
        assert_ne!(read(1, 2, "KUBE-SERVICE").text, first.text);
    }

    #[test]
    fn chains_are_those_of_our_tables() {
        let read = |table: &str, name: &str| {
            let mut batch = Batch::new();
            batch.push(GET_CHAIN, 0, |message| {
                write_header(message, 2);
                let mut attributes = message.attributes();
                attributes.string(CHAIN_TABLE, table);
                attributes.string(CHAIN_NAME, name);
            });
            chain(batch.body(0).unwrap()).unwrap()
        };
        assert_eq!(read("nat", "KUBE-SVC-X"), Some((Table::Nat, "KUBE-SVC-X".to_owned())));
        assert_eq!(read("kube-proxy", "KUBE-SVC-X"), None);
        assert_eq!(chain(&[2, 0, 0, 0]).unwrap(), None);
    }

    #[test]
    fn generations_are_numbered() {
        assert_eq!(generation(&[0, 0, 0, 9, 8, 0, 1, 0, 0, 0, 1, 2]).unwrap(), Some(258));
        assert_eq!(generation(&[0, 0, 0, 9]).unwrap(), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..96),
        ) {
            let _any = (rule(&body), generation(&body), destination(&body), chain(&body));
        }

        #[test]
        fn any_wrong_byte_in_a_rule_is_read_without_a_panic(
            place in proptest::prelude::any::<proptest::sample::Index>(),
            byte in proptest::prelude::any::<u8>(),
        ) {
            let batch = mk_rule(7, 7, "KUBE-SERVICES");
            let mut body = batch.body(0).unwrap().to_vec();
            let place = place.index(body.len());
            body[place] = byte;
            let _any = rule(&body);
        }
    }
}
