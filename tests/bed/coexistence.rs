//! Other programs on the same node: a packet filter's policy, host ports, NodeLocal DNS.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use bed::{Host, Namespace, Protocol, Proxy, Question, Refusal, Server, Service, ask_many};

use crate::fixture::{Bed, PROTOCOLS, TARGET, assert_shares, ip};

const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];

// === a packet filter ===

/// A port of the pods on which no process listens.
const CLOSED: u16 = 8099;
/// A port of the pods where datagrams are taken and never answered.
const SILENT: u16 = 8098;

/// A host's address of the same family.
fn address_like(host: &Host, other: IpAddr) -> IpAddr {
    host.addresses().into_iter().find(|it| it.is_ipv4() == other.is_ipv4()).unwrap()
}

/// Sends three datagrams from one socket to a Service, of which the endpoint answers none. Returns
/// how many arrive there.
fn unanswered(from: &Namespace, target: (IpAddr, u16), endpoint: &Host) -> usize {
    let bind = |namespace: &Namespace, address: (IpAddr, u16)| {
        namespace.enter(|| UdpSocket::bind(address).unwrap()).unwrap()
    };
    let receiver = bind(&endpoint.namespace, (address_like(endpoint, target.0), SILENT));
    receiver.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let any = if target.0.is_ipv4() { ip("0.0.0.0") } else { ip("::") };
    let sender = bind(from, (any, 0));
    sender.connect(target).unwrap();
    let arrives = |_: &i32| {
        sender.send(b"?").unwrap();
        receiver.recv(&mut [0; 8]).is_ok()
    };
    (0..3).filter(arrives).count()
}

/// Two Services with everything: `all` for all endpoints, `near` for this node's.
fn two_policies(bed: &Bed) -> [Service; 2] {
    let mk = |name: &str, addresses: [&str; 4]| {
        let [cluster, cluster6, balancer, balancer6] = addresses.map(ip);
        let mut service = Service::new(name, cluster);
        service.cluster.push(cluster6);
        service.load_balancer = vec![balancer, balancer6];
        for protocol in PROTOCOLS {
            service = service.port(protocol, 80, TARGET);
        }
        service.port(Protocol::Udp, 98, SILENT).port(Protocol::Udp, 99, CLOSED)
    };
    let all = mk("all", ["10.96.0.70", "fd00:96::70", "203.0.113.70", "fd00:203::70"]);
    let mut near = mk("near", ["10.96.0.71", "fd00:96::71", "203.0.113.71", "fd00:203::71"]);
    near.more = vec!["externalTrafficPolicy: Local".into()];
    [all.pods([bed.pod(1, 1), bed.pod(2, 1)]), near.pods([bed.pod(1, 1)])]
}

#[test]
fn services_need_nothing_of_a_forward_policy_of_drop_but_what_kube_forward_accepts() {
    let bed = Bed::new();
    let services = two_policies(&bed);
    for service in &services {
        bed.manifests.apply(service).unwrap();
    }
    for family in FAMILIES {
        bed.tool(family, &["-P", "FORWARD", "DROP"]);
    }
    // The pods' own traffic is for the network plugin to accept. Where pods sit on a bridge and
    // iptables sees what crosses it, that begins with their looking for one another.
    for question in ["neighbour-solicitation", "neighbour-advertisement"] {
        let rule = ["-A", "FORWARD", "-p", "ipv6-icmp", "--icmpv6-type", question, "-j", "ACCEPT"];
        bed.tool("ip6tables", &rule);
    }
    let _proxy = bed.start(&[]);
    let clients = [bed.client(), &bed.pod(1, 2).namespace, bed.node()];
    for service in &services {
        for target in service.cluster.iter().chain(&service.load_balancer) {
            for from in clients {
                for protocol in PROTOCOLS {
                    let tally = bed.ask(from, protocol, (*target, 80), 2);
                    assert_eq!(tally.answered(), 2, "{} {target}: {tally}", from.name());
                }
                // An ICMP error is an answer, too.
                let closed = bed::ask(from, Question::udp((*target, 99)));
                assert_eq!(closed, Err(Refusal::Refused), "{} {target}", from.name());
                if service.name == "near" {
                    let arrived = unanswered(from, (*target, 98), bed.pod(1, 1));
                    assert_eq!(arrived, 3, "{} {target}", from.name());
                }
            }
        }
    }
    // What is no Service's is not accepted; nor is what another node's IPVS sends to a pod here.
    for (from, to) in [((1, 2), (2, 1)), ((2, 1), (1, 1))] {
        for address in bed.pod(to.0, to.1).addresses() {
            let question = Question::tcp((address, TARGET)).within(Duration::from_millis(300));
            let tally = ask_many(&bed.pod(from.0, from.1).namespace, question, 1);
            assert_eq!(tally.to_string(), "timeout x1", "{from:?} {address}");
        }
    }
}

// === host ports ===

/// A chain that portmap makes for one pod.
const OF_POD: &str = "CNI-DN-0123456789abcdef01234";
/// The host ports of that pod: one that is a Service's port too, and one that no Service has.
const HOST_PORTS: [u16; 2] = [80, 8081];

/// Returns the rules that the CNI plugin portmap writes for a pod's host ports
/// (plugins/meta/portmap/portmap_iptables.go in containernetworking/plugins): jumps are appended
/// but for that from POSTROUTING.
fn portmap(pod: IpAddr) -> String {
    let (network, to) = match pod {
        IpAddr::V4(pod) => ("10.244.1.0/24", format!("{pod}:{TARGET}")),
        IpAddr::V6(pod) => ("fd00:244:1::/64", format!("[{pod}]:{TARGET}")),
    };
    let mut rules = format!(
        "*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n:CNI-HOSTPORT-SETMARK - [0:0]\n\
         :CNI-HOSTPORT-MASQ - [0:0]\n:{OF_POD} - [0:0]\n\
         -A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\" \
         -j MARK --set-xmark 0x2000/0x2000\n\
         -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE\n\
         -I POSTROUTING 1 -m comment --comment \"CNI portfwd requiring masquerade\" \
         -j CNI-HOSTPORT-MASQ\n\
         -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
         -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n"
    );
    for protocol in ["tcp", "udp"] {
        let ports = HOST_PORTS.map(|port| port.to_string()).join(",");
        rules += &format!(
            "-A CNI-HOSTPORT-DNAT -p {protocol} -m comment --comment \"dnat name: \\\"cbr0\\\" id: \
             \\\"0123\\\"\" -m multiport --dports {ports} -j {OF_POD}\n"
        );
        for port in HOST_PORTS {
            let rule = format!("-A {OF_POD} -p {protocol} -m {protocol} --dport {port}");
            rules += &format!("{rule} -s {network} -j CNI-HOSTPORT-SETMARK\n");
            if pod.is_ipv4() {
                rules += &format!("{rule} -s 127.0.0.1/32 -j CNI-HOSTPORT-SETMARK\n");
            }
            rules += &format!("{rule} -j DNAT --to-destination {to}\n");
        }
    }
    rules + "COMMIT\n"
}

/// The rules of the table `nat` that are portmap's.
fn portmaps_rules(bed: &Bed, family: &str) -> Vec<String> {
    let rules = bed.rules(family);
    rules.lines().filter(|line| line.contains("CNI-")).map(str::to_owned).collect()
}

fn assert_host_ports_and_services_work(bed: &Bed, service: &Service) {
    let node = bed.cluster.node(1).unwrap();
    let clients = [bed.client(), &bed.pod(1, 1).namespace, &bed.pod(2, 2).namespace, bed.node()];
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for from in clients {
            for address in node.addresses() {
                for port in HOST_PORTS {
                    let tally = bed.ask(from, protocol, (address, port), 2);
                    assert_shares(&tally, &[("pod1-2", 2)]);
                }
            }
        }
        // A pod by its own host port.
        let tally = bed.ask(&bed.pod(1, 2).namespace, protocol, (node.ipv4.into(), 8081), 1);
        assert_shares(&tally, &[("pod1-2", 1)]);
        // A Service's port is the Service's, at every address of its own.
        for from in [bed.client(), &bed.pod(1, 1).namespace, &bed.pod(1, 2).namespace, bed.node()] {
            let of_service =
                service.cluster.iter().chain(&service.external).chain(&service.load_balancer);
            let of_service = of_service.map(|address| (*address, 80));
            let node_port = if protocol == Protocol::Tcp { 30_400 } else { 30_401 };
            let node_ports = node.addresses().into_iter().map(|address| (address, node_port));
            for target in of_service.chain(node_ports) {
                let tally = bed.ask(from, protocol, target, 2);
                assert_shares(&tally, &[("pod1-1", 2)]);
            }
        }
    }
}

#[test]
fn host_ports_and_services_of_the_same_port_do_not_disturb_one_another() {
    let bed = Bed::new();
    let mut service = Service::new("web", ip("10.96.0.10"))
        .node_port(Protocol::Tcp, 80, TARGET, 30_400)
        .node_port(Protocol::Udp, 80, TARGET, 30_401)
        .pods([bed.pod(1, 1)]);
    service.cluster.push(ip("fd00:96::10"));
    service.external = vec![ip("198.51.100.7"), ip("fd00:203::7")];
    service.load_balancer = vec![ip("203.0.113.5"), ip("fd00:203::5")];
    bed.manifests.apply(&service).unwrap();
    let install = || {
        for (family, address) in FAMILIES.into_iter().zip(bed.pod(1, 2).addresses()) {
            let restore = format!("{family}-restore");
            bed.node().command_with_input(&restore, &["--noflush"], &portmap(address)).unwrap();
        }
    };
    let written = || FAMILIES.map(|family| portmaps_rules(&bed, family));

    // The plugin first.
    install();
    let before = written();
    assert!(before.iter().all(|rules| rules.len() > 12), "{before:?}");
    let proxy = bed.start(&[]);
    assert_eq!(written(), before);
    assert_host_ports_and_services_work(&bed, &service);
    let mut local = service.clone();
    local.more = vec!["externalTrafficPolicy: Local".into()];
    bed.manifests.apply(&local).unwrap();
    bed.wait_until("the policy is Local", || {
        bed.entries().iter().any(|entry| entry.starts_with("KUBE-6-INTERNAL-FRONTEND "))
    });
    assert_host_ports_and_services_work(&bed, &service);
    // A port that no Service has leads to the host port at service addresses too, as with
    // kube-proxy: they are addresses of the node.
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 8081), 1);
    assert_shares(&tally, &[("pod1-2", 1)]);
    proxy.stop().unwrap();
    let (status, log) = Proxy::run_to_its_end(bed.node(), &bed.manifests, &["--cleanup"]).unwrap();
    assert!(status.success(), "{log}");
    assert_eq!(written(), before);

    // The plugin last.
    for family in FAMILIES {
        bed.tool(family, &["-t", "nat", "-F"]);
        bed.tool(family, &["-t", "nat", "-X"]);
    }
    let _proxy = bed.start(&[]);
    install();
    assert_host_ports_and_services_work(&bed, &service);
}

// === NodeLocal DNS ===

const NODE_LOCAL: &str = "169.254.20.10";

/// Returns the rules that node-cache writes for an address that it listens on, each before those
/// that are there (`initIptables` in cmd/node-cache/app/cache_app.go of kubernetes/dns).
fn node_cache(address: &str) -> String {
    let skip = "-j NOTRACK -m comment --comment \"NodeLocal DNS Cache: skip conntrack\"";
    let allow = "-j ACCEPT -m comment --comment \"NodeLocal DNS Cache: allow DNS traffic\"";
    let (mut raw, mut filter) = (String::from("*raw\n"), String::from("*filter\n"));
    for protocol in ["tcp", "udp"] {
        let to = format!("-p {protocol} -d {address} --dport 53");
        let from = format!("-p {protocol} -s {address} --sport 53");
        raw +=
            &format!("-I PREROUTING {to} {skip}\n-I OUTPUT {from} {skip}\n-I OUTPUT {to} {skip}\n");
        filter += &format!("-I INPUT {to} {allow}\n-I OUTPUT {from} {allow}\n");
    }
    for health in ["-d", "-s"] {
        let port = if health == "-d" { "--dport" } else { "--sport" };
        raw += &format!("-I OUTPUT -p tcp {health} {address} {port} 8080 {skip}\n");
    }
    format!("{raw}COMMIT\n{filter}COMMIT\n")
}

/// The two Services of a cluster's DNS.
fn dns(bed: &Bed) -> [Service; 2] {
    [("kube-dns", "10.96.0.10"), ("kube-dns-upstream", "10.96.0.53")].map(|(name, address)| {
        let service = Service::new(name, ip(address)).port(Protocol::Udp, 53, TARGET);
        service.port(Protocol::Tcp, 53, TARGET).pods([bed.pod(1, 1), bed.pod(2, 1)])
    })
}

#[test]
fn node_local_dns_answers_pods_and_asks_the_service() {
    let bed = Bed::new();
    for service in dns(&bed) {
        bed.manifests.apply(&service).unwrap();
    }
    let ports = Service::new("ports", ip("10.96.0.60"))
        .node_port(Protocol::Tcp, 80, TARGET, 30_500)
        .pods([bed.pod(1, 1)]);
    bed.manifests.apply(&ports).unwrap();
    let proxy = bed.start(&[]);
    // As kubernetes.io has it for IPVS: node-cache listens on its own address only.
    bed.tool("ip", &["link", "add", "nodelocaldns", "type", "dummy"]);
    bed.tool("ip", &["addr", "add", &format!("{NODE_LOCAL}/32"), "dev", "nodelocaldns"]);
    bed.node()
        .command_with_input("iptables-restore", &["--noflush"], &node_cache(NODE_LOCAL))
        .unwrap();
    let both = [Protocol::Udp, Protocol::Tcp];
    let listen = both.map(|protocol| (protocol, (ip(NODE_LOCAL), 53).into()));
    let cache = Server::bind(bed.node(), "node-cache", &listen).unwrap();
    let rules = |bed: &Bed| -> Vec<String> {
        let rules = bed.rules("iptables");
        rules.lines().filter(|line| line.contains("NodeLocal")).map(str::to_owned).collect()
    };
    let before = rules(&bed);
    assert_eq!(before.len(), 12, "{before:?}");
    let assert_served = || {
        for protocol in both {
            for from in [&bed.pod(1, 1).namespace, &bed.pod(1, 2).namespace, bed.node()] {
                let tally = bed.ask(from, protocol, (ip(NODE_LOCAL), 53), 2);
                assert_shares(&tally, &[("node-cache", 2)]);
            }
            // Its own questions, and those of pods that still ask the Service.
            for from in [bed.node(), &bed.pod(1, 2).namespace] {
                for service in ["10.96.0.10", "10.96.0.53"] {
                    let tally = bed.ask(from, protocol, (ip(service), 53), 4);
                    assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
                }
            }
        }
    };
    assert_served();
    let tracked = bed.tool("conntrack", &["-L"]);
    assert!(!tracked.contains(NODE_LOCAL), "{tracked}");
    // As it is for kube-proxy's mode iptables: it has the Service's address as well, and gets none of
    // the questions to it, for IPVS takes them. Those that would have to be masqueraded are lost,
    // since nothing is tracked (docs/compatibility.md).
    let ways = |from: &Namespace| {
        both.map(|protocol| bed.ask(from, protocol, (ip("10.96.0.10"), 53), 4).by_server())
    };
    let as_ever = ways(&bed.pod(1, 2).namespace);
    bed.tool("ip", &["addr", "add", "10.96.0.10/32", "dev", "nodelocaldns"]);
    bed.node()
        .command_with_input("iptables-restore", &["--noflush"], &node_cache("10.96.0.10"))
        .unwrap();
    let listen = both.map(|protocol| (protocol, (ip("10.96.0.10"), 53).into()));
    let also = Server::bind(bed.node(), "node-cache", &listen).unwrap();
    assert_eq!(ways(&bed.pod(1, 2).namespace), as_ever);
    drop(also);
    bed.tool("ip", &["addr", "del", "10.96.0.10/32", "dev", "nodelocaldns"]);
    assert_eq!(ways(&bed.pod(1, 2).namespace), as_ever, "the address is on kube-ipvs0, too");

    // It is nothing of ours.
    let rules_of_both = rules(&bed);
    assert_eq!(rules_of_both.len(), 24, "{rules_of_both:?}");
    proxy.stop().unwrap();
    let (status, log) = Proxy::run_to_its_end(bed.node(), &bed.manifests, &["--cleanup"]).unwrap();
    assert!(status.success(), "{log}");
    assert_eq!(rules(&bed), rules_of_both);
    let tally = bed.ask(&bed.pod(1, 2).namespace, Protocol::Udp, (ip(NODE_LOCAL), 53), 2);
    assert_shares(&tally, &[("node-cache", 2)]);
    drop(cache);
}
