//! The rules that `iptables-legacy` keeps in x_tables.
//!
//! The kernel has a table as one block of entries, which it hands out whole, and counts no changes
//! to it. So the block is read and our part of it hashed, without counters, and with names instead
//! of the places that jumps lead to, which change with everything that stands before them.
//!
//! Source: include/uapi/linux/netfilter/x_tables.h, netfilter_ipv4/ip_tables.h and
//! netfilter_ipv6/ip6_tables.h.

mod block;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use netlink::{Error, OptionSocket};
use plan::model::Family;
use plan::rule_set::Table;
use rustix::io::Errno;

use super::prints::{ChainKey, Prints};
use super::{Look, Mark, Watched};
use block::{Block, Info, Shape};

/// `IPT_SO_GET_INFO`, `IP6T_SO_GET_INFO`
const GET_INFO: i32 = 64;
/// `IPT_SO_GET_ENTRIES`, `IP6T_SO_GET_ENTRIES`
const GET_ENTRIES: i32 = 65;
/// `XT_TABLE_MAXNAMELEN`
const NAME_LENGTH: usize = 32;
/// `struct ipt_get_entries` without its entries: name, size (u32), padding.
const ENTRIES_HEADER: usize = 40;
/// Up to this size, in bytes, entries are read at each look; larger tables, less often in
/// proportion. The kernel sums the counters of all processors for each entry.
const READ_AT_EACH_LOOK: u32 = 256 << 10;
/// Maximum number of reads of a table that others change at the same time.
const ATTEMPTS: usize = 8;

/// One family's tables.
#[derive(Debug)]
pub(super) struct LegacyTables {
    socket: OptionSocket,
    shape: Shape,
    /// Properties of the tables that the last fingerprint is of, one for each table.
    infos: Vec<Info>,
    /// Looks since then.
    looks: u32,
}

/// Returns the chains of a family in these tables, which are there: a table that is asked for is made.
pub(in crate::rules) fn chain_names(
    family: Family,
    of: &[Table],
) -> Result<Vec<(Table, String)>, Error> {
    let tables = LegacyTables::open(family)?;
    let mut found = Vec::new();
    for table in of {
        let Some(block) = tables.block(*table)? else { continue };
        // A map has them in any order, and a table is to read the same each time.
        let mut names: Vec<String> = block.names().collect();
        names.sort_unstable();
        found.extend(names.into_iter().map(|chain| (*table, chain)));
    }
    Ok(found)
}

/// True if a chain of a table that is there has a rule.
pub(in crate::rules) fn has_rules(
    family: Family,
    table: Table,
    chain: &str,
) -> Result<bool, Error> {
    let block = LegacyTables::open(family)?.block(table)?;
    let rules = block.map(|block| block.rules(chain)).transpose()?;
    Ok(rules.is_some_and(|rules| !rules.is_empty()))
}

/// Returns the chains that the rules of a chain lead to, in the order of the rules. The table is there: one
/// that is asked for is made.
pub(in crate::rules) fn destinations(
    family: Family,
    table: Table,
    chain: &str,
) -> Result<Vec<String>, Error> {
    let block = LegacyTables::open(family)?.block(table)?;
    Ok(block.map(|block| block.destinations(chain)).transpose()?.unwrap_or_default())
}

impl LegacyTables {
    pub(super) fn open(family: Family) -> Result<Self, Error> {
        let (socket, shape) = match family {
            Family::V4 => (OptionSocket::ipv4()?, Shape::V4),
            Family::V6 => (OptionSocket::ipv6()?, Shape::V6),
        };
        Ok(Self { socket, shape, infos: Vec::new(), looks: 0 })
    }

    /// True if tables too large to be read at each look seem to be as they were, and it is not yet
    /// time to read them again.
    pub(super) fn seems_unchanged(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        let size: u32 = self.infos.iter().map(|info| info.size).fold(0, u32::saturating_add);
        self.looks <= size / READ_AT_EACH_LOOK
            && Table::ALL.iter().zip(&self.infos).all(|(table, known)| {
                self.info(*table).is_ok_and(|info| info.as_ref() == Some(known))
            })
    }

    /// Hashes all rules of all tables; none while a table is missing.
    pub(super) fn mark(&mut self) -> Result<Option<Mark>, Error> {
        let mut hasher = DefaultHasher::new();
        for table in Table::ALL {
            let Some((_, bytes)) = self.read(table)? else { return Ok(None) };
            block::hash_all(self.shape, &bytes, &mut hasher)?;
        }
        Ok(Some(hasher.finish()))
    }

    /// Looks at everything that counts.
    pub(super) fn look(&mut self, watched: &Watched) -> Result<Look, Error> {
        self.infos.clear();
        self.looks = 0;
        let mut services = Prints::default();
        let mut has_all = true;
        let (mut hasher, mut hasher_of_all) = (DefaultHasher::new(), DefaultHasher::new());
        for table in Table::ALL {
            let Some((info, bytes)) = self.read(table)? else { return Ok(Look::default()) };
            block::hash_all(self.shape, &bytes, &mut hasher_of_all)?;
            let block = Block::new(self.shape, info, bytes)?;
            let ours = watched.destinations(table);
            for chain in watched.chains(table) {
                block.hash_chain(chain, &mut hasher)?;
            }
            for chain in watched.origins(table) {
                chain.hash(&mut hasher);
                let found = block.hash_jumps(chain, &ours, &mut hasher)?;
                if !watched.has_all_jumps(table, chain, &found) {
                    has_all = false;
                }
            }
            if watched.services {
                for chain in block.names() {
                    let Some(key) = ChainKey::of(table, &chain) else { continue };
                    block.rules(&chain)?.into_iter().for_each(|rule| services.add(key, rule));
                }
            }
            self.infos.push(block.info);
        }
        let constant = has_all.then(|| hasher.finish());
        Ok(Look { mark: Some(hasher_of_all.finish()), constant, services })
    }

    /// None if the kernel has no such table yet.
    fn info(&self, table: Table) -> Result<Option<Info>, Error> {
        let mut buffer = [0; NAME_LENGTH + Info::LENGTH];
        write_name(&mut buffer, table);
        let lacking = [Errno::NOENT, Errno::NOPROTOOPT].map(|errno| Some(errno.raw_os_error()));
        match self.socket.get(GET_INFO, &mut buffer) {
            Ok(_) => Ok(Some(Info::decode(buffer.get(NAME_LENGTH..).unwrap_or_default())?)),
            Err(error) if lacking.contains(&error.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a table; none if the kernel has no such table yet.
    fn block(&self, table: Table) -> Result<Option<Block>, Error> {
        let Some((info, bytes)) = self.read(table)? else { return Ok(None) };
        Ok(Some(Block::new(self.shape, info, bytes)?))
    }

    /// Reads the entries of a table; none if the kernel has no such table yet.
    fn read(&self, table: Table) -> Result<Option<(Info, Vec<u8>)>, Error> {
        let mut attempt = 1;
        loop {
            let Some(info) = self.info(table)? else { return Ok(None) };
            let mut buffer = vec![0; ENTRIES_HEADER + info.size as usize];
            write_name(&mut buffer, table);
            for (place, byte) in buffer.iter_mut().skip(NAME_LENGTH).zip(info.size.to_ne_bytes()) {
                *place = byte;
            }
            match self.socket.get(GET_ENTRIES, &mut buffer) {
                Ok(_) => {
                    buffer.drain(..ENTRIES_HEADER);
                    return Ok(Some((info, buffer)));
                }
                // It has another size by now (`get_entries` in net/ipv4/netfilter/ip_tables.c).
                Err(error)
                    if attempt < ATTEMPTS
                        && error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn write_name(buffer: &mut [u8], table: Table) {
    for (place, byte) in buffer.iter_mut().zip(table.name().bytes()) {
        *place = byte;
    }
}
