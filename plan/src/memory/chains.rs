//! Chains of iptables mode in memory.

use std::sync::Arc;

use super::{MemoryRefusal, refuse_if};
use crate::chains::ChainOp;
use crate::chains::{ChainId, ChainName};
use crate::hash::HashMap;

type Chains = HashMap<ChainId, Vec<Box<str>>>;

pub(super) fn apply(chains: &mut Chains, op: &ChainOp) -> Result<(), MemoryRefusal> {
    match op {
        ChainOp::Write(chain, rules) => write(chains, *chain, rules),
        ChainOp::Insert(chain, rule) => {
            targets_exist(chains, *chain, rule)?;
            let rules = chains.get_mut(chain).ok_or(MemoryRefusal::NoChain)?;
            rules.insert(0, (&**rule).into());
            Ok(())
        }
        ChainOp::Delete(chain, rule) => {
            let rules = chains.get_mut(chain).ok_or(MemoryRefusal::NoChain)?;
            let at = rules.iter().position(|it| **it == **rule).ok_or(MemoryRefusal::NoRule)?;
            rules.remove(at);
            Ok(())
        }
        ChainOp::Remove(chain) => {
            refuse_if(!chains.contains_key(chain), MemoryRefusal::NoChain)?;
            refuse_if(is_in_use(chains, chain), MemoryRefusal::ChainInUse)?;
            chains.remove(chain);
            Ok(())
        }
    }
}

fn write(
    chains: &mut Chains,
    chain: ChainId,
    rules: &Arc<[Box<str>]>,
) -> Result<(), MemoryRefusal> {
    rules.iter().try_for_each(|rule| targets_exist(chains, chain, rule))?;
    chains.insert(chain, rules.to_vec());
    Ok(())
}

/// Refuses a rule that leads to a chain of ours which is not there.
fn targets_exist(chains: &Chains, from: ChainId, rule: &str) -> Result<(), MemoryRefusal> {
    let target = target(rule).and_then(|name| ChainName::parse(from.table, name));
    let is_there = |name| chains.contains_key(&ChainId { name, ..from });
    refuse_if(target.is_some_and(|name| !is_there(name)), MemoryRefusal::NoChain)
}

fn is_in_use(chains: &Chains, chain: &ChainId) -> bool {
    let name = chain.name.to_string();
    let of_table = |it: &&ChainId| (it.family, it.table) == (chain.family, chain.table);
    let others = chains.iter().filter(|(it, _)| of_table(it) && *it != chain);
    others.flat_map(|(_, rules)| rules).any(|rule| target(rule) == Some(&*name))
}

fn target(rule: &str) -> Option<&str> {
    rule.split_once("-j ")?.1.split(' ').next()
}
