//! Changes of chains as values.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::name::{ChainId, ChainName};
use crate::rule_set::{Table, meaning};

/// A change of a chain of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainOp {
    /// Make a chain with these rules, or give one that is there these rules and no others.
    Write(ChainId, Arc<[Box<str>]>),
    /// Put a rule before all others of a shared chain.
    Insert(ChainId, Arc<str>),
    /// Take a rule out of a shared chain.
    Delete(ChainId, Arc<str>),
    /// Remove a chain with its rules. No rule leads to it any more.
    Remove(ChainId),
}

/// Subject of a [`ChainOp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainSubject {
    /// A chain with its rules.
    Chain(ChainId),
    /// A rule of a shared chain.
    Rule(ChainId, RuleDigest),
}

/// Digest of what a rule means: the same however the iptables of a host prints the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleDigest(u64);

/// Digest of what a chain's rules mean, in their order. Not a number, which would take 16 more bytes
/// beside a chain's name: there are as many chains as endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainDigest([u8; 16]);

/// A chain's digest in the making.
#[derive(Debug, Clone, Default)]
pub struct ChainDigester(Sha256);

impl ChainOp {
    /// Returns the chain that it changes.
    #[must_use]
    pub const fn chain(&self) -> ChainId {
        match self {
            Self::Write(chain, _)
            | Self::Insert(chain, _)
            | Self::Delete(chain, _)
            | Self::Remove(chain) => *chain,
        }
    }

    #[must_use]
    pub fn subject(&self) -> ChainSubject {
        match self {
            Self::Write(chain, _) | Self::Remove(chain) => ChainSubject::Chain(*chain),
            Self::Insert(chain, rule) | Self::Delete(chain, rule) => {
                ChainSubject::Rule(*chain, RuleDigest::of(rule))
            }
        }
    }

    /// Returns the number of rules that it writes.
    #[must_use]
    pub fn n_written(&self) -> usize {
        match self {
            Self::Write(_, rules) => rules.len(),
            Self::Insert(..) => 1,
            Self::Delete(..) | Self::Remove(_) => 0,
        }
    }

    /// Returns its place among changes of chains. Each table changes in one step, and two tables do
    /// not: a frontend is led to its endpoints (nat) before it is no longer refused (filter), and
    /// refused before it is no longer led there. A chain is there before a rule leads to it, and
    /// goes after the last such rule. A shared chain of nat that is written again loses rules; those
    /// that it gets have been inserted before.
    ///
    /// Without operations on filter between them, all operations on nat are one step.
    #[must_use]
    pub const fn phase(&self) -> u8 {
        match (self.chain().table, self) {
            (Table::Nat, Self::Write(chain, _)) if !chain.name.is_shared() => chain.name.depth(),
            (Table::Nat, Self::Insert(..)) => ChainName::SHARED_DEPTH,
            (Table::Filter | Table::Mangle, Self::Write(..) | Self::Insert(..)) => {
                ChainName::SHARED_DEPTH + 1
            }
            (Table::Filter | Table::Mangle, Self::Delete(..) | Self::Remove(_)) => {
                ChainName::SHARED_DEPTH + 2
            }
            (Table::Nat, Self::Write(..) | Self::Delete(..)) => ChainName::SHARED_DEPTH + 3,
            (Table::Nat, Self::Remove(chain)) => {
                2 * ChainName::SHARED_DEPTH + 4 - chain.name.depth()
            }
        }
    }
}

impl fmt::Display for ChainOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(chain, rules) => write!(f, "write chain {chain} of {} rules", rules.len()),
            Self::Insert(chain, rule) => write!(f, "insert rule {rule} into chain {chain}"),
            Self::Delete(chain, rule) => write!(f, "delete rule {rule} from chain {chain}"),
            Self::Remove(chain) => write!(f, "remove chain {chain}"),
        }
    }
}

impl ChainSubject {
    /// Returns the chain that it is, or is in.
    #[must_use]
    pub const fn chain(&self) -> ChainId {
        match self {
            Self::Chain(chain) | Self::Rule(chain, _) => *chain,
        }
    }
}

impl fmt::Display for ChainSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(chain) => write!(f, "chain {chain}"),
            Self::Rule(chain, digest) => write!(f, "rule {:016x} of chain {chain}", digest.0),
        }
    }
}

impl RuleDigest {
    /// The digest of a rule.
    #[must_use]
    pub fn of(rule: &str) -> Self {
        let mut digest = Sha256::new();
        add_meaning(&mut digest, rule);
        Self(
            digest.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }
}

impl ChainDigest {
    /// The digest of rules in their order.
    pub fn of<T: AsRef<str>>(rules: impl IntoIterator<Item = T>) -> Self {
        let mut digester = ChainDigester::default();
        rules.into_iter().for_each(|rule| digester.add(rule.as_ref()));
        digester.finish()
    }
}

impl ChainDigester {
    /// Adds the next rule.
    pub fn add(&mut self, rule: &str) {
        add_meaning(&mut self.0, rule);
        self.0.update([RULE_END]);
    }

    /// Returns the digest of the rules so far.
    #[must_use]
    pub fn finish(self) -> ChainDigest {
        let mut digest = [0; 16];
        digest.iter_mut().zip(self.0.finalize()).for_each(|(to, from)| *to = from);
        ChainDigest(digest)
    }
}

/// Bytes that no rule has.
const WORD_END: u8 = 0x1f;
const GROUP_END: u8 = 0x1e;
const RULE_END: u8 = 0x1d;

fn add_meaning(digest: &mut Sha256, rule: &str) {
    for group in meaning(rule) {
        for word in group {
            digest.update(word.as_bytes());
            digest.update([WORD_END]);
        }
        digest.update([GROUP_END]);
    }
}
