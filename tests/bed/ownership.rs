//! Our objects are kept in order and removed; foreign ones are left alone.

use std::fs::File;

use bed::{Connection, Protocol, Question, Service};

use crate::fixture::{Bed, PATIENCE, PROTOCOLS, TARGET, assert_shares, ip, web};

/// Many kinds of objects.
fn many(bed: &Bed) -> Vec<Service> {
    let mut public = Service::new("public", ip("10.96.0.50"));
    public.cluster.push(ip("fd00:96::50"));
    public.external = vec![ip("198.51.100.9")];
    public.load_balancer = vec![ip("203.0.113.9"), ip("fd00:203::9")];
    for (number, protocol) in PROTOCOLS.into_iter().enumerate() {
        public = public.node_port(protocol, 80, TARGET, 30_100 + u16::try_from(number).unwrap());
    }
    vec![web([bed.pod(1, 1)]), public.pods([bed.pod(1, 1), bed.pod(2, 1)])]
}

fn has_all(bed: &Bed) -> bool {
    bed.virtual_servers().matches("10.244.1.11:8080").count() >= 5 && bed.bound().len() >= 7
}

#[test]
fn deletes_leave_nothing_behind() {
    let bed = Bed::new();
    let services = many(&bed);
    let _proxy = bed.start(&[]);
    let (rules, empty) = (bed.rules("iptables"), bed.virtual_servers());
    for service in &services {
        bed.manifests.apply(service).unwrap();
    }
    bed.wait_until("everything is there", || has_all(&bed));
    assert!(bed.entries().len() > 20, "{:?}", bed.entries());
    for service in &services {
        bed.manifests.remove(&service.name).unwrap();
    }
    bed.wait_until("everything is gone", || {
        bed.virtual_servers() == empty && bed.bound().is_empty() && bed.entries().is_empty()
    });
    assert_eq!(bed.rules("iptables"), rules, "the rules know nothing of services");
}

#[test]
fn a_second_start_writes_nothing_and_cuts_no_connection() {
    let bed = Bed::new();
    for service in many(&bed) {
        bed.manifests.apply(&service).unwrap();
    }
    let proxy = bed.start(&[]);
    bed.wait_until("everything is there", || has_all(&bed));
    let question = Question::tcp((ip("10.96.0.50"), 80));
    let mut connection = Connection::open(bed.client(), question).unwrap();
    let server = connection.say().unwrap().server;
    let state = |bed: &Bed| {
        let saved = bed.tool("ipvsadm", &["-Sn"]);
        (saved, bed.bound(), bed.entries(), bed.rules("iptables"), bed.rules("ip6tables"))
    };
    let before = state(&bed);
    proxy.stop().unwrap();
    assert_eq!(connection.say().unwrap().server, server, "no proxy is needed for traffic");
    let proxy = bed.start(&[]);
    assert_eq!(state(&bed), before);
    assert_eq!(connection.say().unwrap().server, server);
    let log = proxy.stop().unwrap();
    assert!(log.contains("first comparison with the kernel changes=0"), "{log}");
}

#[test]
fn what_changed_while_it_was_away_is_repaired_and_no_more() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&[]);
    proxy.stop().unwrap();
    bed.tool("ipvsadm", &["-d", "-t", "10.96.0.10:80", "-r", "10.244.1.11:8080"]);
    bed.tool("ipset", &["flush", "KUBE-CLUSTER-IP"]);
    bed.tool("ip", &["addr", "del", "fd00:96::10/128", "dev", "kube-ipvs0"]);
    bed.tool("iptables", &["-t", "nat", "-F", "KUBE-POSTROUTING"]);
    let proxy = bed.start(&[]);
    for target in ["10.96.0.10", "fd00:96::10"] {
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(target), 80), 4);
        assert_shares(&tally, &[("pod1-1", 2), ("pod2-1", 2)]);
    }
    let log = proxy.stop().unwrap();
    assert!(log.contains("first comparison with the kernel changes=4"), "{log}");
}

#[test]
fn drift_is_repaired_while_it_runs() {
    let bed = Bed::new();
    bed.manifests.apply(&web([bed.pod(1, 1), bed.pod(2, 1)])).unwrap();
    let _proxy = bed.start(&["--ipvs-sync-period", "1s"]);
    let healthy = |bed: &Bed| {
        let saved = bed.tool("ipvsadm", &["-Sn"]);
        (saved, bed.bound(), bed.entries(), bed.rules("iptables"), bed.rules("ip6tables"))
    };
    let before = healthy(&bed);
    let harms: [&[&str]; 6] = [
        &["ipvsadm", "-C"],
        &["ipset", "flush"],
        &["ip", "link", "delete", "kube-ipvs0"],
        &["iptables", "-t", "nat", "-F"],
        &["ip6tables", "-t", "filter", "-D", "INPUT", "1"],
        &["ipvsadm", "-e", "-t", "10.96.0.10:80", "-r", "10.244.1.11:8080", "-m", "-w", "7"],
    ];
    for harm in harms {
        bed.tool(harm[0], &harm[1..]);
        // No count shows a weight. A pass finds it, which takes 125 times its cost, in this guest too.
        bed.wait_for(9 * PATIENCE, &format!("{harm:?} is repaired"), || {
            bed.node().command("ip", &["link", "show", "kube-ipvs0"]).is_ok()
                && healthy(&bed) == before
        });
        let tally = bed.ask(bed.client(), Protocol::Tcp, (ip("10.96.0.10"), 80), 2);
        assert_shares(&tally, &[("pod1-1", 1), ("pod2-1", 1)]);
    }
}

#[test]
fn changes_do_not_wait_for_the_lock_of_x_tables() {
    let bed = Bed::new();
    if !bed.tool("iptables", &["--version"]).contains("legacy") {
        return; // nf_tables has no lock.
    }
    bed.manifests.apply(&web([bed.pod(1, 1)])).unwrap();
    let mut proxy = bed.start(&[]);
    let process = proxy.process();
    let (before, saved) = (bed.rules("iptables"), bed.tool("ipvsadm", &["-Sn"]));
    let lock = File::options().append(true).create(true).open("/run/xtables.lock").unwrap();
    lock.lock().unwrap();
    bed.tool("env", &["XTABLES_LOCKFILE=/run/another.lock", "iptables", "-t", "nat", "-F"]);
    bed.wait_until("a repair waits for the lock", || writer_of_rules(process).is_some());
    let waiting = writer_of_rules(process);
    let service = Service::new("late", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&service.pods([bed.pod(1, 1)])).unwrap();
    bed.wait_until("it is served", || bed.virtual_servers().contains("10.96.0.20:80"));
    bed.manifests.remove("late").unwrap();
    bed.wait_until("it is gone", || bed.tool("ipvsadm", &["-Sn"]) == saved);
    assert_eq!(writer_of_rules(process), waiting, "the same program waits still");
    drop(lock);
    bed.wait_until("the rules are repaired", || bed.rules("iptables") == before);
    proxy.stop().unwrap();
}

/// The `iptables-restore` that a process runs at this moment.
fn writer_of_rules(parent: u32) -> Option<String> {
    let parent = format!(") S {parent} ");
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok())
        .find(|stat| stat.contains(" (iptables-restor") && stat.contains(&parent))
        .and_then(|stat| stat.split(' ').next().map(str::to_owned))
}

#[test]
fn what_is_foreign_survives() {
    let bed = Bed::new();
    // A virtual server on an address of the node, one by firewall mark, one inside an excluded
    // network whose address is on kube-ipvs0; an interface, a set, rules.
    bed.tool("modprobe", &["-a", "ip_vs", "dummy"]);
    bed.tool("ipvsadm", &["-A", "-t", "192.168.0.11:5555", "-s", "wlc"]);
    bed.tool("ipvsadm", &["-a", "-t", "192.168.0.11:5555", "-r", "10.244.2.11:8080", "-m"]);
    bed.tool("ipvsadm", &["-A", "-f", "77", "-s", "rr"]);
    bed.tool("ip", &["link", "add", "kube-ipvs0", "type", "dummy"]);
    bed.tool("ip", &["addr", "add", "172.30.0.1/32", "dev", "kube-ipvs0"]);
    bed.tool("ipvsadm", &["-A", "-t", "172.30.0.1:443", "-s", "rr"]);
    bed.tool("ip", &["link", "add", "foreign0", "type", "dummy"]);
    bed.tool("ip", &["addr", "add", "172.31.0.1/32", "dev", "foreign0"]);
    bed.tool("ipset", &["create", "FOREIGN", "hash:ip"]);
    bed.tool("ipset", &["add", "FOREIGN", "172.31.0.9"]);
    bed.tool("iptables", &["-A", "INPUT", "-s", "172.31.0.9", "-j", "DROP"]);
    bed.tool("iptables", &["-t", "nat", "-N", "FOREIGN"]);
    bed.tool("iptables", &["-t", "nat", "-A", "POSTROUTING", "-j", "FOREIGN"]);
    let survivors = |bed: &Bed| {
        let shown = bed.virtual_servers();
        let rules = bed.rules("iptables");
        [
            shown.contains("TCP  192.168.0.11:5555 wlc") && shown.contains("10.244.2.11:8080"),
            shown.contains("FWM  77"),
            shown.contains("TCP  172.30.0.1:443"),
            bed.bound().contains(&"172.30.0.1/32".to_owned()),
            bed.tool("ip", &["addr", "show", "foreign0"]).contains("172.31.0.1/32"),
            bed.tool("ipset", &["list", "FOREIGN"]).contains("172.31.0.9"),
            rules.contains("-A INPUT -s 172.31.0.9/32 -j DROP"),
            rules.contains("-A POSTROUTING -j FOREIGN"),
        ]
    };
    assert_eq!(survivors(&bed), [true; 8]);
    // And one that is stale: an address of ours whose Service is gone.
    bed.tool("ip", &["addr", "add", "10.96.0.99/32", "dev", "kube-ipvs0"]);
    bed.tool("ipvsadm", &["-A", "-t", "10.96.0.99:80", "-s", "rr"]);
    for service in many(&bed) {
        bed.manifests.apply(&service).unwrap();
    }
    // A Service inside the excluded network is served as all others.
    let inside = Service::new("inside", ip("172.30.0.2")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&inside.pods([bed.pod(2, 1)])).unwrap();
    let proxy = bed.start(&["--ipvs-exclude-cidrs", "172.30.0.0/16", "--ipvs-sync-period", "1s"]);
    bed.wait_until("everything is there", || has_all(&bed));
    assert!(!bed.virtual_servers().contains("10.96.0.99"), "what is stale is removed");
    assert!(!bed.bound().contains(&"10.96.0.99/32".to_owned()));
    assert_eq!(survivors(&bed), [true; 8], "{}", bed.cluster.dump());
    let tally = bed.ask(&bed.pod(1, 1).namespace, Protocol::Tcp, (ip("172.30.0.2"), 80), 1);
    assert_shares(&tally, &[("pod2-1", 1)]);
    bed.manifests.remove("inside").unwrap();
    for service in many(&bed) {
        bed.manifests.remove(&service.name).unwrap();
    }
    bed.wait_until("ours is gone", || {
        let shown = bed.virtual_servers();
        !shown.contains("10.96.0.50") && !shown.contains("172.30.0.2")
    });
    bed.wait_until("its address too", || !bed.bound().contains(&"172.30.0.2/32".to_owned()));
    proxy.stop().unwrap();
    assert_eq!(survivors(&bed), [true; 8], "{}", bed.cluster.dump());
}
