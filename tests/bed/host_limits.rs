//! Hosts with unusual settings: IPv6 off by default, addresses chosen as a source, conntrack buckets that cannot be
//! written, protocols of IPVS.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use bed::{Protocol, Question, Server};

use crate::cluster::{HEALTH, status};
use crate::console::run;
use crate::fixture::{Bed, assert_shares, ip, web};

const SERVICE: &str = "fd00:96::10";
/// Is reached by an interface without an address, and shares more bits with the Service's address than
/// with the node's: by these the kernel chooses a source.
const NEAR: &str = "fd00:96:1::5";
const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";
const ENTRIES: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

fn lead_near(bed: &Bed) {
    bed.tool("ip", &["link", "add", "near0", "type", "dummy"]);
    bed.tool("ip", &["link", "set", "near0", "up"]);
    bed.tool("ip", &["-6", "route", "add", "fd00:96:1::/64", "dev", "near0"]);
}

/// Source that a socket of the node gets now.
fn source_now(bed: &Bed) -> IpAddr {
    let connected = bed.node().enter(|| {
        let socket = UdpSocket::bind("[::]:0").unwrap();
        socket.connect(SocketAddr::new(ip(NEAR), 9)).unwrap();
        socket.local_addr().unwrap().ip()
    });
    connected.unwrap()
}

/// The same where it does not change, so that routes show it too.
fn source(bed: &Bed) -> IpAddr {
    let source = source_now(bed);
    let route = bed.tool("ip", &["-6", "route", "get", NEAR]);
    assert!(route.contains(&format!("src {source}")), "{source}: {route}");
    source
}

fn is_bound(bed: &Bed) -> bool {
    bed.bound().contains(&format!("{SERVICE}/128"))
}

#[test]
fn an_ipv6_service_address_is_no_source_of_the_nodes_own_connections() {
    let bed = Bed::new();
    lead_near(&bed);
    let own = source(&bed);
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    assert!(is_bound(&bed));
    assert_eq!(source(&bed), own);
    for from in [bed.node(), &bed.pod(1, 2).namespace, bed.client()] {
        assert_shares(&bed.ask(from, Protocol::Tcp, (ip(SERVICE), 80), 2), &[("pod1-1", 2)]);
    }
}

#[test]
fn nor_is_one_that_was_found() {
    let bed = Bed::new();
    lead_near(&bed);
    let own = source(&bed);
    bed.tool("ip", &["link", "add", "kube-ipvs0", "type", "dummy"]);
    for address in [&format!("{SERVICE}/128")[..], "fd00:96::99/128"] {
        bed.tool("ip", &["address", "add", address, "dev", "kube-ipvs0", "nodad"]);
    }
    assert_ne!(source(&bed), own, "the kernel would choose it");
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    bed.wait_until("the node's own is chosen", || source_now(&bed) == own);
    assert_eq!(source(&bed), own);
    assert!(is_bound(&bed));
    let lifetimes = bed.tool("ip", &["-6", "address", "show", "dev", "kube-ipvs0"]);
    assert!(lifetimes.contains("valid_lft forever preferred_lft 0sec"), "{lifetimes}");
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, (ip(SERVICE), 80), 2), &[("pod1-1", 2)]);
}

#[test]
fn ipv6_that_is_off_by_default_is_on_for_the_interface_of_service_addresses() {
    let bed = Bed::new();
    bed.node().set_sysctl("net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    let is_off = || bed.node().sysctl("net/ipv6/conf/kube-ipvs0/disable_ipv6").unwrap();
    for _ in ["as it was made", "made again"] {
        bed.wait_until("IPv6 is served", || is_bound(&bed));
        assert_eq!(is_off().trim(), "0");
        for from in [&bed.pod(1, 2).namespace, bed.client()] {
            assert_shares(&bed.ask(from, Protocol::Tcp, (ip(SERVICE), 80), 2), &[("pod1-1", 2)]);
        }
        bed.tool("ip", &["link", "delete", "kube-ipvs0"]);
        bed.wait_until("it is back", || {
            let links = bed.tool("ip", &["-o", "link"]);
            links.contains("kube-ipvs0")
        });
    }
    bed.node().set_sysctl("net/ipv6/conf/kube-ipvs0/disable_ipv6", "1").unwrap();
    bed.wait_until("it is on again", || is_off().trim() == "0" && is_bound(&bed));
}

/// Takes what is left of a hook at which IPVS registers with the first virtual server of IPv6: the kernel
/// refuses more than 1,024 (MAX_HOOK_COUNT in net/netfilter/core.c).
fn fill_hook(bed: &Bed, table: &str) {
    let chain = |number: usize| {
        format!("add chain ip6 {table} c{number} {{ type filter hook input priority 0; }}\n")
    };
    let add = |text: &str| bed.node().command_with_input("nft", &["-f", "-"], text);
    let chains: String = (0..1_000).map(chain).collect();
    add(&format!("add table ip6 {table}\n{chains}")).unwrap();
    let refused = (1_000..1_025).find(|number| add(&chain(*number)).is_err());
    assert!(refused.is_some(), "the hook is not full");
}

/// A server of the node that listens at all addresses would answer at one that is bound and not served.
#[test]
fn an_address_whose_virtual_server_the_kernel_refuses_is_not_bound_until_it_stands() {
    let bed = Bed::new();
    let sockets = [ip("0.0.0.0"), ip("::")].map(|any| (Protocol::Tcp, SocketAddr::new(any, 80)));
    let _of_the_node = Server::bind(bed.node(), "node", &sockets).unwrap();
    let proxy = bed.start(&[]);
    bed.wait_until("it is ready", || status(bed.node(), HEALTH, "/readyz") == "200");
    fill_hook(&bed, "others");
    // Its slices first: the address of a Service without endpoints is bound, and its frontends are refused.
    let yaml = web([bed.pod(1, 1)]).to_yaml();
    let (service, slices) = yaml.split_once("---\n").unwrap();
    bed.manifests.write("slices.yaml", slices).unwrap();
    bed.wait_until("the slices are known", || {
        run(&bed, &["status", "-o", "json"]).json()["input"]["slices"] == 2
    });
    bed.manifests.write("web.yaml", service).unwrap();
    let clients = [bed.node(), &bed.pod(1, 2).namespace, bed.client()];
    proxy.wait_for_log("virtual server TCP [fd00:96::10]:80", Duration::from_secs(20)).unwrap();
    for from in clients {
        assert_shares(&bed.ask(from, Protocol::Tcp, (ip("10.96.0.10"), 80), 2), &[("pod1-1", 2)]);
        let answer = bed::ask(from, Question::tcp((ip(SERVICE), 80)));
        assert!(answer.is_err(), "{}: {answer:?}", from.name());
    }
    assert!(!is_bound(&bed));
    assert!(!bed.virtual_servers().contains(SERVICE), "{}", bed.virtual_servers());
    // A program that starts on such a node serves too little of IPv6 for a rollout to go on.
    proxy.stop().unwrap();
    let _proxy = bed.start(&[]);
    assert_eq!(status(bed.node(), HEALTH, "/readyz"), "503");
    bed.tool("nft", &["delete", "table", "ip6", "others"]);
    bed.wait_until("it is served", || is_bound(&bed));
    bed.wait_until("it is ready", || status(bed.node(), HEALTH, "/readyz") == "200");
    for from in clients {
        assert_shares(&bed.ask(from, Protocol::Tcp, (ip(SERVICE), 80), 2), &[("pod1-1", 2)]);
    }
}

#[test]
fn buckets_that_cannot_be_written_are_said_and_all_is_served() {
    let bed = Bed::new();
    let number = |path| fs::read_to_string(path).unwrap().trim().parse::<u32>().unwrap();
    let (buckets, entries) = (number(BUCKETS), number(ENTRIES));
    let most = (4 * buckets + 4).max(entries);
    fs::write(ENTRIES, most.to_string()).unwrap();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    // A node of the bed is a network namespace, where the kernel refuses buckets.
    let flags = ["--conntrack-max-per-core=1".to_owned(), format!("--conntrack-min={most}")];
    let _proxy = bed.start(&flags.each_ref().map(String::as_str));
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, (ip(SERVICE), 80), 2), &[("pod1-1", 2)]);
    let answer = run(&bed, &["status", "-o", "json"]).json();
    let limits = answer["mode"]["limits"].to_string();
    assert!(limits.contains("buckets") && limits.contains("not the host's"), "{limits}");
    assert_eq!((number(BUCKETS), number(ENTRIES)), (buckets, most));
    fs::write(ENTRIES, entries.to_string()).unwrap();
}

#[test]
fn this_kernels_ipvs_has_both_families_and_all_protocols() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    let answer = run(&bed, &["status", "-o", "json"]).json();
    assert_eq!(answer["mode"]["families"].as_array().unwrap().len(), 2, "{answer:#}");
    let limits = answer["mode"]["limits"].to_string();
    assert!(!limits.contains("of this kernel does not support"), "{limits}");
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    for name in ["ip_vs_schedule", "tcp_snat_handler", "udp_snat_handler", "sctp_snat_handler"] {
        let is_there = symbols.lines().any(|line| line.split_whitespace().nth(2) == Some(name));
        assert!(is_there, "the probe asks for {name}");
    }
}
