//! The check of what rules of mode iptables are made of.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::nfacct::NfacctClient;

fn each(test: impl Fn(&Rules) + Sync) {
    for variant in Variant::tested() {
        for family in Family::BOTH {
            Host::run(|| test(&Rules::open(family, variant).unwrap()));
        }
    }
}

#[test]
fn this_kernel_has_every_feature_and_the_check_leaves_nothing() {
    each(|rules| {
        assert_eq!(rules.try_chains(), Ok(()), "{rules:?}");
        assert_eq!(rules.try_chains(), Ok(()), "and again");
        assert_eq!(rules.try_copies(), Ok(()), "{rules:?}");
        assert_eq!(rules.try_sctp(), Ok(()), "{rules:?}");
        assert!(!rules.saved().unwrap().contains("KUBE-"), "{rules:?}");
    });
}

#[test]
fn a_lack_is_said_with_the_module_and_what_is_there_is_not() {
    each(|rules| {
        // A chain of this name with other content, which something leads to, cannot be removed.
        rules.restore("*nat\n:KUBE-PROBE - [0:0]\n-A OUTPUT -j KUBE-PROBE\nCOMMIT\n").unwrap();
        let error = rules.try_chains().unwrap_err();
        assert!(!error.is_momentary, "{error:?}");
        let said = error.words;
        let (missing, _) = said.split_once("; of all together: ").unwrap();
        assert!(missing.starts_with("no rule can have DNAT (module xt_nat), "), "{said}");
        assert!(missing.contains("statistic (module xt_statistic)"), "{said}");
        assert!(!missing.contains("conntrack") && !missing.contains("REJECT"), "{said}");
    });
}

#[test]
fn counters_are_made_read_and_removed() {
    each(|rules| {
        let mut counters = NfacctClient::open().unwrap();
        assert_eq!(counters.packets("some_counter").unwrap(), None);
        counters.ensure("some_counter").unwrap();
        counters.ensure("some_counter").unwrap();
        assert_eq!(counters.packets("some_counter").unwrap(), Some(0));
        assert_eq!(rules.try_counters(), Ok(()), "{rules:?}");
        counters.remove("some_counter").unwrap();
        counters.remove("some_counter").unwrap();
        for gone in ["some_counter", "kube_ipvs_probe"] {
            assert_eq!(counters.packets(gone).unwrap(), None, "{gone}");
        }
        assert!(!rules.saved().unwrap().contains("KUBE-"), "{rules:?}");
    });
}

#[test]
fn a_lock_that_is_held_is_no_lack_of_counters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iptables-restore");
    let said = "Another app is currently holding the xtables lock. Stopped waiting after 5s.";
    std::fs::write(&path, format!("#!/bin/sh\necho '{said}' >&2\nexit 4\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    each(|rules| {
        let mut busy = rules.clone();
        busy.programs.restore = path.display().to_string();
        let error = busy.try_counters().unwrap_err();
        assert!(error.is_momentary && error.words.contains(said), "{error:?}");
        let mut counters = NfacctClient::open().unwrap();
        assert_eq!(counters.packets("kube_ipvs_probe").unwrap(), None);
        assert_eq!(rules.try_counters(), Ok(()), "{rules:?}");
    });
}
