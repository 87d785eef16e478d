//! Endpoints come and go while traffic runs, and no client is cut off.

use std::time::{Duration, Instant};

use bed::{Connection, Host, Protocol, Question, Refusal, Service, Stream, StreamPlan, eventually};

use crate::fixture::{Bed, assert_shares, ip, web};

/// Bit that marks an upper threshold as a deadline.
const MARK: u64 = 1 << 30;

/// A real server of the only virtual server of its family: weight and upper threshold.
fn shown(bed: &Bed, pod: &Host) -> Option<(u32, u64)> {
    let find = |option: &str, column: usize| -> Option<u64> {
        let text = bed.tool("ipvsadm", &["-Ln", option]);
        let socket = format!("{}:8080", pod.ipv4);
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(&socket))?;
        line.split_whitespace().nth(column)?.parse().ok()
    };
    // -> address method weight active inactive; -> address upper lower active inactive
    let weight = find("--sort", 3)?;
    Some((u32::try_from(weight).unwrap(), find("--thresholds", 2)?))
}

/// Waits until new connections do not go to a pod any more, and returns its deadline.
fn draining(bed: &Bed, pod: &Host) -> u64 {
    let mut deadline = 0;
    bed.wait_until(&format!("{} drains", pod.name), || {
        let found = shown(bed, pod);
        deadline = found.map_or(0, |(_, upper)| upper);
        found.is_some_and(|(weight, _)| weight == 0)
    });
    assert!(deadline > MARK, "{deadline}");
    deadline
}

/// Waits for a pod to be no real server any more, with the connection alive until then. Returns how
/// long after `since` that was.
fn cut(bed: &Bed, pod: &Host, connection: &mut Connection, since: Instant) -> Duration {
    let mut lived = since;
    let outcome = eventually(Duration::from_secs(60), "its time is over", || {
        if shown(bed, pod).is_none() {
            return Ok(());
        }
        if connection.say().is_ok() {
            lived = Instant::now();
        }
        anyhow::bail!("it is still there")
    });
    outcome.unwrap_or_else(|error| panic!("{error:#}\n{}", bed.cluster.dump()));
    assert_eq!(connection.say(), Err(Refusal::Reset), "its client is reset at once");
    lived - since
}

/// A connection to this pod, the only endpoint of `web`.
fn connected(bed: &Bed, pod: &Host) -> Connection {
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut connection = Connection::open(bed.client(), question).unwrap();
    assert_eq!(connection.say().unwrap().server, pod.name);
    connection
}

#[test]
fn scaling_down_and_up_fails_no_request_and_cuts_no_connection() {
    let bed = Bed::new();
    let both = || web([bed.pod(1, 1), bed.pod(2, 1)]);
    bed.manifests.apply(&both()).unwrap();
    let _proxy = bed.start(&[]);
    let target = (ip("10.96.0.10"), 80);
    assert_shares(
        &bed.ask(bed.client(), Protocol::Tcp, target, 2),
        &[("pod1-1", 1), ("pod2-1", 1)],
    );
    let plan = StreamPlan { interval: Duration::from_millis(50), askers: 2, kept_open: 4 };
    let stream = Stream::start(bed.client(), Question::tcp(target), plan).unwrap();
    stream.wait_for_answers(20, Duration::from_secs(30)).unwrap();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    bed.wait_until("pod2-1 gets no new connections", || {
        let shown = bed.virtual_servers();
        shown.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1) == Some(&"10.244.2.11:8080") && words.get(3) == Some(&"0")
        })
    });
    stream.wait_for_answers(40, Duration::from_secs(30)).unwrap();
    bed.manifests.apply(&both()).unwrap();
    bed.wait_until("pod2-1 is back", || {
        let tally = bed.ask(bed.client(), Protocol::Tcp, target, 4);
        tally.by_server().len() == 2
    });
    let report = stream.stop();
    report.require_no_failure(60).unwrap();
    assert!(report.kept > 20, "{report:?}");
}

#[test]
fn a_removed_endpoint_keeps_the_connections_it_has() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut connection = Connection::open(bed.client(), question).unwrap();
    assert_eq!(connection.say().unwrap().server, "pod2-1");
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    bed.wait_until("new connections go elsewhere", || {
        bed::ask(bed.client(), question).is_ok_and(|answer| answer.server == "pod1-1")
    });
    assert_eq!(connection.say().unwrap().server, "pod2-1", "the old connection lives");
    assert!(bed.virtual_servers().contains("10.244.2.11:8080"));
    // The restart of kube-ipvs changes nothing about it.
    proxy.stop().unwrap();
    let _proxy = bed.start(&[]);
    assert_eq!(connection.say().unwrap().server, "pod2-1");
    assert!(bed.virtual_servers().contains("10.244.2.11:8080"));
}

#[test]
fn an_endpoint_without_connections_leaves_at_once() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let _proxy = bed.start(&[]);
    assert!(bed.virtual_servers().contains("10.244.2.11:8080"));
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    bed.wait_until("pod2-1 is gone", || !bed.virtual_servers().contains("10.244.2.11:8080"));
}

#[test]
fn connections_are_cut_at_the_deadline_and_a_kill_does_not_put_it_off() {
    let bed = Bed::new();
    let old = bed.pod(2, 1);
    bed.manifests.apply(&web([old])).unwrap();
    let deadline = ["--drain-deadline", "12s"];
    let proxy = bed.start(&deadline);
    let mut connection = connected(&bed, old);
    let since = Instant::now();
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let noted = draining(&bed, old);
    drop(proxy);
    assert_eq!(shown(&bed, old), Some((0, noted)), "killed, nothing is lost");
    let proxy = bed.start(&deadline);
    assert_eq!(shown(&bed, old), Some((0, noted)), "restarted, it goes on");
    let lived = cut(&bed, old, &mut connection, since);
    assert!((10..22).contains(&lived.as_secs()), "{lived:?}");
    // Another one: its deadline passes while no proxy runs.
    bed.wait_until("pod1-1 serves", || shown(&bed, bed.pod(1, 1)) == Some((1, 0)));
    let mut connection = connected(&bed, bed.pod(1, 1));
    bed.manifests.apply(&web([old])).unwrap();
    draining(&bed, bed.pod(1, 1));
    proxy.stop().unwrap();
    std::thread::sleep(Duration::from_secs(14));
    assert_eq!(connection.say().unwrap().server, "pod1-1", "without us it lives");
    let _proxy = bed.start(&deadline);
    assert_eq!(shown(&bed, bed.pod(1, 1)), None);
    connection.say().unwrap_err();
}

#[test]
fn a_service_chooses_its_own_deadline() {
    let bed = Bed::new();
    let old = bed.pod(2, 1);
    let apply = |service: &Service, seconds: u64| {
        let annotation =
            format!("  annotations: {{kube-ipvs.io/drain-deadline: \"{seconds}s\"}}\n");
        let yaml = service.to_yaml();
        let yaml = yaml.replacen("metadata:\n", &format!("metadata:\n{annotation}"), 1);
        bed.manifests.write("web.yaml", &yaml).unwrap();
    };
    apply(&web([old]), 6);
    let _proxy = bed.start(&[]);
    let mut connection = connected(&bed, old);
    let since = Instant::now();
    apply(&web([bed.pod(1, 1)]), 6);
    let lived = cut(&bed, old, &mut connection, since);
    assert!((4..15).contains(&lived.as_secs()), "{lived:?}");
    // No time at all.
    bed.wait_until("pod1-1 serves", || shown(&bed, bed.pod(1, 1)) == Some((1, 0)));
    let mut connection = connected(&bed, bed.pod(1, 1));
    apply(&web([old]), 0);
    bed.wait_until("pod1-1 is gone", || shown(&bed, bed.pod(1, 1)).is_none());
    connection.say().unwrap_err();
}

#[test]
fn an_endpoint_that_comes_back_keeps_its_connections_and_its_deadline_is_forgotten() {
    let bed = Bed::new();
    let pod = bed.pod(2, 1);
    bed.manifests.apply(&web([pod])).unwrap();
    let _proxy = bed.start(&["--drain-deadline", "20s", "--ipvs-sync-period", "2s"]);
    let mut connection = connected(&bed, pod);
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let noted = draining(&bed, pod);
    let over = Instant::now() + Duration::from_secs(21);
    // What others write over it is repaired, and does not put the deadline off.
    let real = format!("{}:8080", pod.ipv4);
    let edit = ["-e", "-t", "10.96.0.10:80", "-r", &real, "-m", "-w", "0", "-x", "100", "-y", "50"];
    bed.tool("ipvsadm", &edit);
    bed.wait_until("the deadline is back", || shown(&bed, pod) == Some((0, noted)));
    bed.manifests.apply(&web([pod])).unwrap();
    bed.wait_until("the weight is back", || shown(&bed, pod) == Some((1, 0)));
    std::thread::sleep(over.saturating_duration_since(Instant::now()));
    assert_eq!(connection.say().unwrap().server, pod.name, "the deadline is over, it lives");
    // Connections come as to any other, so it is not overloaded.
    assert_shares(
        &bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 4),
        &[(&pod.name, 4)],
    );
}

#[test]
fn the_last_endpoint_keeps_its_connections_while_new_ones_are_refused() {
    let bed = Bed::new();
    let (pod, next) = (bed.pod(2, 1), bed.pod(1, 1));
    bed.manifests.apply(&web([pod])).unwrap();
    let proxy = bed.start(&[]);
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut connection = connected(&bed, pod);
    let none: [&Host; 0] = [];
    bed.manifests.apply(&web(none)).unwrap();
    let noted = draining(&bed, pod);
    assert_eq!(bed::ask(bed.client(), question), Err(Refusal::Refused));
    assert_eq!(connection.say().unwrap().server, pod.name);
    // A restart keeps it so.
    proxy.stop().unwrap();
    let _proxy = bed.start(&[]);
    assert_eq!(shown(&bed, pod), Some((0, noted)));
    assert_eq!(connection.say().unwrap().server, pod.name);
    assert_eq!(bed::ask(bed.client(), question), Err(Refusal::Refused));
    // The virtual server of the other family had no connections.
    bed.wait_until("IPv6 is gone", || !bed.virtual_servers().contains("fd00:96::10"));
    // A new endpoint joins the same virtual server; then that one goes as well.
    bed.manifests.apply(&web([next])).unwrap();
    bed.wait_until("pod1-1 is there", || shown(&bed, next) == Some((1, 0)));
    let mut second = Connection::open(bed.client(), question).unwrap();
    assert_eq!(second.say().unwrap().server, next.name);
    assert_eq!(connection.say().unwrap().server, pod.name);
    bed.manifests.apply(&web(none)).unwrap();
    draining(&bed, next);
    assert_eq!(bed::ask(bed.client(), question), Err(Refusal::Refused));
    assert_eq!(connection.say().unwrap().server, pod.name);
    assert_eq!(second.say().unwrap().server, next.name);
    // IPVS forgets a connection that was reset after ten seconds, one that was closed in good order
    // after two minutes.
    connection.abort().unwrap();
    second.abort().unwrap();
    let gone = || {
        let shown = bed.virtual_servers();
        if shown.contains("10.96.0.10") { anyhow::bail!("still there:\n{shown}") } else { Ok(()) }
    };
    eventually(Duration::from_secs(60), "the virtual server is gone", gone).unwrap();
}

#[test]
fn affinity_does_not_hold_a_client_to_an_endpoint_that_drains() {
    let bed = Bed::new();
    let sticky = |pods: &[&Host]| {
        let mut service = web(pods.iter().copied());
        service.affinity = Some(3_600);
        service
    };
    let both = [bed.pod(1, 1), bed.pod(2, 1)];
    bed.manifests.apply(&sticky(&both)).unwrap();
    let _proxy = bed.start(&[]);
    let question = Question::tcp((ip("10.96.0.10"), 80));
    let mut connection = Connection::open(bed.client(), question).unwrap();
    let pinned = connection.say().unwrap().server;
    for _ in 0..3 {
        assert_eq!(bed::ask(bed.client(), question).unwrap().server, pinned);
    }
    let (old, other): (Vec<&Host>, Vec<&Host>) = both.iter().partition(|pod| pod.name == pinned);
    bed.manifests.apply(&sticky(&other)).unwrap();
    draining(&bed, old[0]);
    for _ in 0..3 {
        assert_eq!(bed::ask(bed.client(), question).unwrap().server, other[0].name);
    }
    assert_eq!(connection.say().unwrap().server, pinned, "the old connection lives");
    // Back again, it gets no client from the one that has it now.
    bed.manifests.apply(&sticky(&both)).unwrap();
    bed.wait_until("it is back", || shown(&bed, old[0]) == Some((1, 0)));
    assert_eq!(bed::ask(bed.client(), question).unwrap().server, other[0].name);
    assert_eq!(connection.say().unwrap().server, pinned);
}

#[test]
fn a_client_whose_endpoint_is_dead_gets_a_living_one_with_a_later_try() {
    let bed = Bed::new();
    let (dead, living) = (bed.pod(2, 1), bed.pod(1, 1));
    bed.manifests.apply(&web([dead])).unwrap();
    let _proxy = bed.start(&[]);
    for program in ["iptables", "ip6tables"] {
        dead.namespace.command(program, &["-I", "INPUT", "-p", "tcp", "-j", "DROP"]).unwrap();
    }
    let entries = || bed.tool("ipvsadm", &["-Lnc"]).matches("SYN_RECV").count();
    let client = &bed.pod(1, 2).namespace;
    std::thread::scope(|scope| {
        let askers = ["10.96.0.10", "fd00:96::10"].map(|target| {
            let question = Question::tcp((ip(target), 80)).within(Duration::from_secs(30));
            scope.spawn(move || bed::ask(client, question).map(|answer| answer.server))
        });
        bed.wait_until("both have asked it", || entries() == 2);
        bed.manifests.apply(&web([living])).unwrap();
        for asker in askers {
            assert_eq!(asker.join().unwrap().as_ref(), Ok(&living.name));
        }
    });
}
