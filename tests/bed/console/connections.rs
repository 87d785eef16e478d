//! `kube-ipvs connections` and `kube-ipvs top`, beside ipvsadm and the endpoints.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bed::{Connection, Protocol, Question, Service, ask};

use super::run;
use crate::fixture::{Bed, TARGET, ip, web};

/// Time for which clients go on asking while `top` reads twice.
const LOAD: Duration = Duration::from_secs(12);

#[test]
fn connections_are_those_of_ipvsadm_with_the_source_that_the_endpoint_sees() {
    let bed = Bed::new();
    let other = Service::new("other", ip("10.96.0.11")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    bed.manifests.apply(&other.pods([bed.pod(1, 2)])).unwrap();
    let proxy = bed.start(&[]);
    let open = |target: &str| {
        let target: SocketAddr = target.parse().unwrap();
        let mut connection = Connection::open(bed.client(), Question::tcp(target)).unwrap();
        let answer = connection.say().unwrap();
        (connection, answer)
    };
    let opened = ["10.96.0.10:80", "10.96.0.10:80", "[fd00:96::10]:80"].map(open);
    let _other = open("10.96.0.11:80");
    let said = run(&bed, &["connections", "default/web", "-o", "json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let answer = said.json();
    assert_eq!((&answer["kind"], &answer["total"]), (&"Connections".into(), &3.into()));
    let listed = answer["connections"].as_array().unwrap();
    for (connection, seen) in &opened {
        let client = connection.local_address().unwrap();
        let found = listed.iter().find(|it| it["client"] == client.to_string()).unwrap();
        assert_eq!(found["seen"], seen.seen_source.to_string(), "{said:?}");
        let endpoint: SocketAddr = found["endpoint"].as_str().unwrap().parse().unwrap();
        let mut pods = bed.cluster.pods();
        let pod = pods.find(|pod| pod.addresses().contains(&endpoint.ip())).unwrap();
        assert_eq!(pod.name, seen.server, "{said:?}");
        assert_eq!(found["ipvs"]["state"], "ESTABLISHED", "{said:?}");
        assert_eq!(found["conntrack"]["state"], "ESTABLISHED", "{said:?}");
    }
    let by_ipvsadm = bed.tool("ipvsadm", &["-Lnc"]);
    let lines = by_ipvsadm.lines().filter(|line| line.starts_with("TCP "));
    let clients: BTreeSet<String> =
        lines.filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect();
    let all = run(&bed, &["connections", "-o", "json"]).json();
    let by_us: BTreeSet<String> = all["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["client"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(by_us, clients, "{by_ipvsadm}");
    let limited = run(&bed, &["connections", "--limit", "1"]);
    assert!(limited.out.contains("1 of 4 connections"), "{limited:?}");
    let unknown = run(&bed, &["connections", "default/wbe"]);
    assert_eq!(unknown.code, 4, "{unknown:?}");
    assert!(unknown.err.contains("nearest: default/web"), "{unknown:?}");
    proxy.stop().unwrap();
}

#[test]
fn in_mode_iptables_connection_tracking_alone_tells_connections() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let proxy = bed.start(&["--proxy-mode=iptables"]);
    let target: SocketAddr = "10.96.0.10:80".parse().unwrap();
    let mut connection = Connection::open(bed.client(), Question::tcp(target)).unwrap();
    let seen = connection.say().unwrap().seen_source;
    let said = run(&bed, &["connections", "default/web", "-o", "json"]);
    let answer = said.json();
    let found = &answer["connections"][0];
    assert_eq!(found["client"], connection.local_address().unwrap().to_string(), "{said:?}");
    assert_eq!((&found["seen"], &found["ipvs"]), (&seen.to_string().into(), &().into()));
    let top = run(&bed, &["top", "--once"]);
    assert_eq!(top.code, 3, "{top:?}");
    assert!(top.err.contains("iptables mode has no counters"), "{top:?}");
    proxy.stop().unwrap();
}

#[test]
fn top_has_the_rates_of_what_clients_do() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let idle = Service::new("idle", ip("10.96.0.11")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&idle.pods([bed.pod(1, 2)])).unwrap();
    let proxy = bed.start(&[]);
    let target: SocketAddr = "10.96.0.10:80".parse().unwrap();
    let began = Instant::now();
    let (asked, top) = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut asked = 0_u32;
            while began.elapsed() < LOAD {
                ask(bed.client(), Question::tcp(target)).unwrap();
                asked += 1;
            }
            asked
        });
        // The kernel adds its counters up every two seconds.
        thread::sleep(Duration::from_secs(3));
        let top = run(&bed, &["top", "--once", "-o", "json"]);
        (load.join().unwrap(), top)
    });
    let per_second = f64::from(asked) / began.elapsed().as_secs_f64();
    let answer = top.json();
    assert_eq!((&answer["kind"], &answer["standsStill"]), (&"Top".into(), &false.into()));
    let services = answer["services"].as_array().unwrap();
    let names: Vec<&str> = services.iter().map(|it| it["service"].as_str().unwrap()).collect();
    assert_eq!(names, ["default/web", "default/idle"], "{top:?}");
    let rate = services[0]["rates"]["connections"].as_f64().unwrap();
    assert!(rate > per_second / 3.0 && rate < per_second * 3.0, "{rate}, {per_second}: {top:?}");
    let of_packets = services[0]["rates"]["packetsIn"].as_f64().unwrap();
    assert!(of_packets > 3.0 * rate, "{of_packets} packets, {rate} connections");
    assert_eq!(services[1]["rates"]["connections"], 0.0, "{top:?}");
    assert_eq!(services[0]["endpoints"].as_array().unwrap().len(), 2 * 2, "of both families");
    let text = run(&bed, &["top", "--once", "--sort", "name", "--filter", "web", "--endpoints"]);
    assert!(!text.out.contains("default/idle"), "{text:?}");
    assert!(text.out.contains(&format!("{}:{TARGET}", bed.pod(1, 1).ipv4)), "{text:?}");
    bed.node().set_sysctl("net/ipv4/vs/run_estimation", "0").unwrap();
    let still = run(&bed, &["top", "--once"]);
    assert!(still.out.contains("counters do not advance"), "{still:?}");
    proxy.stop().unwrap();
}
