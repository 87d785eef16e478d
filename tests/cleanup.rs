//! Removals by `--cleanup` and by the move from another mode on a real kernel, and what they leave.
//!
//! Each test has a network namespace of its own, and all state that it makes is in there. What is
//! left is compared with what was there before kube-proxy came, all of it.

#![cfg(test)]

use std::fmt::Write as _;

use bed::Namespace;
use kernel::nfacct::NfacctClient;
use kernel::rules::{Backend, Rules, Variant};
use node::cleanup::{self, CleanupReport};
use plan::iptables::constant::{INVALID_DROPPED, LOCALHOST_ACCEPTED};
use plan::mode::Mode;
use plan::model::Family;
use plan::rule_set::{LocalTraffic, RuleSet, RuleSetSettings};
use plan::sets::{SetId, SetType};
use plan::settings::{InternalFrontendNetworks, Settings};

/// State that kube-proxy's IPVS mode leaves, of IPv4.
const SETS: &str = include_str!("bed/left_by_kube_proxy/ipset");
/// The sets of IPv4 that kube-proxy does not have.
const V4_SETS_OF_OURS: &str = "create KUBE-INTERNAL-FRONTEND hash:ip,port family inet
create KUBE-INTERNAL-FRONTEND-LOCAL hash:ip,port family inet
create KUBE-NO-ENDPOINTS hash:ip,port family inet
create KUBE-NO-LOCAL-ENDPOINTS hash:ip,port family inet
";
/// A set of earlier versions.
const FORMER_SET: &str = "create KUBE-SPARE-SHORT-CIRCUIT hash:ip,port family inet
";
const RULES: &str = include_str!("bed/left_by_kube_proxy/iptables");
const VIRTUAL_SERVERS: &str = include_str!("bed/left_by_kube_proxy/ipvsadm");
/// Rules that its iptables mode leaves, beside the kubelet's chains and others'.
const IPTABLES_MODE: &str = include_str!("../node/src/cleanup/rules/iptables_mode.rules");
/// Rules that the kubelet and others have. The chains that every table has are among them, since
/// they stay when kube-proxy is gone.
const OTHERS: &str = "\
*mangle
:OUTPUT ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m set --match-set FOREIGN src -j DROP
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-OTHER - [0:0]
-A POSTROUTING -m comment --comment kubernetes -j KUBE-OTHER
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
";
/// Table that its nftables mode leaves, much shortened.
const NFTABLES_MODE: &str = "
    table FAMILY kube-proxy {
        map service-ips {
            type inet_proto . inet_service : verdict
        }
        chain service-ABC {
            accept
        }
        chain services {
            meta l4proto . th dport vmap @service-ips
        }
        chain nat-prerouting {
            type nat hook prerouting priority -100
            jump services
        }
    }
";

const KINDS: [&str; 2] = ["nft", "legacy"];

/// A node's network, as other programs have left it.
struct Node(Namespace);

impl Node {
    fn bare() -> Self {
        let modules = ["-a", "ip_vs", "ip_vs_rr", "ip_vs_wlc", "dummy", "xt_ipvs"];
        let status = std::process::Command::new("modprobe").args(modules).status().unwrap();
        assert!(status.success());
        Self(Namespace::create("cleanup").unwrap())
    }

    /// A node with the kubelet, a network plugin and another program's load balancer.
    fn shared(kind: &str) -> Self {
        let node = Self::bare();
        node.tool("ip", &["link", "add", "node0", "type", "dummy"], "");
        node.tool("ip", &["addr", "add", "192.168.0.11/24", "dev", "node0"], "");
        node.tool("ip", &["link", "add", "foreign0", "type", "dummy"], "");
        node.tool("ip", &["addr", "add", "172.31.0.1/32", "dev", "foreign0"], "");
        node.tool("ipset", &["restore"], "create FOREIGN hash:ip\nadd FOREIGN 172.31.0.9\n");
        let foreign = "-A -t 192.168.0.11:5555 -s wlc\n\
                       -a -t 192.168.0.11:5555 -r 10.244.9.9:80 -m -w 3\n\
                       -A -u 192.168.0.11:30080 -s rr\n-A -t 172.30.0.1:443 -s rr\n-A -f 77 -s rr\n";
        node.tool("ipvsadm", &["-R"], foreign);
        node.restore(kind, Family::V4, OTHERS);
        let by_set = "-A INPUT -m set --match-set FOREIGN src -j DROP\n";
        node.restore(kind, Family::V6, &OTHERS.replace(by_set, ""));
        node.tool("nft", &["-f", "-"], "table ip foreign {\n chain x {\n accept\n }\n}\n");
        node
    }

    fn tool(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let outcome = self.0.command_with_input(program, arguments, input);
        outcome.unwrap_or_else(|error| panic!("{error:#}\n{input}"))
    }

    fn restore(&self, kind: &str, family: Family, input: &str) {
        self.tool(&format!("{}-{kind}-restore", stem(family)), &["--noflush"], input);
    }

    /// Leaves what kube-proxy's IPVS mode leaves, of both families.
    fn be_ipvs_mode(&self, kind: &str) {
        self.tool("ip", &["link", "add", "kube-ipvs0", "type", "dummy"], "");
        for address in ["10.96.0.10/32", "10.96.0.99/32", "203.0.113.5/32", "fd00:96::10/128"] {
            self.tool("ip", &["addr", "add", address, "dev", "kube-ipvs0"], "");
        }
        self.tool("ipset", &["restore"], &format!("{SETS}{}", v6_sets()));
        self.tool("ipvsadm", &["-R"], &format!("{VIRTUAL_SERVERS}-A -t [fd00:96::10]:80 -s rr\n"));
        self.restore(kind, Family::V4, RULES);
        self.restore(kind, Family::V6, &rule_set(Family::V6).first_input());
    }

    /// Leaves what kube-proxy's iptables mode leaves, of both families.
    fn be_iptables_mode(&self, kind: &str) {
        for family in Family::BOTH {
            self.restore(kind, family, &iptables_mode(family));
        }
    }

    fn be_nftables_mode(&self) {
        for family in ["ip", "ip6"] {
            self.tool("nft", &["-f", "-"], &NFTABLES_MODE.replace("FAMILY", family));
        }
    }

    /// Everything that could be touched, as the tools print it.
    fn dump(&self) -> String {
        let mut dump = String::new();
        let mut add = |program: &str, arguments: &[&str]| {
            let shown = self.tool(program, arguments, "");
            for line in shown.lines().filter(|line| !line.starts_with('#')) {
                // Without counters, and without what is random.
                let line = [" [", " initval "]
                    .iter()
                    .fold(line, |line, end| line.split(end).next().unwrap_or(line));
                writeln!(dump, "{program}: {line}").unwrap();
            }
        };
        for family in Family::BOTH {
            for kind in KINDS {
                add(&format!("{}-{kind}-save", stem(family)), &[]);
            }
        }
        add("ipset", &["save"]);
        add("ipvsadm", &["-Sn"]);
        add("ip", &["-oneline", "addr"]);
        add("nft", &["list", "ruleset"]);
        dump
    }

    fn clean(&self, exclude: &[&str]) -> CleanupReport {
        let exclude = exclude.iter().map(|net| net.parse().unwrap()).collect();
        let chosen = Settings { exclude, ..Settings::new("") };
        self.0.enter(|| cleanup::all(&chosen)).unwrap()
    }

    fn hand_over(&self) -> CleanupReport {
        self.0.enter(|| cleanup::hand_over(&Settings::new(""))).unwrap()
    }

    fn move_over(&self, in_use: Backend) -> CleanupReport {
        let in_use = Family::BOTH.map(|family| (family, in_use)).into_iter().collect();
        self.0.enter(|| cleanup::other_modes(&of(Mode::Ipvs), &in_use)).unwrap()
    }
}

fn stem(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

fn rule_set(family: Family) -> RuleSet {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    RuleSet::new(
        family,
        &settings.with_internal_frontend_network(InternalFrontendNetworks::default().of(family)),
    )
}

fn v6_sets() -> String {
    let mut sets = String::new();
    for set in SetId::all(Family::V6) {
        let options = match set.set_type() {
            SetType::BitmapPort => "range 0-65535",
            _ => "family inet6",
        };
        writeln!(sets, "create {set} {} {options}", set.set_type().name()).unwrap();
    }
    sets + "add KUBE-6-CLUSTER-IP fd00:96::10,tcp:80\nadd KUBE-6-IPVS-IPS fd00:96::10\n"
}

/// Without what is others'; of IPv6 without the rules that have an address.
fn iptables_mode(family: Family) -> String {
    let others =
        ["KUBE-FIREWALL", "KUBELET", "HINT", "CNI-", "MARK-DROP", " ACCEPT [", "--ctstate INVALID"];
    let v4 = [" 10.", "/32", "/16", ":8080", ":6443", "icmp"];
    IPTABLES_MODE
        .lines()
        .filter(|line| !others.iter().any(|other| line.contains(other)))
        .filter(|line| family == Family::V4 || !v4.iter().any(|mark| line.contains(mark)))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// The lines that are in one text alone.
fn difference(before: &str, after: &str) -> String {
    let only = |one: &str, other: &str, sign: &str| {
        one.lines()
            .filter(|line| !other.lines().any(|there| there == *line))
            .fold(String::new(), |text, line| text + sign + line + "\n")
    };
    only(before, after, "- ") + &only(after, before, "+ ")
}

#[track_caller]
fn assert_same(before: &str, after: &str) {
    assert!(before == after, "not as it was before:\n{}", difference(before, after));
}

fn of(mode: Mode) -> Settings {
    Settings { mode, ..Settings::new("") }
}

#[test]
fn one_run_removes_what_all_modes_left_and_nothing_else() {
    for kind in KINDS {
        let node = Node::shared(kind);
        let before = node.dump();
        node.be_ipvs_mode(kind);
        node.be_iptables_mode(kind);
        node.be_nftables_mode();
        let left = node.dump();
        for sign in
            ["KUBE-SVC-", "KUBE-6-CLUSTER-IP", "10.96.0.99:80", "kube-ipvs0", "kube-proxy {"]
        {
            assert!(left.contains(sign), "{sign}");
        }
        let outcome = node.clean(&[]);
        assert!(outcome.is_complete(), "{outcome}");
        let [others] = &outcome.kept[..] else { panic!("{outcome}") };
        for frontend in ["172.30.0.1:443", "192.168.0.11:5555", "192.168.0.11:30080"] {
            assert!(others.contains(frontend), "{outcome}");
        }
        assert_same(&before, &node.dump());
        for part in ["nftables table", "5 virtual servers", "interface kube-ipvs0", "38 sets"] {
            assert!(outcome.to_string().contains(part), "{part}: {outcome}");
        }
        // The second run has nothing to do, and says again what is left.
        let again = CleanupReport { kept: outcome.kept, ..CleanupReport::default() };
        assert_eq!(node.clean(&[]), again);
        assert_same(&before, &node.dump());
    }
}

/// Library of an extension of iptables, which is not installed until this is dropped.
struct Uninstalled([std::path::PathBuf; 2]);

impl Uninstalled {
    fn mk(library: &str) -> Self {
        let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
        let mut paths = folders.map(|folder| folder.join("xtables").join(library));
        let path = paths.find(|path| path.exists()).unwrap();
        let hidden = path.with_extension("hidden");
        std::fs::rename(&path, &hidden).unwrap();
        Self([path, hidden])
    }
}

impl Drop for Uninstalled {
    fn drop(&mut self) {
        let Self([path, hidden]) = self;
        std::fs::rename(hidden, path).unwrap();
    }
}

#[test]
fn rules_are_removed_beside_others_whose_extension_is_not_installed() {
    let node = Node::shared("legacy");
    let others = "*filter\n:HOSTFW - [0:0]\n-A INPUT -m length --length 1:9 -j HOSTFW\n\
                  -A HOSTFW -m length --length 2 -j ACCEPT\nCOMMIT\n\
                  *nat\n-A POSTROUTING -m length --length 3 -j ACCEPT\nCOMMIT\n\
                  *mangle\n-A OUTPUT -m length --length 4 -j ACCEPT\nCOMMIT\n";
    for family in Family::BOTH {
        node.restore("legacy", family, others);
    }
    let before = node.dump();
    node.be_ipvs_mode("legacy");
    node.be_iptables_mode("legacy");
    let lacking = Uninstalled::mk("libxt_length.so");
    let outcome = node.clean(&[]);
    assert!(outcome.is_complete(), "{outcome}");
    drop(lacking);
    assert_same(&before, &node.dump());
}

#[test]
fn each_mode_alone_is_removed() {
    let node = Node::shared("nft");
    let before = node.dump();
    node.be_ipvs_mode("nft");
    assert!(node.clean(&[]).is_complete());
    assert_same(&before, &node.dump());
    node.be_iptables_mode("nft");
    assert!(node.clean(&[]).is_complete());
    assert_same(&before, &node.dump());
    node.be_nftables_mode();
    let outcome = node.clean(&[]);
    assert_eq!(outcome.removed.len(), 2, "{outcome}");
    assert_same(&before, &node.dump());
}

#[test]
fn nothing_is_done_to_a_clean_host() {
    let node = Node::bare();
    let before = node.dump();
    assert_eq!(node.clean(&[]), CleanupReport::default());
    assert_eq!(node.move_over(Backend::Nft), CleanupReport::default());
    assert_same(&before, &node.dump());
}

#[test]
fn what_is_excluded_stays() {
    let node = Node::shared("nft");
    node.be_ipvs_mode("nft");
    // Another program's way to bind an address.
    node.tool("ip", &["addr", "add", "10.97.0.1/24", "dev", "kube-ipvs0"], "");
    let outcome = node.clean(&["10.96.0.96/28"]);
    assert!(outcome.is_complete(), "{outcome}");
    let servers = node.tool("ipvsadm", &["-Sn"], "");
    assert!(servers.contains("10.96.0.99:80") && !servers.contains("10.96.0.10:80"), "{servers}");
    let addresses = node.tool("ip", &["-oneline", "addr", "show", "dev", "kube-ipvs0"], "");
    assert!(addresses.contains("10.96.0.99/32"), "{addresses}");
    let others = ["10.96.0.10/32", "fd00:96", "10.97.0.1"];
    assert!(others.iter().all(|address| !addresses.contains(address)), "{addresses}");
    let sets = node.tool("ipset", &["save"], "");
    let ours: Vec<&str> = sets.lines().filter(|line| line.contains("KUBE-")).collect();
    assert!(
        ours.iter().all(|line| line.contains("KUBE-CLUSTER-IP") || line.contains("KUBE-IPVS-IPS"))
    );
    let entries = ours.iter().filter(|line| line.starts_with("add "));
    assert!(
        entries.clone().count() == 2 && entries.clone().all(|e| e.contains("10.96.0.99")),
        "{sets}"
    );
    assert_eq!(outcome.kept.len(), 4, "{outcome}");
    let again = node.clean(&["10.96.0.96/28"]);
    assert_eq!((again.removed.len(), again.kept, again.failures.len()), (0, outcome.kept, 0));
}

#[test]
fn what_others_lead_into_stays_as_far_as_they_need_it() {
    for kind in KINDS {
        let node = Node::shared(kind);
        node.be_ipvs_mode(kind);
        let foreign = "*nat\n:HOSTPORTS - [0:0]\n-A HOSTPORTS -j KUBE-MARK-MASQ\n\
                       -A OUTPUT -m comment --comment mine -j KUBE-SERVICES\nCOMMIT\n\
                       *filter\n-A FORWARD -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n";
        node.restore(kind, Family::V4, foreign);
        let outcome = node.clean(&[]);
        // All else is gone in one run; a set in use is said.
        assert_eq!(outcome.failures.len(), 1, "{outcome}");
        assert!(outcome.failures[0].contains("KUBE-CLUSTER-IP"), "{outcome}");
        assert!(outcome.kept.iter().any(|kept| kept.contains("--comment mine -j KUBE-SERVICES")));
        let rules = node.tool(&format!("iptables-{kind}-save"), &["-t", "nat"], "");
        for there in [
            "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
            "-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
            "-j MASQUERADE --random-fully",
            ":KUBE-SERVICES ",
        ] {
            assert!(rules.contains(there), "{there}:\n{rules}");
        }
        for gone in
            ["-A KUBE-SERVICES", "match-set", "KUBE-NODE-PORT", "kubernetes service portals"]
        {
            assert!(!rules.contains(gone), "{gone}:\n{rules}");
        }
        let sets = node.tool("ipset", &["list", "-n"], "");
        assert_eq!(sets.lines().filter(|name| name.starts_with("KUBE-")).count(), 1, "{sets}");

        node.restore(
            kind,
            Family::V4,
            "*filter\n-D FORWARD -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n",
        );
        let outcome = node.clean(&[]);
        assert!(outcome.is_complete(), "{outcome}");
        assert_eq!(outcome.removed, ["1 set"]);
    }
}

#[test]
fn an_interface_of_another_kind_stays_and_is_reported() {
    let node = Node::shared("nft");
    node.tool("ip", &["link", "add", "kube-ipvs0", "type", "bridge"], "");
    node.tool("ip", &["addr", "add", "192.168.9.1/32", "dev", "kube-ipvs0"], "");
    node.tool("ipvsadm", &["-R"], "-A -t 192.168.9.1:80 -s rr\n");
    let before = node.dump();
    let outcome = node.clean(&[]);
    assert!(outcome.failures[0].contains("bridge"), "{outcome}");
    assert_same(&before, &node.dump());
}

#[test]
fn moving_over_from_the_iptables_mode_leaves_our_rules_alone() {
    for (kind, variant, backend) in
        [("nft", Variant::Nft, Backend::Nft), ("legacy", Variant::Legacy, Backend::Legacy)]
    {
        let node = Node::shared(kind);
        node.tool("ipset", &["restore"], &format!("{SETS}{V4_SETS_OF_OURS}{}", v6_sets()));
        let write = || {
            for family in Family::BOTH {
                let rules = Rules::open(family, variant).unwrap();
                rules.write(&rule_set(family)).unwrap();
            }
        };
        // What a host has that never had another mode.
        node.0.enter(write).unwrap();
        let ours = node.dump();
        let fresh = Node::shared(kind);
        let sets = format!("{SETS}{V4_SETS_OF_OURS}{FORMER_SET}{}", v6_sets());
        fresh.tool("ipset", &["restore"], &sets);
        fresh.be_iptables_mode(kind);
        fresh.be_nftables_mode();
        // Before our own rules are there, the proxy that is at work loses nothing that it uses.
        let saved = fresh.tool(&format!("iptables-{kind}-save"), &["-t", "nat"], "");
        fresh.0.enter(write).unwrap();
        assert_ne!(saved, fresh.tool(&format!("iptables-{kind}-save"), &["-t", "nat"], ""));
        let outcome = fresh.move_over(backend);
        assert!(outcome.is_complete() && outcome.kept.is_empty(), "{outcome}");
        // Jumps that both modes have were found and kept where they were: only their order
        // against others' can differ.
        let sorted = |dump: &str| {
            let mut lines: Vec<&str> = dump.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        assert_same(&sorted(&ours), &sorted(&fresh.dump()));
        assert_eq!(fresh.move_over(backend), CleanupReport::default());
        let intact = || {
            Family::BOTH.into_iter().all(|family| {
                let rules = Rules::open(family, variant).unwrap();
                rules.check(&rule_set(family)).unwrap().matches()
            })
        };
        assert!(fresh.0.enter(intact).unwrap());
    }
}

#[test]
fn in_the_other_kind_of_iptables_nothing_of_kube_proxys_stays() {
    let node = Node::shared("legacy");
    let before = node.dump();
    node.be_iptables_mode("legacy");
    let outcome = node.move_over(Backend::Nft);
    assert!(outcome.is_complete(), "{outcome}");
    assert_same(&before, &node.dump());
}

#[test]
fn handed_over_a_node_has_what_kube_proxys_ipvs_mode_knows_and_all_of_that() {
    for kind in KINDS {
        let node = Node::shared(kind);
        node.be_ipvs_mode(kind);
        // The kernel shows the size of a bucket only if a tool gave one when it made the set.
        let others = |dump: &str| -> String {
            let is_other = |line: &&str| !line.contains("tables-") && !line.starts_with("nft");
            dump.lines()
                .filter(is_other)
                .filter(|line| !is_ours_alone(line))
                .map(|line| line.replace(" bucketsize 12", "") + "\n")
                .collect()
        };
        let before = others(&node.dump());
        let sets = format!("{V4_SETS_OF_OURS}{FORMER_SET}");
        node.tool("ipset", &["-exist", "restore"], &sets);
        node.restore(kind, Family::V4, &rule_set(Family::V4).first_input());
        // An internal frontend, and a set that has grown.
        node.tool("ip", &["addr", "add", "240.113.0.5/32", "dev", "kube-ipvs0"], "");
        node.tool("ipvsadm", &["-R"], "-A -t 240.113.0.5:80 -s rr\n");
        let grown = "add KUBE-IPVS-IPS 240.113.0.5\nadd KUBE-INTERNAL-FRONTEND 203.0.113.5,tcp:80\n\
                     create GROWN hash:ip,port family inet maxelem 131072\n\
                     add GROWN 10.96.0.10,tcp:80\nadd GROWN 10.96.0.99,tcp:80\n\
                     swap GROWN KUBE-CLUSTER-IP\ndestroy GROWN\n";
        node.tool("ipset", &["restore"], grown);
        assert!(node.dump().lines().any(is_ours_alone));

        let outcome = node.hand_over();
        assert!(outcome.is_complete(), "{outcome}");
        let after = node.dump();
        let ours: Vec<&str> = after.lines().filter(|line| is_ours_alone(line)).collect();
        assert!(ours.is_empty(), "{ours:#?}");
        assert_same(&sorted(&before), &sorted(&others(&after)));
        let serving = ["-A KUBE-SERVICES ", "-A KUBE-IPVS-FILTER ", "-A -t 10.96.0.10:80"];
        assert!(serving.iter().all(|sign| after.contains(sign)), "{after}");
        assert_eq!(node.hand_over(), CleanupReport::default(), "the second run has nothing to do");

        // The state of a node that leaves mode ipvs.
        for address in ["10.96.0.10/32", "203.0.113.5/32", "fd00:96::10/128"] {
            node.tool("ip", &["addr", "del", address, "dev", "kube-ipvs0"], "");
            node.tool("ip", &["route", "add", "local", address, "dev", "lo", "proto", "107"], "");
        }
        let outcome = node.hand_over();
        assert_eq!(outcome.removed, ["3 local routes"], "{outcome}");
        assert!(outcome.is_complete(), "{outcome}");
        let bound = node.tool("ip", &["-oneline", "addr", "show", "dev", "kube-ipvs0"], "");
        for address in ["10.96.0.10/32", "203.0.113.5/32", "fd00:96::10/128"] {
            assert!(bound.contains(address), "{address}:\n{bound}");
            let family = if address.contains(':') { "-6" } else { "-4" };
            let address = address.split('/').next().unwrap();
            let way = node.tool("ip", &[family, "route", "get", address], "");
            assert!(way.starts_with("local "), "{way}");
        }
        let routes = |family| {
            let shown = ["route", "show", "table", "local", "proto", "107"];
            node.tool("ip", &[&[family], &shown[..]].concat(), "")
        };
        assert_eq!([routes("-4"), routes("-6")].concat(), "");

        node.tool(
            "ip",
            &["route", "add", "local", "172.30.0.0/16", "dev", "lo", "proto", "107"],
            "",
        );
        node.tool("ipset", &["restore"], V4_SETS_OF_OURS);
        let outcome = node.hand_over();
        assert!(outcome.to_string().contains("serviceRoutes"), "{outcome}");
        assert!(node.dump().lines().any(is_ours_alone), "with routes, nothing is removed");
    }
}

/// True of what kube-proxy's IPVS mode does not have.
fn is_ours_alone(line: &str) -> bool {
    [
        "INTERNAL-FRONTEND",
        "SHORT-CIRCUIT",
        "NO-ENDPOINTS",
        "NO-LOCAL-ENDPOINTS",
        "240.113.0.5",
        "unanswered",
    ]
    .iter()
    .any(|sign| line.contains(sign))
        || line.contains("mangle") && line.contains("KUBE-PROXY-FIREWALL")
        || line.contains("maxelem 131072")
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn the_program_does_it_and_ends_well_twice() {
    let program = std::env::var("KUBE_IPVS").unwrap();
    let node = Node::shared("nft");
    let before = node.dump();
    node.be_ipvs_mode("nft");
    node.be_iptables_mode("nft");
    node.be_nftables_mode();
    for _ in 0..2 {
        node.tool(&program, &["--cleanup"], "");
        assert_same(&before, &node.dump());
    }
    // What cannot be removed is a failure.
    node.tool("ip", &["link", "add", "kube-ipvs0", "type", "bridge"], "");
    assert!(node.0.command(&program, &["--cleanup"]).is_err());
}

#[test]
fn packet_counters_go_unless_a_rule_names_them() {
    let node = Node::shared("nft");
    let counters = [INVALID_DROPPED, LOCALHOST_ACCEPTED];
    let packets =
        |name: &str| node.0.enter(|| NfacctClient::open().unwrap().packets(name).unwrap()).unwrap();
    node.0
        .enter(|| {
            let mut client = NfacctClient::open().unwrap();
            counters.iter().for_each(|name| client.ensure(name).unwrap());
            client.ensure("of_another_program").unwrap();
        })
        .unwrap();
    let rule = format!(
        "*filter\n:OTHER - [0:0]\n-A OTHER -m nfacct --nfacct-name {LOCALHOST_ACCEPTED}\nCOMMIT\n"
    );
    node.restore("nft", Family::V4, &rule);
    let outcome = node.clean(&[]);
    assert!(outcome.is_complete(), "{outcome}");
    assert_eq!(outcome.removed, ["1 packet counter"], "{outcome}");
    assert!(outcome.kept.iter().any(|kept| kept.contains(LOCALHOST_ACCEPTED)), "{outcome}");
    assert_eq!(counters.map(packets), [None, Some(0)]);

    node.restore("nft", Family::V4, "*filter\n:OTHER - [0:0]\n-X OTHER\nCOMMIT\n");
    let in_use = Family::BOTH.map(|family| (family, Backend::Nft)).into_iter().collect();
    let outcome = node.0.enter(|| cleanup::other_modes(&of(Mode::Iptables), &in_use)).unwrap();
    assert_eq!(outcome, CleanupReport::default(), "mode iptables counts");
    let outcome = node.0.enter(|| cleanup::other_modes(&of(Mode::Ipvs), &in_use)).unwrap();
    assert_eq!(outcome.removed, ["1 packet counter"], "{outcome}");
    assert_eq!(counters.map(packets), [None, None]);
    assert_eq!(packets("of_another_program"), Some(0));
}
