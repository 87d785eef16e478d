//! The drift check: signs that something was flushed, deleted or added, at constant cost.

use plan::hash::HashMap;
use plan::op::PartKind;
use plan::sets::SetId;

use super::count::Number;
use super::{DriftCheck, Linux, Listing, ReadError, translate};

/// If the kernel has more than this many times our sets, ours are read one by one, not all at once.
const CROWD: usize = 4;

impl Linux {
    pub(super) fn look(&mut self) -> Result<DriftCheck, ReadError> {
        self.index = None;
        let is_used = self.mode.uses(PartKind::Link);
        let link = self.index().map_err(|error| ReadError::new("network interfaces", error))?;
        self.deprecate_some();
        let (untouched, set_entries) = match &self.tables {
            Some(tables) => tables.look(&self.families),
            None => (self.rules.untouched(), self.set_entries()?),
        };
        self.rules_stand(&untouched);
        let (n_virtual_servers, has_listed) = self.number_of_virtual_servers()?;
        Ok(DriftCheck {
            link: is_used && link.is_some(),
            n_virtual_servers,
            has_listed,
            set_entries,
            untouched,
            // Last: asking IPVS for anything loads its module again, with new sysctls.
            sysctls: self.differing_sysctls(),
        })
    }

    pub(super) fn listing(&mut self) -> Result<Listing, ReadError> {
        if self.ipvs.is_none() && self.uses_ipvs() {
            return Ok(Listing::default());
        }
        let unused = || ReadError::new("virtual servers", super::UNUSED);
        let ipvs = self.ipvs.as_mut().ok_or_else(unused)?;
        self.count.learn(|| {
            let found = ipvs.list_decodable_services();
            let (found, errors) =
                found.map_err(|error| ReadError::new("virtual servers", error))?;
            if let Some(error) = errors.first() {
                tracing::warn!(
                    others = errors.len() - 1,
                    "cannot read a virtual server, which stays unchanged: {error}"
                );
            }
            Ok(found.iter().filter_map(|listed| translate::listed(&listed.server)).collect())
        })
    }

    /// Returns the number, and whether it took a listing.
    fn number_of_virtual_servers(&mut self) -> Result<(Option<u32>, bool), ReadError> {
        match self.count.number() {
            Number::Known(number) => Ok((Some(number), false)),
            Number::Uncounted => Ok((None, false)),
            Number::Unknown => {
                let listing = self.listing()?;
                Ok((Some(u32::try_from(listing.virtual_servers.len()).unwrap_or(u32::MAX)), true))
            }
        }
    }

    /// The kernel walks a set's buckets to count: some 25 ns an entry.
    fn set_entries(&mut self) -> Result<HashMap<SetId, u32>, ReadError> {
        if !self.mode.uses(PartKind::Sets) {
            return Ok(HashMap::default());
        }
        let sets: Vec<SetId> = self.families.iter().copied().flat_map(SetId::all).collect();
        let headers = if self.is_crowded {
            let mut headers = Vec::with_capacity(sets.len());
            for set in &sets {
                headers.extend(self.header(*set)?);
            }
            headers
        } else {
            self.sets()?
                .list_headers()
                .map_err(|error| ReadError::new("the headers of sets", error))?
        };
        self.is_crowded |= headers.len() > CROWD * sets.len();
        let found: HashMap<ipset::Name, &ipset::Header> =
            headers.iter().map(|header| (header.identity.name, header)).collect();
        let mut entries = HashMap::default();
        for set in sets {
            let name =
                translate::set_name(set).map_err(|error| ReadError::new(set.name(), error))?;
            let Some(header) = found.get(&name) else { continue };
            // A set of another type is unowned. Reading it explains that.
            if let Some(n) = header.elements
                && translate::is_same_kind(set, &header.identity)
            {
                entries.insert(set, n);
            }
        }
        Ok(entries)
    }

    fn sets(&mut self) -> Result<&mut ipset::Client, ReadError> {
        self.ipset.as_mut().ok_or_else(|| ReadError::new("sets", super::UNUSED))
    }

    fn header(&mut self, set: SetId) -> Result<Option<ipset::Header>, ReadError> {
        let unread = |reason: &dyn std::fmt::Display| ReadError::new(format!("set {set}"), reason);
        let name = translate::set_name(set).map_err(|error| unread(&error))?;
        match self.sets()?.header(name) {
            Ok(header) => Ok(Some(header)),
            Err(error) if error.is_no_such_set() => Ok(None),
            Err(error) => Err(unread(&error)),
        }
    }
}
