//! Local clients are led to an internal frontend only while the kernel has all of it.

use bed::{Connection, Namespace, Protocol, Question, Server, Service};

use crate::fixture::{Bed, TARGET, assert_shares, ip};

const NODE_PORT: u16 = 30_600;

/// Has kube-ipvs0 refuse IPv6 addresses, which it loses with that, or take them: IPv6 cannot have an MTU
/// below 1,280 (`ipv6_add_dev` in net/ipv6/addrconf.c).
fn refuse_ipv6(bed: &Bed, does: bool) {
    let mtu = if does { "1000" } else { "1500" };
    bed.tool("ip", &["link", "set", "kube-ipvs0", "mtu", mtu]);
}

/// True if clients in the cluster are led to the internal frontend of an IPv6 node port.
fn are_led(bed: &Bed) -> bool {
    bed.entries().iter().any(|entry| entry.starts_with("KUBE-6-INTERNAL-FRONTEND "))
}

/// Asks the node port of both families from a pod and from the node itself: by IPv4 they always get
/// all endpoints, by IPv6 these.
fn assert_local_clients_get(bed: &Bed, by_ipv6: &[(&str, usize)]) {
    let clients: [&Namespace; 2] = [&bed.pod(1, 2).namespace, bed.node()];
    for from in clients {
        for (address, shares) in
            [("192.168.0.11", &[("pod1-1", 2), ("pod2-1", 2)][..]), ("fd00:192::11", by_ipv6)]
        {
            let tally = bed.ask(from, Protocol::Tcp, (ip(address), NODE_PORT), 4);
            assert_shares(&tally, shares);
        }
    }
}

/// A node port is at the node's own addresses, so that only its internal frontend needs an address on
/// kube-ipvs0.
#[test]
fn local_clients_get_this_nodes_endpoints_while_the_kernel_refuses_the_internal_frontends_address()
{
    let bed = Bed::new();
    bed.tool("ip", &["link", "add", "kube-ipvs0", "type", "dummy"]);
    refuse_ipv6(&bed, true);
    let mut service = Service::new("ports", ip("10.96.0.60"));
    service = service.node_port(Protocol::Tcp, 80, TARGET, NODE_PORT);
    service.cluster.push(ip("fd00:96::60"));
    service.more = vec!["externalTrafficPolicy: Local".into()];
    bed.manifests.apply(&service.pods([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    let (here, all) = (&[("pod1-1", 4)][..], &[("pod1-1", 2), ("pod2-1", 2)][..]);
    // Its virtual server is there all the same.
    let internal_frontend = "TCP  [feff:192::11]:30600";
    assert!(bed.virtual_servers().contains(internal_frontend), "{}", bed.virtual_servers());
    assert!(!are_led(&bed), "{:?}", bed.entries());
    assert_local_clients_get(&bed, here);

    refuse_ipv6(&bed, false);
    bed.wait_until("they are led to the internal frontend", || are_led(&bed));
    assert_local_clients_get(&bed, all);

    // This takes the addresses away, and they are refused again.
    refuse_ipv6(&bed, true);
    bed.wait_until("they are no longer led to the internal frontend", || !are_led(&bed));
    assert!(bed.virtual_servers().contains(internal_frontend), "{}", bed.virtual_servers());
    assert_local_clients_get(&bed, here);
}

/// Load balancer address of a Service whose outside clients get this node's endpoints only.
const LOCAL: &str = "203.0.113.61";

#[test]
fn a_node_that_leaves_mode_ipvs_removes_them_at_once_and_their_connections_go_on() {
    let bed = Bed::new();
    let mut service = Service::new("local", ip("10.96.0.61")).port(Protocol::Tcp, 80, TARGET);
    service.load_balancer = vec![ip(LOCAL)];
    service.more = vec!["externalTrafficPolicy: Local".into()];
    bed.manifests.apply(&service.pods([bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&["--proxy-mode=ipvs"]);
    let pod = &bed.pod(1, 2).namespace;
    let question = Question::tcp((ip(LOCAL), 80));
    let mut connection = Connection::open(pod, question).unwrap();
    assert_eq!(connection.say().unwrap().server, "pod2-1");
    let internal_frontend = || {
        let table = bed.virtual_servers();
        let mut lines = table.lines().filter_map(|line| line.strip_prefix("TCP  "));
        lines.any(|line| !line.starts_with("10.96.0.61") && !line.starts_with(LOCAL))
    };
    assert!(internal_frontend(), "{}", bed.virtual_servers());
    // It is held by IPVS, so that the rest drains.
    let mut held = Connection::open(pod, Question::tcp((ip("10.96.0.61"), 80))).unwrap();
    held.say().unwrap();
    drop(proxy);
    let _proxy = bed.start(&["--proxy-mode=iptables"]);
    bed.wait_until("the internal frontend is gone", || !internal_frontend());
    assert!(bed.virtual_servers().contains("10.96.0.61:80"), "{}", bed.virtual_servers());
    for connection in [&mut connection, &mut held] {
        assert_eq!(connection.say().unwrap().server, "pod2-1");
    }
    assert_eq!(bed::ask(pod, question).unwrap().server, "pod2-1");
}

/// Submariner's global IPs, and pods in 240.0.0.0/4.
#[test]
fn addresses_inside_their_network_are_served_and_stay_with_the_pods_that_have_them() {
    const GLOBAL: &str = "242.1.255.251";
    const BALANCER: &str = "192.10.3.4";
    const POD: &str = "240.10.3.4";
    let bed = Bed::new();
    let (host, pod) = (bed.cluster.node(2).unwrap(), bed.pod(2, 2));
    let configure = |namespace: &Namespace, line: String| {
        namespace.configure_links(&[line]).unwrap();
    };
    configure(&pod.namespace, format!("addr add {POD}/32 dev lo"));
    configure(&host.namespace, format!("route add {POD} via {}", pod.addresses()[0]));
    configure(bed.node(), format!("route add {POD} via {}", host.addresses()[0]));
    let node = bed.cluster.node(1).unwrap().addresses()[0];
    for network in ["242.0.0.0/8", "192.10.3.0/24"] {
        configure(bed.client(), format!("route add {network} via {node}"));
    }
    let listen = [(Protocol::Tcp, (ip(POD), TARGET).into())];
    let _server = Server::bind(&pod.namespace, "class-e", &listen).unwrap();
    let both = [bed.pod(1, 1), bed.pod(2, 1)];
    let mut global = Service::new("global", ip("10.96.0.62")).port(Protocol::Tcp, 80, TARGET);
    global.external = vec![ip(GLOBAL)];
    bed.manifests.apply(&global.pods(both)).unwrap();
    let mut balancer = Service::new("balancer", ip("10.96.0.63")).port(Protocol::Tcp, 80, TARGET);
    balancer.load_balancer = vec![ip(BALANCER)];
    balancer.more = vec!["externalTrafficPolicy: Local".into()];
    bed.manifests.apply(&balancer.pods(both)).unwrap();
    let proxy = bed.start(&[]);
    let (inside, here) = (&bed.pod(1, 2).namespace, &[("pod1-1", 4)][..]);
    let all = &[("pod1-1", 2), ("pod2-1", 2)][..];
    let ask = |from, address, port| bed.ask(from, Protocol::Tcp, (ip(address), port), 4);
    for from in [bed.client(), bed.node(), inside] {
        assert_shares(&ask(from, GLOBAL, 80), all);
    }
    let is_taken = || bed.bound().iter().any(|it| it.starts_with(&format!("{POD}/")));
    assert!(is_taken(), "{:?}", bed.bound());
    assert_shares(&ask(inside, BALANCER, 80), all);

    let database = Service::new("database", ip("10.96.0.64")).port(Protocol::Tcp, 80, TARGET);
    let manifest = database.pods([pod]).to_yaml();
    let manifest = manifest.replace(&pod.addresses()[0].to_string(), POD);
    bed.manifests.write("database.yaml", &manifest).unwrap();
    bed.wait_until("the pod's address is left", || !is_taken());
    let assert_left = || {
        assert!(!is_taken(), "{:?}", bed.bound());
        for from in [bed.node(), inside] {
            assert_shares(&ask(from, POD, TARGET), &[("class-e", 4)]);
            assert_shares(&ask(from, "10.96.0.64", 80), &[("class-e", 4)]);
            assert_shares(&ask(from, BALANCER, 80), here);
            assert_shares(&ask(from, GLOBAL, 80), all);
        }
        assert_shares(&ask(bed.client(), BALANCER, 80), here);
    };
    assert_left();
    proxy.stop().unwrap();
    let _proxy = bed.start(&[]);
    assert_left();
}
