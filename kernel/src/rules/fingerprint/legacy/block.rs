//! A table of x_tables as one block of bytes: entries of chains, one behind the other.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use netlink::DecodeError;
use plan::hash::HashMap;

/// `NF_INET_NUMHOOKS` (include/uapi/linux/netfilter.h), and what the built-in chains there are
/// called.
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `struct xt_entry_target`: size (u16), name, revision (u8).
const TARGET_HEADER: usize = 32;
const TARGET_NAME: usize = 2;
/// `XT_EXTENSION_MAXNAMELEN`
const TARGET_NAME_LENGTH: usize = 29;
/// The verdict of a standard target, an int: where to go on, if it is not negative.
const VERDICT_LENGTH: usize = 4;
/// `XT_ERROR_TARGET`: begins a chain that is not built in, and ends the block.
const ERROR_TARGET: &[u8] = b"ERROR";
/// `XT_FUNCTION_MAXNAMELEN`
const CHAIN_NAME_LENGTH: usize = 30;

/// Layout of an entry: `struct ipt_entry` or `struct ip6t_entry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    V4,
    V6,
}

/// Properties of a table: `struct ipt_getinfo` without the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Info {
    valid_hooks: u32,
    hook_entry: [u32; HOOKS.len()],
    underflow: [u32; HOOKS.len()],
    entries: u32,
    /// Size of the entries, in bytes.
    pub(super) size: u32,
}

/// A table, cut into chains.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) info: Info,
    shape: Shape,
    bytes: Vec<u8>,
    /// Offset at which each chain begins.
    chains: HashMap<Vec<u8>, usize>,
    /// Chain that begins at each of these offsets.
    names: HashMap<usize, Vec<u8>>,
    /// Offsets of each chain's first entry, in order, and of the end.
    bounds: Vec<usize>,
}

/// One entry.
#[derive(Debug, Clone, Copy)]
struct BlockEntry<'a> {
    length: usize,
    /// Addresses, interfaces and protocol that a packet must have.
    header: &'a [u8],
    /// Everything between counters and target.
    matches: &'a [u8],
    target: &'a [u8],
}

/// Adds all entries of a table, but for their counters.
pub(super) fn hash_all(
    shape: Shape,
    bytes: &[u8],
    hasher: &mut DefaultHasher,
) -> Result<(), DecodeError> {
    let mut at = 0;
    while at < bytes.len() {
        let entry = BlockEntry::at(shape, bytes, at)?;
        (entry.header, entry.matches, entry.target).hash(hasher);
        at += entry.length;
    }
    Ok(())
}

impl Shape {
    /// `struct ipt_ip` and `struct ip6t_ip6`.
    const fn header(self) -> usize {
        match self {
            Self::V4 => 84,
            Self::V6 => 136,
        }
    }

    /// Returns the place of the target's offset, behind `nfcache`; the next entry's offset follows.
    const fn offsets(self) -> usize {
        self.header() + 4
    }

    /// Returns the length of everything before the first match.
    const fn length(self) -> usize {
        match self {
            Self::V4 => 112,
            Self::V6 => 168,
        }
    }
}

impl Info {
    pub(super) const LENGTH: usize = 4 * (1 + 2 * HOOKS.len() + 2);

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut words = bytes.chunks_exact(4).filter_map(|word| word.first_chunk::<4>());
        let mut word = || {
            let short = || DecodeError::new("table", "shorter than struct ipt_getinfo");
            words.next().map(|word| u32::from_ne_bytes(*word)).ok_or_else(short)
        };
        let mut info = Self {
            valid_hooks: word()?,
            hook_entry: [0; HOOKS.len()],
            underflow: [0; HOOKS.len()],
            entries: 0,
            size: 0,
        };
        for place in info.hook_entry.iter_mut().chain(&mut info.underflow) {
            *place = word()?;
        }
        info.entries = word()?;
        info.size = word()?;
        Ok(info)
    }
}

impl Block {
    pub(super) fn new(shape: Shape, info: Info, bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let mut begins: Vec<(usize, Vec<u8>)> = HOOKS
            .iter()
            .zip(info.hook_entry)
            .enumerate()
            .filter(|(hook, _)| info.valid_hooks & 1 << hook != 0)
            .map(|(_, (name, begin))| (begin as usize, name.as_bytes().to_vec()))
            .collect();
        let mut bounds: Vec<usize> = begins.iter().map(|(begin, _)| *begin).collect();
        let mut at = 0;
        while at < bytes.len() {
            let entry = BlockEntry::at(shape, &bytes, at)?;
            // What names a chain is none of its rules, nor of those before; nor is the last entry.
            if let Some(name) = entry.label() {
                bounds.push(at);
                bounds.push(at + entry.length);
                if name != ERROR_TARGET {
                    begins.push((at + entry.length, name.to_vec()));
                }
            }
            at += entry.length;
        }
        bounds.push(bytes.len());
        bounds.sort_unstable();
        let chains = begins.iter().map(|(begin, name)| (name.clone(), *begin)).collect();
        let names = begins.into_iter().collect();
        Ok(Self { info, shape, bytes, chains, names, bounds })
    }

    /// Names of all chains.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.chains.keys().map(|name| String::from_utf8_lossy(name).into_owned())
    }

    /// A hash of each rule of a chain. The last entry, which every chain has, is none.
    pub(super) fn rules(&self, chain: &str) -> Result<Vec<u64>, DecodeError> {
        let mut rules = Vec::new();
        for entry in self.entries(chain) {
            let mut hasher = DefaultHasher::new();
            self.hash_entry(&entry?, &mut hasher);
            rules.push(hasher.finish());
        }
        rules.pop();
        Ok(rules)
    }

    /// Adds everything that a chain says, and whether it is there.
    pub(super) fn hash_chain(
        &self,
        chain: &str,
        hasher: &mut DefaultHasher,
    ) -> Result<(), DecodeError> {
        (chain, self.chains.contains_key(chain.as_bytes())).hash(hasher);
        for entry in self.entries(chain) {
            self.hash_entry(&entry?, hasher);
        }
        Ok(())
    }

    /// Adds those rules of a chain that lead into one of `ours`, and returns where they lead.
    pub(super) fn hash_jumps(
        &self,
        chain: &str,
        ours: &[&str],
        hasher: &mut DefaultHasher,
    ) -> Result<Vec<String>, DecodeError> {
        let mut found = Vec::new();
        for entry in self.entries(chain) {
            let entry = entry?;
            let to = self.destination(&entry);
            if let Some(ours) = ours.iter().find(|name| to == Some(name.as_bytes())) {
                found.push((*ours).to_owned());
                self.hash_entry(&entry, hasher);
            }
        }
        Ok(found)
    }

    /// Returns the chains that the rules of a chain lead to, in the order of the rules.
    pub(super) fn destinations(&self, chain: &str) -> Result<Vec<String>, DecodeError> {
        let mut found = Vec::new();
        for entry in self.entries(chain) {
            let to = self.destination(&entry?);
            found.extend(to.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        Ok(found)
    }

    fn entries<'a>(
        &'a self,
        chain: &str,
    ) -> impl Iterator<Item = Result<BlockEntry<'a>, DecodeError>> + use<'a> {
        let begin = self.chains.get(chain.as_bytes()).copied().unwrap_or(self.bytes.len());
        let next = self.bounds.partition_point(|bound| *bound <= begin);
        let end = self.bounds.get(next).copied().unwrap_or(begin);
        let mut at = begin;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let entry = BlockEntry::at(self.shape, &self.bytes, at);
            at = entry.as_ref().map_or(end, |entry| at + entry.length);
            Some(entry)
        })
    }

    fn destination(&self, entry: &BlockEntry<'_>) -> Option<&[u8]> {
        let place = usize::try_from(entry.verdict()?).ok()?;
        self.names.get(&place).map(Vec::as_slice)
    }

    fn hash_entry(&self, entry: &BlockEntry<'_>, hasher: &mut DefaultHasher) {
        (entry.header, entry.matches).hash(hasher);
        match (self.destination(entry), entry.verdict()) {
            (Some(name), _) => (entry.target_name(), name).hash(hasher),
            // On to the next rule: a place, but always the same one.
            (None, Some(0..)) => entry.target_name().hash(hasher),
            (None, _) => entry.target.hash(hasher),
        }
    }
}

impl<'a> BlockEntry<'a> {
    fn at(shape: Shape, bytes: &'a [u8], at: usize) -> Result<Self, DecodeError> {
        let broken = || DecodeError::new("entry of a table", "its lengths do not fit");
        let rest = bytes.get(at..).ok_or_else(broken)?;
        let offsets = rest.get(shape.offsets()..).and_then(|rest| rest.first_chunk::<4>());
        let [t0, t1, n0, n1] = *offsets.ok_or_else(broken)?;
        let target = usize::from(u16::from_ne_bytes([t0, t1]));
        let length = usize::from(u16::from_ne_bytes([n0, n1]));
        if length < shape.length() + TARGET_HEADER {
            return Err(broken());
        }
        Ok(Self {
            length,
            header: rest.get(..shape.header()).ok_or_else(broken)?,
            matches: rest.get(shape.length()..target).ok_or_else(broken)?,
            target: rest
                .get(target..length)
                .filter(|target| target.len() >= TARGET_HEADER)
                .ok_or_else(broken)?,
        })
    }

    fn target_name(&self) -> &'a [u8] {
        text(self.target.get(TARGET_NAME..TARGET_NAME + TARGET_NAME_LENGTH).unwrap_or_default())
    }

    /// Returns the name in an error target: of the chain that begins behind it, or of the target
    /// itself at the block's end.
    fn label(&self) -> Option<&'a [u8]> {
        let name = text(self.target.get(TARGET_HEADER..TARGET_HEADER + CHAIN_NAME_LENGTH)?);
        (self.target_name() == ERROR_TARGET).then_some(name)
    }

    /// Returns the verdict of a standard target, whose name is empty.
    fn verdict(&self) -> Option<i32> {
        let verdict = self.target.get(TARGET_HEADER..)?.first_chunk::<VERDICT_LENGTH>()?;
        self.target_name().is_empty().then(|| i32::from_ne_bytes(*verdict))
    }
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
