//! TestMultiPortServiceBindAddr, TestIpIsValidForSet, TestGetNodeIPs: which addresses are on
//! `kube-ipvs0`, and on which of the node's own node ports are served.

use plan::event::Event;
use plan::kernel_objects::LINK;
use plan::model::{Service, ServiceKind};
use plan::problem::{AddressField, Problem};
use plan::settings::{NodePortAddresses, Settings};

use crate::node::{Node, THIS, check};
use crate::words::{applied, ip, ips, port, removed, service, slice, sliced};

fn web(ports: &[(&str, &str)]) -> Service {
    let ports = ports.iter().map(|(name, text)| port(name, text)).collect();
    Service { ports, ..service("web", &["10.96.0.9"]) }
}

#[test]
fn an_address_is_there_as_long_as_one_port_has_it() {
    assert_eq!(LINK, "kube-ipvs0");
    let endpoints = slice("web-1", "web", &["10.244.1.2@n2"]);
    let mut node = Node::after([sliced(&endpoints)]);
    let both = web(&[("http", "80/TCP"), ("metrics", "9090/TCP")]);
    let other = web(&[("metrics", "9090/TCP")]);
    for (row, service) in [("both", &both), ("the first is gone", &other), ("both again", &both)] {
        node.run([applied(service)]);
        check(row, &node.addresses(), &["kube-ipvs0 10.96.0.9"]);
    }
    node.run([applied(&web(&[]))]);
    check("no port", &node.addresses(), &[]);
    node.run([applied(&both)]);
    node.run([removed(&both)]);
    check("no Service", &node.addresses(), &[]);
}

#[test]
fn an_address_is_there_as_long_as_one_service_has_it() {
    let sharing = |name: &str, cluster: &str, text: &str| Service {
        load_balancer: ips(&["203.0.113.5"]),
        ports: vec![port("http", text)],
        ..service(name, &[cluster])
    };
    let (web, mail) =
        (sharing("web", "10.96.0.9", "80/TCP"), sharing("mail", "10.96.0.8", "25/TCP"));
    let mut node = Node::after([applied(&web), applied(&mail)]);
    let shared = "kube-ipvs0 203.0.113.5";
    check("both", &node.addresses(), &[shared, "kube-ipvs0 10.96.0.9", "kube-ipvs0 10.96.0.8"]);
    node.run([removed(&web)]);
    check("one", &node.addresses(), &[shared, "kube-ipvs0 10.96.0.8"]);
    node.run([removed(&mail)]);
    check("none", &node.addresses(), &[]);
}

/// As an external address, and as a load balancer's. An IPv4 address written in IPv6 is IPv4 before
/// it comes here.
#[test]
fn an_address_that_no_service_can_have_is_left_out_and_told() {
    for (address, possible) in [
        ("192.0.2.77", true),
        ("10.0.0.1", true),
        ("223.255.255.254", true),
        ("2001:db8::77", true),
        ("fd00::77", true),
        ("0.0.0.0", false),
        ("0.0.113.5", false),
        ("127.0.0.1", false),
        ("127.8.8.8", false),
        ("169.254.8.8", false),
        ("224.0.0.251", false),
        ("255.255.255.255", false),
        ("::", false),
        ("::1", false),
        ("fe80::77", false),
        ("ff02::1", false),
    ] {
        let both = ["10.96.0.9", "fd00:96::9"];
        let external = Service { external: ips(&[address]), ..service("web", &both) };
        let balanced = Service { load_balancer: ips(&[address]), ..service("web", &both) };
        let endpoints =
            [slice("web-4", "web", &["10.244.1.2@n2"]), slice("web-6", "web", &["fd00:244::2@n2"])];
        for (field, service) in
            [(AddressField::External, external), (AddressField::LoadBalancer, balanced)]
        {
            let mut node = Node::after(endpoints.iter().map(sliced));
            let plan = node.run([applied(&service)]);
            let address = ip(address);
            assert_eq!(node.kernel.actual().addresses.contains(&address), possible, "{address}");
            let serves = |frontend: &plan::kernel_objects::Frontend| frontend.address == address;
            let served = node.kernel.actual().virtual_servers.keys().any(serves);
            assert_eq!(served, possible, "{address}");
            let problem = (service.name, vec![Problem::ImpossibleAddress { field, address }]);
            let expected = if possible { vec![] } else { vec![problem] };
            assert_eq!(plan.problems, expected, "{address}");
            assert!(node.addresses().contains("kube-ipvs0 10.96.0.9"), "the rest is served");
        }
    }
}

fn node_ports() -> [Event; 3] {
    let web = Service {
        kind: ServiceKind::NodePort,
        ports: vec![port("http", "80:30080/TCP")],
        ..service("web", &["10.96.0.9", "fd00:96::9"])
    };
    [
        applied(&web),
        sliced(&slice("web-4", "web", &["10.244.1.2@n2"])),
        sliced(&slice("web-6", "web", &["fd00:244::2@n2"])),
    ]
}

/// The addresses at which the node port 30080 is served.
fn served(node: &Node) -> Vec<String> {
    let frontends = node.kernel.actual().virtual_servers.keys();
    let node_ports = frontends.filter(|frontend| frontend.port == 30_080);
    let mut addresses: Vec<_> = node_ports.map(|frontend| frontend.address).collect();
    addresses.sort_unstable();
    addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn node_ports_are_served_on_every_address_that_others_can_reach() {
    for (row, addresses, expected) in [
        ("none", &[][..], &[][..]),
        ("loopback only", &["127.0.0.1", "::1"], &[]),
        ("one", &["127.0.0.1", "192.0.2.10"], &["192.0.2.10"]),
        ("any of 127/8", &["127.0.0.1", "127.0.0.53", "192.0.2.10"], &["192.0.2.10"]),
        (
            "both families",
            &["127.0.0.1", "192.0.2.10", "::1", "2001:db8::10"],
            &["192.0.2.10", "2001:db8::10"],
        ),
        (
            "several of both families",
            &["192.0.2.10", "172.17.0.1", "10.244.0.1", "2001:db8::10", "fd00:244::1"],
            &["10.244.0.1", "172.17.0.1", "192.0.2.10", "2001:db8::10", "fd00:244::1"],
        ),
        ("link-local IPv6 is of every interface", &["fe80::1", "2001:db8::10"], &["2001:db8::10"]),
        (
            "link-local IPv4 is not",
            &["169.254.20.10", "192.0.2.10"],
            &["169.254.20.10", "192.0.2.10"],
        ),
    ] {
        let mut node = Node::with_addresses(Settings::new(THIS), addresses);
        node.run(node_ports());
        assert_eq!(served(&node), expected, "{row}");
    }
}

#[test]
fn node_ports_are_served_where_the_operator_chose() {
    const ALL: [&str; 7] = [
        "127.0.0.1",
        "192.0.2.10",
        "192.0.2.77",
        "198.51.100.3",
        "::1",
        "2001:db8::10",
        "fe80::10",
    ];
    for (row, networks, expected) in [
        (
            "anywhere",
            &["0.0.0.0/0", "::/0"][..],
            &["192.0.2.10", "192.0.2.77", "198.51.100.3", "2001:db8::10"][..],
        ),
        ("of IPv4 a network, of IPv6 all", &["198.51.100.0/24"], &["198.51.100.3", "2001:db8::10"]),
        (
            "of both an address",
            &["192.0.2.77/32", "2001:db8::10/128"],
            &["192.0.2.77", "2001:db8::10"],
        ),
        (
            "a network, and anywhere",
            &["198.51.100.0/24", "0.0.0.0/0"],
            &["192.0.2.10", "192.0.2.77", "198.51.100.3", "2001:db8::10"],
        ),
        ("never loopback", &["127.0.0.0/8", "::1/128"], &[]),
        (
            "link-local, if that was meant",
            &["192.0.2.10/32", "fe80::/10"],
            &["192.0.2.10", "fe80::10"],
        ),
        ("where nothing is", &["203.0.113.0/24", "2001:db8:99::/48"], &[]),
    ] {
        let mut settings = Settings::new(THIS);
        let networks = networks.iter().map(|net| net.parse().unwrap()).collect();
        settings.node_port_addresses = NodePortAddresses::Networks(networks);
        let mut node = Node::with_addresses(settings, &ALL);
        node.run(node_ports());
        assert_eq!(served(&node), expected, "{row}");
    }
    let mut settings = Settings::new(THIS);
    settings.node_port_addresses = NodePortAddresses::Primary(Vec::new());
    let mut node = Node::with_addresses(settings, &ALL);
    let plan = node.run(node_ports());
    assert_eq!(served(&node), [""; 0], "the node's object is not known yet");
    assert_eq!(plan.problems.len(), 1);
    let addresses = ips(&["192.0.2.77", "192.0.2.10", "2001:db8::10"]);
    let object = plan::model::Node { addresses, ..plan::model::Node::default() };
    let plan = node.run([Event::NodeApplied(Box::new(object))]);
    assert_eq!(served(&node), ["192.0.2.77", "2001:db8::10"]);
    assert_eq!(plan.problems, [(service("web", &[]).name, vec![])]);
}

#[test]
fn an_address_of_the_node_is_served_where_it_is_and_not_bound() {
    let own = Service { external: ips(&["192.0.2.10"]), ..service("web", &["10.96.0.9"]) };
    let endpoints = slice("web-1", "web", &["10.244.1.2@n2"]);
    let mut node = Node::after([applied(&own), sliced(&endpoints)]);
    check("the node's", &node.addresses(), &["kube-ipvs0 10.96.0.9"]);
    assert_eq!(node.real_servers("TCP 192.0.2.10:80").unwrap(), "10.244.1.2:8080");
    assert!(!node.entries("KUBE-IPVS-IPS").contains("KUBE-IPVS-IPS 192.0.2.10"));
    node.run([Event::LocalAddresses(ips(&["127.0.0.1"]))]);
    check("no longer", &node.addresses(), &["kube-ipvs0 10.96.0.9", "kube-ipvs0 192.0.2.10"]);
    node.run([Event::LocalAddresses(ips(&["127.0.0.1", "192.0.2.10"]))]);
    check("again", &node.addresses(), &["kube-ipvs0 10.96.0.9"]);
}
