//! `kube-ipvs services` and `kube-ipvs service`, beside ipvsadm.

use std::collections::BTreeMap;

use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use bed::{Connection, Protocol, Question, Service, eventually};
use serde_json::Value;

use super::run;
use crate::fixture::{Bed, PATIENCE, TARGET, ip};

/// Weight, active and inactive connections of each real server, by virtual server.
type Servers = BTreeMap<String, BTreeMap<String, [u64; 3]>>;

fn by_ipvsadm(bed: &Bed) -> Servers {
    let mut servers = Servers::new();
    let mut last = String::new();
    for line in bed.virtual_servers().lines().skip(3) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["->", real, _, weight, active, inactive] => {
                let numbers = [weight, active, inactive].map(|it| it.parse().unwrap());
                servers.get_mut(&last).unwrap().insert(real.to_owned(), numbers);
            }
            [protocol, address, ..] => {
                last = format!("{protocol} {address}");
                servers.insert(last.clone(), BTreeMap::new());
            }
            _ => panic!("{line}"),
        }
    }
    servers
}

fn by_console(answer: &Value) -> Servers {
    let frontends = answer["frontends"].as_array().unwrap().iter();
    let of_frontend = |frontend: &Value| {
        let address = ip(frontend["address"].as_str().unwrap());
        let port = frontend["port"].as_u64().unwrap();
        let socket = std::net::SocketAddr::new(address, u16::try_from(port).unwrap());
        let name = format!("{} {socket}", frontend["protocol"].as_str().unwrap());
        let endpoints = frontend["endpoints"].as_array().unwrap().iter();
        let there = endpoints.filter(|it| !it["weight"].is_null()).map(|it| {
            let numbers = ["weight", "active", "inactive"].map(|key| it[key].as_u64().unwrap());
            (it["endpoint"].as_str().unwrap().to_owned(), numbers)
        });
        (name, there.collect())
    };
    frontends.map(of_frontend).collect()
}

/// Waits until the console says the same as ipvsadm, and returns the answer.
fn agreed(bed: &Bed) -> Value {
    let mut answer = Value::Null;
    let outcome = eventually(PATIENCE, "the console and ipvsadm agree", || {
        let before = by_ipvsadm(bed);
        answer = run(bed, &["service", "web", "-o", "json"]).json();
        let found = by_console(&answer);
        anyhow::ensure!(found == before, "{found:#?}\nipvsadm: {before:#?}");
        Ok(())
    });
    outcome.unwrap();
    answer
}

fn endpoint<'a>(answer: &'a Value, address: &str) -> &'a Value {
    let endpoints = answer["frontends"][0]["endpoints"].as_array().unwrap();
    endpoints.iter().find(|it| it["endpoint"] == address).unwrap_or_else(|| panic!("{answer:#}"))
}

#[test]
fn a_service_is_as_ipvsadm_shows_it_and_what_drains_has_its_time() {
    let bed = Bed::new();
    let web = |pods: &[(u8, u8)]| {
        let mut service = Service::new("web", ip("10.96.0.10"));
        service = service.node_port(Protocol::Tcp, 80, TARGET, 30_080);
        service.load_balancer.push(ip("203.0.113.10"));
        service.more = vec!["externalTrafficPolicy: Local".into()];
        service.pods(pods.iter().map(|(node, pod)| bed.pod(*node, *pod)))
    };
    bed.manifests.apply(&web(&[(1, 1), (2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let connect = |_| {
        let question = Question::tcp((ip("10.96.0.10"), 80));
        let mut connection = Connection::open(bed.client(), question).unwrap();
        connection.say().unwrap();
        connection
    };
    let connections: Vec<Connection> = (0..4).map(connect).collect();
    let answer = agreed(&bed);
    assert_eq!(answer["kind"], "Service");
    for address in ["10.244.1.11:8080", "10.244.2.11:8080"] {
        assert_eq!(endpoint(&answer, address)["active"], 2, "{answer:#}");
    }
    let frontends = answer["frontends"].as_array().unwrap();
    let balancer = frontends.iter().find(|it| it["address"] == "203.0.113.10").unwrap();
    let elsewhere = balancer["endpoints"].as_array().unwrap().iter();
    let elsewhere = elsewhere.filter(|it| it["use"] == "elsewhere");
    assert_eq!(elsewhere.count(), 1, "{balancer:#}");

    let table = run(&bed, &["services", "-A"]);
    assert_eq!(table.code, 0, "{table:?}");
    let row = table.out.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
    let expected = [
        "default",
        "web",
        "LoadBalancer",
        "10.96.0.10",
        "203.0.113.10",
        "80:30080/TCP",
        "2/2",
        "2",
        "4",
        "0",
        "-",
    ];
    assert_eq!(row, expected, "{table:?}");

    bed.manifests.apply(&web(&[(1, 1)])).unwrap();
    bed.wait_until("an endpoint drains", || {
        by_ipvsadm(&bed)["TCP 10.96.0.10:80"].get("10.244.2.11:8080") == Some(&[0, 2, 0])
    });
    let answer = agreed(&bed);
    let gone = endpoint(&answer, "10.244.2.11:8080");
    let left = gone["drainingSeconds"].as_f64().unwrap();
    // The kernel has the deadline of 15 minutes in whole seconds.
    assert!(left > 600.0 && left <= 901.0, "{gone:#}");
    assert_eq!((&gone["use"], &gone["weight"]), (&"gone".into(), &0.into()));
    drop(connections);
    proxy.stop().unwrap();
}

#[test]
fn a_service_that_is_not_there_is_answered_with_the_nearest() {
    let bed = Bed::new();
    bed.manifests.apply(&crate::fixture::web([bed.pod(1, 1)])).unwrap();
    let proxy = bed.start(&[]);
    for command in ["service", "explain"] {
        let unknown = run(&bed, &[command, "default/wed"]);
        assert_eq!(unknown.code, 4, "{unknown:?}");
        assert!(unknown.err.contains("nearest: default/web"), "{unknown:?}");
    }
    let empty = run(&bed, &["services", "-n", "nowhere"]);
    assert_eq!(empty.out, "No Services in namespace nowhere; -A shows all namespaces.\n");
    proxy.stop().unwrap();
}

/// This node, in zone a.
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata:\n  name: node1\n  labels:\n    \
                    topology.kubernetes.io/zone: a\n";

/// Words of an answer about the endpoints of each frontend: `ADDRESS USE`.
fn uses(answer: &Value) -> Vec<(String, Vec<String>)> {
    let frontends = answer["frontends"].as_array().unwrap().iter();
    let of = |frontend: &Value| {
        let endpoints = frontend["endpoints"].as_array().unwrap().iter();
        let word = |it: &Value, field: &str| it[field].as_str().unwrap().to_owned();
        let uses = endpoints.map(|it| format!("{} {}", word(it, "endpoint"), word(it, "use")));
        (frontend["address"].as_str().unwrap().to_owned(), uses.collect())
    };
    frontends.map(of).collect()
}

#[test]
fn hints_and_session_affinity_are_shown_as_every_mode_follows_them() {
    for mode in ["ipvs", "iptables", "userspace"] {
        let bed = Bed::new();
        bed.manifests.write("node.yaml", NODE).unwrap();
        let mut service = Service::new("web", ip("10.96.0.10")).port(Protocol::Udp, 80, TARGET);
        service.cluster.push(ip("fd00:96::10"));
        service = service.pods([bed.pod(1, 1), bed.pod(2, 1)]);
        service.affinity = Some(90);
        for endpoint in &mut service.endpoints {
            let is_here = endpoint.node == "node1";
            endpoint.hints =
                Some(if is_here { "{forZones: [{name: b}]}" } else { "{forZones: [{name: a}]}" });
        }
        bed.manifests.apply(&service).unwrap();
        let local = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
        let proxy = bed.start(&[&format!("--proxy-mode={mode}"), &local]);
        let said = run(&bed, &["service", "web", "-o", "json"]);
        let answer = said.json();
        let expected = [
            ("10.96.0.10", ["10.244.1.11:8080 forOtherZones", "10.244.2.11:8080 used"]),
            ("fd00:96::10", ["[fd00:244:1::11]:8080 forOtherZones", "[fd00:244:2::11]:8080 used"]),
        ];
        let expected = expected.map(|(at, uses)| (at.to_owned(), uses.map(str::to_owned).to_vec()));
        assert_eq!(uses(&answer), expected, "{mode}: {said:?}");
        assert_eq!(answer["affinitySeconds"], 90, "{mode}: {answer:#}");
        let text = run(&bed, &["explain", "web", "--from", "outside"]).out;
        let words = ["Session affinity: a client stays with its endpoint for 90s", "(zones b)"];
        assert!(words.iter().all(|word| text.contains(word)), "{mode}: {text}");
        // Packets find the same.
        for address in ["10.96.0.10", "fd00:96::10"] {
            let tally = bed.ask(bed.client(), Protocol::Udp, (ip(address), 80), 6);
            crate::fixture::assert_shares(&tally, &[("pod2-1", 6)]);
        }
        proxy.stop().unwrap();
    }
}
