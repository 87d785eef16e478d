//! Health checks, connections, and whether the kernel's state is complete and ours alone.

use std::collections::BTreeSet;

use plan::event::Event;
use plan::model::{Family, Node as NodeObject, Overrides, Service};
use plan::op::Op;
use plan::scheduler::SchedulerName;
use plan::settings::Settings;

use super::{NONE_HERE, ONE_HERE, balanced, node_port, run, strings, web};
use crate::node::{Node, THIS, check, made, said};
use crate::words::{
    CLUSTER, LOCAL, applied, ip, ips, number, port, removed, service, slice, slice_with, sliced,
};

/// A health check's port is let in, and a node without ready endpoints does not ask for traffic.
#[test]
fn bug_28_and_29_health_checks() {
    let checked = Service { health_check_node_port: Some(number(31_000)), ..balanced(LOCAL) };
    let mut node = Node::after([applied(&checked)]);
    assert_eq!(node.set("KUBE-HEALTH-CHECK-NODE-PORT"), strings(&["31000"]));
    let endpoints = |text| sliced(&slice("web-1", "web", &[text]));
    let mut local =
        |text| node.run([endpoints(text)]).health_checks[0].1.unwrap().local_v4.unwrap();
    assert_eq!(local("10.244.0.2@n1"), 1);
    assert_eq!(local("10.244.0.2@n1 terminating"), 0);
}

/// 92019, 108319: a restart finds a desired real server with weight 0 and corrects only its weight.
/// No real server is removed to be added again: connections go on.
#[test]
fn bug_33_weight_0_after_a_restart() {
    let mut node = run(&web(), &["10.244.1.1@n2", "10.244.1.2@n2", "10.244.1.3@n2"]);
    let server = {
        let servers = &node.kernel.actual().virtual_servers;
        servers.values().next().unwrap().server.clone().unwrap()
    };
    let left = [("10.244.1.1:8080", 1), ("10.244.1.2:8080", 0), ("10.244.1.3:8080", 1)];
    let frontend = *node.planner.desired().frontends().next().unwrap();
    node.kernel.actual_mut().virtual_servers.insert(frontend, made(&server, &left));
    assert_eq!(
        node.compare(),
        ["change real server of TCP 10.96.0.9:80 to 10.244.1.2:8080 weight 1"]
    );
}

/// 71514, 76664, 125467, 108523: it is known whose flows lead nowhere when endpoints go.
#[test]
fn bug_36_and_41_flows_without_a_target() {
    let two = &["10.244.1.2@n2", "10.244.2.2@n3"][..];
    for (protocol, stale) in [("TCP", false), ("UDP", true), ("SCTP", true)] {
        let dns = Service {
            ports: vec![port("p", &format!("53/{protocol}"))],
            ..service("dns", &["10.96.0.10"])
        };
        let target = format!("5353/{protocol}");
        let endpoints =
            |texts: &[&str]| sliced(&slice_with("dns-1", "dns", &[("p", &target)], texts));
        let mut node = Node::after([applied(&dns), endpoints(two)]);
        let mut stale_after = |event| !node.run([event]).flows.is_empty();
        assert_eq!(stale_after(endpoints(&two[..1])), stale, "{protocol}: one is gone");
        assert_eq!(stale_after(endpoints(&[])), stale, "{protocol}: all are gone");
        assert_eq!(stale_after(endpoints(two)), stale, "{protocol}: what was refused is served");
        assert_eq!(stale_after(removed(&dns)), stale, "{protocol}: the Service is gone");
    }
}

/// 121591: not every node of a cluster that starts sends its first clients to the same endpoint.
#[test]
fn bug_44_nodes_begin_with_other_endpoints() {
    let endpoints = slice("web-1", "web", &["10.244.1.2", "10.244.1.3", "10.244.1.4"]);
    let first = |node: u8| {
        let mut node = Node::new(Settings::new(format!("worker-{node}")));
        let plan = node.run([applied(&web()), sliced(&endpoints)]);
        let mut added = plan.ops.into_iter().filter_map(|op| match op {
            Op::AddRealServer(_, real) => Some(real.address),
            _ => None,
        });
        added.next().unwrap()
    };
    let firsts: BTreeSet<_> = (1..=30).map(first).collect();
    assert_eq!(firsts.len(), 3, "each endpoint is the first one of some of thirty nodes");
}

/// 70493, 108319: who can reach an address finds everything behind it.
#[test]
fn bug_46_no_address_before_its_endpoints() {
    let mut node = Node::after([sliced(&slice("web-1", "web", &ONE_HERE))]);
    let plan = node.run([applied(&balanced(LOCAL))]);
    let bound = plan.ops.iter().position(|op| matches!(op, Op::BindAddress(_))).unwrap();
    let is_behind = |op: &Op| matches!(op, Op::CreateVirtualServer(..) | Op::AddRealServer(..));
    assert!(plan.ops[..bound].iter().any(is_behind));
    assert!(!plan.ops[bound..].iter().any(is_behind), "{:#?}", said(&plan.ops));
}

/// 133773: at the start of a node, the rules come first and not last.
#[test]
fn bug_47_the_rules_come_first() {
    let mut node = Node::after([]);
    *node.kernel.actual_mut() = plan::actual::Actual::default();
    for event in [applied(&web()), sliced(&slice("web-1", "web", &ONE_HERE))] {
        node.planner.apply(event);
    }
    node.planner.plan();
    let done = node.compare();
    let last_rule = done.iter().rposition(|op| op.starts_with("write")).unwrap();
    let first_other = done.iter().position(|op| op.starts_with("add")).unwrap();
    assert!(last_rule < first_other, "{done:#?}");
    assert_eq!(done.last().unwrap(), "add address 10.96.0.9 to kube-ipvs0");
}

/// 71071, 72197, 97586, 89392 and more: whatever was lost or left over is repaired.
#[test]
fn bug_50_drift_is_repaired() {
    let mut node = run(&balanced(LOCAL), &ONE_HERE);
    let desired = node.kernel.clone();
    let frontends: Vec<_> = desired.actual().virtual_servers.keys().copied().collect();
    for frontend in frontends {
        let actual = node.kernel.actual_mut();
        let sockets: Vec<_> =
            actual.virtual_servers[&frontend].real_servers.keys().copied().collect();
        actual.virtual_servers.get_mut(&frontend).unwrap().real_servers.remove(&sockets[0]);
        assert_eq!(node.compare().len(), 1, "a real server of {frontend} was lost");
        assert_eq!(node.kernel, desired);
        node.kernel.actual_mut().virtual_servers.remove(&frontend);
        node.compare();
        assert_eq!(node.kernel, desired, "{frontend} was lost");
    }
    node.kernel.actual_mut().addresses.clear();
    node.compare();
    assert_eq!(node.kernel, desired, "the addresses were lost");
    for there in node.kernel.actual_mut().sets.values_mut() {
        there.entries.clear();
    }
    node.compare();
    assert_eq!(node.kernel, desired, "the entries were lost");
}

/// 59507, 55857, 134147: other programs' state stays, excluded state too, ours goes.
#[test]
fn bug_51_foreign_virtual_servers_stay() {
    let mut settings = Settings::new(THIS);
    settings.exclude = vec!["203.0.113.0/24".parse().unwrap()];
    let mut node = Node::new(settings);
    node.run([applied(&web()), sliced(&slice("web-1", "web", &ONE_HERE))]);
    check("it is served", &node.addresses(), &["kube-ipvs0 10.96.0.9"]);
    let frontend = |address: &str| plan::kernel_objects::Frontend {
        address: ip(address),
        protocol: plan::model::Protocol::Tcp,
        port: 80,
    };
    let actual = node.kernel.actual_mut();
    let theirs = actual.virtual_servers[&frontend("10.96.0.9")].clone();
    for address in ["172.16.0.1", "192.0.2.10", "203.0.113.5", "10.96.0.77"] {
        actual.virtual_servers.insert(frontend(address), theirs.clone());
    }
    // One that kube-proxy left, with its trace, and one that is excluded, with its trace.
    actual.addresses.extend(ips(&["10.96.0.77", "203.0.113.5"]));
    let done = node.compare();
    assert_eq!(
        done,
        ["remove address 10.96.0.77 from kube-ipvs0", "remove virtual server TCP 10.96.0.77:80",]
    );
}

/// 78421: a Service that was removed while no proxy ran leaves nothing.
#[test]
fn bug_52_nothing_is_left_of_a_service() {
    let mut node = run(&balanced(LOCAL), &ONE_HERE);
    let left = std::mem::take(node.kernel.actual_mut());
    let mut after_restart = Node::after([]);
    let empty = after_restart.kernel.clone();
    *after_restart.kernel.actual_mut() = left;
    after_restart.compare();
    assert_eq!(after_restart.kernel, empty);
}

/// 99031: of a family that the node does not have, nothing is touched.
#[test]
fn bug_57_a_node_without_ipv6() {
    let mut settings = Settings::new(THIS);
    settings.families = vec![Family::V4];
    let mut node = Node::new(settings);
    let both = Service { cluster_v6: Some("fd00:96::9".parse().unwrap()), ..web() };
    node.run([applied(&both)]);
    let actual = node.kernel.actual();
    assert!(!actual.rule_sets.contains(&Family::V6));
    assert!(actual.sets.keys().all(|set| set.family == Family::V4));
    check("addresses", &node.addresses(), &["kube-ipvs0 10.96.0.9"]);
}

/// 73300, 81474: SCTP node ports are served, on every address of the node.
#[test]
fn bug_60_sctp_node_ports() {
    let settings = Settings::new(THIS);
    let mut node = Node::with_addresses(settings, &["127.0.0.1", "192.0.2.10", "198.51.100.3"]);
    let endpoints = slice_with("web-1", "web", &[("http", "8080/SCTP")], &NONE_HERE);
    node.run([applied(&node_port("80:30080/SCTP")), sliced(&endpoints)]);
    for frontend in ["SCTP 192.0.2.10:30080", "SCTP 198.51.100.3:30080"] {
        assert_eq!(node.real_servers(frontend).as_deref(), Some("10.244.1.2:8080"));
    }
    let entries = ["192.0.2.10,sctp:30080", "198.51.100.3,sctp:30080"];
    assert_eq!(node.set("KUBE-NODE-PORT-SCTP-HASH"), strings(&entries));
    assert_eq!(node.entries("KUBE-NODE-PORT-TCP"), strings(&[]));
}

/// 53775, 134884: every pod of this node reaches itself, by each of its ports, and a lost entry
/// comes back.
#[test]
fn bug_62_hairpin_entries() {
    let ports = vec![port("http", "80/TCP"), port("dns", "53/UDP")];
    let endpoints = slice_with(
        "web-1",
        "web",
        &[("http", "8080/TCP"), ("dns", "5353/UDP")],
        &["10.244.0.2@n1", "10.244.0.3@n1 unready", "10.244.1.2@n2"],
    );
    let mut node = Node::after([applied(&Service { ports, ..web() }), sliced(&endpoints)]);
    let entries = strings(&[
        "10.244.0.2,tcp:8080,10.244.0.2",
        "10.244.0.2,udp:5353,10.244.0.2",
        "10.244.0.3,tcp:8080,10.244.0.3",
        "10.244.0.3,udp:5353,10.244.0.3",
    ]);
    assert_eq!(node.set("KUBE-LOOP-BACK"), entries);
    let set = plan::sets::SetId::by_name("KUBE-LOOP-BACK").unwrap();
    node.kernel.actual_mut().sets.get_mut(&set).unwrap().entries.clear();
    assert_eq!(node.compare().len(), 4);
    assert_eq!(node.set("KUBE-LOOP-BACK"), entries);
}

/// 72534, 100925: without endpoints, the rules refuse, and the kernel has nothing to log.
#[test]
fn bug_64_no_endpoints_are_refused_by_rules() {
    let node = run(&balanced(CLUSTER), &[]);
    assert_eq!(node.virtual_servers(), strings(&[]));
    let refused = ["10.96.0.9,tcp:80", "203.0.113.5,tcp:80"];
    assert_eq!(node.set("KUBE-NO-ENDPOINTS"), strings(&refused));
}

/// 114619, and seven requests for one per Service: any scheduler that the kernel has. Without
/// the scheduler, a Service is still served.
#[test]
fn bug_67_schedulers() {
    let mut settings = Settings::new(THIS);
    settings.scheduler = SchedulerName::new("fo").unwrap();
    let mut node = Node::new(settings);
    let missing = SchedulerName::new("ovf").unwrap();
    let overrides = Overrides { scheduler: Some(missing.clone()), ..Overrides::default() };
    let chosen =
        Service { overrides: Some(Box::new(overrides)), ..service("mail", &["10.96.0.8"]) };
    node.run([
        applied(&web()),
        applied(&chosen),
        sliced(&slice("web-1", "web", &NONE_HERE)),
        sliced(&slice("mail-1", "mail", &NONE_HERE)),
    ]);
    let of_web = "TCP 10.96.0.9:80 fo: 10.244.1.2:8080";
    check("both", &node.virtual_servers(), &[of_web, "TCP 10.96.0.8:80 ovf: 10.244.1.2:8080"]);
    node.run([Event::SchedulerMissing(missing)]);
    check("one", &node.virtual_servers(), &[of_web, "TCP 10.96.0.8:80 fo: 10.244.1.2:8080"]);
}

/// Services inside excluded networks are served as all others. The kernel state of a deleted
/// Service stays if no proxy saw the deletion, and is removed otherwise.
#[test]
fn bug_71_excluded_networks_are_about_what_nobody_wants() {
    let mut settings = Settings::new(THIS);
    settings.exclude = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
    settings.internal_frontend_networks = plan::settings::InternalFrontendNetworks::NONE;
    let public = Service {
        external: ips(&["198.51.100.7"]),
        load_balancer: ips(&["203.0.113.5"]),
        ports: vec![port("http", "80:30080/TCP")],
        ..balanced(CLUSTER)
    };
    let events = [applied(&public), sliced(&slice("web-1", "web", &ONE_HERE))];
    let mut node = Node::new(settings.clone());
    node.run(events.clone());
    let mut free = Node::new(Settings { exclude: Vec::new(), ..settings.clone() });
    free.run(events.clone());
    assert_eq!(node.kernel, free.kernel);
    assert!(node.real_servers("TCP 203.0.113.5:80").is_some());
    assert!(node.real_servers("TCP 192.0.2.10:30080").is_some(), "node ports as well");
    assert_eq!(node.compare(), [""; 0]);

    // The new planner knows no Service yet: what is there may be another program's.
    let mut after_restart = Node::new(settings);
    *after_restart.kernel.actual_mut() = node.kernel.actual().clone();
    assert_eq!(after_restart.compare(), ["remove 30080 from set KUBE-NODE-PORT-TCP"]);
    for event in events {
        after_restart.planner.apply(event);
    }
    after_restart.planner.plan();
    let done = after_restart.compare();
    assert_eq!(done, ["add 30080 to set KUBE-NODE-PORT-TCP"], "it is adopted as it is");
    // The planner sees the deletion.
    node.run([removed(&public)]);
    assert_eq!(node.virtual_servers(), strings(&[]));
    assert_eq!(node.addresses(), strings(&[]));
    assert_eq!(node.set("KUBE-CLUSTER-IP"), strings(&[]));
}

/// CVE-2020-8554: external addresses may be forbidden altogether.
#[test]
fn bug_72_external_addresses_may_be_forbidden() {
    let mut settings = Settings::new(THIS);
    settings.external_ips = false;
    let mut node = Node::new(settings);
    let external = Service { external: ips(&["198.51.100.7"]), external_policy: LOCAL, ..web() };
    node.run([applied(&external), sliced(&slice("web-1", "web", &ONE_HERE))]);
    let mut without = Node::after([applied(&web()), sliced(&slice("web-1", "web", &ONE_HERE))]);
    assert_eq!(node.kernel, without.kernel);
    assert_eq!(without.compare(), [""; 0]);
}

/// Read in its code: without an address for node ports, only these are missing.
#[test]
fn bug_e_no_address_for_node_ports() {
    let service = Service {
        ports: vec![port("http", "80:30080/TCP"), port("more", "81:30081/TCP")],
        health_check_node_port: Some(number(31_000)),
        ..balanced(LOCAL)
    };
    let ports = [("http", "8080/TCP"), ("more", "8081/TCP")];
    let mut node = Node::with_addresses(Settings::new(THIS), &["127.0.0.1"]);
    let endpoints = slice_with("web-1", "web", &ports, &["10.244.0.2@n1"]);
    let object = NodeObject { addresses: ips(&["192.0.2.10"]), ..NodeObject::default() };
    node.run([applied(&service), sliced(&endpoints), Event::NodeApplied(Box::new(object))]);
    assert_eq!(node.set("KUBE-HEALTH-CHECK-NODE-PORT"), strings(&["31000"]));
    assert_eq!(node.set("KUBE-CLUSTER-IP"), strings(&["10.96.0.9,tcp:80", "10.96.0.9,tcp:81"]));
    for (frontend, expected) in [
        ("TCP 10.96.0.9:80", "10.244.0.2:8080"),
        ("TCP 10.96.0.9:81", "10.244.0.2:8081"),
        ("TCP 203.0.113.5:80", "10.244.0.2:8080"),
        ("TCP 203.0.113.5:81", "10.244.0.2:8081"),
    ] {
        assert_eq!(node.real_servers(frontend).as_deref(), Some(expected), "{frontend}");
    }
}

/// Read in its code: two Services that claim the same take it from each other at every sync. Here
/// the older one has it, however often anything is looked at.
#[test]
fn services_that_claim_the_same_do_not_alternate() {
    let older = Service { created: 1, ..balanced(CLUSTER) };
    let younger = Service {
        created: 2,
        name: service("mail", &[]).name,
        cluster_v4: Some("10.96.0.8".parse().unwrap()),
        ..balanced(CLUSTER)
    };
    let mut node = Node::after([
        applied(&younger),
        sliced(&slice("web-1", "web", &NONE_HERE)),
        sliced(&slice("mail-1", "mail", &["10.244.2.8@n3"])),
    ]);
    let shared = |node: &Node| node.real_servers("TCP 203.0.113.5:80").unwrap();
    assert_eq!(shared(&node), "10.244.2.8:8080");
    let plan = node.run([applied(&older)]);
    assert_eq!(shared(&node), "10.244.1.2:8080");
    assert!(!plan.ops.iter().any(|op| matches!(op, Op::RemoveVirtualServer(_))));
    let [(name, problems)] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
    assert_eq!((name, problems.len()), (&younger.name, 1));
    for service in [&younger, &older, &younger] {
        let changed = Service { affinity: None, ..service.clone() };
        assert_eq!(node.run([applied(&changed)]).ops, []);
        assert_eq!(node.compare(), [""; 0]);
    }
    node.run([removed(&older)]);
    assert_eq!(shared(&node), "10.244.2.8:8080");
}
