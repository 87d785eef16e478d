//! What Services choose by annotation, and what they may not have: other nodes' addresses.

use bed::{Protocol, Server, Service};

use crate::fixture::{Bed, TARGET, assert_shares, ip, web};

/// A Service's manifest with these annotations.
fn annotated(service: &Service, annotations: &str) -> String {
    let plain = "  namespace: default\nspec:";
    let yaml = service.to_yaml();
    assert!(yaml.contains(plain), "{yaml}");
    yaml.replace(plain, &format!("  namespace: default\n  annotations: {{{annotations}}}\nspec:"))
}

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
    let complaint = "Service default/chooses: metadata.annotations[kube-ipvs.io/scheduler]: \
                     \"best\" is none of rr, wrr";
    assert!(log.contains(complaint), "{log}");
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

    // The node leaves the cluster: the address is nobody's, and then the Service may have it.
    bed.manifests.remove("node2").unwrap();
    bed.wait_until("the address is bound", || bed.bound().contains(&taken));
    // And the node is back.
    bed.manifests.write("node2.yaml", &node("node2", &other.ipv4.to_string(), "a")).unwrap();
    bed.wait_until("the address is free again", || !bed.bound().contains(&taken));
    assert_reached();
    proxy.stop().unwrap();
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
    let _none = NoModules::new();
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
    let log = proxy.stop().unwrap();
    let said = "this node's kernel has no IPVS scheduler \"ovf\" (module ip_vs_ovf)";
    assert!(log.contains(said), "{log}");
}
