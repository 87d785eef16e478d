//! Copying sets from ipset into nf_tables, or back: their names and entries are the same.

use plan::capacity::SetSize;
use plan::model::Family;
use plan::op::Op;
use plan::sets::SetId;

use super::{Kernel, Linux, ReadError};
use crate::loaded;

impl Linux {
    /// True if mode ipvs, ours or kube-proxy's, has its sets in ipset. What cannot be read is not there.
    #[must_use]
    pub fn has_ipsets() -> bool {
        let names = loaded::ipset().ok().flatten().and_then(|mut ipset| ipset.list_names().ok());
        let mut names = names.into_iter().flatten();
        names.any(|name| SetId::by_name(&name.to_string()).is_some())
    }

    /// Makes these families' sets as `from` has them, beside entries that are there already. Returns the number of entries
    /// that were added.
    ///
    /// # Errors
    /// When a set cannot be read or written. Some of the entries may be there then.
    pub fn copy_sets(&mut self, from: &mut Self, families: &[Family]) -> Result<usize, ReadError> {
        let mut n_added = 0;
        for set in families.iter().copied().flat_map(SetId::all) {
            let Some(found) = from.read_set(set)? else { continue };
            let there = self.read_set(set)?;
            let is_new = there.is_none();
            let there = there.map(|it| it.entries).unwrap_or_default();
            let mut missing: Vec<_> = found.entries.difference(&there).copied().collect();
            missing.sort_unstable();
            let size = SetSize::of_new(set, there.len() + missing.len());
            let mut ops: Vec<Op> = is_new.then_some(Op::CreateSet(set, size)).into_iter().collect();
            if !is_new && size.capacity > plan::capacity::Capacity::FIRST {
                ops.push(Op::GrowSet(set, size));
            }
            n_added += missing.len();
            ops.extend(missing.into_iter().map(|entry| Op::AddEntry(set, entry)));
            if let Some(refusal) = self.apply(&ops).into_iter().find_map(Result::err) {
                return Err(ReadError::new(format!("set {set}"), refusal));
            }
        }
        Ok(n_added)
    }
}
