//! Node ports on localhost: what runs on the node itself reaches them there, if that is wanted.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bed::{Connection, Namespace, Protocol, Proxy, Question, Refusal, Server, Service};

use crate::cluster::get;
use crate::fixture::{Bed, TARGET, assert_shares, ip};
use crate::tenures::{switch, wait_for_mode};

const LOCALHOST: [&str; 2] = ["127.0.0.1", "::1"];
const PORT: u16 = 30_300;

/// A Service of both families with a node port of TCP and one of UDP.
fn reachable(bed: &Bed) -> Service {
    let mut service = Service::new("registry", ip("10.96.0.70"))
        .node_port(Protocol::Tcp, 80, TARGET, PORT)
        .node_port(Protocol::Udp, 80, TARGET, PORT)
        .pods([bed.pod(1, 1), bed.pod(2, 1)]);
    service.cluster.push(ip("fd00:96::70"));
    service
}

/// With a file of both documents: what it says of kube-proxy's, and of ours.
fn start(bed: &Bed, of_kube_proxy: &str) -> Proxy {
    let file = bed.manifests.path().with_extension("config");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         hostnameOverride: node1\nclusterCIDR: 10.244.0.0/16,fd00:244::/32\n{of_kube_proxy}---\n\
         apiVersion: kube-ipvs.io/v1alpha1\nkind: KubeIpvsConfiguration\nmanifests: {}\n\
         localhostNodePorts: true\n",
        bed.manifests.path().display()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let mut proxy = Proxy::start_with(bed.node(), &["--config", &file]).unwrap();
    proxy.wait_until_in_sync().unwrap();
    proxy
}

fn ask(from: &Namespace, address: &str, port: u16) -> Result<bed::Answer, Refusal> {
    bed::ask(from, Question::tcp((ip(address), port)))
}

fn until_refused(bed: &Bed, port: u16) {
    for address in LOCALHOST {
        bed.wait_until(&format!("{address}:{port} is refused"), || {
            ask(bed.node(), address, port) == Err(Refusal::Refused)
        });
    }
}

#[test]
fn a_node_port_on_localhost_reaches_endpoints_here_and_elsewhere() {
    let bed = Bed::new();
    let mut service = reachable(&bed);
    bed.manifests.apply(&service).unwrap();
    let proxy = start(&bed, "");
    let nodes = [["10.244.1.1", "192.168.0.11"], ["fd00:244:1::1", "fd00:192::11"]];
    for (address, nodes) in LOCALHOST.into_iter().zip(nodes) {
        let tally = bed.ask(bed.node(), Protocol::Tcp, (ip(address), PORT), 4);
        assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
        let nodes: BTreeSet<IpAddr> = nodes.into_iter().map(ip).collect();
        assert_eq!(tally.sources(), nodes, "the node is the client: {tally}");
    }
    // It is TCP only, and for the node only.
    let udp = bed::ask(bed.node(), Question::udp((ip("127.0.0.1"), PORT)));
    assert_eq!(udp, Err(Refusal::Refused));
    assert_eq!(ask(&bed.pod(1, 1).namespace, "127.0.0.1", PORT), Err(Refusal::Refused));

    // A policy that is for this node's endpoints only is not for clients on the node itself.
    service.more = vec!["externalTrafficPolicy: Local".into()];
    service = Service { endpoints: Vec::new(), ..service }.pods([bed.pod(2, 1)]);
    bed.manifests.apply(&service).unwrap();
    bed.wait_until("endpoints are elsewhere only", || {
        let question = Question::tcp((ip("192.168.0.11"), PORT)).within(Duration::from_secs(1));
        bed::ask(bed.client(), question) == Err(Refusal::Timeout)
    });
    for address in LOCALHOST {
        let tally = bed.ask(bed.node(), Protocol::Tcp, (ip(address), PORT), 2);
        assert_shares(&tally, &[("pod2-1", 2)]);
    }

    // Without endpoints, the client has been connected already: it is a reset.
    service.endpoints.clear();
    bed.manifests.apply(&service).unwrap();
    for address in LOCALHOST {
        bed.wait_until(&format!("{address} is reset"), || {
            matches!(ask(bed.node(), address, PORT), Err(Refusal::Reset))
        });
    }
    bed.manifests.remove("registry").unwrap();
    until_refused(&bed, PORT);
    proxy.stop().unwrap();
}

#[test]
fn connections_outlive_the_port_and_end_with_the_program() {
    let bed = Bed::new();
    bed.manifests.apply(&reachable(&bed)).unwrap();
    let proxy = start(&bed, "");
    for address in LOCALHOST {
        bed.ask(bed.node(), Protocol::Tcp, (ip(address), PORT), 1);
    }
    let open = |address| Connection::open(bed.node(), Question::tcp((ip(address), PORT))).unwrap();
    let mut connections = LOCALHOST.map(open);
    for connection in &mut connections {
        connection.say().unwrap();
    }
    let renumbered = Service { ports: Vec::new(), ..reachable(&bed) };
    let other = PORT + 1;
    bed.manifests.apply(&renumbered.node_port(Protocol::Tcp, 80, TARGET, other)).unwrap();
    until_refused(&bed, PORT);
    for address in LOCALHOST {
        bed.ask(bed.node(), Protocol::Tcp, (ip(address), other), 1);
    }
    proxy.stop().unwrap();
    for connection in &mut connections {
        assert_eq!(connection.say(), Err(Refusal::Reset));
    }
    until_refused(&bed, other);
}

#[test]
fn a_switch_to_another_mode_and_back_is_not_noticed_on_localhost() {
    let bed = Bed::new();
    bed.manifests.apply(&reachable(&bed)).unwrap();
    let mut proxy = start(&bed, "");
    let process = proxy.process();
    let open = |address| {
        let mut connection = Connection::open(bed.node(), Question::tcp((ip(address), PORT)));
        connection.as_mut().unwrap().say().unwrap();
        connection.unwrap()
    };
    for address in LOCALHOST {
        bed.ask(bed.node(), Protocol::Tcp, (ip(address), PORT), 1);
    }
    let mut connections = Vec::from(LOCALHOST.map(open));
    for mode in ["iptables", "ipvs"] {
        switch(&bed, &[&format!("--to={mode}"), "--no-wait"]).unwrap();
        // Connections are taken while the parts of the mode are made anew, and after that.
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(8) {
            for address in LOCALHOST {
                ask(bed.node(), address, PORT).unwrap();
            }
        }
        wait_for_mode(&bed, &proxy, mode);
        connections.extend(LOCALHOST.map(open));
        for connection in &mut connections {
            connection.say().unwrap();
        }
        assert_eq!(proxy.process(), process);
    }
    // Rules lead the one to 127.0.0.1 that came in mode iptables.
    bed.wait_until("the program has five of them", || {
        let metrics = get(bed.node(), "127.0.0.1:10249", "/metrics").unwrap_or_default();
        metrics.contains("kube_ipvs_localhost_connections 5\n")
    });
    proxy.stop().unwrap();
}

#[test]
fn without_a_node_port_address_the_cluster_address_stands_for_it() {
    let bed = Bed::new();
    bed.manifests.apply(&reachable(&bed)).unwrap();
    let nowhere = "nodePortAddresses: [203.0.113.0/24, \"2001:db8::/64\"]\n";
    let _proxy = start(&bed, nowhere);
    for address in LOCALHOST {
        let tally = bed.ask(bed.node(), Protocol::Tcp, (ip(address), PORT), 4);
        assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    }
    assert_eq!(ask(bed.node(), "192.168.0.11", PORT), Err(Refusal::Refused));
}

#[test]
fn a_port_that_the_node_uses_itself_is_left_to_it() {
    let bed = Bed::new();
    bed.manifests.apply(&reachable(&bed)).unwrap();
    let everywhere: SocketAddr = (ip("0.0.0.0"), PORT).into();
    let daemon = Server::bind(bed.node(), "daemon", &[(Protocol::Tcp, everywhere)]).unwrap();
    let proxy = start(&bed, "");
    proxy.wait_for_log("cannot listen on 127.0.0.1:30300", Duration::from_secs(20)).unwrap();
    assert_shares(
        &bed.ask(bed.node(), Protocol::Tcp, (ip("127.0.0.1"), PORT), 2),
        &[("daemon", 2)],
    );
    drop(daemon);
    let tally = bed.ask(bed.node(), Protocol::Tcp, (ip("127.0.0.1"), PORT), 2);
    assert_shares(&tally, &[("pod1-1", 1), ("pod2-1", 1)]);
}

/// A neighbour that sends to the node's 127.0.0.1, to a node that lets such packets in:
/// kube-proxy's mode iptables leaves it so.
#[test]
fn a_neighbour_does_not_reach_localhost() {
    let bed = Bed::new();
    bed.manifests.apply(&reachable(&bed)).unwrap();
    let _proxy = start(&bed, "");
    bed.ask(bed.node(), Protocol::Tcp, (ip("127.0.0.1"), PORT), 1);
    bed.tool("sysctl", &["-w", "net.ipv4.conf.all.route_localnet=1"]);
    let everywhere: SocketAddr = (ip("0.0.0.0"), 2_222).into();
    let _daemon = Server::bind(bed.node(), "sshd", &[(Protocol::Tcp, everywhere)]).unwrap();
    let client = bed.client();
    for line in [
        "sysctl -w net.ipv4.conf.all.route_localnet=1",
        "ip address del 127.0.0.1/8 dev lo",
        "ip route add 127.0.0.1/32 via 192.168.0.11 src 192.168.0.100",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        client.command(words[0], &words[1..]).unwrap();
    }
    // The way is open: a daemon that listens on every address answers.
    assert_shares(&bed.ask(client, Protocol::Tcp, (ip("127.0.0.1"), 2_222), 1), &[("sshd", 1)]);
    assert_eq!(ask(client, "127.0.0.1", PORT), Err(Refusal::Refused));
}

#[test]
fn localhost_has_no_node_ports_unless_they_are_wanted() {
    let bed = Bed::new();
    bed.manifests.apply(&reachable(&bed)).unwrap();
    let _proxy = bed.start(&[]);
    bed.ask(bed.node(), Protocol::Tcp, (ip("192.168.0.11"), PORT), 1);
    for address in LOCALHOST {
        assert_eq!(ask(bed.node(), address, PORT), Err(Refusal::Refused), "{address}");
    }
}
