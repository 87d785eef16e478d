//! Suites of tests on real kernels, and their guests.

use super::{BED, INSIDE, Suite};
use crate::build::Tests;
use crate::test::Tier;
use crate::test::matrix::Column;
use crate::vm::distribution::Distribution;

/// Tests of the bed that run with iptables for nf_tables too: packets that meet rules, and the reading of rules.
///
/// Some of masquerading, which the matrix has whole, and of ownership: emulated, a start of the program takes ten
/// seconds.
const NFT: [&str; 14] = [
    REFUSED,
    ONLY_OF_NFT,
    "balance::every_frontend_",
    "flows::every_flow_",
    "flows::marks::",
    "host::a_host_port_",
    "host::a_start_",
    "masquerade::a_pod_of_another_node_",
    "masquerade::a_pod_reaches_itself_",
    "masquerade::source_ranges_",
    "ownership::drift_is_repaired_",
    "ownership::what_is_foreign_",
    RULES_IN_NFT,
    "switch::rules::",
];
/// The one among them that the switch tier has alone: emulated, the relay takes three minutes.
const NOT_WITH_NFT: [&str; 1] = ["flows::every_flow_goes_where_the_table_says_in_mode_userspace"];
/// Tests of our rules beside those that only nft can show.
const BESIDE_NFT: [&str; 1] = ["rules::tests::kernel::beside_nft::"];
/// Tests beside the code that need no nf_tables, among others. User mode has x_tables.
const IN_USER_MODE: [&str; 3] = ["conntrack::", "linux::", "rules::tests::kernel::"];
/// Those among them that are about nf_tables alone, or about both kinds on one host.
const NOT_WITH_LEGACY: [&str; 9] = [
    BESIDE_NFT[0],
    "linux::tests::kernel::a_drift_check_costs_little_whatever_there_is_with_nft",
    "linux::tests::kernel::a_drift_check_sees_what_others_do_with_nft",
    "linux::tests::kernel::a_reading_beside_the_writer_",
    "linux::tests::kernel::among_many_sets_",
    "linux::tests::kernel::iptables::a_change_of_ours_",
    "linux::tests::kernel::iptables::a_sysctl_",
    "rules::tests::kernel::beside_extensions::iptables_nft_",
    "rules::tests::kernel::the_kind_that_the_kubelet_uses_",
];
/// Tests beside the code that need no guest with nf_tables, as they use no iptables or that of x_tables alone, and
/// those that have a guest of their own.
const APART_INSIDE: [&str; 8] = [
    BESIDE_NFT[0],
    "conntrack::",
    "linux::grow::",
    "linux::tests::kernel::a_drift_check_costs_little_whatever_there_is_with_legacy",
    "linux::tests::kernel::a_drift_check_sees_what_others_do_with_legacy",
    "linux::tests::kernel::an_address_goes_",
    "linux::tests::kernel::the_kernels_order_",
    "linux::tests::kernel::those_that_were_listed_",
];
/// Tests of the bed on a host that lacks something. They need a guest of their own.
const LACKING: [&str; 1] = ["lacking::"];
/// Tests of the bed on a host of Enterprise Linux: those that are about it, and all flows.
const ENTERPRISE_LINUX: [&str; 2] = ["enterprise_linux::", FLOWS_IN_NFT];
/// Tests of the bed that wait until modules can be unloaded: where others have run before, for as long as
/// their sockets keep network namespaces, which is most of a minute. They begin a guest of their own.
const UNLOADING: [&str; 1] = ["host::sysctls_"];
/// Test of the bed that shows what happens without what another test is about. The switch tier has it.
const COUNTERPART: &str = "ports_again::without_copies_";
/// Test of the bed that fills a netfilter hook, for which user mode lacks nf_tables.
const REFUSED: &str = "host_limits::an_address_whose_virtual_server_";
/// Test of the bed with rules of `nft` in iptables' tables, which user mode does not have either.
const ONLY_OF_NFT: &str = "host_firewall::a_rule_that_only_nft_can_show_";
/// Tests of the bed of rules and sets in nf_tables, which user mode does not have.
const RULES_IN_NFT: &str = "rule_backend::";
const FLOWS_IN_NFT: &str = "flows::every_flow_goes_where_the_table_says_in_nf_tables";
/// Tests of the bed that the guests of all others leave out.
const APART: [&str; 8] = [
    LACKING[0],
    ENTERPRISE_LINUX[0],
    UNLOADING[0],
    COUNTERPART,
    REFUSED,
    ONLY_OF_NFT,
    RULES_IN_NFT,
    FLOWS_IN_NFT,
];
/// Tests of the bed of a switch between modes, and of all flows, which only this tier has on every kernel.
const SWITCH: [&str; 8] = [
    "leaving_ipvs::",
    "load::",
    "meanwhile::",
    "ports_again::",
    "switch::",
    "tenures::",
    "way_out::",
    "flows::every_flow_",
];

/// Tests of the bed that run with the program as it is released: the API server by TLS and by name, starts and restarts,
/// rules and sets, packets of every protocol, signals, privileges, the console.
pub(super) const RELEASED: [&str; 7] = [
    "api::",
    "api_server_address::",
    "balance::",
    "console::status::",
    "killed::",
    "ownership::",
    "privileges::",
];

/// Every one of them is built with the feature `kernel-tests`, without which it does not exist, so
/// that `cargo test` on a machine without IPVS neither fails nor skips.
///
/// Waiting and starting programs take the time on the bed, and an emulated processor makes them
/// many times longer. So the bed is user-mode-linux, with iptables for x_tables, and a part of it
/// is done again in a virtual machine, with iptables for nf_tables.
///
/// Suites of the kernel tier run on the oldest and the newest kernel if they test a kernel's interfaces, and
/// on the newest alone if they test what the program makes of these, other programs, or a host that lacks
/// something. The matrix has the tests beside the code on every kernel.
const SUITES: [Suite; 19] = [
    // The longest first, so that no guest works alone at the end.
    Suite::new(Tier::Bed, "kube-ipvs", BED).only(&NFT).but(&NOT_WITH_NFT).shared_by(2),
    Suite::new(Tier::Bed, "kube-ipvs", BED).but(&APART).in_user_mode().shared_by(9),
    Suite::new(Tier::Bed, "kube-ipvs", BED).only(&UNLOADING).in_user_mode(),
    Suite::new(Tier::Bed, "kube-ipvs-bed", Tests::Program("plain")),
    Suite::new(Tier::Kernel, "kube-ipvs-kernel", Tests::Inside(INSIDE))
        .but(&APART_INSIDE)
        .about("nft")
        .newest_only()
        .with_other_nft(),
    Suite::new(Tier::Kernel, "kube-ipvs-kernel", Tests::Inside(INSIDE))
        .only(&IN_USER_MODE)
        .but(&NOT_WITH_LEGACY)
        .about("legacy")
        .newest_only()
        .newest_in_user_mode(),
    Suite::new(Tier::Kernel, "kube-ipvs-kernel", Tests::Inside(INSIDE))
        .only(&BESIDE_NFT)
        .newest_only(),
    Suite::new(Tier::Kernel, "kube-ipvs", BED).only(&LACKING).newest_only().newest_in_user_mode(),
    Suite::new(Tier::Kernel, "kube-ipvs", BED)
        .only(&ENTERPRISE_LINUX)
        .newest_only()
        .made_into(Distribution::EnterpriseLinux),
    Suite::new(Tier::Kernel, "kube-ipvs", Tests::Program("cleanup")).newest_only(),
    Suite::new(Tier::Kernel, "kube-ipvs", Tests::Program("bare")).newest_only(),
    Suite::new(Tier::Kernel, "kube-ipvs", Tests::Program("by_hand"))
        .newest_only()
        .newest_in_user_mode(),
    Suite::new(Tier::Kernel, "ipset-netlink", Tests::Program("kernel")).newest_in_user_mode(),
    // Never in user mode: in 7 of 140 runs of this suite, IPVS's estimator thread
    // (ip_vs_estimation_kthread, since 6.2) made that kernel panic.
    Suite::new(Tier::Kernel, "ipvs-rs", Tests::Program("kernel")),
    Suite::new(Tier::Kernel, "nftables-netlink", Tests::Program("kernel")),
    // Late, as its program is built beside all others.
    Suite::new(Tier::Released, "kube-ipvs", BED).only(&RELEASED).in_user_mode().shared_by(2),
    Suite::new(Tier::Switch, "kube-ipvs", BED).only(&SWITCH),
    Suite::new(Tier::Switch, "kube-ipvs", BED).only(&SWITCH).made_into(Distribution::Legacy),
    Suite::new(Tier::Switch, "kube-ipvs", BED)
        .only(&[FLOWS_IN_NFT])
        .made_into(Distribution::EnterpriseLinux),
];

/// Unit tests of the libraries, which the host tier has for the architecture of this machine.
const UNIT_TESTS: [Suite; 4] = [
    Suite::new(Tier::Arm64, "netlink-batch", Tests::Inside("tests::")),
    Suite::new(Tier::Arm64, "ipset-netlink", Tests::Inside("tests::")),
    Suite::new(Tier::Arm64, "ipvs-rs", Tests::Inside("tests::")),
    Suite::new(Tier::Arm64, "nftables-netlink", Tests::Inside("tests::")),
];

/// Suites of all tiers. The arm64 tier has what the matrix has for each kernel.
pub(in crate::test) fn suites() -> Vec<Suite> {
    let of_matrix = MATRIX.map(|(_, suite)| suite.of_tier(Tier::Arm64));
    [&SUITES[..], &of_matrix, &UNIT_TESTS].concat()
}

/// Tests of the bed in the matrix of kernels: packets by every scheduler and by rules.
const TRAFFIC: [&str; 2] = ["balance::", "masquerade::"];

/// Suites of the matrix of kernels.
pub(super) const MATRIX: [(Column, Suite); 10] = [
    (
        Column::XTables,
        Suite::new(Tier::Kernel, "kube-ipvs", BED).only(&TRAFFIC).made_into(Distribution::Legacy),
    ),
    (Column::NfTables, Suite::new(Tier::Kernel, "kube-ipvs", BED).only(&TRAFFIC)),
    (Column::Adapters, Suite::new(Tier::Kernel, "kube-ipvs-kernel", Tests::Inside(INSIDE))),
    (Column::NfTables, Suite::new(Tier::Kernel, "kube-ipvs", Tests::Program("cleanup"))),
    (Column::NfTables, Suite::new(Tier::Kernel, "kube-ipvs", Tests::Program("by_hand"))),
    (
        Column::XTables,
        Suite::new(Tier::Kernel, "kube-ipvs", Tests::Program("by_hand"))
            .made_into(Distribution::Legacy),
    ),
    (Column::Libraries, Suite::new(Tier::Kernel, "ipset-netlink", Tests::Program("kernel"))),
    (Column::Libraries, Suite::new(Tier::Kernel, "ipvs-rs", Tests::Program("kernel"))),
    (Column::Libraries, Suite::new(Tier::Kernel, "nftables-netlink", Tests::Program("kernel"))),
    (Column::Tables, Suite::new(Tier::Kernel, "kube-ipvs", BED).only(&[RULES_IN_NFT])),
];

#[cfg(test)]
mod tests {
    use super::super::Kernels;
    use super::*;
    use crate::vm::accel::AccelChoice;
    use crate::vm::kernel::Kernel;

    #[test]
    fn no_test_is_lost_or_doubled_where_the_released_tier_runs_too() {
        let names = ["api::one", "balance::two", "drain::three", "host::four"].map(str::to_owned);
        let of = |tier, suite: &dyn Fn(Suite) -> Suite| {
            let is_it = |it: &Suite| (it.tier, it.accel) == (tier, AccelChoice::Uml);
            let suites = SUITES.into_iter().filter(is_it).map(suite);
            let mut tests: Vec<String> =
                suites.flat_map(|suite| suite.shares(names.to_vec(), None).concat()).collect();
            tests.sort();
            tests
        };
        let all = |tests: [&str; 2]| tests.map(str::to_owned).to_vec();
        assert_eq!(of(Tier::Released, &|suite| suite), all(["api::one", "balance::two"]));
        let beside = of(Tier::Bed, &Suite::beside_released);
        assert_eq!(beside, all(["drain::three", "host::four"]));
        assert_eq!(of(Tier::Bed, &|suite| suite), names);
    }

    #[test]
    fn the_arm64_tier_is_for_emulated_guests_of_the_newest_kernel() {
        let suites: Vec<Suite> =
            suites().into_iter().filter(|suite| suite.tier == Tier::Arm64).collect();
        assert_eq!(suites.len(), MATRIX.len() + UNIT_TESTS.len());
        let guests = |named: &[Kernel]| {
            let kernels = Kernels::of(named);
            let on = suites.iter().flat_map(|suite| suite.on(&kernels));
            on.map(|(kernel, suite)| (kernel, suite.accel)).collect::<Vec<_>>()
        };
        let all = |kernel| vec![(kernel, AccelChoice::Auto); suites.len()];
        assert_eq!(guests(&[]), all(Kernel::V6_12));
        assert_eq!(guests(&[Kernel::V6_1]), all(Kernel::V6_1));
    }
}
