//! The kernel's port, only read from: for the console, beside the worker's handles.

use plan::actual::ActualSet;
use plan::chains::ActualChains;
use plan::kernel_objects::Frontend;
use plan::model::Family;
use plan::rule_set::RuleSet;
use plan::sets::SetId;

use super::{Addresses, Kernel, Listing, ReadError, RuleSetReading, VirtualServerReading};

/// Handles that the kernel is read with, and never changed.
pub struct KernelReader(Box<dyn Kernel>);

// === impl KernelReader ===

impl KernelReader {
    /// Reads by this port. [`Linux::open_to_read`](super::linux::Linux::open_to_read) opens the real
    /// kernel's.
    #[must_use]
    pub fn new(kernel: impl Kernel + 'static) -> Self {
        Self(Box::new(kernel))
    }

    /// See [`Kernel::list_virtual_servers`].
    ///
    /// # Errors
    /// When they could not be read.
    pub fn list_virtual_servers(&mut self) -> Result<Listing, ReadError> {
        self.0.list_virtual_servers()
    }

    /// See [`Kernel::read_virtual_servers`].
    ///
    /// # Errors
    /// When the kernel does not answer, or refuses all reads.
    pub fn read_virtual_servers(
        &mut self,
        frontends: &[Frontend],
    ) -> Result<Vec<VirtualServerReading>, ReadError> {
        self.0.read_virtual_servers(frontends)
    }

    /// See [`Kernel::read_set`].
    ///
    /// # Errors
    /// When it could not be read, or is of another type than ours.
    pub fn read_set(&mut self, set: SetId) -> Result<Option<ActualSet>, ReadError> {
        self.0.read_set(set)
    }

    /// See [`Kernel::read_addresses`].
    ///
    /// # Errors
    /// When they could not be read.
    pub fn read_addresses(&mut self) -> Result<Addresses, ReadError> {
        self.0.read_addresses()
    }

    /// Compares a family's rules with these.
    ///
    /// # Errors
    /// When they could not be read.
    pub fn compare_rule_set(&mut self, rule_set: RuleSet) -> Result<RuleSetReading, ReadError> {
        let family = rule_set.family();
        self.0.set_desired_rules(rule_set);
        self.0.read_rule_set(family)
    }

    /// See [`Kernel::read_chains`].
    ///
    /// # Errors
    /// When they could not be read.
    pub fn read_chains(&mut self, family: Family) -> Result<ActualChains, ReadError> {
        self.0.read_chains(family)
    }
}

impl std::fmt::Debug for KernelReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelReader").finish_non_exhaustive()
    }
}
