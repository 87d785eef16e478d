//! Connections on the fast path to an endpoint that goes: counted and ended by connection tracking.

use std::net::IpAddr;
use std::time::Duration;

use bed::{Connection, Host, Protocol, Question, Refusal, Service, eventually};

use super::fast_path::{ADDRESSES, CLUSTER, CONNTRACK, FRONTENDS, OFFLOAD, web};
use super::{NFTABLES, limit};
use crate::console::run;
use crate::fixture::{Bed, TARGET, annotated, ip};

/// Bit that marks an upper threshold as a deadline.
const MARK: u64 = 1 << 30;
/// Internal frontend of the Service's first address.
const LED_TO: &str = "250.96.0.10:80";
const ASKED: &str = "10.96.0.10:80";
/// Long enough to start again in.
const DEADLINE: &str = "--drain-deadline=15s";

fn socket(pod: &Host) -> String {
    format!("{}:{TARGET}", pod.ipv4)
}

/// Column of a pod's real server of a TCP virtual server, as ipvsadm shows it.
fn column(bed: &Bed, server: &str, pod: &Host, option: &str, column: usize) -> Option<u64> {
    let text = bed.tool("ipvsadm", &["-Ln", option]);
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("TCP  {server} ")));
    lines.next()?;
    let mut real_servers = lines.take_while(|line| line.trim_start().starts_with("->"));
    let socket = socket(pod);
    let line = real_servers.find(|line| line.split_whitespace().nth(1) == Some(&socket))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

fn weight(bed: &Bed, server: &str, pod: &Host) -> Option<u64> {
    column(bed, server, pod, "--sort", 3)
}

/// The second of the kernel's clock until which a real server drains.
fn deadline(bed: &Bed, server: &str, pod: &Host) -> Option<u64> {
    column(bed, server, pod, "--thresholds", 2).filter(|it| *it > MARK).map(|it| it - MARK)
}

fn uptime(bed: &Bed) -> f64 {
    let text = bed.tool("cat", &["/proc/uptime"]);
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Connections of clients of each kind to this pod, by each frontend.
fn connected(bed: &Bed, pod: &Host) -> Vec<Connection> {
    let mut connections = Vec::new();
    for from in [bed.client(), &bed.pod(1, 2).namespace, bed.node()] {
        for (address, port) in FRONTENDS {
            // Each endpoint in turn.
            let opened = (0..4).find_map(|_| {
                let question = Question::tcp((ip(address), port)).within(Duration::from_secs(5));
                let mut connection = Connection::open(from, question).unwrap();
                let server = connection.say().unwrap().server;
                (server == pod.name).then_some(connection)
            });
            let mut connection = opened.expect("one of them leads to the pod");
            connection.say().unwrap();
            connection.say().unwrap();
            connections.push(connection);
        }
    }
    connections
}

/// Has IPVS forget the connections to a pod, as it does in a minute.
fn forget(bed: &Bed, server: &str, pod: &Host) {
    let weight = weight(bed, server, pod).unwrap().to_string();
    let socket = socket(pod);
    let real_server = ["-t", server, "-r", &socket];
    bed.tool("ipvsadm", &[&["-d"], &real_server[..]].concat());
    // A real server that is back has those that the kernel has not removed yet.
    bed.wait_until("IPVS has no connection", || {
        let table = bed.tool("ipvsadm", &["-Lcn"]);
        !table.lines().any(|line| line.contains(server) && line.contains(&socket))
    });
    bed.tool("ipvsadm", &[&["-a"], &real_server[..], &["-m", "-w", &weight]].concat());
    let count = |at| column(bed, server, pod, "--sort", at);
    assert_eq!((count(4), count(5)), (Some(0), Some(0)));
}

/// Active connections to a pod by its Service's first address, as `kube-ipvs service` shows them.
fn shown(bed: &Bed, pod: &Host) -> u64 {
    let answer = run(bed, &["service", "default/web", "-o", "json"]).json();
    let frontends = answer["frontends"].as_array().unwrap().iter();
    let of_address = frontends.filter(|it| {
        let asked = it["internalFrontendOf"].as_str().map(str::to_owned);
        let address = format!("{}:{}", it["address"].as_str().unwrap(), it["port"]);
        it["protocol"] == "TCP" && asked.unwrap_or(address) == ASKED
    });
    let endpoints = of_address.flat_map(|it| it["endpoints"].as_array().unwrap());
    let of_pod = endpoints.filter(|it| it["endpoint"] == socket(pod).as_str());
    of_pod.map(|it| it["active"].as_u64().unwrap_or(0)).sum()
}

/// Waits for a pod to be no real server any more, with all connections alive until then, and requires that they end then
/// and not before the deadline that is noted.
fn end(bed: &Bed, servers: &[&str], pod: &Host, connections: &mut [Connection]) {
    let noted = servers.iter().filter_map(|it| deadline(bed, it, pod)).min().unwrap();
    let outcome = eventually(limit(), "its time is over", || {
        let is_there = servers.iter().all(|it| weight(bed, it, pod) == Some(0));
        for connection in connections.iter_mut().filter(|_| is_there) {
            if let Err(refusal) = connection.say() {
                // Its time may be up since then.
                anyhow::ensure!(
                    servers.iter().any(|it| weight(bed, it, pod).is_none()),
                    "{refusal}"
                );
            }
        }
        anyhow::ensure!(!is_there, "it is still there");
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error:#}\n{}", bed.cluster.dump()));
    assert!(uptime(bed) >= noted as f64, "not before {noted}");
    for connection in connections {
        bed.wait_until("its client is reset", || connection.say() == Err(Refusal::Reset));
    }
}

fn without(bed: &Bed, gone: &[&Host]) -> Service {
    let mut service = web(bed);
    let is_of = |pod: &&Host, address| {
        let addresses = [Some(IpAddr::from(pod.ipv4)), pod.ipv6.map(IpAddr::from)];
        addresses.contains(&Some(address))
    };
    service.endpoints.retain(|it| !gone.iter().any(|pod| is_of(pod, it.address)));
    service
}

#[test]
fn connections_that_ipvs_has_forgotten_are_counted_and_end_at_the_deadline_and_not_before() {
    let bed = Bed::new();
    let (stays, goes) = (bed.pod(1, 1), bed.pod(2, 1));
    for path in [CONNTRACK, OFFLOAD] {
        bed.manifests.apply(&web(&bed)).unwrap();
        let arguments = ["--cluster-cidr", CLUSTER, NFTABLES, path, DEADLINE];
        let proxy = bed.start(&arguments);
        let mut connections = connected(&bed, goes);
        let mut others = connected(&bed, stays);
        forget(&bed, LED_TO, goes);
        // Linux 7 has a connection in the flow table until 30 seconds after its end, and tells no state of it.
        let limit = Duration::from_secs(60);
        bed.wait_for(limit, "one of each kind of client", || shown(&bed, goes) == 3);
        let drained = run(&bed, &["drain", &socket(goes), "-o", "json"]).json();
        assert_eq!(drained["isDrained"], true, "{drained}");
        bed.wait_until("weight 0", || weight(&bed, LED_TO, goes) == Some(0));
        assert_eq!(shown(&bed, goes), 3, "{path}: drained manually");
        run(&bed, &["undrain", "--all", "-o", "json"]).json();
        bed.wait_until("weight 1", || weight(&bed, LED_TO, goes) == Some(1));

        bed.manifests.apply(&without(&bed, &[goes])).unwrap();
        bed.wait_until("it drains", || deadline(&bed, LED_TO, goes).is_some());
        let noted = deadline(&bed, LED_TO, goes);
        drop(proxy);
        let proxy = bed.start(&arguments);
        assert_eq!(deadline(&bed, LED_TO, goes), noted, "{path}: a restart puts nothing off");
        assert_eq!(shown(&bed, goes), 3, "{path}: after a restart");
        bed.wait_until("status has them, and those that have just ended", || {
            let status = run(&bed, &["status", "-o", "json"]).json();
            status["draining"]["connections"].as_u64() >= u64::try_from(connections.len()).ok()
        });
        end(&bed, &[LED_TO], goes, &mut connections);

        // The last endpoint takes the internal frontend with it.
        forget(&bed, LED_TO, stays);
        assert!(others.iter_mut().all(|it| it.say().is_ok()), "{path}");
        bed.manifests.apply(&without(&bed, &[goes, stays])).unwrap();
        bed.wait_until("it drains", || deadline(&bed, ASKED, stays).is_some());
        end(&bed, &[ASKED], stays, &mut others);
        drop(proxy);
    }
}

#[test]
fn a_real_server_without_connections_goes_before_its_deadline_and_no_time_ends_them_at_once() {
    let bed = Bed::new();
    let (stays, goes) = (bed.pod(1, 1), bed.pod(2, 1));
    bed.manifests.apply(&web(&bed)).unwrap();
    let _proxy = bed.start(&["--cluster-cidr", CLUSTER, NFTABLES, OFFLOAD]);
    let question = Question::tcp((ip(ADDRESSES[0]), 80));
    bed.ask(bed.client(), Protocol::Tcp, (ip(ADDRESSES[0]), 80), 4);
    // Entries of connections that have ended are connections, too.
    bed.tool("conntrack", &["-F"]);
    forget(&bed, LED_TO, goes);
    bed.manifests.apply(&without(&bed, &[goes])).unwrap();
    bed.wait_for(limit(), "it is gone", || {
        [ASKED, LED_TO].iter().all(|it| weight(&bed, it, goes).is_none())
    });
    bed::ask(bed.client(), question).unwrap();

    let at_once = |service: &Service| annotated(service, "kube-ipvs.io/drain-deadline: 0s");
    let changed = |service: &Service| {
        bed.manifests.write("web.yaml", &at_once(service)).unwrap();
    };
    changed(&web(&bed));
    bed.wait_until("it is back", || weight(&bed, LED_TO, goes) == Some(1));
    let (mut connections, mut others) = (connected(&bed, goes), connected(&bed, stays));
    changed(&without(&bed, &[goes]));
    for connection in &mut connections {
        bed.wait_until("its client is reset", || connection.say() == Err(Refusal::Reset));
    }
    assert!(others.iter_mut().all(|it| it.say().is_ok()));
    changed(&without(&bed, &[goes, stays]));
    for connection in &mut others {
        bed.wait_until("its client is reset", || connection.say() == Err(Refusal::Reset));
    }
}
