//! Support of the host for the fast path.

use std::ops::RangeInclusive;
use std::path::Path;

use plan::facts::NodeFacts;
use plan::model::Family;
use plan::rule_set::{RuleSet, RuleSetSettings};
use plan::settings::{FastPath, Settings};
use tracing::{info, warn};

use crate::mode::abilities::AbilitySearch;
use config::words::FastPathChoice;
use kernel::nftables::OwnTables;
use kernel::sysctl::{self, KernelVersion, Sysctl};

/// The first kernel whose flow table returns a connection to connection tracking with the time that it had left.
const FIRST_KERNEL: KernelVersion = KernelVersion(6, 1);

/// Kernels that delete no entry of a connection that is in the flow table (`ctnetlink_del_conntrack` in
/// net/netfilter/nf_conntrack_netlink.c). So does 6.1 before 6.1.32, which its release does not always tell.
const KERNELS_THAT_KEEP: RangeInclusive<KernelVersion> = KernelVersion(6, 2)..=KernelVersion(6, 3);

/// What to do about an older kernel.
const NEWER: &str = "Start a newer kernel on the host, or set fastPath: conntrack";

/// Returns the sysctl without which IPVS drops the answers of connections that it has forgotten, and that go on.
pub(super) fn sysctl() -> Sysctl {
    let why = "answers of connections that conntrack carries pass IPVS";
    Sysctl::new("net/ipv4/vs/nat_icmp_send", 0, false, why)
}

/// Takes the fastest way that is wanted and that the host supports.
pub(super) fn find(search: &mut AbilitySearch<'_>) {
    let wanted = search.settings.fast_path;
    let (found, lack) = supported(search.settings);
    search.settings.fast_path = found;
    let Some(lack) = lack else { return };
    let limit = format!("fastPath: {} instead of {}: {lack}", found.name(), wanted.name());
    if search.configuration.fast_path == FastPathChoice::Auto {
        info!("{limit}");
        return;
    }
    warn!("{limit}");
    search.limits.push(limit);
}

/// Returns the fastest way that the settings ask for and that the host supports, and in words what it lacks for a faster
/// one. A start has set the sysctl by now, if it may.
pub(crate) fn supported(settings: &Settings) -> (FastPath, Option<String>) {
    let proc_sys = Path::new(sysctl::ROOT);
    match settings.fast_path {
        FastPath::Off => (FastPath::Off, None),
        wanted => match (obstacle(settings, proc_sys), wanted) {
            (Some(lack), _) => (FastPath::Off, Some(lack)),
            (None, FastPath::Offload) => match try_offload(settings, proc_sys) {
                Ok(()) => (FastPath::Offload, None),
                Err(lack) => (FastPath::Conntrack, Some(lack)),
            },
            (None, other) => (other, None),
        },
    }
}

/// Returns why no connection can be carried past IPVS, and what to do, in words.
fn obstacle(settings: &Settings, proc_sys: &Path) -> Option<String> {
    let has_network = |family: &Family| settings.internal_frontend_networks.of(*family).is_some();
    if !settings.has_tables() {
        return Some(
            "it needs rules in nf_tables. Set ruleBackend: nftables, and restart kube-ipvs"
                .to_owned(),
        );
    }
    if !settings.families.iter().any(has_network) {
        return Some(
            "internal frontends are off. Set internalFrontend, and restart kube-ipvs".to_owned(),
        );
    }
    sysctl::answers_for_real_servers(proc_sys).then(|| {
        "net.ipv4.vs.nat_icmp_send is not 0: IPVS would drop answers of connections that it has forgotten. Set it to 0 on \
         the host, and restart kube-ipvs"
            .to_owned()
    })
}

/// Checks that the kernel takes flow tables in all families.
fn try_offload(settings: &Settings, proc_sys: &Path) -> Result<(), String> {
    let version = sysctl::kernel_version(proc_sys);
    if version.is_some_and(|version| version < FIRST_KERNEL) {
        let KernelVersion(major, minor) = FIRST_KERNEL;
        return Err(format!(
            "flow tables before Linux {major}.{minor} end connections that are idle for two \
             minutes. {NEWER}"
        ));
    }
    if version.is_some_and(|version| KERNELS_THAT_KEEP.contains(&version)) {
        return Err(format!(
            "Linux 6.2 and 6.3 do not end connections that are in the flow table: those to endpoints that are gone, or \
             past their drain deadline, would go on. {NEWER}"
        ));
    }
    for family in &settings.families {
        let rules = RuleSetSettings::resolve(settings, *family, &NodeFacts::default());
        let rules = rules.map_err(|error| error.to_string())?;
        OwnTables::try_rules(RuleSet::new(*family, &rules)).map_err(|error| {
            format!(
                "{error}. Load the modules nf_flow_table, nf_flow_table_inet and nft_flow_offload on the host, and restart \
                 kube-ipvs"
            )
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use plan::settings::RuleForm;

    use super::*;

    fn wanting(fast_path: FastPath, rule_form: RuleForm) -> Settings {
        Settings { fast_path, rule_form, ..Settings::new("here") }
    }

    #[test]
    fn what_keeps_connections_on_ipvs_is_named() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("net/ipv4/vs");
        fs::create_dir_all(&folder).unwrap();
        let fast = wanting(FastPath::Conntrack, RuleForm::Nftables);
        assert_eq!(
            obstacle(&fast, root.path()),
            None,
            "a kernel without the sysctl does not do it"
        );
        fs::write(folder.join("nat_icmp_send"), "1\n").unwrap();
        assert!(obstacle(&fast, root.path()).unwrap().contains("nat_icmp_send is not 0"));
        fs::write(folder.join("nat_icmp_send"), "0\n").unwrap();
        assert_eq!(obstacle(&fast, root.path()), None);
        let slow = wanting(FastPath::Conntrack, RuleForm::Iptables);
        assert!(obstacle(&slow, root.path()).unwrap().contains("ruleBackend"));
        let mut without = fast;
        (without.internal_frontend_networks.v4, without.internal_frontend_networks.v6) =
            (None, None);
        assert!(obstacle(&without, root.path()).unwrap().contains("internalFrontend"));
    }

    #[test]
    fn kernels_whose_flow_table_loses_or_keeps_connections_are_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("kernel")).unwrap();
        let settings = wanting(FastPath::Offload, RuleForm::Nftables);
        for (release, expected) in [
            ("5.15.0-91-generic\n", "before Linux 6.1"),
            ("6.2.0-39-generic\n", "Linux 6.2 and 6.3"),
        ] {
            fs::write(root.path().join("kernel/osrelease"), release).unwrap();
            let lack = try_offload(&settings, root.path()).unwrap_err();
            assert!(lack.contains(expected) && lack.ends_with(NEWER), "{lack}");
        }
    }

    #[test]
    fn the_full_path_needs_nothing() {
        assert_eq!(supported(&wanting(FastPath::Off, RuleForm::Iptables)), (FastPath::Off, None));
    }
}
