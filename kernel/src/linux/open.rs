//! Opening the kernel's handles: those that change it, and those that only read.

use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family;
use plan::op::PartKind;

use super::bridges::Bridges;
use super::count::VirtualServerCount;
use super::flows::SharedConntrack;
use super::rules::SharedRules;
use super::sets::{ForeignSets, SharedSets};
use super::sysctls::Kept;
use super::tables::SharedTables;
use super::{Linux, ReadError, grow};
use crate::link::{AddressScope, Links};
use crate::loaded;
use crate::nftables::OwnTables;
use crate::route::Routes;
use crate::rules::Rules;
use crate::sysctl;

impl Linux {
    /// Opens what a mode uses in the calling thread's network namespace: IPVS and ipset only
    /// for one that has virtual servers. `rules`: one for each family.
    ///
    /// # Errors
    /// When IPVS or ipset is not there, in the words of the crate concerned.
    pub fn open(rules: HashMap<Family, Rules>, mode: Mode) -> Result<Self, ReadError> {
        if mode.uses(PartKind::VirtualServers) {
            ipset::Client::open().map_err(|error| ReadError::new("ipset", error))?;
            ipvs::Client::open().map_err(|error| ReadError::new("IPVS", error))?;
        }
        let mut linux = Self::open_to_read(rules, mode)?;
        if let Some(sets) = linux.ipset.as_mut().filter(|_| mode.uses(PartKind::VirtualServers)) {
            let left = grow::remove_leftovers(sets);
            for error in left.map_err(|error| ReadError::new("sets", error))? {
                tracing::warn!("cannot remove a leftover of growing a set: {error}");
            }
        }
        linux.bridges = Bridges::new(sysctl::ROOT, linux.families.clone());
        Ok(linux)
    }

    /// Opens what IPVS mode uses where its sets and rules are in tables of nf_tables, for these families.
    ///
    /// # Errors
    /// When IPVS or nf_tables is not there.
    pub fn open_with_tables(families: Vec<Family>) -> Result<Self, ReadError> {
        ipvs::Client::open().map_err(|error| ReadError::new("IPVS", error))?;
        let mut linux = Self::with_tables(OwnTables::open(&families)?, families)?;
        linux.bridges = Bridges::new(sysctl::ROOT, linux.families.clone());
        Ok(linux)
    }

    /// The same without changing anything: for a [`KernelReader`](crate::reader::KernelReader).
    ///
    /// # Errors
    /// When a part exists and cannot be opened.
    pub fn read_with_tables(families: Vec<Family>) -> Result<Self, ReadError> {
        Self::with_tables(OwnTables::open_to_read(&families)?, families)
    }

    fn with_tables(tables: OwnTables, families: Vec<Family>) -> Result<Self, ReadError> {
        let linux = Self::open_to_read(HashMap::default(), Mode::Ipvs)?;
        let reader = OwnTables::open_to_read(&families)?;
        let tables = Some(SharedTables::new(tables, reader));
        Ok(Self { families, tables, ipset: None, ..linux })
    }

    /// The same without changing anything, and without a warning about the host: for a
    /// [`KernelReader`](crate::reader::KernelReader) beside the worker's handles, or where no program
    /// runs. What the kernel lacks, or has not loaded, has nothing in it.
    ///
    /// # Errors
    /// When a part exists and cannot be opened.
    pub fn open_to_read(rules: HashMap<Family, Rules>, mode: Mode) -> Result<Self, ReadError> {
        let cannot = |what: &str| {
            let what = what.to_owned();
            move |error: &dyn std::error::Error| ReadError::new(what, error)
        };
        let mut links = Links::open().map_err(|error| cannot("network interfaces")(&error))?;
        let (mut ipvs, mut ipset, mut reader) = (None, None, None);
        let uses_ipvs = mode.uses(PartKind::VirtualServers);
        // In another mode IPVS mode left the interface, and perhaps more.
        if uses_ipvs || links.find().is_ok_and(|link| link.is_some()) {
            (ipvs, ipset) = (loaded::ipvs()?, loaded::ipset()?);
        }
        if uses_ipvs {
            reader = loaded::ipset()?;
        }
        let foreign_sets = ForeignSets::default();
        Ok(Self {
            mode,
            count: VirtualServerCount::open(uses_ipvs),
            ipvs,
            ipset,
            links,
            routes: Routes::open().map_err(|error| cannot("routes")(&error))?,
            conntrack: SharedConntrack::open().map_err(|error| cannot("conntrack")(&error))?,
            families: rules.keys().copied().collect(),
            rules: SharedRules::open(rules).map_err(|error| cannot("rules")(&error))?,
            set_reader: SharedSets::new(reader, foreign_sets.clone()),
            tables: None,
            foreign_sets,
            is_crowded: false,
            index: None,
            reported: None,
            scope: AddressScope::default(),
            preferred: Vec::new(),
            kept: Kept::default(),
            bridges: Bridges::new(sysctl::ROOT, Vec::new()),
        })
    }
}
