//! Every kind of frontend carries traffic of every protocol and family, and shares it out.

use bed::{Protocol, Service};

use crate::fixture::{Bed, PROTOCOLS, TARGET, assert_shares, ip, web};

/// A Service with every kind of frontend, one endpoint on this node and one on the other.
fn everything(bed: &Bed) -> Service {
    let mut service = Service::new("everything", ip("10.96.0.20"));
    service.cluster.push(ip("fd00:96::20"));
    service.external = vec![ip("198.51.100.7"), ip("fd00:203::7")];
    service.load_balancer = vec![ip("203.0.113.5"), ip("fd00:203::5")];
    for (number, protocol) in PROTOCOLS.into_iter().enumerate() {
        let node_port = 30_080 + u16::try_from(number).unwrap();
        service = service.node_port(protocol, 80, TARGET, node_port);
    }
    service.pods([bed.pod(1, 1), bed.pod(2, 1)])
}

#[test]
fn every_frontend_balances_every_protocol_and_family_for_clients_outside() {
    let bed = Bed::new();
    bed.manifests.apply(&everything(&bed)).unwrap();
    let _proxy = bed.start(&[]);
    let mut tried = 0;
    for (number, protocol) in PROTOCOLS.into_iter().enumerate() {
        let node_port = 30_080 + u16::try_from(number).unwrap();
        for target in [
            (ip("10.96.0.20"), 80),
            (ip("fd00:96::20"), 80),
            (ip("198.51.100.7"), 80),
            (ip("fd00:203::7"), 80),
            (ip("203.0.113.5"), 80),
            (ip("fd00:203::5"), 80),
            (ip("192.168.0.11"), node_port),
            (ip("fd00:192::11"), node_port),
        ] {
            let tally = bed.ask(bed.client(), protocol, target, 4);
            assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
            tried += 1;
        }
    }
    assert_eq!(tried, 24);
}

#[test]
fn every_frontend_balances_for_pods_and_for_the_node() {
    let bed = Bed::new();
    bed.manifests.apply(&everything(&bed)).unwrap();
    let _proxy = bed.start(&[]);
    for protocol in PROTOCOLS {
        for target in ["10.96.0.20", "fd00:96::20", "203.0.113.5", "fd00:203::7"] {
            for from in [&bed.pod(1, 2).namespace, bed.node()] {
                let tally = bed.ask(from, protocol, (ip(target), 80), 4);
                assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
            }
        }
    }
}

#[test]
fn every_scheduler_is_taken_and_read_back() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    for scheduler in ["rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh"] {
        let proxy = bed.start(&["--ipvs-scheduler", scheduler]);
        let shown = bed.virtual_servers();
        let first = shown.lines().find(|line| line.starts_with("TCP  10.96.0.10:80")).unwrap();
        assert_eq!(first.split_whitespace().nth(2), Some(scheduler), "{shown}");
        // The kernel's own name for "the source port counts too", which kube-proxy asks for.
        assert_eq!(first.contains("mh-port"), scheduler == "mh", "{shown}");
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 8);
        assert_eq!(tally.answered(), 8, "{scheduler}: {tally}");
        if ["rr", "wrr"].contains(&scheduler) {
            assert_shares(&tally, &[("pod1-1", 4), ("pod2-1", 4)]);
        }
        if ["sh", "dh"].contains(&scheduler) {
            assert_eq!(tally.servers().len(), 1, "{scheduler}: {tally}");
        }
        proxy.stop().unwrap();
    }
}

#[test]
fn an_unknown_scheduler_is_refused_at_start_in_words() {
    let bed = Bed::new();
    let (status, log) =
        bed::Proxy::run_to_its_end(bed.node(), &bed.manifests, &["--ipvs-scheduler", "roundrobin"])
            .unwrap();
    assert!(!status.success());
    assert!(log.contains("roundrobin") && log.contains("scheduler"), "{log}");
}

#[test]
fn changes_of_a_manifest_reach_the_packets() {
    let bed = Bed::new();
    let proxy = bed.start(&[]);
    let target = (ip("10.96.0.10"), 80);
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 2), &[("pod1-1", 2)]);
    bed.manifests.apply(&web([bed.pod(1, 2), bed.pod(2, 2)])).unwrap();
    bed.wait_until("the new endpoints are there", || {
        let shown = bed.virtual_servers();
        shown.contains("10.244.1.12:8080") && shown.contains("10.244.2.12:8080")
    });
    bed.wait_until("only the new endpoints answer", || {
        let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
        tally.by_server().len() == 2 && !tally.servers().contains("pod1-1")
    });
    // A file that does not parse changes nothing, and says where.
    bed.manifests.write("web.yaml", "kind: Service\nmetadata: {name: [\n").unwrap();
    proxy.wait_for_log("web.yaml", crate::fixture::PATIENCE).unwrap();
    let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
    assert_shares(&tally, &[("pod1-2", 2), ("pod2-2", 2)]);
    bed.manifests.remove("web").unwrap();
    bed.wait_until("the virtual server is gone", || !bed.virtual_servers().contains("10.96.0.10"));
}

#[test]
fn an_endpoint_that_is_not_ready_gets_nothing() {
    let bed = Bed::new();
    let mut service = web([bed.pod(1, 1), bed.pod(2, 1)]);
    for endpoint in service.endpoints.iter_mut().filter(|endpoint| endpoint.node == "node2") {
        endpoint.ready = false;
    }
    bed.manifests.apply(&service).unwrap();
    let _proxy = bed.start(&[]);
    for target in ["10.96.0.10", "fd00:96::10"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target), 80), 4);
        assert_shares(&tally, &[("pod1-1", 4)]);
    }
}
