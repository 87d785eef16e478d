//! `kube-ipvs drain` and `kube-ipvs undrain`.

use bed::{Connection, Protocol, Question, eventually};

use super::run;
use crate::fixture::{Bed, PATIENCE, assert_shares, ip, web};

/// Weight of a pod's real server, as ipvsadm shows it.
fn weight(bed: &Bed, pod: &str) -> Option<String> {
    let shown = bed.virtual_servers();
    let line = shown.lines().find(|line| line.split_whitespace().nth(1) == Some(pod))?;
    line.split_whitespace().nth(3).map(str::to_owned)
}

#[test]
fn a_drained_endpoint_keeps_its_connections_gets_no_others_and_comes_back() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let target = (ip("10.96.0.10"), 80);
    let question = Question::tcp(target);
    // One of two connections goes to the pod.
    let opened = [(); 2].map(|()| {
        let mut connection = Connection::open(bed.client(), question).unwrap();
        let server = connection.say().unwrap().server;
        (connection, server)
    });
    let (mut kept, _) = opened.into_iter().find(|(_, server)| server == "pod2-1").unwrap();
    let endpoint = format!("{}:8080", bed.pod(2, 1).ipv4);
    let drained = run(&bed, &["drain", &endpoint, "--for", "20s"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    assert!(drained.out.contains("default/web") && drained.out.contains(&endpoint), "{drained:?}");
    bed.wait_until("weight 0", || weight(&bed, &endpoint).as_deref() == Some("0"));
    assert_shares(&bed.ask(bed.client(), Protocol::Tcp, target, 10), &[("pod1-1", 10)]);
    assert_eq!(kept.say().unwrap().server, "pod2-1");
    let listed = run(&bed, &["drain", "-o", "json"]).json();
    assert_eq!(listed["drains"][0]["target"]["port"], 8080);
    let status = run(&bed, &["status", "-o", "json"]).json();
    assert_eq!(status["draining"]["byHand"], 1);
    // Nothing is drift, and the time ends by itself.
    let back = eventually(PATIENCE * 3, "its weight comes back", || {
        anyhow::ensure!(weight(&bed, &endpoint).as_deref() == Some("1"));
        Ok(())
    });
    back.unwrap();
    assert_eq!(kept.say().unwrap().server, "pod2-1");
    assert_eq!(run(&bed, &["status", "-o", "json"]).json()["kernel"]["driftRepaired"], 0);
    let again = run(&bed, &["drain", &endpoint]);
    assert_eq!(again.code, 0, "{again:?}");
    bed.wait_until("weight 0 again", || weight(&bed, &endpoint).as_deref() == Some("0"));
    let ended = run(&bed, &["undrain", &endpoint]);
    assert!(ended.code == 0 && ended.out.contains("no longer drained"), "{ended:?}");
    bed.wait_until("weight 1 again", || weight(&bed, &endpoint).as_deref() == Some("1"));
    proxy.stop().unwrap();
}

#[test]
fn the_last_endpoint_is_drained_by_force_alone_and_unknown_ones_are_named() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let address = bed.pod(2, 1).ipv4.to_string();
    let refused = run(&bed, &["drain", &address]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.out.contains("TCP 80"), "{refused:?}");
    assert_eq!(weight(&bed, &format!("{address}:8080")).as_deref(), Some("1"));
    let elsewhere = run(&bed, &["drain", &format!("{address}:9")]);
    assert_eq!(elsewhere.code, 4, "{elsewhere:?}");
    assert!(elsewhere.err.contains(&format!("{address}:8080")), "{elsewhere:?}");
    let not_drained = run(&bed, &["undrain", &address]);
    assert_eq!(not_drained.code, 4, "{not_drained:?}");
    let forced = run(&bed, &["drain", &address, "--force"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    let question = Question::tcp((ip("10.96.0.10"), 80));
    bed.wait_until("clients are refused", || {
        bed::ask(bed.client(), question) == Err(bed::Refusal::Refused)
    });
    let ended = run(&bed, &["undrain", "--all"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    bed.wait_until("clients get it again", || bed::ask(bed.client(), question).is_ok());
    proxy.stop().unwrap();
}
