//! Tables of nf_tables that are other programs': kube-proxy's nftables mode has its own in each family, which is removed.
//! Base chains are read.

mod input;
mod own_tables;
mod words;

use nftables::{Batch, Client, Error, Name, TableId};
use plan::model::Family;

pub(crate) use input::{Closing, InputChain, input_chains};
pub use own_tables::OwnTables;
use words::family_of;

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
