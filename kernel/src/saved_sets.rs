//! Sets of mode ipvs in the words of `ipset save`, whether they are in ipset or in tables of nf_tables.

use plan::actual::ActualSet;
use plan::capacity::SetSize;
use plan::sets::SetId;
use plan::settings::RuleForm;

use super::nftables::own_sets;
use super::{ReadError, loaded, translate};

/// A set with its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedSet {
    pub set: SetId,
    /// Form of the rules that look into it: in ipset, or in nf_tables.
    pub form: RuleForm,
    /// What `ipset create` makes it with.
    pub creation: String,
    /// Its entries as `ipset` writes them, sorted.
    pub entries: Vec<String>,
    /// Number of entries of another shape.
    pub n_unknown: usize,
}

/// Reads our sets in the calling thread's network namespace, kube-proxy's as well. Nothing is changed.
///
/// # Errors
/// When a set cannot be read. A kernel without ipset, or without nf_tables, has none there.
pub fn read() -> Result<Vec<SavedSet>, ReadError> {
    let mut saved = Vec::new();
    if let Some(mut ipset) = loaded::ipset()? {
        let unread = |error| ReadError::new("sets of ipset", error);
        for name in ipset.list_names().map_err(unread)? {
            let Some(set) = SetId::by_name(&name.to_string()) else { continue };
            let found = ipset.list(name).map_err(unread)?;
            if translate::is_same_kind(set, &found.header.identity) {
                saved.push(SavedSet::new(set, RuleForm::Iptables, translate::actual_set(&found)));
            }
        }
    }
    let in_tables = own_sets()?.into_iter();
    saved.extend(in_tables.map(|(set, found)| SavedSet::new(set, RuleForm::Nftables, found)));
    Ok(saved)
}

impl SavedSet {
    fn new(set: SetId, form: RuleForm, found: ActualSet) -> Self {
        let mut entries: Vec<_> = found.entries.into_iter().collect();
        entries.sort_unstable();
        let entries: Vec<String> =
            entries.iter().map(|entry| translate::entry(entry).to_string()).collect();
        let size = SetSize::of_new(set, entries.len());
        let creation = translate::set_spec(set, size).to_string();
        Self { set, form, creation, entries, n_unknown: found.n_unknown }
    }
}
