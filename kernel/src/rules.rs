//! The iptables rule set in the kernel, by `iptables-save` and `iptables-restore`.
//!
//! The programs run in the calling thread's network namespace, each for [`TIMEOUT`] at most; one
//! that hangs longer is killed. Each table is written in one step, and only if its rules differ, so
//! the lock that all iptables programs share is held for a few milliseconds, once.

mod by_chain;
pub(super) mod chains;
mod error;
mod features;
pub(super) mod fingerprint;
mod installed;
mod present;
#[cfg(test)]
mod tests {
    #[cfg(feature = "kernel-tests")]
    mod kernel;
}

use std::sync::OnceLock;
use std::time::Duration;

use ipnet::IpNet;
use plan::chains::ActualChains;
use plan::chains::ChainOp;
use plan::mode::Mode;
use plan::model::Family;
use plan::rule_set::{Comparison, INTERNAL_FRONTEND_CHAIN, Jump, RuleSet, Table};

use crate::probe::ProbeError;
pub use crate::program::ProgramsRun;
use by_chain::Purpose;
pub use by_chain::{READ_BY_CHAIN, UNREAD};
use chains::ChainsWritten;
pub use error::{Cause, ProgramFailure, RulesError};
pub use installed::{Backend, IptablesVersion};
pub use present::chain_names;

use installed::Programs;

/// Time that a program may take that changes rules.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Time that a program may take that saves rules. It changes nothing and takes no lock of others; without it
/// a restart cannot take over. Where a kernel is emulated, the chains of 10,000 Services took 297 s.
pub const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// Seconds for which the programs wait for the lock.
const LOCK_WAIT: &str = "5";

/// The programs that this process has run so far: iptables' and `modprobe`, and never another.
#[must_use]
pub fn programs_run() -> ProgramsRun {
    crate::program::so_far()
}

/// Kind of iptables to use. A packet meets the rules of both kinds, so they must not be mixed on a
/// host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// The one in use: the one in which the kubelet or kube-proxy has left its chains; else the
    /// one that `iptables` is.
    #[default]
    Auto,
    /// `iptables-nft`: rules in nf_tables.
    Nft,
    /// `iptables-legacy`: rules in the kernel's x_tables.
    Legacy,
}

/// One family's iptables programs.
#[derive(Debug, Clone)]
pub struct Rules {
    family: Family,
    programs: Programs,
    /// Result of [`Rules::try_internal_frontends`], once it tells something about the host.
    internal_frontends: OnceLock<Result<(), ProbeError>>,
}

#[cfg(all(test, feature = "kernel-tests"))]
impl Variant {
    /// The kinds that tests are about: both, unless `KUBE_IPVS_IPTABLES` names one.
    pub(crate) fn tested() -> Vec<Self> {
        let only = std::env::var("KUBE_IPVS_IPTABLES").ok();
        let mut all = vec![("nft", Self::Nft), ("legacy", Self::Legacy)];
        all.retain(|(name, _)| only.as_deref().is_none_or(|only| only == *name));
        assert!(!all.is_empty(), "KUBE_IPVS_IPTABLES={only:?} is neither nft nor legacy");
        all.into_iter().map(|(_, variant)| variant).collect()
    }
}

impl From<Backend> for Variant {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Nft => Self::Nft,
            Backend::Legacy => Self::Legacy,
        }
    }
}

impl Rules {
    /// Finds the programs. With [`Variant::Auto`] and both kinds installed, the rules that are
    /// there decide.
    ///
    /// # Errors
    /// When no program of the variant is installed, or none runs.
    pub fn open(family: Family, variant: Variant) -> Result<Self, RulesError> {
        let programs = installed::choose(family, variant)?;
        Ok(Self { family, programs, internal_frontends: OnceLock::new() })
    }

    /// Both iptables variants, as far as they are installed.
    #[must_use]
    pub fn installed(family: Family) -> Vec<Self> {
        let open = |backend: Backend| Self::open(family, backend.into()).ok();
        Backend::BOTH.into_iter().filter_map(open).collect()
    }

    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns the place where the programs keep their rules.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.programs.backend
    }

    /// The programs' version.
    #[must_use]
    pub fn version(&self) -> IptablesVersion {
        self.programs.version
    }

    /// True if the programs know `MASQUERADE --random-fully`.
    #[must_use]
    pub fn random_fully(&self) -> bool {
        self.programs.version >= IptablesVersion(1, 6, 2)
    }

    /// Checks that iptables works here: lists a chain that every `nat` table has. It need not if it
    /// can do the internal frontends that are wanted.
    pub fn probe(&self, internal_frontends: Option<IpNet>) -> Result<(), RulesError> {
        if internal_frontends.is_some_and(|network| self.try_internal_frontends(network).is_ok()) {
            return Ok(());
        }
        let program = &self.programs.plain;
        match installed::run(program, &["-w", LOCK_WAIT, "-S", "POSTROUTING", "-t", "nat"], "") {
            // Someone's rule there cannot be shown. Rules can be written all the same.
            Err(error) if error.cause().is_unshown() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Checks once that the kernel and iptables can lead from one network to another (`NETMAP`): writes
    /// such a rule into a chain that nothing leads to, and removes it. Where a former start has written
    /// such rules, they can.
    pub fn try_internal_frontends(&self, network: IpNet) -> Result<(), ProbeError> {
        if let Some(known) = self.internal_frontends.get() {
            return known.clone();
        }
        let (family, backend) = (self.family, self.programs.backend);
        let tried = if present::has_rules(family, backend, Table::Nat, INTERNAL_FRONTEND_CHAIN) {
            Ok(())
        } else {
            self.try_netmap(network).map_err(ProbeError::from)
        };
        if !matches!(&tried, Err(error) if error.is_momentary) {
            return self.internal_frontends.get_or_init(|| tried).clone();
        }
        tried
    }

    fn try_netmap(&self, network: IpNet) -> Result<(), RulesError> {
        let input = features::input("nat", &[format!("-j NETMAP --to {network}")]);
        // Another process may probe at the same time, with the same chain.
        self.restore(&input).or_else(|_| self.restore(&input))
    }

    /// Compares the present rules with the desired ones.
    pub fn check(&self, rule_set: &RuleSet) -> Result<Comparison, RulesError> {
        Ok(rule_set.compare(&self.read(rule_set.jumps())?))
    }

    /// Writes the desired rules and checks them; writes nothing if they are there already. The sets
    /// that the rules look into must exist.
    ///
    /// # Errors
    /// When the rules cannot be read or written, or differ after the write.
    pub fn write(&self, rule_set: &RuleSet) -> Result<(), RulesError> {
        self.write_checked_by(rule_set, None, || self.check(rule_set)).map(drop)
    }

    /// The same, with an own way to [`check`](Self::check), and if they are known, with the
    /// differences that there are. Returns the number of tables that were written, each by a
    /// transaction of its own.
    pub(super) fn write_checked_by(
        &self,
        rule_set: &RuleSet,
        known: Option<Comparison>,
        mut check: impl FnMut() -> Result<Comparison, RulesError>,
    ) -> Result<u32, RulesError> {
        let before = known.map_or_else(&mut check, Ok)?;
        if before.matches() {
            return Ok(0);
        }
        let input = rule_set.restore_input(&before);
        let n_tables = match self.restore(&input) {
            Ok(()) => input.lines().filter(|line| *line == "COMMIT").count(),
            Err(error) => self.restore_each(rule_set, error, &mut check)?,
        };
        let comparison = check()?;
        if comparison.matches() {
            Ok(u32::try_from(n_tables).unwrap_or(u32::MAX))
        } else {
            Err(RulesError::NotAsWritten { family: self.family, comparison: comparison.into() })
        }
    }

    /// Writes table after table, where `refused` was of one of them: those behind it have not been written.
    /// Returns the number of those that were written now, if none was refused.
    fn restore_each(
        &self,
        rule_set: &RuleSet,
        refused: RulesError,
        mut check: impl FnMut() -> Result<Comparison, RulesError>,
    ) -> Result<usize, RulesError> {
        let is_of_all = matches!(
            refused.cause(),
            Cause::Busy | Cause::Memory | Cause::NoLock | Cause::NotPermitted | Cause::NotInstalled
        );
        let left = match check() {
            Ok(left) if !is_of_all && rule_set.tables_are_independent(&left) => left,
            _ => return Err(refused),
        };
        let inputs = rule_set.restore_inputs(&left);
        let results: Vec<Result<(), RulesError>> =
            inputs.iter().map(|input| self.restore(input)).collect();
        results.into_iter().collect::<Result<Vec<()>, _>>().map(|written| written.len())
    }

    /// Reads the chains of Services of a mode.
    pub fn chains(&self, mode: Mode) -> Result<ActualChains, RulesError> {
        Ok(ActualChains::parse(mode, self.family, &self.read(&[])?))
    }

    /// Carries out changes of chains, all of one table and of this family.
    pub(super) fn write_chains(&self, changes: &[&ChainOp]) -> ChainsWritten {
        chains::write(&mut &*self, changes)
    }

    /// Returns the output of `iptables-save` for the tables that we write, and perhaps for others. In a
    /// table that it cannot show, `jumps` are looked for beside those of other modes.
    fn read(&self, jumps: &[Jump]) -> Result<String, RulesError> {
        let purpose = Purpose::Compare(jumps);
        match installed::run(&self.programs.save, &[], "") {
            // What nf_tables does not have is empty.
            Ok(all) if self.programs.backend == Backend::Nft || has_all_tables(&all) => {
                self.with_unshown(all, purpose)
            }
            // A table each, because without `-t` the legacy program leaves out a table that the
            // kernel could have and has not made yet, instead of saying whether it could. And a table
            // of others may be what cannot be read.
            _ => self.saved_each(&Table::ALL, purpose),
        }
    }

    /// Returns the output of `iptables-save` for the tables that are there, without making the
    /// kernel load others. A kernel that has no tables of this kind has none of ours. Of a table that the
    /// program cannot show, and that was read otherwise, a line says so ([`READ_BY_CHAIN`]), and of one that
    /// could not be read at all ([`UNREAD`]). With such a table, those that we do not write are left out.
    pub fn saved(&self) -> Result<String, RulesError> {
        match installed::run(&self.programs.save, &[], "") {
            Err(error) if error.cause() == Cause::NoTable => Ok(String::new()),
            Err(error) if error.cause().is_unshown() => {
                self.saved_each_present(Purpose::Survey).unwrap_or(Err(error))
            }
            result => self.with_unshown(result?, Purpose::Survey),
        }
    }

    /// Hands `iptables-restore --noflush` its input: each table in it changes in one step, and
    /// nothing else in it is touched.
    ///
    /// # Errors
    /// When the program fails; the table that it failed at is then as it was.
    pub fn restore(&self, input: &str) -> Result<(), RulesError> {
        let arguments = self.restore_arguments();
        installed::run(&self.programs.restore, &arguments, input).map(|_| ())
    }

    /// Returns the arguments for the program for restoring to wait for the lock, and to leave alone what its
    /// input does not name.
    fn restore_arguments(&self) -> Vec<&'static str> {
        let Programs { version, backend, .. } = &self.programs;
        let mut arguments = Vec::new();
        // Older ones take no lock for a restore.
        if *version >= IptablesVersion(1, 6, 2) {
            arguments.extend(["-w", LOCK_WAIT]);
            // These look at the lock once a second unless told otherwise (microseconds); newer
            // ones sleep until it is free, and nf_tables has no lock.
            if *backend == Backend::Legacy && *version < IptablesVersion(1, 8, 8) {
                arguments.extend(["-W", "100000"]);
            }
        }
        arguments.push("--noflush");
        arguments
    }
}

/// True if all tables that we write were printed.
fn has_all_tables(saved: &str) -> bool {
    let mut missing = Table::ALL.to_vec();
    for name in saved.lines().filter_map(|line| line.strip_prefix('*')) {
        missing.retain(|table| table.name() != name.trim());
    }
    missing.is_empty()
}
