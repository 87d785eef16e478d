use std::collections::BTreeSet;

use kernel::estimators::Run;
use kernel::sysctl::{self, KernelVersion, ServiceAddressesArp};

use super::*;

const DOCUMENT: &str = include_str!("../../../docs/internals/kernel-use.md");

/// The cells of the rows of a section's tables.
fn rows(section: &str) -> Vec<Vec<&'static str>> {
    let (_, text) = DOCUMENT.split_once(&format!("\n## {section}\n")).unwrap();
    let text = text.split("\n## ").next().unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").collect()).collect()
}

/// Every sysctl that a mode sets, on whatever host and with whatever configuration.
fn every_sysctl(mode: Mode) -> Vec<Sysctl> {
    if mode.uses(plan::op::PartKind::VirtualServers) {
        let arp = [ServiceAddressesArp::Strict, ServiceAddressesArp::Quiet];
        let needed = arp.into_iter().flat_map(|arp| ipvs::needed(arp, Some(KernelVersion(5, 4))));
        let chosen = [Run::On, Run::Off].into_iter().filter_map(Run::sysctl);
        return needed.chain([sysctl::ipv6_of_link()]).chain(chosen).collect();
    }
    let localhost = mode.balances_by_rules().then(sysctl::local_networks_routed);
    [ip_forward()].into_iter().chain(beside_ipvs()).chain(localhost).collect()
}

#[test]
fn the_document_has_every_sysctl_of_a_mode_and_no_other() {
    let mut documented = BTreeSet::new();
    for row in rows("Sysctls") {
        let [name, values, modes, needed, _] = row[..] else { panic!("{row:?}") };
        // Those of connection tracking are of every mode.
        if !name.starts_with("`net.") || name.starts_with("`net.netfilter.") {
            continue;
        }
        for (value, mode) in
            values.split(", ").flat_map(|value| modes.split(", ").map(move |mode| (value, mode)))
        {
            documented.insert(format!("{mode}: {}={value}, {needed}", name.replace('`', "")));
        }
    }
    let mut set = BTreeSet::new();
    for mode in Mode::ALL {
        for sysctl in every_sysctl(mode) {
            let needed = if sysctl.required { "yes" } else { "no" };
            set.insert(format!("{mode}: {sysctl}, {needed}"));
        }
    }
    assert_eq!(documented, set);
}

#[test]
fn the_document_has_the_modules_of_each_mode() {
    let documented = |of: &str| -> Vec<String> {
        let rows = rows("Modules");
        let row = rows.iter().find(|row| row[0] == of).unwrap_or_else(|| panic!("{of}"));
        row[1].split(", ").map(|name| name.replace('`', "")).collect()
    };
    let both = [Backend::Nft, Backend::Legacy];
    assert_eq!(documented("all"), modules::needed(&[], None, &both));
    for mode in Mode::ALL {
        let HostMode { modules, has_scheduler, .. } = of(mode);
        let scheduler = has_scheduler.then_some("that of the scheduler");
        let modules = modules.iter().copied().chain(scheduler);
        assert_eq!(documented(mode.name()), modules.collect::<Vec<_>>());
    }
}

#[test]
fn a_mode_loads_only_what_it_needs() {
    let needed = |mode| needed_modules(&Settings { mode, ..Settings::new("") }, &[Backend::Nft]);
    let is_of_ipvs = |name: &&String| {
        ["ip_vs", "ip_set", "dummy", "xt_set"].iter().any(|it| name.starts_with(it))
    };
    for mode in Mode::ALL {
        let modules = needed(mode);
        assert_eq!(
            modules.iter().filter(is_of_ipvs).count(),
            if mode.uses(plan::op::PartKind::VirtualServers) { 10 } else { 0 },
            "{modules:?}"
        );
        let of_all = ["xt_MASQUERADE", "nf_conntrack", "nft_compat"].map(str::to_owned);
        assert!(of_all.iter().all(|name| modules.contains(name)), "{modules:?}");
        assert_eq!(modules.contains(&"xt_statistic".to_owned()), mode.balances_by_rules());
    }
}
