//! Mode iptables: the rules of a node, as the tools show them and as packets meet them.

use bed::manifest::Endpoint;
use bed::{Namespace, Protocol, Question, Server, Service, ask, eventually};

use crate::fixture::{Bed, PATIENCE, TARGET, ip};

const MODE: &str = "--proxy-mode=iptables";

#[test]
fn a_service_is_served_changed_and_gone() {
    let bed = Bed::new();
    let service = |pods: &[u8]| {
        let service = Service::new("web", ip("10.96.0.10"));
        let service = service.node_port(Protocol::Tcp, 80, TARGET, 30_080);
        service.pods(pods.iter().map(|pod| bed.pod(1, *pod)))
    };
    bed.manifests.apply(&service(&[1])).unwrap();
    let proxy = bed.start(&[MODE]);
    let node = bed.cluster.node(1).unwrap();
    let cluster = Question::tcp((ip("10.96.0.10"), 80));
    let node_port = Question::tcp((node.ipv4, 30_080));
    let answered = |from: &Namespace, question| ask(from, question).map(|answer| answer.server);
    for jump in ["-A INPUT", "-A FORWARD", "-A OUTPUT", "-A PREROUTING", "-A POSTROUTING"] {
        assert!(bed.rules("iptables").contains(jump), "{}", proxy.log().unwrap());
    }
    assert_eq!(answered(&bed.pod(1, 2).namespace, cluster), Ok("pod1-1".to_owned()));
    assert_eq!(answered(bed.client(), node_port), Ok("pod1-1".to_owned()));
    bed.manifests.apply(&service(&[2])).unwrap();
    until("changed", || answered(bed.client(), node_port) == Ok("pod1-2".to_owned()));
    bed.manifests.apply(&service(&[])).unwrap();
    until("changed", || ask(bed.client(), node_port) == Err(bed::Refusal::Refused));
    bed.manifests.remove("web").unwrap();
    let is_gone = || !bed.rules("iptables").contains("default/web");
    until("gone", is_gone);
    assert!(!bed.rules("iptables").contains("KUBE-SVC-"), "{}", bed.rules("iptables"));
}

/// Number of endpoints of one Service.
const MANY: u16 = 5_000;
/// Port of all of them.
const OF_ALL: u16 = 9_150;

#[test]
fn a_service_of_5000_endpoints_is_served_by_all_of_them_and_changes_by_one() {
    let bed = Bed::new();
    // One pod has all of the addresses.
    let network = "10.250.0.0/19";
    let pod = bed.pod(1, 1);
    pod.namespace.command("ip", &["route", "add", "local", network, "dev", "lo"]).unwrap();
    bed.tool("ip", &["route", "add", network, "via", &pod.ipv4.to_string()]);
    let listen = (Protocol::Tcp, ([0; 4], OF_ALL).into());
    let _server = Server::bind(&pod.namespace, "all", &[listen]).unwrap();
    let endpoint = |number: u16| {
        let [high, low] = number.to_be_bytes();
        Endpoint {
            address: [10, 250, high, low].into(),
            node: "node1".to_owned(),
            pod: None,
            ready: true,
            terminating: false,
            serving: true,
            hints: None,
        }
    };
    let mut service = Service::new("many", ip("10.96.0.50")).port(Protocol::Tcp, 80, OF_ALL);
    service.endpoints = (1..=MANY).map(endpoint).collect();
    bed.manifests.apply(&service).unwrap();
    let proxy = bed.start(&[MODE]);
    let jumps = || -> Vec<String> {
        let rules = bed.rules("iptables");
        let of_service = rules.lines().filter(|line| line.starts_with("-A KUBE-SVC-"));
        of_service.filter(|line| line.contains("-j KUBE-SEP-")).map(str::to_owned).collect()
    };
    let all = jumps();
    assert_eq!(all.len(), usize::from(MANY), "{}", proxy.log().unwrap());
    assert!(all[0].contains("--probability 0.0002"), "{}", all[0]);
    assert!(
        !all[usize::from(MANY) - 1].contains("--probability"),
        "{}",
        all[usize::from(MANY) - 1]
    );
    let question = Question::tcp((ip("10.96.0.50"), 80));
    for _ in 0..100 {
        assert_eq!(ask(bed.client(), question).unwrap().server, "all");
    }
    // By the rules' counters: the chance that fewer than 80 of them are chosen is nil.
    let counted = bed.tool("iptables-save", &["-c", "-t", "nat"]);
    let chosen: Vec<usize> = counted
        .lines()
        .filter(|line| line.contains("-A KUBE-SVC-") && line.contains("-j KUBE-SEP-"))
        .enumerate()
        .filter(|(_, line)| !line.starts_with("[0:0]"))
        .map(|(place, _)| place)
        .collect();
    assert!(chosen.len() > 80, "{chosen:?}");
    assert!(chosen.iter().any(|place| *place > usize::from(MANY / 2)), "{chosen:?}");

    service.endpoints.remove(2_499);
    bed.manifests.apply(&service).unwrap();
    until("the endpoint was removed", || jumps().len() == usize::from(MANY) - 1);
    assert!(ask(bed.client(), question).is_ok());
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let attempt = || if is_so() { Ok(()) } else { Err(anyhow::anyhow!("not yet")) };
    eventually(PATIENCE, what, attempt).unwrap();
}
