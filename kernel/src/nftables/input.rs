//! Base chains of the hook `input` that are not iptables', and whether they let a packet pass that none of their
//! rules names.

use netlink::{DecodeError, Error, MessageWriter, attributes};
use plan::model::Family;

use super::{
    CHAIN_NAME, CHAIN_TABLE, DATA_VERDICT, EXPRESSION_DATA, GET_CHAIN, GET_RULE, HEADER,
    IMMEDIATE_DATA, NftablesClient, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, VERDICT_CHAIN,
    VERDICT_CODE, after_header, family_number, find, find_inside, is_called, lacks_nftables,
    write_header,
};
use crate::packet_fate::{self, Fate, Step};

/// `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`, `NFTA_HOOK_HOOKNUM`
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
/// `NF_INET_LOCAL_IN`, `NF_DROP` (include/uapi/linux/netfilter.h)
const LOCAL_IN: u32 = 1;
const DROP: u32 = 0;
/// `NFT_CONTINUE`, `NFT_BREAK`, `NFT_JUMP`, `NFT_GOTO`, `NFT_RETURN`
const CONTINUE: i32 = -1;
const BREAK: i32 = -2;
const JUMP: i32 = -3;
const GO_TO: i32 = -4;
const RETURN: i32 = -5;
/// `NFPROTO_INET`
const INET: u8 = 1;
/// Tables of iptables-nft.
const OF_IPTABLES: [&str; 5] = ["filter", "mangle", "nat", "raw", "security"];

/// A base chain of the hook `input`, of a table that is none of iptables'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputChain {
    pub(crate) table: String,
    pub(crate) name: String,
    /// The end of a packet that no rule names; none if it passes.
    pub(crate) closing: Option<Closing>,
}

/// Refusal of every packet that a chain does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Its policy is to drop.
    Policy,
    /// A rule of it, or of a chain that it leads every packet to, drops or rejects every packet.
    Rule,
}

impl NftablesClient {
    /// The base chains of the hook `input` outside of iptables' tables.
    ///
    /// # Errors
    /// When chains or rules could not be listed. A kernel without nf_tables has none.
    pub(crate) fn input_chains(&mut self) -> Result<Vec<InputChain>, Error> {
        let listed = self.socket.dump(GET_CHAIN, |message| write_header(message, 0, 0), chain);
        let mut chains = match listed {
            Err(error) if lacks_nftables(&error) => return Ok(Vec::new()),
            result => result?,
        };
        for (family, chain) in &mut chains {
            if chain.closing.is_none() {
                let read = |name: &str| self.steps(*family, &chain.table, name);
                let fate = packet_fate::of_unnamed(&chain.name, read)?;
                chain.closing = (fate == Some(Fate::Refused)).then_some(Closing::Rule);
            }
        }
        Ok(chains.into_iter().map(|(_, chain)| chain).collect())
    }

    fn steps(&mut self, family: u8, table: &str, chain: &str) -> Result<Vec<Step>, Error> {
        let write = |message: &mut MessageWriter<'_>| {
            write_header(message, family, 0);
            let mut attributes = message.attributes();
            attributes.string(RULE_TABLE, table);
            attributes.string(RULE_CHAIN, chain);
        };
        self.socket.dump(GET_RULE, write, step)
    }
}

/// A base chain of the hook `input`, and its family; others are passed over.
fn chain(body: &[u8]) -> Result<Option<(u8, InputChain)>, DecodeError> {
    let [family, ..] = *body
        .first_chunk::<HEADER>()
        .ok_or_else(|| DecodeError::new("chain", "shorter than struct nfgenmsg"))?;
    let (mut table, mut name, mut hook, mut closing) = (String::new(), String::new(), None, None);
    for attribute in attributes(after_header(body)) {
        let attribute = attribute?;
        match attribute.kind {
            CHAIN_TABLE => attribute.string()?.clone_into(&mut table),
            CHAIN_NAME => attribute.string()?.clone_into(&mut name),
            CHAIN_POLICY => closing = (attribute.u32_be()? == DROP).then_some(Closing::Policy),
            CHAIN_HOOK => {
                for inner in attribute.nested() {
                    let inner = inner?;
                    if inner.kind == HOOK_NUMBER {
                        hook = Some(inner.u32_be()?);
                    }
                }
            }
            _ => {}
        }
    }
    let is_ip = family == INET || Family::BOTH.map(family_number).contains(&family);
    let is_of_iptables = family != INET && OF_IPTABLES.contains(&table.as_str());
    let is_it = is_ip && hook == Some(LOCAL_IN) && !is_of_iptables;
    Ok(is_it.then_some((family, InputChain { table, name, closing })))
}

/// Action of a rule on packets that no rule names.
fn step(body: &[u8]) -> Result<Option<Step>, DecodeError> {
    let Some(expressions) = find_inside(after_header(body), &[RULE_EXPRESSIONS])? else {
        return Ok(None);
    };
    let mut names_packets = false;
    for expression in attributes(expressions) {
        let expression = expression?.value;
        let is = |name| is_called(expression, name);
        let step = if is("reject")? {
            Some(Step::Refuse)
        } else if is("queue")? {
            Some(Step::Accept)
        } else if is("immediate")? {
            verdict(expression)?
        } else {
            // Every packet passes these.
            names_packets |= !is("counter")? && !is("log")?;
            continue;
        };
        return Ok(match step {
            Some(Step::Return) if names_packets => Some(Step::ReturnSome),
            step => step.filter(|_| !names_packets),
        });
    }
    Ok(None)
}

/// Action of an expression on each packet that comes to it; none if the packet passes it, or if it loads a value.
fn verdict(immediate: &[u8]) -> Result<Option<Step>, DecodeError> {
    let way = [EXPRESSION_DATA, IMMEDIATE_DATA, DATA_VERDICT];
    let Some(verdict) = find_inside(immediate, &way)? else { return Ok(None) };
    let code = find(verdict, VERDICT_CODE)?.and_then(|code| code.first_chunk::<4>());
    let to = || -> Result<String, DecodeError> {
        let name = find(verdict, VERDICT_CHAIN)?.unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    };
    Ok(match code.map(|code| i32::from_be_bytes(*code)) {
        Some(CONTINUE | BREAK) | None => None,
        Some(JUMP) => Some(Step::Jump(to()?)),
        Some(GO_TO) => Some(Step::GoTo(to()?)),
        Some(RETURN) => Some(Step::Return),
        Some(0) => Some(Step::Refuse),
        Some(_) => Some(Step::Accept),
    })
}

#[cfg(test)]
mod tests {
    use netlink::{AttributeWriter, Batch};

    use super::super::EXPRESSION_NAME;
    use super::*;

    /// `NFTA_LIST_ELEM`
    const ELEMENT: u16 = 1;
    /// `NF_ACCEPT`
    const ACCEPT: u32 = 1;

    #[test]
    fn a_base_chain_of_input_is_read_unless_it_is_of_iptables() {
        let read = |of: u8, table: &str, hook: u32, policy: u32| {
            let mut batch = Batch::new();
            batch.push(GET_CHAIN, 0, |message| {
                write_header(message, of, 0);
                let mut attributes = message.attributes();
                attributes.string(CHAIN_TABLE, table);
                attributes.string(CHAIN_NAME, "in");
                attributes.nested(CHAIN_HOOK, |inner| inner.u32_be(HOOK_NUMBER, hook));
                attributes.u32_be(CHAIN_POLICY, policy);
            });
            chain(batch.body(0).unwrap()).unwrap()
        };
        let expected = |of: u8, table: &str, closing| {
            Some((of, InputChain { table: table.into(), name: "in".into(), closing }))
        };
        let drops = Some(Closing::Policy);
        assert_eq!(read(INET, "filter", LOCAL_IN, DROP), expected(INET, "filter", drops));
        assert_eq!(read(2, "mine", LOCAL_IN, ACCEPT), expected(2, "mine", None));
        assert_eq!(read(2, "filter", LOCAL_IN, DROP), None, "of iptables");
        assert_eq!(read(INET, "mine", 2, DROP), None, "of the hook forward");
        assert_eq!(read(7, "mine", LOCAL_IN, DROP), None, "of bridges");
    }

    fn named(list: &mut AttributeWriter<'_>, name: &str) {
        list.nested(ELEMENT, |expression| expression.string(EXPRESSION_NAME, name));
    }

    fn gives_to(list: &mut AttributeWriter<'_>, code: i32, to: Option<&str>) {
        list.nested(ELEMENT, |expression| {
            expression.string(EXPRESSION_NAME, "immediate");
            expression.nested(EXPRESSION_DATA, |data| {
                data.nested(IMMEDIATE_DATA, |data| {
                    data.nested(DATA_VERDICT, |verdict| {
                        verdict.u32_be(VERDICT_CODE, code.cast_unsigned());
                        if let Some(to) = to {
                            verdict.string(VERDICT_CHAIN, to);
                        }
                    });
                });
            });
        });
    }

    fn gives(list: &mut AttributeWriter<'_>, code: i32) {
        gives_to(list, code, None);
    }

    fn read(write: impl FnOnce(&mut AttributeWriter<'_>)) -> Option<Step> {
        let mut batch = Batch::new();
        batch.push(GET_RULE, 0, |message| {
            write_header(message, INET, 0);
            message.attributes().nested(RULE_EXPRESSIONS, |list| write(list));
        });
        step(batch.body(0).unwrap()).unwrap()
    }

    #[test]
    fn a_rule_decides_about_every_packet_if_it_names_none() {
        assert_eq!(read(|list| gives(list, 0)), Some(Step::Refuse));
        assert_eq!(read(|list| named(list, "reject")), Some(Step::Refuse));
        let logged = read(|list| {
            named(list, "counter");
            named(list, "log");
            gives(list, 0);
        });
        assert_eq!(logged, Some(Step::Refuse));
        assert_eq!(read(|list| gives(list, 1)), Some(Step::Accept));
        assert_eq!(read(|list| named(list, "queue")), Some(Step::Accept));
        assert_eq!(read(|list| gives(list, RETURN)), Some(Step::Return));
        assert_eq!(read(|list| gives(list, CONTINUE)), None);
        let jump = read(|list| gives_to(list, JUMP, Some("zones")));
        assert_eq!(jump, Some(Step::Jump("zones".into())));
        let go_to = read(|list| gives_to(list, GO_TO, Some("public")));
        assert_eq!(go_to, Some(Step::GoTo("public".into())));
        assert_eq!(read(|list| named(list, "counter")), None);
    }

    #[test]
    fn of_a_rule_that_names_packets_only_a_return_matters() {
        for (code, expected) in [(0, None), (1, None), (RETURN, Some(Step::ReturnSome))] {
            let found = read(|list| {
                named(list, "meta");
                named(list, "cmp");
                gives(list, code);
            });
            assert_eq!(found, expected);
        }
        let rejected = read(|list| {
            named(list, "meta");
            named(list, "reject");
        });
        assert_eq!(rejected, None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _any = chain(&body);
            let _any = (step(&body), verdict(&body));
        }
    }
}
