//! Replies to ARP requests, by address, with `serviceAddressesArp`.

use bed::{Connection, Protocol, Question, Service, eventually};

use crate::fixture::{Bed, PATIENCE, TARGET, assert_shares, ip};

/// The load balancer IP, as outside clients have it.
const BALANCED: &str = "203.0.113.10";

/// An address of the node on another interface than the one that clients are at.
const SECOND: &str = "192.0.2.77";

/// A cluster whose first node has an address on a second interface, and a Service with a load
/// balancer IP.
fn mk_bed() -> Bed {
    let bed = Bed::new();
    bed.tool("ip", &["link", "add", "second", "type", "dummy"]);
    bed.tool("ip", &["addr", "add", &format!("{SECOND}/32"), "dev", "second"]);
    bed.tool("ip", &["link", "set", "second", "up"]);
    let mut service = Service::new("web", ip("10.96.0.10")).port(Protocol::Tcp, 80, TARGET);
    service.load_balancer.push(ip(BALANCED));
    bed.manifests.apply(&service.pods([bed.pod(1, 1)])).unwrap();
    bed
}

/// True if the client's ARP request for an address on its own network is answered.
fn is_answered(bed: &Bed, address: &str) -> bool {
    let client = bed.client();
    let tool = |arguments: &[&str]| client.command("ip", arguments).unwrap();
    tool(&["route", "replace", &format!("{address}/32"), "dev", "eth0"]);
    // What was learnt before does not count.
    tool(&["neigh", "flush", "to", address, "dev", "eth0"]);
    let _refused_or_not = bed::ask(client, Question::tcp((ip(address), 80)));
    // A request is repeated twice, a second apart, before it counts as not answered.
    let mut found = String::new();
    let done = eventually(PATIENCE, "the request is answered or not", || {
        found = tool(&["neigh", "show", "to", address, "dev", "eth0"]);
        anyhow::ensure!(found.contains("lladdr") || found.contains("FAILED"), "{found:?}");
        Ok(())
    });
    done.unwrap_or_else(|error| panic!("{error:#}\n{}", bed.cluster.dump()));
    tool(&["route", "del", &format!("{address}/32"), "dev", "eth0"]);
    found.contains("lladdr")
}

/// The scope that the addresses on kube-ipvs0 have.
fn scopes(bed: &Bed) -> Vec<String> {
    let text = bed.tool("ip", &["-4", "-oneline", "addr", "show", "dev", "kube-ipvs0"]);
    let scope = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "scope");
        words.nth(1).unwrap_or_default().to_owned()
    };
    let mut scopes: Vec<String> = text.lines().map(scope).collect();
    scopes.dedup();
    scopes
}

/// A client with a route by way of the node still reaches the pod at the load balancer IP.
fn assert_served(bed: &Bed) {
    for target in [BALANCED, "10.96.0.10"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target), 80), 2);
        assert_shares(&tally, &[("pod1-1", 2)]);
    }
}

#[test]
fn quiet_answers_for_the_nodes_own_addresses_and_for_no_services() {
    let bed = mk_bed();
    let compatible = bed.configuration("compatible", "serviceAddressesArp: compatible");
    let proxy = bed.start(&["--config", &compatible]);
    assert_served(&bed);
    assert_eq!(scopes(&bed), ["global"]);
    assert!(is_answered(&bed, BALANCED), "as with kube-proxy");
    assert!(is_answered(&bed, SECOND));
    proxy.stop().unwrap();

    let quiet = bed.configuration("quiet", "serviceAddressesArp: quiet");
    let proxy = bed.start(&["--config", &quiet]);
    assert_served(&bed);
    assert_eq!(scopes(&bed), ["host"], "bound again");
    assert!(!is_answered(&bed, BALANCED));
    assert!(is_answered(&bed, SECOND), "on another interface, and the node's own");
    assert!(is_answered(&bed, "192.168.0.11"));
    // One that is bound from now on.
    let mut service = Service::new("new", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    service.load_balancer.push(ip("203.0.113.20"));
    bed.manifests.apply(&service.pods([bed.pod(1, 2)])).unwrap();
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("203.0.113.20"), 80), 2);
    assert_shares(&tally, &[("pod1-2", 2)]);
    assert_eq!(scopes(&bed), ["host"]);
    assert!(!is_answered(&bed, "203.0.113.20"));
    proxy.stop().unwrap();

    // And back: the proxy leaves the sysctls to the program that set them.
    let proxy = bed.start(&["--config", &compatible]);
    assert_eq!(scopes(&bed), ["global"]);
    assert_served(&bed);
    assert!(is_answered(&bed, BALANCED), "arp_ignore 3 is only about scope host");
    proxy.stop().unwrap();
}

#[test]
fn quiet_is_kept_while_the_node_leaves_ipvs_mode_and_comes_back() {
    let bed = mk_bed();
    let quiet = bed.configuration("quiet", "serviceAddressesArp: quiet");
    let proxy = bed.start(&["--config", &quiet]);
    let mut held = Connection::open(bed.client(), Question::tcp((ip(BALANCED), 80))).unwrap();
    held.say().unwrap();
    assert!(!is_answered(&bed, BALANCED));
    proxy.stop().unwrap();

    // Node ports on loopback addresses need `route_localnet`, with which the kernel is not quiet.
    let without_localhost = "mode: iptables\niptables: {localhostNodePorts: false}";
    let iptables =
        std::fs::read_to_string(&quiet).unwrap().replace("mode: ipvs", without_localhost);
    let configuration = bed.configuration("leaving", "");
    std::fs::write(&configuration, iptables).unwrap();
    let proxy = bed.start(&["--config", &configuration]);
    bed.wait_until("addresses become routes", || bed.bound().is_empty());
    assert_served(&bed);
    assert!(!is_answered(&bed, BALANCED), "local by a route");
    held.say().unwrap();
    proxy.stop().unwrap();

    let proxy = bed.start(&["--config", &quiet]);
    assert_served(&bed);
    assert!(!is_answered(&bed, BALANCED));
    held.say().unwrap();
    proxy.stop().unwrap();
}

#[test]
fn quiet_says_so_when_the_kernel_is_not() {
    let bed = mk_bed();
    let quiet = bed.configuration("quiet", "serviceAddressesArp: quiet");
    bed.node().set_sysctl("net/ipv4/conf/all/route_localnet", "1").unwrap();
    let log = bed.start(&["--config", &quiet]).stop().unwrap();
    assert!(log.contains("net.ipv4.conf.all.route_localnet is 1"), "{log}");
}
