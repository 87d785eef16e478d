//! Base chains of the hook `input` that are not iptables', and whether they let a packet pass that none of their
//! rules names.

use netlink::{DecodeError, Error, MessageWriter, attributes};
use plan::model::Family;

use super::{
    CHAIN_NAME, CHAIN_TABLE, DATA_VERDICT, EXPRESSION_DATA, GET_CHAIN, GET_RULE, HEADER,
    IMMEDIATE_DATA, NftablesClient, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, after_header,
    family_number, find_inside, is_called, lacks_nftables, write_header,
};

/// `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`, `NFTA_HOOK_HOOKNUM`, `NFTA_VERDICT_CODE`
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
const VERDICT_CODE: u16 = 1;
/// `NF_INET_LOCAL_IN`, `NF_DROP` (include/uapi/linux/netfilter.h)
const LOCAL_IN: u32 = 1;
const DROP: u32 = 0;
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
    /// Its last rule drops or rejects every packet.
    LastRule,
}

// === impl NftablesClient ===

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
            if chain.closing.is_none() && self.refuses_the_rest(*family, chain)? {
                chain.closing = Some(Closing::LastRule);
            }
        }
        Ok(chains.into_iter().map(|(_, chain)| chain).collect())
    }

    fn refuses_the_rest(&mut self, family: u8, chain: &InputChain) -> Result<bool, Error> {
        let write = |message: &mut MessageWriter<'_>| {
            write_header(message, family, 0);
            let mut attributes = message.attributes();
            attributes.string(RULE_TABLE, &chain.table);
            attributes.string(RULE_CHAIN, &chain.name);
        };
        let rules =
            self.socket.dump(GET_RULE, write, |body| refuses_every_packet(body).map(Some))?;
        Ok(rules.last().copied().unwrap_or_default())
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

/// True if a rule names no packets, and drops or rejects.
fn refuses_every_packet(body: &[u8]) -> Result<bool, DecodeError> {
    let Some(expressions) = find_inside(after_header(body), &[RULE_EXPRESSIONS])? else {
        return Ok(false);
    };
    for expression in attributes(expressions) {
        let expression = expression?.value;
        let is = |name| is_called(expression, name);
        if is("reject")? {
            return Ok(true);
        }
        if is("immediate")? {
            let way = [EXPRESSION_DATA, IMMEDIATE_DATA, DATA_VERDICT, VERDICT_CODE];
            return Ok(find_inside(expression, &way)? == Some(&DROP.to_be_bytes()));
        }
        // Every packet passes these.
        if !is("counter")? && !is("log")? {
            return Ok(false);
        }
    }
    Ok(false)
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

    fn verdict(list: &mut AttributeWriter<'_>, code: u32) {
        list.nested(ELEMENT, |expression| {
            expression.string(EXPRESSION_NAME, "immediate");
            expression.nested(EXPRESSION_DATA, |data| {
                data.nested(IMMEDIATE_DATA, |data| {
                    data.nested(DATA_VERDICT, |verdict| verdict.u32_be(VERDICT_CODE, code));
                });
            });
        });
    }

    #[test]
    fn a_rule_refuses_every_packet_if_it_names_none() {
        let refuses = |write: &dyn Fn(&mut AttributeWriter<'_>)| {
            let mut batch = Batch::new();
            batch.push(GET_RULE, 0, |message| {
                write_header(message, INET, 0);
                message.attributes().nested(RULE_EXPRESSIONS, |list| write(list));
            });
            refuses_every_packet(batch.body(0).unwrap()).unwrap()
        };
        assert!(refuses(&|list| verdict(list, DROP)));
        assert!(refuses(&|list| named(list, "reject")));
        assert!(refuses(&|list| {
            named(list, "counter");
            named(list, "log");
            verdict(list, DROP);
        }));
        assert!(!refuses(&|list| verdict(list, ACCEPT)));
        assert!(!refuses(&|list| named(list, "counter")));
        assert!(!refuses(&|list| {
            named(list, "meta");
            named(list, "cmp");
            verdict(list, DROP);
        }));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _any = chain(&body);
            let _any = refuses_every_packet(&body);
        }
    }
}
