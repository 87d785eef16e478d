//! Tables of nf_tables: our own, with the sets and rules of IPVS mode in one of its forms; and kube-proxy's, of its nftables
//! mode, which are removed. Base chains of others are read.

mod devices;
mod filter;
mod flow_tables;
mod own_tables;
mod pacing;
mod words;

use nftables::{Batch, Chain, Client, Error, Name, TableId};
use plan::actual::ActualSet;
use plan::model::Family;
use plan::rule_set::nft;
use plan::sets::SetId;

use crate::ReadError;

pub(crate) use filter::{Closing, FilterChain, FilterHook, filter_chains};
pub use own_tables::OwnTables;
use words::family_of;

/// kube-proxy's table in its nftables mode, one a family.
pub const KUBE_PROXY: &str = "kube-proxy";

/// True if chains of ours in nf_tables lead a family's connections.
///
/// # Errors
/// When they cannot be listed. A kernel without nf_tables has none.
pub fn own_chains_lead(family: Family) -> Result<bool, Error> {
    let led = own_chains(
        &mut match Client::open() {
            Err(error) if error.is_unsupported() => return Ok(false),
            client => client?,
        },
        family,
    )?;
    Ok(led.iter().any(|chain| chain.base.is_some_and(|base| base.hook == nftables::Hook::Output)))
}

/// Reads the sets of our tables, where there are some.
pub(crate) fn own_sets() -> Result<Vec<(SetId, ActualSet)>, ReadError> {
    let families =
        families_with(nft::TABLE).map_err(|error| ReadError::new("tables of nf_tables", error))?;
    if families.is_empty() {
        return Ok(Vec::new());
    }
    let (mut tables, mut sets) = (OwnTables::open_to_read(&families)?, Vec::new());
    for set in families.into_iter().flat_map(SetId::all) {
        sets.extend(tables.read_set(set)?.map(|found| (set, found)));
    }
    Ok(sets)
}

/// Removes all chains of a family from our table in nf_tables, and its flow table. Its sets stay.
///
/// # Errors
/// The kernel's refusal; `EPERM` if the table is another process's.
pub fn remove_own_chains(family: Family) -> Result<(), Error> {
    let mut client = Client::open()?;
    let mut batch = Batch::new();
    let chains = own_chains(&mut client, family)?;
    chains.iter().for_each(|chain| batch.flush_chain(&chain.table, &chain.name));
    chains.iter().for_each(|chain| batch.delete_chain(&chain.table, &chain.name));
    if let Some(Chain { table, .. }) = chains.first() {
        let found = client.list_flow_tables(table)?;
        found.iter().for_each(|it| batch.delete_flow_table(table, &it.name));
    }
    client.commit(batch)
}

fn own_chains(client: &mut Client, family: Family) -> Result<Vec<Chain>, Error> {
    let Ok(name) = Name::new(nft::TABLE) else { return Ok(Vec::new()) };
    let table = TableId::new(family_of(family), name);
    match client.table(&table) {
        Err(error) if error.is_not_found() || error.is_unsupported() => return Ok(Vec::new()),
        found => found?,
    };
    let mut chains = client.list_chains()?;
    chains.retain(|chain| chain.table == table);
    Ok(chains)
}

/// Returns the families that have a table of this name.
///
/// # Errors
/// When the tables could not be listed. A kernel without nf_tables has none.
pub fn families_with(table: &str) -> Result<Vec<Family>, Error> {
    let tables = none_if_unsupported(Client::open().and_then(|mut client| client.list_tables()))?;
    let has = |family: &Family| {
        let of = family_of(*family);
        tables.iter().any(|found| found.id.family == of && found.id.name.as_str() == table)
    };
    Ok(Family::BOTH.into_iter().filter(has).collect())
}

/// Removes a table with everything in it.
///
/// # Errors
/// The kernel's refusal, but for a table that is not there.
pub fn remove_table(family: Family, table: &str) -> Result<(), Error> {
    // No table has a name that is none.
    let Ok(name) = Name::new(table) else { return Ok(()) };
    let mut batch = Batch::new();
    batch.delete_table(&TableId::new(family_of(family), name));
    match Client::open()?.commit(batch) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// A kernel without nf_tables has nothing to list.
fn none_if_unsupported<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match listed {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        listed => listed,
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "kernel-tests")]
    mod kernel;
}
