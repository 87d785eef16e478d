//! The sysctls of a fake kernel.

use super::Fake;
use crate::kernel::sysctl::Sysctl;

// === impl Fake ===

impl Fake {
    /// From now on it has these sysctls, with their desired values.
    pub fn keep_sysctls(&self, sysctls: impl IntoIterator<Item = Sysctl>) {
        let has_its_value = |sysctl: Sysctl| (sysctl.clone(), sysctl.value);
        self.state().sysctls = sysctls.into_iter().map(has_its_value).collect();
    }

    /// Sets a sysctl as another program does.
    pub fn disturb_sysctl(&self, path: &str, value: &str) {
        let mut state = self.state();
        let disturbed = state.sysctls.iter_mut().filter(|(sysctl, _)| sysctl.path == path);
        disturbed.for_each(|(_, found)| value.clone_into(found));
    }

    /// From now on, another program sets a sysctl again and again.
    pub fn contest_sysctl(&self, path: &str, value: &str) {
        self.state().contested = Some((path.to_owned(), value.to_owned()));
    }

    /// From now on, no other program sets a sysctl by itself.
    pub fn end_contest(&self) {
        self.state().contested = None;
    }

    /// The value that a sysctl has.
    #[must_use]
    pub fn sysctl(&self, path: &str) -> Option<String> {
        let state = self.state();
        let found = state.sysctls.iter().find(|(sysctl, _)| sysctl.path == path);
        found.map(|(_, value)| value.clone())
    }

    /// Mounts `/proc/sys` read-only from now on, or writable again.
    pub fn mount_proc_sys(&self, is_read_only: bool) {
        self.state().is_proc_sys_read_only = is_read_only;
    }
}
