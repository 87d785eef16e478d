//! Choices of Services by annotation, and what they may not have: other nodes' addresses.

use bed::{Connection, Protocol, Question, Server, Service};

use crate::fixture::{Bed, TARGET, annotated, assert_shares, ip, web};

fn node(name: &str, address: &str, zone: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  labels:\n    \
         topology.kubernetes.io/zone: {zone}\nstatus:\n  addresses:\n  - type: InternalIP\n    \
         address: {address}\n"
    )
}

#[test]
fn a_service_chooses_its_scheduler_flags_and_weights_and_no_other_service_changes() {
    let bed = Bed::new();
    bed.manifests.write("node.yaml", &node("node1", "192.168.0.11", "a")).unwrap();
    let mut chooses = Service::new("chooses", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    chooses = chooses.pods([bed.pod(1, 1), bed.pod(2, 1)]);
    let annotations = "kube-ipvs.io/scheduler: wrr, kube-ipvs.io/weights: 'node=3'";
    bed.manifests.write("chooses.yaml", &annotated(&chooses, annotations)).unwrap();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.20"), 80), 8);
    assert_shares(&tally, &[("pod1-1", 6), ("pod2-1", 2)]);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 8);
    assert_shares(&tally, &[("pod1-1", 4), ("pod2-1", 4)]);

    let line = |start: &str| {
        let servers = bed.virtual_servers();
        servers.lines().find(|line| line.starts_with(start)).unwrap_or_default().trim().to_owned()
    };
    let becomes = |annotations: &str, expected: &str| {
        bed.manifests.write("chooses.yaml", &annotated(&chooses, annotations)).unwrap();
        bed.wait_until(expected, || line("TCP  10.96.0.20:80") == expected);
    };
    becomes(
        "kube-ipvs.io/scheduler: sh, kube-ipvs.io/scheduler-flags: 'sh-fallback,sh-port'",
        "TCP  10.96.0.20:80 sh (sh-fallback,sh-port)",
    );
    becomes("kube-ipvs.io/scheduler: lc", "TCP  10.96.0.20:80 lc");
    becomes("kube-ipvs.io/scheduler: best", "TCP  10.96.0.20:80 rr");
    becomes("kube-ipvs.io/scheduler: wlc", "TCP  10.96.0.20:80 wlc");
    becomes("", "TCP  10.96.0.20:80 rr");
    assert_eq!(line("TCP  10.96.0.10:80"), "TCP  10.96.0.10:80 rr");
    let log = proxy.stop().unwrap();
    let warning = "Service default/chooses: metadata.annotations[kube-ipvs.io/scheduler]: \
                     \"best\" is none of rr, wrr";
    assert!(log.contains(warning), "{log}");
}

#[test]
fn least_connections_are_those_that_are_open() {
    let bed = Bed::new();
    let service = Service::new("chooses", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    let service = service.pods([bed.pod(1, 1), bed.pod(2, 1)]);
    bed.manifests
        .write("chooses.yaml", &annotated(&service, "kube-ipvs.io/scheduler: lc"))
        .unwrap();
    let _proxy = bed.start(&[]);
    assert!(bed.virtual_servers().contains("TCP  10.96.0.20:80 lc\n"), "{}", bed.virtual_servers());
    let open = || {
        let question = Question::tcp((ip("10.96.0.20"), 80));
        let mut connection = Connection::open(bed.client(), question).unwrap();
        (connection.say().unwrap().server, connection)
    };
    let count = |held: &[(String, Connection)], name: &str| {
        held.iter().filter(|(server, _)| server == name).count()
    };
    let mut held: Vec<_> = (0..6).map(|_| open()).collect();
    assert_eq!((count(&held, "pod1-1"), count(&held, "pod2-1")), (3, 3));
    // Three end on one of them: the next three go there, and none to the one that is busy.
    held.retain(|(server, _)| server == "pod1-1");
    let active = |pod: &str| -> Option<u32> {
        let shown = bed.virtual_servers();
        let line = shown.lines().find(|line| line.contains(pod))?;
        line.split_whitespace().nth(4)?.parse().ok()
    };
    bed.wait_until("three connections have ended", || {
        (active("10.244.1.11:8080"), active("10.244.2.11:8080")) == (Some(3), Some(0))
    });
    let more: Vec<_> = (0..3).map(|_| open()).collect();
    assert_eq!((count(&more, "pod1-1"), count(&more, "pod2-1")), (0, 3));
}

#[test]
fn another_nodes_address_stays_that_nodes() {
    let bed = Bed::new();
    let other = bed.cluster.node(2).unwrap();
    bed.manifests.write("node2.yaml", &node("node2", &other.ipv4.to_string(), "a")).unwrap();
    let sockets = [(Protocol::Tcp, (ip("0.0.0.0"), 10_250).into())];
    let _kubelet = Server::bind(&other.namespace, "kubelet", &sockets).unwrap();
    let assert_reached = || {
        let tally = bed.ask(bed.node(), Protocol::Tcp, (other.ipv4.into(), 10_250), 1);
        assert_shares(&tally, &[("kubelet", 1)]);
    };
    let mut service = Service::new("greedy", ip("10.96.0.30")).port(Protocol::Tcp, 80, TARGET);
    service.external = vec![other.ipv4.into(), ip("198.51.100.30")];
    bed.manifests.apply(&service.pods([bed.pod(1, 1)])).unwrap();
    let proxy = bed.start(&[]);
    for address in ["10.96.0.30", "198.51.100.30"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(address), 80), 2);
        assert_shares(&tally, &[("pod1-1", 2)]);
    }
    let taken = format!("{}/32", other.ipv4);
    assert!(!bed.bound().contains(&taken), "{:?}", bed.bound());
    assert_reached();

    // The node leaves the cluster: no node has the address, so the Service may have it.
    bed.manifests.remove("node2").unwrap();
    bed.wait_until("the address is bound", || bed.bound().contains(&taken));
    // And the node is back.
    bed.manifests.write("node2.yaml", &node("node2", &other.ipv4.to_string(), "a")).unwrap();
    bed.wait_until("the address is free again", || !bed.bound().contains(&taken));
    assert_reached();
    let log = proxy.stop().unwrap();
    let said = format!("spec.externalIPs: {} is in the status of Node node2", other.ipv4);
    assert!(log.contains(&said), "{log}");
}

/// By its own configuration, no Node takes a load balancer IP away, and another node still keeps
/// its own from `spec.externalIPs`.
#[test]
fn load_balancers_before_nodes_keep_their_addresses() {
    let bed = Bed::new();
    let own = bed.cluster.node(2).unwrap().ipv4;
    let mut service = Service::new("balanced", ip("10.96.0.30")).port(Protocol::Tcp, 80, TARGET);
    service.load_balancer.push(ip("198.51.100.30"));
    service.external.push(own.into());
    bed.manifests.apply(&service.pods([bed.pod(1, 1)])).unwrap();
    let claims = |address: &str| bed.manifests.write("node2.yaml", &node("node2", address, "a"));
    claims("198.51.100.30").unwrap();
    let configuration = bed.configuration("first", "loadBalancersBeforeNodes: true");
    let _proxy = bed.start(&["--config", &configuration]);
    let taken = format!("{own}/32");
    assert!(bed.bound().contains(&taken), "{:?}", bed.bound());
    // Once node2 has said what is its own, all that it ever claimed has been looked at.
    claims(&own.to_string()).unwrap();
    bed.wait_until("the node's own address is free", || !bed.bound().contains(&taken));
    claims("198.51.100.30").unwrap();
    bed.wait_until("the node claims the other again", || bed.bound().contains(&taken));
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("198.51.100.30"), 80), 2);
    assert_shares(&tally, &[("pod1-1", 2)]);
}

/// While it lives, the kernel cannot load modules.
struct NoModules(String);

impl NoModules {
    const SWITCH: &str = "/proc/sys/kernel/modprobe";

    fn new() -> Self {
        let before = std::fs::read_to_string(Self::SWITCH).unwrap();
        std::fs::write(Self::SWITCH, "/bin/false").unwrap();
        Self(before)
    }
}

impl Drop for NoModules {
    fn drop(&mut self) {
        std::fs::write(Self::SWITCH, self.0.trim()).unwrap();
    }
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_replaced_by_the_default_one() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let proxy = bed.start(&[]);
    // Nothing uses it now, whatever was loaded for other tests.
    let _ = bed.node().command("modprobe", &["-r", "ip_vs_ovf"]);
    let none = NoModules::new();
    let chooses = Service::new("chooses", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    let chooses = chooses.pods([bed.pod(1, 1), bed.pod(2, 1)]);
    bed.manifests
        .write("chooses.yaml", &annotated(&chooses, "kube-ipvs.io/scheduler: ovf"))
        .unwrap();
    bed.wait_until("it is served", || {
        bed.virtual_servers().lines().any(|line| line.trim() == "TCP  10.96.0.20:80 rr")
    });
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.20"), 80), 4);
    assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    // Its module is loaded later.
    drop(none);
    bed.tool("modprobe", &["ip_vs_ovf"]);
    bed.wait_until("it has what it chose", || {
        bed.virtual_servers().lines().any(|line| line.trim() == "TCP  10.96.0.20:80 ovf")
    });
    let log = proxy.stop().unwrap();
    let said = "this node's kernel has no IPVS scheduler \"ovf\" (module ip_vs_ovf)";
    assert!(log.contains(said), "{log}");
}
