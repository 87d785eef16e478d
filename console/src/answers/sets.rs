//! Sets of mode ipvs, in either form of the rules.

use serde::{Deserialize, Serialize};

use super::Content;
use kernel::ReadError;
use kernel::saved_sets;

/// The sets that are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sets {
    pub sets: Vec<NamedSet>,
}

/// A set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedSet {
    pub name: String,
    /// Form of the rules that look into it: `iptables` or `nftables`.
    pub form: String,
    /// What `ipset create` makes it with.
    pub creation: String,
    /// As `ipset` writes them.
    pub entries: Vec<String>,
    /// Number of entries of another shape.
    pub unknown: usize,
}

impl Content for Sets {
    const KIND: &'static str = "Sets";
}

impl Sets {
    /// Reads our sets, kube-proxy's as well.
    ///
    /// # Errors
    /// When a set cannot be read.
    pub fn read() -> Result<Self, ReadError> {
        let sets = saved_sets::read()?.into_iter().map(|saved| NamedSet {
            name: saved.set.name().to_owned(),
            form: saved.form.name().to_owned(),
            creation: saved.creation,
            entries: saved.entries,
            unknown: saved.n_unknown,
        });
        Ok(Self { sets: sets.collect() })
    }

    /// Returns the lines that `ipset restore` reads.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for NamedSet { name, form, creation, entries, unknown } in &self.sets {
            text += &format!("# by {form}\ncreate {name} {creation}\n");
            entries.iter().for_each(|entry| text += &format!("add {name} {entry}\n"));
            if *unknown > 0 {
                text += &format!("# {unknown} more entries, of an unknown type\n");
            }
        }
        text
    }
}
