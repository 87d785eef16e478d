//! The address by which nodes reach their API server, and those of pods, as addresses of Services.

use std::time::Duration;

use bed::{Protocol, Service};

use crate::cluster::{Cluster, mk_web};
use crate::fixture::{TARGET, assert_shares, ip};

/// A Service with this name, and the same addresses in both fields.
fn mk_tenant(name: &str, cluster: &str, outer: &[std::net::IpAddr]) -> Service {
    let mut service = Service::new(name, ip(cluster)).port(Protocol::Tcp, 80, TARGET);
    service.load_balancer = outer.to_vec();
    service
}

fn is_bound(cluster: &Cluster, address: std::net::IpAddr) -> bool {
    let shown = cluster.bed.tool("ip", &["-o", "address", "show", "dev", "kube-ipvs0"]);
    shown.contains(&format!(" {address}/"))
}

fn assert_follows(cluster: &Cluster) {
    let bed = &cluster.bed;
    for pods in [[(2, 2)], [(1, 1)]] {
        cluster.apply_service(&mk_web(bed, &pods));
        let expected = format!("10.244.{}.1{}:8080", pods[0].0, pods[0].1);
        bed.wait_until("the change", || bed.virtual_servers().contains(&expected));
    }
}

#[test]
fn no_service_takes_the_api_servers_address() {
    for is_ipv6 in [false, true] {
        let cluster = Cluster::reached_by(is_ipv6);
        let bed = &cluster.bed;
        let server = cluster.api.address().ip();
        cluster.apply_service(&mk_web(bed, &[(1, 1)]));
        let mut proxy = cluster.launch(1);
        proxy.wait_until_in_sync().unwrap();
        // While it runs, and found at a restart.
        let cluster_address = if is_ipv6 { "fd00:96::77" } else { "10.96.0.77" };
        let tenant = mk_tenant("tenant", cluster_address, &[server]);
        cluster.apply_service(&tenant.pods([bed.pod(1, 2)]));
        let target = (ip(cluster_address), 80);
        assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 2), &[("pod1-2", 2)]);
        assert!(!is_bound(&cluster, server));
        assert_follows(&cluster);
        bed::eventually(Duration::from_secs(60), "an Event", || {
            let events = cluster.api.events();
            let is_it = |event: &serde_json::Value| event["reason"] == "AddressOfApiServer";
            if events.iter().any(is_it) { Ok(()) } else { anyhow::bail!("{events:?}") }
        })
        .unwrap();
        proxy.stop().unwrap();
        // As a version before, or kube-proxy, leaves it: no list comes before it is gone.
        bed.tool(
            "ip",
            &[
                "address",
                "add",
                &format!("{server}/{}", if is_ipv6 { 128 } else { 32 }),
                "dev",
                "kube-ipvs0",
            ],
        );
        let way = bed.tool("ip", &["route", "get", &server.to_string()]);
        assert!(way.contains("local"), "{way}");
        cluster.apply_service(&mk_web(bed, &[(2, 1)]));
        let _proxy = cluster.start(1);
        assert!(!is_bound(&cluster, server));
        assert_follows(&cluster);
    }
}

/// Has the program reach the API server at this host and port.
fn reach_by(cluster: &Cluster, authority: &str) {
    let kubeconfig = cluster.folder.path().join("kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let server = cluster.api.address();
    let lines = text.lines().map(|line| {
        if line.contains("certificate-authority-data") {
            format!("{line}\n    tls-server-name: {}", server.ip())
        } else {
            line.replace(&server.to_string(), authority)
        }
    });
    std::fs::write(&kubeconfig, lines.collect::<Vec<_>>().join("\n")).unwrap();
}

#[test]
fn no_service_takes_an_address_of_the_name_by_which_the_api_server_is_reached() {
    const NAME: &str = "api.bed.example";
    const HOSTS: &str = "/etc/hosts";
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    let server = cluster.api.address();
    let hosts = std::fs::read_to_string(HOSTS).unwrap_or_default();
    std::fs::write(HOSTS, format!("{hosts}\n{} {NAME}\n", server.ip())).unwrap();
    reach_by(&cluster, &format!("{NAME}:{}", server.port()));
    let tenant = mk_tenant("tenant", "10.96.0.77", &[server.ip()]).pods([bed.pod(1, 2)]);
    cluster.apply_service(&tenant);
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    let proxy = cluster.start(1);
    assert_follows(&cluster);
    let target = (ip("10.96.0.77"), 80);
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 2), &[("pod1-2", 2)]);
    assert!(!is_bound(&cluster, server.ip()));
    proxy.stop().unwrap();
    std::fs::write(HOSTS, hosts).unwrap();
}

/// In a cluster, pods reach it by the address of its own Service, which kube-ipvs serves.
#[test]
fn a_kubeconfig_with_the_cluster_address_works_and_keeps_working() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    let server = cluster.api.address();
    let own = serde_json::json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
    });
    cluster.apply(&own);
    cluster.apply(&serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": 6443}],
        "endpoints": [{"addresses": [server.ip()]}],
    }));
    cluster.start(1).stop().unwrap();
    reach_by(&cluster, "10.96.0.1:443");
    let proxy = cluster.start(1);
    assert_follows(&cluster);
    // A tenant gets neither this address nor that behind it.
    let outer = [server.ip(), ip("10.96.0.1")];
    let mut tenant = mk_tenant("tenant", "10.96.0.77", &[]).pods([bed.pod(1, 2)]);
    tenant.load_balancer = outer.to_vec();
    cluster.apply_service(&tenant);
    let target = (ip("10.96.0.77"), 80);
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 2), &[("pod1-2", 2)]);
    assert!(!is_bound(&cluster, server.ip()) && is_bound(&cluster, ip("10.96.0.1")));
    assert_follows(&cluster);
    proxy.stop().unwrap();
    let _proxy = cluster.start(1);
    assert_follows(&cluster);
}

/// Otherwise a pod of another node could not be reached, and its ports would be refused here.
#[test]
fn an_address_of_a_pod_is_not_bound() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    let _proxy = cluster.start(1);
    let pod = bed.pod(2, 1);
    for (number, address) in pod.addresses().into_iter().enumerate() {
        let (name, own) =
            (format!("t{number}"), if number == 0 { "10.96.0.77" } else { "fd00:96::77" });
        let tenant = mk_tenant(&name, own, &[address]).pods([bed.pod(1, 2)]);
        cluster.apply_service(&tenant);
        assert_shares(&bed.ask(bed.client(), Protocol::Tcp, (ip(own), 80), 2), &[("pod1-2", 2)]);
        assert!(!is_bound(&cluster, address));
        let there = bed.ask(cluster.namespace(1), Protocol::Tcp, (address, TARGET), 2);
        assert_shares(&there, &[("pod2-1", 2)]);
    }
}
