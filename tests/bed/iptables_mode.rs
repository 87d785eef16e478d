//! Mode iptables: the rules of a node, as the tools show them and as packets meet them.

use bed::{Namespace, Protocol, Question, Service, ask, eventually};

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

fn until(what: &str, is_so: impl Fn() -> bool) {
    let attempt = || if is_so() { Ok(()) } else { Err(anyhow::anyhow!("not yet")) };
    eventually(PATIENCE, what, attempt).unwrap();
}
