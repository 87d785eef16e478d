//! The kernel's port, only read from: for the console, beside the worker's handles.

use std::sync::Arc;

use plan::actual::Addresses;
use plan::chains::ChainScope;
use plan::comparison::{Part, Reading};
use plan::hash::HashMap;
use plan::model::Family;
use plan::rule_set::RuleSet;
use plan::settings::Settings;

use super::linux::Linux;
use super::rules::{Rules, Variant};
use super::{Kernel, ReadError};

/// Handles that the kernel is read with, and never changed.
pub struct KernelReader {
    kernel: Box<dyn Kernel>,
    /// Families whose rules cannot be read, each with the reason.
    unopened: HashMap<Family, ReadError>,
}

/// Result of reading a part.
#[derive(Debug, Default)]
pub struct Readings {
    /// Readings of what could be read.
    pub found: Vec<Reading>,
    /// Reasons for which the rest could not.
    pub unread: Vec<ReadError>,
}

impl KernelReader {
    /// Reads by this port.
    #[must_use]
    pub fn new(kernel: impl Kernel + 'static) -> Self {
        Self { kernel: Box::new(kernel), unopened: HashMap::default() }
    }

    /// Opens handles in the calling thread's network namespace, as far as the kernel has what they are for. Runs
    /// the iptables programs to find out which kind is in use.
    ///
    /// # Errors
    /// When a part that the kernel has cannot be opened, rules excepted.
    pub fn open(settings: &Settings, variant: Variant) -> Result<Self, ReadError> {
        if settings.has_tables() {
            return Ok(Self::new(Linux::read_with_tables(settings.families.clone())?));
        }
        let (mut rules, mut unopened) = (HashMap::default(), HashMap::default());
        for family in &settings.families {
            match Rules::open(*family, variant) {
                Ok(opened) => drop(rules.insert(*family, opened)),
                Err(error) => {
                    unopened.insert(*family, ReadError::new(format!("{family} rules"), error));
                }
            }
        }
        Ok(Self { unopened, ..Self::new(Linux::open_to_read(rules, settings.mode)?) })
    }

    /// Sets the rules that a family's are compared with.
    pub fn desire(&mut self, rule_set: RuleSet) {
        self.kernel.set_desired_rules(rule_set);
    }

    /// See [`Kernel::read_addresses`].
    pub fn read_addresses(&mut self) -> Result<Addresses, ReadError> {
        self.kernel.read_addresses()
    }

    /// Reads a part.
    ///
    /// # Errors
    /// When nothing of it could be read.
    pub fn read(&mut self, part: &Part) -> Result<Readings, ReadError> {
        if let Part::RuleSet(family) | Part::Chains(family) = part
            && let Some(error) = self.unopened.get(family)
        {
            return Err(error.clone());
        }
        let kernel = &mut self.kernel;
        let reading = match part {
            Part::Addresses => Reading::Addresses(kernel.read_addresses()?),
            Part::RuleSet(family) => {
                let found = kernel.read_rule_set(*family)?;
                Reading::RuleSet(*family, found.lacks())
            }
            Part::Chains(family) => {
                let found = Arc::new(kernel.read_chains(*family)?);
                Reading::Chains(*family, found, ChainScope::All)
            }
            Part::Frontends => {
                let listed = kernel.list_virtual_servers()?.virtual_servers;
                Reading::Frontends(listed, Arc::default())
            }
            Part::Sets(sets) => {
                let read = |set| Ok(Reading::Set(set, kernel.read_set(set)?));
                return Ok(sets.iter().copied().map(read).collect());
            }
            Part::VirtualServers(frontends) => {
                let found = kernel.read_virtual_servers(frontends)?;
                let each = frontends.iter().zip(found);
                return Ok(each.map(|(at, it)| Ok(Reading::VirtualServer(*at, it?))).collect());
            }
        };
        Ok(Readings { found: vec![reading], unread: Vec::new() })
    }
}

impl FromIterator<Result<Reading, ReadError>> for Readings {
    fn from_iter<I: IntoIterator<Item = Result<Reading, ReadError>>>(each: I) -> Self {
        let mut readings = Self::default();
        for read in each {
            match read {
                Ok(found) => readings.found.push(found),
                Err(error) => readings.unread.push(error),
            }
        }
        readings
    }
}

impl std::fmt::Debug for KernelReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelReader").finish_non_exhaustive()
    }
}
