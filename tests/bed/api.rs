//! Behaviour of a node that follows an API server.

use std::fs;
use std::time::{Duration, Instant};

use bed::{Connection, Protocol, Proxy, Question, Service};
use serde_json::json;

use crate::cluster::{Cluster, HEALTH, get, mk_web, status};
use crate::fixture::{TARGET, assert_shares, ip};

#[test]
fn every_node_follows_the_api_server_with_kube_proxys_own_arguments() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1), (2, 1)]));
    let _proxies = [cluster.start(1), cluster.start(2)];
    let both = [("pod1-1", 2), ("pod2-1", 2)];
    for from in [&bed.pod(1, 2).namespace, &bed.pod(2, 2).namespace, cluster.namespace(2)] {
        for target in ["10.96.0.10", "fd00:96::10"] {
            assert_shares(&bed.ask(from, Protocol::Tcp, (ip(target), 80), 4), &both);
        }
    }
    for node in ["192.168.0.11", "192.168.0.12"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(node), 30_080), 4);
        assert_shares(&tally, &both);
    }
    // A change reaches both.
    cluster.apply_service(&mk_web(bed, &[(2, 2)]));
    for from in [&bed.pod(1, 2).namespace, cluster.namespace(2)] {
        bed.wait_until("pod2-2 alone answers", || {
            let question = Question::tcp((ip("10.96.0.10"), 80));
            bed::ask(from, question).is_ok_and(|answer| answer.server == "pod2-2")
        });
    }
    let agent =
        cluster.api.requests().into_iter().find(|request| request.path.contains("services"));
    assert!(agent.is_some(), "no request listed services");
    // What is served beside it.
    let node = cluster.namespace(1);
    assert!(get(node, "127.0.0.1:10249", "/proxyMode").unwrap().ends_with("\r\n\r\nipvs"));
    assert_eq!(status(bed.client(), HEALTH, "/healthz"), "200");
    assert_eq!(status(bed.client(), "192.168.0.11:10249", "/metrics"), "refused", "local only");
    let metrics = get(node, "127.0.0.1:10249", "/metrics").unwrap();
    assert!(
        metrics.contains("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"),
        "{metrics}"
    );
}

#[test]
fn an_outage_of_the_api_server_leaves_traffic_alone_and_ends_at_once() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    let proxy = cluster.start(1);
    let target = (ip("10.96.0.10"), 80);
    let mut connection = Connection::open(bed.client(), Question::tcp(target)).unwrap();
    assert_eq!(connection.say().unwrap().server, "pod1-1");
    cluster.api.close();
    // While it is away it forgets its history, and the Service changes.
    cluster.apply_service(&mk_web(bed, &[(1, 1), (2, 1)]));
    cluster.api.compact();
    std::thread::sleep(Duration::from_secs(3));
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 4), &[("pod1-1", 4)]);
    // Started without an API server, it takes nothing away either.
    proxy.stop().unwrap();
    let mut proxy = cluster.launch(1);
    proxy.wait_for_log("cannot follow the API server", Duration::from_secs(30)).unwrap();
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 4), &[("pod1-1", 4)]);
    assert_eq!(connection.say().unwrap().server, "pod1-1");
    let host = cluster.bed.cluster.client(2).unwrap();
    host.namespace.enter(|| cluster.api.reopen()).unwrap().unwrap();
    proxy.wait_until_in_sync().unwrap();
    assert_shares(
        &bed.ask(bed.client(), Protocol::Tcp, target, 4),
        &[("pod1-1", 2), ("pod2-1", 2)],
    );
    // All watches cut, and their versions forgotten: listed anew, and nothing is taken away.
    cluster.wait_for_watches(1);
    let before = bed.virtual_servers();
    cluster.api.compact();
    cluster.api.disconnect();
    cluster.wait_for_watches(1);
    cluster.apply_service(&mk_web(bed, &[(1, 1), (2, 1), (2, 2)]));
    bed.wait_until("pod2-2 is there", || bed.virtual_servers().contains("10.244.2.12:8080"));
    assert!(before.lines().filter(|line| line.contains("8080")).count() >= 2, "{before}");
    assert_eq!(connection.say().unwrap().server, "pod1-1");
}

#[test]
fn health_checks_show_load_balancers_which_nodes_have_endpoints() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    let mut service = mk_web(bed, &[(1, 1)]);
    service.cluster.truncate(1);
    service.load_balancer = vec![ip("203.0.113.5")];
    service.more = vec!["externalTrafficPolicy: Local".into(), "healthCheckNodePort: 31000".into()];
    cluster.apply_service(&service);
    let _proxies = [cluster.start(1), cluster.start(2)];
    let check = |address: &str| status(bed.client(), address, "/");
    bed.wait_until("node1 says yes", || check("192.168.0.11:31000") == "200");
    bed.wait_until("node2 says no", || check("192.168.0.12:31000") == "503");
    let answer = get(bed.client(), "192.168.0.11:31000", "/").unwrap();
    assert!(answer.to_lowercase().contains("x-load-balancing-endpoint-weight: 1"), "{answer}");
    assert_eq!(check("[fd00:192::11]:31000"), "refused", "the Service has no IPv6 address");
    // The endpoint moves, and so does the answer.
    let mut moved = service.clone();
    moved.endpoints = mk_web(bed, &[(2, 1)]).endpoints;
    cluster.apply_service(&moved);
    bed.wait_until("node2 says yes", || check("192.168.0.12:31000") == "200");
    bed.wait_until("node1 says no", || check("192.168.0.11:31000") == "503");
    // A node that is about to leave is told to the load balancer by the proxy's own health.
    let mut node = cluster.node_object(2);
    node["spec"]["taints"] =
        json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    cluster.apply(&node);
    bed.wait_until("node2 is leaving", || {
        status(bed.client(), "192.168.0.12:10256", "/healthz") == "503"
    });
    assert_eq!(status(bed.client(), "192.168.0.12:10256", "/livez"), "200");
}

#[test]
fn what_is_wrong_with_a_service_is_said_on_it_and_harms_no_other() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    // The API refuses it in externalIPs, but takes it from a load balancer's controller.
    let mut loopback = Service::new("wrong", ip("10.96.0.66")).port(Protocol::Tcp, 80, TARGET);
    loopback.load_balancer = vec![ip("127.0.0.1")];
    cluster.apply_service(&loopback.pods([bed.pod(1, 2)]));
    let _proxies = [cluster.start(1), cluster.start(2)];
    let target = (ip("10.96.0.66"), 80);
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 2), &[("pod1-2", 2)]);
    let about = |name: &str| {
        let events = cluster.api.events();
        events.into_iter().filter(|event| event["regarding"]["name"] == name).collect::<Vec<_>>()
    };
    // Both nodes say it, each in its time within twenty seconds; once is enough.
    bed::eventually(Duration::from_secs(60), "an Event", || {
        if about("wrong").is_empty() { anyhow::bail!("none yet") } else { Ok(()) }
    })
    .unwrap();
    let events = about("wrong");
    assert_eq!(events[0]["reason"], "AddressNotPossible", "{events:?}");
    assert!(events[0]["note"].as_str().unwrap().contains("127.0.0.1"), "{events:?}");
    assert!(events[0]["regarding"]["uid"].is_string(), "{events:?}");
    assert!(about("web").is_empty());
    let of_node = about("node1");
    let started = of_node.iter().filter(|event| event["reason"] == "Starting").count();
    assert_eq!(started, 1, "{of_node:?}");
    // A network namespace other than the host's cannot have a larger table of connection tracking.
    let others = of_node.iter().filter(|event| event["reason"] != "Starting");
    for event in others {
        let note = event["note"].as_str().unwrap();
        assert!(event["reason"] == "HostLimited" && note.contains("nf_conntrack"), "{event:#}");
    }
}

#[test]
fn it_ends_at_once_and_cleans_up_when_asked() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1), (2, 1)]));
    let proxy = cluster.start(1);
    let target = (ip("10.96.0.10"), 80);
    bed.ask(bed.client(), Protocol::Tcp, target, 2);
    let started = Instant::now();
    proxy.stop().unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_shares(
        &bed.ask(bed.client(), Protocol::Tcp, target, 2),
        &[("pod1-1", 1), ("pod2-1", 1)],
    );
    for _ in 0..2 {
        let config = format!("--config={}", cluster.configuration().display());
        let cleaning = Proxy::start_with(bed.node(), &[&config, "--cleanup"]).unwrap();
        let (status, log) = cleaning.wait_for_end().unwrap();
        assert!(status.success(), "{log}");
        assert!(!bed.virtual_servers().contains("10.96.0.10"), "{}", bed.virtual_servers());
        assert!(!bed.tool("ipset", &["list", "-name"]).contains("KUBE-"));
        assert!(!bed.rules("iptables").contains("KUBE-"), "{}", bed.rules("iptables"));
        assert!(!bed.rules("ip6tables").contains("KUBE-"), "{}", bed.rules("ip6tables"));
        assert!(bed.node().command("ip", &["link", "show", "kube-ipvs0"]).is_err());
    }
}

#[test]
fn a_configuration_that_changes_ends_it_and_the_next_start_has_it() {
    let cluster = Cluster::new();
    let bed = &cluster.bed;
    cluster.apply_service(&mk_web(bed, &[(1, 1)]));
    let proxy = cluster.start(1);
    assert!(bed.virtual_servers().contains("TCP  10.96.0.10:80 rr"), "{}", bed.virtual_servers());
    // As the kubelet does it is another file in the same place.
    let text = fs::read_to_string(cluster.configuration()).unwrap();
    let beside = cluster.folder.path().join("new");
    fs::write(&beside, text.replace("scheduler: \"\"", "scheduler: lc")).unwrap();
    fs::rename(&beside, cluster.configuration()).unwrap();
    let (status, log) = proxy.wait_for_end().unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("content of the proxy server's configuration file was updated"), "{log}");
    assert!(bed.virtual_servers().contains("10.244.1.11:8080"));
    let _proxy = cluster.start(1);
    assert!(bed.virtual_servers().contains("TCP  10.96.0.10:80 lc"), "{}", bed.virtual_servers());
}
