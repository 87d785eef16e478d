mod chain_parts;
mod chains;
mod explained;
mod node_ports;
mod parts;
mod service_routes;

use std::num::NonZeroU16;

use super::*;
use crate::actual::ActualVirtualServer;
use crate::capacity::Capacity;
use crate::fixtures::{addresses, mk_port, mk_service, mk_slice};
use crate::kernel_objects::{Entry, RealServer};
use crate::local::Side;
use crate::memory::MemoryKernel;
use crate::model::{
    Conditions, EndpointSlice, Node, ObjectName, Protocol, Service, ServiceKind, SliceName,
    TrafficPolicy,
};
use crate::routes::RouteOp;
use crate::scheduler::SchedulerName;
use crate::settings::{LocalDetection, NodePortAddresses};

fn mk_named(name: &str, created: i64) -> Service {
    Service { name: ObjectName::new("ns", name), created, ..mk_service() }
}

/// A slice of the Service of this name, with endpoints on another node.
fn mk_slice_of(name: &str, service: &str, endpoints: &[&str]) -> EndpointSlice {
    let endpoints: Vec<(&str, &str)> = endpoints.iter().map(|address| (*address, "n2")).collect();
    EndpointSlice {
        name: SliceName::new("ns", name),
        service: ServiceName::new("ns", service),
        ..mk_slice(Family::V4, &endpoints)
    }
}

fn service(service: Service) -> Event {
    Event::ServiceApplied(Box::new(service))
}

fn slice(slice: EndpointSlice) -> Event {
    Event::SliceApplied(Box::new(slice))
}

fn local(texts: &[&str]) -> Event {
    Event::LocalAddresses(addresses(texts))
}

fn plan(planner: &mut Planner, events: impl IntoIterator<Item = Event>) -> Plan {
    for event in events {
        planner.apply(event);
    }
    planner.plan()
}

fn ops(planner: &mut Planner, events: impl IntoIterator<Item = Event>) -> Vec<String> {
    plan(planner, events).ops.iter().map(ToString::to_string).collect()
}

fn mk_planner(events: impl IntoIterator<Item = Event>) -> Planner {
    let mut planner = Planner::new(Settings::new("n1"));
    plan(&mut planner, events);
    planner
}

#[test]
fn a_service_comes_and_goes_from_the_inside_out() {
    let mut planner = mk_planner([]);
    let slices = mk_slice_of("web-1", "web", &["10.244.1.2"]);
    assert_eq!(
        ops(&mut planner, [service(mk_service()), slice(slices)]),
        [
            "add 10.96.0.9,tcp:80 to set KUBE-CLUSTER-IP",
            "add 10.96.0.9 to set KUBE-IPVS-IPS",
            "create virtual server TCP 10.96.0.9:80 rr",
            "add real server 10.244.1.2:8080 weight 1 to TCP 10.96.0.9:80",
            "add address 10.96.0.9 to kube-ipvs0",
        ]
    );
    assert_eq!(
        ops(&mut planner, [Event::ServiceRemoved(mk_service().name)]),
        [
            "remove address 10.96.0.9 from kube-ipvs0",
            "remove virtual server TCP 10.96.0.9:80",
            "remove 10.96.0.9,tcp:80 from set KUBE-CLUSTER-IP",
            "remove 10.96.0.9 from set KUBE-IPVS-IPS",
        ]
    );
}

#[test]
fn one_changed_endpoint_is_one_message_a_frontend() {
    let slices = |endpoints: &[&str]| slice(mk_slice_of("web-1", "web", endpoints));
    let mut planner =
        mk_planner([service(mk_service()), slices(&["10.244.1.2", "10.244.1.3", "10.244.1.4"])]);
    assert_eq!(
        ops(&mut planner, [slices(&["10.244.1.2", "10.244.1.4", "10.244.1.5"])]),
        [
            "add real server 10.244.1.5:8080 weight 1 to TCP 10.96.0.9:80",
            "remove real server 10.244.1.3:8080 from TCP 10.96.0.9:80",
        ]
    );
}

/// Settings with this scheduler for all, on the node of this name.
fn mk_balancing(node: &str, scheduler: &str) -> Settings {
    Settings { scheduler: SchedulerName::new(scheduler).unwrap(), ..Settings::new(node) }
}

#[test]
fn a_change_to_one_endpoint_touches_no_other_whatever_the_scheduler() {
    let mut service_of_five = mk_service();
    service_of_five.external = addresses(&["203.0.113.1", "203.0.113.2"]);
    service_of_five.load_balancer = addresses(&["203.0.113.3", "203.0.113.4"]);
    let many: Vec<String> =
        (0..=1_000).map(|n| format!("10.244.{}.{}", n / 250, n % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let slices = |addresses: &[&str]| slice(mk_slice_of("s", "web", addresses));
    for scheduler in ["rr", "wlc", "sh", "mh", "dh"] {
        let mut planner = Planner::new(mk_balancing("n1", scheduler));
        let first = plan(&mut planner, [service(service_of_five.clone()), slices(&many[1..])]);
        let mut kernel = MemoryKernel::default();
        for op in planner.diff(kernel.actual()) {
            kernel.apply(&op).unwrap();
        }
        let before: Vec<&Frontend> = kernel.actual().virtual_servers.keys().collect();
        assert_eq!(before.len(), 5, "{:?}", first.ops);
        // It would stand before all others.
        let added = plan(&mut planner, [slices(&many)]).ops;
        assert_eq!(added.len(), 5, "{scheduler}: {} operations for one endpoint", added.len());
        assert!(added.iter().all(|op| matches!(op, Op::AddRealServer(_, real)
            if real.address == addresses(&many[..1])[0])));
        // Another program took one away.
        let mut found = kernel.actual().virtual_servers[before[0]].clone();
        found.real_servers.remove(&(addresses(&many[1..2])[0], 8080).into()).unwrap();
        plan(&mut planner, [slices(&many[1..])]);
        let repaired = planner.repair(before[0], Some(&found));
        assert_eq!(repaired.len(), 1, "{scheduler}: {repaired:?}");
    }
}

#[test]
fn where_the_scheduler_hashes_every_node_makes_virtual_servers_in_the_same_order() {
    let slices = |name, addresses: &[&str]| slice(mk_slice_of(name, "web", addresses));
    let one = || slices("one", &["10.244.1.2", "10.244.1.4"]);
    let other = || slices("other", &["10.244.1.3"]);
    for scheduler in ["sh", "mh", "dh"] {
        let added = |node: &str, events: [Event; 3]| -> Vec<RealServer> {
            let mut planner = Planner::new(mk_balancing(node, scheduler));
            let ops = plan(&mut planner, events).ops.into_iter();
            ops.filter_map(|op| match op {
                Op::AddRealServer(_, real) => Some(real),
                _ => None,
            })
            .collect()
        };
        let first = added("n1", [service(mk_service()), one(), other()]);
        assert_eq!(first.len(), 3);
        for node in ["n2", "n3", "n4", "n5"] {
            assert_eq!(added(node, [other(), one(), service(mk_service())]), first, "{scheduler}");
        }
    }
}

#[test]
fn what_comes_back_before_it_was_planned_never_went() {
    let mut planner = mk_planner([service(mk_service())]);
    let events = [Event::ServiceRemoved(mk_service().name), service(mk_service())];
    let services = vec![mk_service().name];
    assert_eq!(plan(&mut planner, events), Plan { oldest: Some(0), services, ..Plan::default() });
}

#[test]
fn a_slice_that_moves_leaves_its_former_service() {
    let mut other = mk_named("other", 0);
    other.cluster_v4 = Some([10, 96, 0, 10].into());
    let slices = |service| slice(mk_slice_of("s", service, &["10.244.1.2"]));
    let mut planner = mk_planner([service(mk_service()), service(other), slices("web")]);
    assert_eq!(
        ops(&mut planner, [slices("other")]),
        [
            "add 10.96.0.9,tcp:80 to set KUBE-NO-ENDPOINTS",
            "create virtual server TCP 10.96.0.10:80 rr",
            "add real server 10.244.1.2:8080 weight 1 to TCP 10.96.0.10:80",
            "remove real server 10.244.1.2:8080 from TCP 10.96.0.9:80",
            "remove virtual server TCP 10.96.0.9:80 after its last real server",
            "remove 10.96.0.10,tcp:80 from set KUBE-NO-ENDPOINTS",
        ]
    );
    assert_eq!(
        ops(&mut planner, [Event::SliceRemoved(SliceName::new("ns", "s"))]),
        [
            "add 10.96.0.10,tcp:80 to set KUBE-NO-ENDPOINTS",
            "remove real server 10.244.1.2:8080 from TCP 10.96.0.10:80",
            "remove virtual server TCP 10.96.0.10:80 after its last real server",
        ]
    );
}

#[test]
fn a_frontend_is_the_older_services_and_passes_on_without_a_gap() {
    let claimant = |name, created, last, affinity| {
        let mut service = mk_named(name, created);
        service.cluster_v4 = Some([10, 96, 0, last].into());
        service.external = addresses(&["203.0.113.5"]);
        service.affinity = affinity;
        // What the younger one says of the address must not touch the older one's traffic.
        if created > 1 {
            service.kind = ServiceKind::LoadBalancer;
            service.external_policy = TrafficPolicy::Local;
        }
        service
    };
    let old = claimant("z-old", 1, 1, None);
    let young = claimant("a-young", 2, 2, Some(60));
    let mut of_young = mk_slice_of("y", "a-young", &["10.244.1.2", "10.244.1.3"]);
    of_young.endpoints.iter_mut().for_each(|endpoint| endpoint.node = Some("n1".into()));
    let mut planner = mk_planner([
        service(young.clone()),
        slice(of_young),
        slice(mk_slice_of("o", "z-old", &["10.244.1.1", "10.244.1.2"])),
    ]);
    let frontend =
        Frontend { address: addresses(&["203.0.113.5"])[0], protocol: Protocol::Tcp, port: 80 };
    assert_eq!(planner.desired().owner(&frontend), Some(&young.name));

    let taken = plan(&mut planner, [service(old.clone())]);
    let problem = Problem::FrontendTaken { frontend, owner: old.name.clone() };
    assert_eq!(taken.problems, [(young.name.clone(), vec![problem])]);
    let of_frontend = |plan: &Plan| -> Vec<String> {
        plan.ops.iter().map(ToString::to_string).filter(|op| op.contains("203.0.113.5")).collect()
    };
    assert_eq!(
        of_frontend(&taken),
        [
            "add 203.0.113.5,tcp:80 to set KUBE-EXTERNAL-IP",
            "change virtual server TCP 203.0.113.5:80 to rr",
            "add real server 10.244.1.1:8080 weight 1 to TCP 203.0.113.5:80",
            // The younger one's way to its internal frontend goes with the address, the internal frontend
            // itself does not.
            "remove 203.0.113.5,tcp:80 from set KUBE-INTERNAL-FRONTEND",
            "remove real server 10.244.1.3:8080 from TCP 203.0.113.5:80",
            "remove 203.0.113.5,tcp:80 from set KUBE-EXTERNAL-IP-LOCAL",
        ]
    );

    let passed_on = plan(&mut planner, [Event::ServiceRemoved(old.name)]);
    assert_eq!(passed_on.problems, [(young.name.clone(), vec![])]);
    assert_eq!(
        of_frontend(&passed_on),
        [
            "add 203.0.113.5,tcp:80 to set KUBE-EXTERNAL-IP-LOCAL",
            "change virtual server TCP 203.0.113.5:80 to rr persistent 60",
            "add real server 10.244.1.3:8080 weight 1 to TCP 203.0.113.5:80",
            "add 203.0.113.5,tcp:80 to set KUBE-INTERNAL-FRONTEND",
            "remove real server 10.244.1.1:8080 from TCP 203.0.113.5:80",
            "remove 203.0.113.5,tcp:80 from set KUBE-EXTERNAL-IP",
        ]
    );
}

#[test]
fn who_waits_learns_who_is_before_it() {
    let claimants: Vec<Service> =
        (1..=3).map(|created| mk_named(&format!("s{created}"), created)).collect();
    let mut planner = mk_planner(claimants.iter().cloned().map(service));
    let removed = |of: &Service| Event::ServiceRemoved(of.name.clone());
    // The second one is before the third one all the time, and the first one before the second.
    let one = plan(&mut planner, [removed(&claimants[0])]);
    assert_eq!(one.problems, [(claimants[1].name.clone(), vec![])]);
    let back = plan(&mut planner, [service(claimants[0].clone())]);
    let [(second, problems)] = &back.problems[..] else { panic!("{:?}", back.problems) };
    assert_eq!(*second, claimants[1].name);
    let before = |problems: &[Problem]| match problems {
        [Problem::FrontendTaken { owner, .. }] => owner.clone(),
        _ => panic!("{problems:?}"),
    };
    assert_eq!(before(problems), claimants[0].name);
    let two = plan(&mut planner, [removed(&claimants[1])]);
    let third = &two.problems[1];
    assert_eq!((&third.0, before(&third.1)), (&claimants[2].name, claimants[0].name.clone()));
}

#[test]
fn an_address_stays_as_long_as_one_port_or_service_needs_it() {
    let mut one = mk_named("one", 0);
    one.ports.push(mk_port("", Protocol::Udp, 53, None));
    one.external = addresses(&["203.0.113.5"]);
    let mut other = mk_named("other", 0);
    other.cluster_v4 = Some([10, 96, 0, 10].into());
    other.external = addresses(&["203.0.113.5"]);
    other.ports = vec![mk_port("", Protocol::Tcp, 443, None)];
    let mut planner = mk_planner([service(one.clone()), service(other.clone())]);
    let unbinds = |ops: Vec<String>| ops.into_iter().filter(|op| op.contains("kube-ipvs0")).count();
    one.ports.pop();
    assert_eq!(unbinds(ops(&mut planner, [service(one.clone())])), 0);
    // Its cluster address only.
    assert_eq!(unbinds(ops(&mut planner, [Event::ServiceRemoved(one.name)])), 1);
    assert_eq!(unbinds(ops(&mut planner, [Event::ServiceRemoved(other.name)])), 2);
    assert_eq!(planner.desired().n_addresses(), 0);
    assert_eq!(planner.desired().n_virtual_servers(), 0);
}

#[test]
fn a_change_of_the_nodes_addresses_reaches_only_what_depends_on_it() {
    let mut plain = mk_named("plain", 0);
    plain.cluster_v4 = Some([10, 96, 0, 1].into());
    let mut outer = mk_named("outer", 0);
    outer.cluster_v4 = Some([10, 96, 0, 2].into());
    outer.external = addresses(&["203.0.113.5"]);
    let mut node_port = mk_named("node-port", 0);
    node_port.cluster_v4 = Some([10, 96, 0, 3].into());
    node_port.ports = vec![mk_port("http", Protocol::Tcp, 80, Some(30080))];
    let mut planner = mk_planner([
        service(plain),
        service(outer.clone()),
        service(node_port),
        slice(mk_slice_of("s", "outer", &["10.244.1.2"])),
        slice(mk_slice_of("t", "node-port", &["10.244.1.2"])),
        local(&["127.0.0.1", "192.0.2.10"]),
    ]);
    // A pod has come: its interface has a link-local address on the node's side.
    planner.apply(local(&["127.0.0.1", "192.0.2.10", "fe80::ecee:eeff:feee:eeee"]));
    assert!(!planner.is_dirty());
    assert_eq!(
        ops(&mut planner, [local(&["127.0.0.1", "192.0.2.11"])]),
        [
            "create virtual server TCP 192.0.2.11:30080 rr",
            "add real server 10.244.1.2:8080 weight 1 to TCP 192.0.2.11:30080",
            "remove virtual server TCP 192.0.2.10:30080",
        ]
    );
    assert_eq!(
        ops(&mut planner, [local(&["127.0.0.1", "192.0.2.11", "203.0.113.5"])]),
        [
            "create virtual server TCP 203.0.113.5:30080 rr",
            "add real server 10.244.1.2:8080 weight 1 to TCP 203.0.113.5:30080",
            "remove address 203.0.113.5 from kube-ipvs0",
            "remove 203.0.113.5 from set KUBE-IPVS-IPS",
        ]
    );
    // What a Service no longer depends on no longer reaches it.
    outer.external.clear();
    plan(
        &mut planner,
        [service(outer), Event::ServiceRemoved(ServiceName::new("ns", "node-port"))],
    );
    planner.apply(local(&["127.0.0.1"]));
    assert!(!planner.is_dirty());
}

#[test]
fn a_change_of_the_node_reaches_only_what_depends_on_it() {
    let node = |address: &str, pod_cidrs: &[&str], zone: &str| {
        let pod_cidrs = pod_cidrs.iter().map(|net| net.parse().unwrap()).collect();
        let zone = Some(zone.into());
        Event::NodeApplied(Box::new(Node { addresses: addresses(&[address]), pod_cidrs, zone }))
    };
    let mut guarded = mk_service();
    guarded.load_balancer = addresses(&["203.0.113.5"]);
    guarded.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
    let mut settings = Settings::new("n1");
    settings.local_detection = LocalDetection::NodeCidr;
    let mut planner = Planner::new(settings);
    plan(&mut planner, [service(guarded), node("198.51.100.1", &["10.244.0.0/24"], "a")]);

    planner.apply(node("198.51.100.1", &["10.244.0.0/24", "10.244.9.0/24"], "b"));
    assert!(!planner.is_dirty(), "neither the zone nor a second network of a family counts");
    assert_eq!(
        plan(&mut planner, [node("192.0.2.10", &["10.244.1.0/24", "fd00:1::/64"], "b")]).ops,
        [
            Op::WriteRuleSet(Family::V4),
            Op::WriteRuleSet(Family::V6),
            Op::AddEntry(
                SetId::by_name("KUBE-LOAD-BALANCER-SOURCE-IP").unwrap(),
                Entry::AddressPortAddress(
                    Frontend {
                        address: addresses(&["203.0.113.5"])[0],
                        protocol: Protocol::Tcp,
                        port: 80
                    },
                    addresses(&["203.0.113.5"])[0],
                ),
            ),
        ]
    );
}

#[test]
fn node_ports_follow_the_primary_address() {
    let node = |texts: &[&str]| {
        Event::NodeApplied(Box::new(Node { addresses: addresses(texts), ..Node::default() }))
    };
    let mut with_node_port = mk_named("node-port", 0);
    with_node_port.ports = vec![mk_port("http", Protocol::Tcp, 80, Some(30080))];
    let mut settings = Settings::new("n1");
    settings.node_port_addresses = NodePortAddresses::Primary(Vec::new());
    let mut planner = Planner::new(settings);
    let interfaces = local(&["192.0.2.10", "192.0.2.11", "2001:db8::10"]);
    let slices = slice(mk_slice_of("t", "node-port", &["10.244.1.2"]));
    let first = plan(&mut planner, [service(with_node_port), slices, interfaces]);
    assert_eq!(
        first.problems[0].1,
        [Problem::NoNodePortAddress { family: Family::V4 }],
        "as long as the Node is not known"
    );
    assert_eq!(
        ops(&mut planner, [node(&["192.0.2.10", "192.0.2.11", "2001:db8::10"])]),
        [
            "add 30080 to set KUBE-NODE-PORT-TCP",
            "create virtual server TCP 192.0.2.10:30080 rr",
            "add real server 10.244.1.2:8080 weight 1 to TCP 192.0.2.10:30080",
        ]
    );
    assert_eq!(
        ops(&mut planner, [node(&["192.0.2.11"])]),
        [
            "create virtual server TCP 192.0.2.11:30080 rr",
            "add real server 10.244.1.2:8080 weight 1 to TCP 192.0.2.11:30080",
            "remove virtual server TCP 192.0.2.10:30080",
        ]
    );
    planner.apply(node(&["192.0.2.11", "192.0.2.10"]));
    assert!(!planner.is_dirty());
}

#[test]
fn external_addresses_that_are_not_allowed_are_not_there() {
    let mut outer = mk_named("outer", 0);
    outer.external = addresses(&["203.0.113.5"]);
    let mut settings = Settings::new("n1");
    settings.external_ips = false;
    let mut planner = Planner::new(settings);
    let slices = slice(mk_slice_of("s", "outer", &["10.244.1.2"]));
    plan(&mut planner, [service(outer.clone()), slices]);
    assert_eq!(planner.desired().n_virtual_servers(), 1);
    planner.apply(service(outer));
    planner.apply(local(&["203.0.113.5"]));
    assert!(!planner.is_dirty(), "nothing depends on it either");
}

#[test]
fn problems_are_told_once_and_taken_back() {
    let mut wrong = mk_service();
    wrong.external = addresses(&["127.0.0.1"]);
    let mut planner = mk_planner([]);
    assert_eq!(plan(&mut planner, [service(wrong.clone())]).problems[0].1.len(), 1);
    wrong.affinity = Some(60);
    assert_eq!(plan(&mut planner, [service(wrong.clone())]).problems, []);
    wrong.external.clear();
    assert_eq!(plan(&mut planner, [service(wrong.clone())]).problems, [(wrong.name, vec![])]);
}

#[test]
fn operations_belong_to_the_service_that_asks_for_them() {
    let mut other = mk_named("other", 0);
    other.cluster_v4 = Some([10, 96, 0, 10].into());
    let mut planner = mk_planner([]);
    let slices = mk_slice_of("web-1", "web", &["10.244.1.2"]);
    let plan = plan(&mut planner, [service(mk_service()), slice(slices), service(other)]);
    let asked_for = planner.asked_for_by(&mk_service().name);
    let (web, others): (Vec<&Op>, Vec<&Op>) =
        plan.ops.iter().partition(|op| asked_for.contains(&op.subject()));
    assert_eq!((web.len(), others.len()), (5, 4));
    assert!(web.iter().all(|op| op.to_string().contains("10.96.0.9")), "{web:?}");
}

#[test]
fn only_what_tells_that_it_is_ours_lets_us_remove_it() {
    let planner = mk_planner([]);
    let mut kernel = MemoryKernel::default();
    for op in planner.diff(kernel.actual()) {
        kernel.apply(&op).unwrap();
    }
    let mut owner = mk_planner([local(&["192.0.2.10"])]);
    let mut served = mk_service();
    served.ports = vec![mk_port("http", Protocol::Tcp, 80, Some(30080))];
    let endpoints = slice(mk_slice_of("s", "web", &["10.244.1.2"]));
    for op in plan(&mut owner, [service(served), endpoints]).ops {
        kernel.apply(&op).unwrap();
    }
    let removed = |kernel: &MemoryKernel| -> Vec<String> {
        let ops = planner.diff(kernel.actual()).into_iter();
        let ops = ops.filter(|op| matches!(op, Op::RemoveVirtualServer(_)));
        ops.map(|op| op.to_string()).collect()
    };
    let cluster = "remove virtual server TCP 10.96.0.9:80";
    let node_port = "remove virtual server TCP 192.0.2.10:30080";
    // The port is recorded; whether the address is the node's is not known yet.
    assert_eq!(removed(&kernel), [cluster]);
    kernel.actual_mut().local_addresses.extend(addresses(&["192.0.2.10"]));
    assert_eq!(removed(&kernel), [cluster, node_port]);
    kernel.actual_mut().addresses.clear();
    assert_eq!(removed(&kernel), [cluster, node_port], "the sets tell");
    for there in kernel.actual_mut().sets.values_mut() {
        there.entries.clear();
    }
    assert_eq!(removed(&kernel), [""; 0]);
    kernel.actual_mut().addresses.extend(addresses(&["10.96.0.9"]));
    assert_eq!(removed(&kernel), [cluster], "the address tells");
}

#[test]
fn one_virtual_server_is_repaired_alone() {
    let slices = mk_slice_of("web-1", "web", &["10.244.1.2", "10.244.1.3"]);
    let planner = mk_planner([service(mk_service()), slice(slices)]);
    let frontend = *planner.desired().frontends().next().unwrap();
    let texts = |actual: Option<&ActualVirtualServer>| -> Vec<String> {
        planner.repair(&frontend, actual).iter().map(ToString::to_string).collect()
    };
    assert_eq!(texts(None).len(), 3);

    let mut kernel = MemoryKernel::default();
    for op in planner.repair(&frontend, None) {
        kernel.apply(&op).unwrap();
    }
    let mut found = kernel.actual().virtual_servers[&frontend].clone();
    assert_eq!(texts(Some(&found)), [""; 0]);
    found.server = None;
    let first = "10.244.1.2:8080".parse().unwrap();
    found.real_servers.get_mut(&first).unwrap().plain = false;
    let there = *found.real_servers.get(&first).unwrap();
    found.real_servers.insert("10.244.9.9:80".parse().unwrap(), there);
    found.real_servers.remove(&"10.244.1.3:8080".parse().unwrap());
    assert_eq!(
        texts(Some(&found)),
        [
            "change virtual server TCP 10.96.0.9:80 to rr",
            "change real server of TCP 10.96.0.9:80 to 10.244.1.2:8080 weight 1",
            "add real server 10.244.1.3:8080 weight 1 to TCP 10.96.0.9:80",
            "remove real server 10.244.9.9:80 from TCP 10.96.0.9:80",
        ]
    );
    let stranger = Frontend { port: 81, ..frontend };
    assert_eq!(planner.repair(&stranger, Some(&found)), [Op::RemoveVirtualServer(stranger)]);
    assert_eq!(planner.repair(&stranger, None), []);
}

/// A load balancer for this node's endpoints only, asked about at port 31000.
fn mk_checked() -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        external_policy: TrafficPolicy::Local,
        load_balancer: addresses(&["203.0.113.5"]),
        health_check_node_port: NonZeroU16::new(31_000),
        ..mk_service()
    }
}

fn check(local_v4: usize) -> Option<HealthCheck> {
    let port = NonZeroU16::new(31_000).unwrap();
    Some(HealthCheck { port, local_v4: Some(local_v4), local_v6: None })
}

#[test]
fn a_health_check_counts_the_ready_addresses_of_this_node_and_is_told_when_it_differs() {
    let name = ObjectName::new("ns", "web");
    let endpoints = [("10.244.0.2", "n1"), ("10.244.0.3", "n1"), ("10.244.1.2", "n2")];
    let mut slices = mk_slice(Family::V4, &endpoints);
    let mut planner = mk_planner([]);
    let reported = plan(&mut planner, [service(mk_checked()), slice(slices.clone())]).health_checks;
    assert_eq!(reported, [(name.clone(), check(2))]);
    // What changes nothing in it is not reported.
    slices.endpoints.remove(2);
    assert_eq!(plan(&mut planner, [slice(slices.clone())]).health_checks, []);
    // An endpoint that is going does not count, even while it is still used.
    slices.endpoints[0].conditions = Conditions { ready: false, serving: true, terminating: true };
    let reported = plan(&mut planner, [slice(slices)]).health_checks;
    assert_eq!(reported, [(name.clone(), check(1))]);
    // Two ports of one endpoint are one address.
    let two_ports = Service {
        ports: vec![
            mk_port("http", Protocol::Tcp, 80, None),
            mk_port("http", Protocol::Udp, 80, None),
        ],
        ..mk_checked()
    };
    assert_eq!(plan(&mut planner, [service(two_ports)]).health_checks, []);
    let cluster = Service { external_policy: TrafficPolicy::Cluster, ..mk_checked() };
    assert_eq!(plan(&mut planner, [service(cluster)]).health_checks, [(name.clone(), None)]);
    plan(&mut planner, [service(mk_checked())]);
    let reported = plan(&mut planner, [Event::ServiceRemoved(name.clone())]).health_checks;
    assert_eq!(reported, [(name, None)]);
}

#[test]
fn services_whose_policy_leaves_them_without_endpoints_are_counted_by_policy() {
    let count = |planner: &Planner, side| planner.local_gaps().count(side, Family::V4);
    let elsewhere = || slice(mk_slice(Family::V4, &[("10.244.1.2", "n2")]));
    let internal = Service { internal_policy: TrafficPolicy::Local, ..mk_service() };
    let mut planner = mk_planner([service(internal.clone())]);
    // A Service without any endpoint does not lack one because of a policy.
    assert_eq!((count(&planner, Side::Internal), count(&planner, Side::External)), (0, 0));
    plan(&mut planner, [elsewhere()]);
    assert_eq!((count(&planner, Side::Internal), count(&planner, Side::External)), (1, 0));
    plan(&mut planner, [service(mk_checked())]);
    assert_eq!((count(&planner, Side::Internal), count(&planner, Side::External)), (0, 1));
    plan(&mut planner, [slice(mk_slice(Family::V4, &[("10.244.0.2", "n1")]))]);
    assert_eq!((count(&planner, Side::Internal), count(&planner, Side::External)), (0, 0));
    plan(&mut planner, [service(internal), elsewhere()]);
    assert_eq!(count(&planner, Side::Internal), 1);
    plan(&mut planner, [Event::ServiceRemoved(ObjectName::new("ns", "web"))]);
    assert_eq!(count(&planner, Side::Internal), 0);
}

fn with_routes(routes: &[&str]) -> Planner {
    let mut settings = Settings::new("n1");
    settings.service_routes = routes.iter().map(|text| text.parse().unwrap()).collect();
    Planner::new(settings)
}

fn cluster_services() -> [Event; 4] {
    let mut outer = mk_named("outer", 1);
    outer.cluster_v4 = Some([10, 96, 0, 10].into());
    outer.cluster_v6 = Some("fd00:96::10".parse().unwrap());
    outer.external = addresses(&["203.0.113.9"]);
    [
        service(mk_named("web", 1)),
        slice(mk_slice_of("web-1", "web", &["10.244.1.2"])),
        service(outer),
        slice(mk_slice_of("outer-1", "outer", &["10.244.1.3"])),
    ]
}

#[test]
fn inside_a_route_no_address_is_bound() {
    let mut planner = with_routes(&["10.96.0.0/12", "fd00:96::/108"]);
    let before = planner.diff(&Actual { link: true, ..Actual::default() });
    let routes: Vec<String> = before
        .iter()
        .filter(|op| matches!(op, Op::Route(RouteOp::Add(_))))
        .map(Op::to_string)
        .collect();
    assert_eq!(routes, ["add local route 10.96.0.0/12", "add local route fd00:96::/108"]);
    assert!(before.iter().all(Op::is_prerequisite), "without a single Service");
    let ops = ops(&mut planner, cluster_services());
    let about = |word: &str| ops.iter().filter(|op| op.contains(word)).collect::<Vec<_>>();
    assert_eq!(about("kube-ipvs0"), ["add address 203.0.113.9 to kube-ipvs0"], "{ops:#?}");
    assert_eq!(about("KUBE-IPVS-IPS"), ["add 203.0.113.9 to set KUBE-IPVS-IPS"]);
    assert!(about("create virtual server TCP 10.96.0.10").len() == 1, "{ops:#?}");
}

/// Carries the difference out, one operation after the other, and asserts that each cluster
/// address is local all the time.
fn switched(kernel: &mut MemoryKernel, to: &Planner) -> Vec<String> {
    let ops = to.diff(kernel.actual());
    for op in &ops {
        kernel.apply(op).unwrap();
        for address in addresses(&["10.96.0.9", "10.96.0.10", "203.0.113.9"]) {
            let Actual { addresses, routes, .. } = kernel.actual();
            let is_local =
                addresses.contains(&address) || routes.iter().any(|r| r.contains(&address));
            assert!(is_local, "{address} after {op}; all of it: {ops:#?}");
        }
    }
    assert_eq!(to.diff(kernel.actual()), []);
    let ops = ops.iter().map(Op::to_string);
    ops.filter(|op| op.contains("local route") || op.contains("kube-ipvs0")).collect()
}

#[test]
fn between_addresses_and_routes_there_is_no_gap() {
    let [mut each, mut routes, mut others] =
        [&[][..], &["10.96.0.0/12"], &["10.96.0.0/13", "fd00:96::/108"]].map(with_routes);
    for planner in [&mut each, &mut routes, &mut others] {
        plan(planner, cluster_services());
    }
    let mut kernel = MemoryKernel::default();
    for op in each.diff(kernel.actual()) {
        kernel.apply(&op).unwrap();
    }
    let there = switched(&mut kernel, &routes);
    let expected = [
        "add local route 10.96.0.0/12",
        "remove address 10.96.0.10 from kube-ipvs0",
        "remove address 10.96.0.9 from kube-ipvs0",
    ];
    assert_eq!(there, expected);
    assert_eq!(switched(&mut kernel, &others).len(), 4, "others, and one of IPv6");
    let back = switched(&mut kernel, &each);
    assert_eq!(back.len(), 5, "{back:#?}");
    assert!(back[0].starts_with("add address") && back[4].starts_with("remove local route"));
}

#[test]
fn a_virtual_server_inside_a_route_of_ours_is_ours() {
    let planner = with_routes(&[]);
    let frontend = |address: &str| Frontend {
        address: address.parse().unwrap(),
        protocol: Protocol::Tcp,
        port: 80,
    };
    let mut actual = Actual { link: true, ..Actual::default() };
    actual.routes.insert("10.96.0.0/12".parse().unwrap());
    for address in ["10.96.0.77", "10.112.0.1"] {
        let there = ActualVirtualServer { server: None, real_servers: HashMap::default() };
        actual.virtual_servers.insert(frontend(address), there);
    }
    let removed: Vec<Op> =
        planner.diff(&actual).into_iter().filter(|op| !op.is_prerequisite()).collect();
    let route = Op::remove_route("10.96.0.0/12".parse().unwrap());
    assert_eq!(removed, [route, Op::RemoveVirtualServer(frontend("10.96.0.77"))]);
}

#[test]
fn the_rules_follow_the_nodes_own_addresses_inside_a_route() {
    let mut planner = with_routes(&["10.96.0.0/12"]);
    plan(&mut planner, [local(&["192.0.2.1"])]);
    let own = || local(&["192.0.2.1", "10.96.200.10", "fd00:96::1"]);
    assert_eq!(plan(&mut planner, [own()]).ops, [Op::WriteRuleSet(Family::V4)]);
    let rules = planner.rule_set(Family::V4).unwrap().first_input();
    assert!(rules.contains("-A KUBE-IPVS-FILTER -d 10.96.200.10/32 -j RETURN"), "{rules}");
    assert_eq!(plan(&mut planner, [own()]).ops, []);
    assert_eq!(plan(&mut planner, [local(&["192.0.2.7"])]).ops, [Op::WriteRuleSet(Family::V4)]);
}

#[test]
fn a_large_service_lets_others_go_between_its_parts() {
    let mut large = mk_named("large", 1);
    large.cluster_v4 = Some([10, 96, 0, 1].into());
    large.ports = (1..=6).map(|port| mk_port("http", Protocol::Tcp, port, None)).collect();
    let (name, mut planner) = (large.name.clone(), mk_planner([]));
    planner.apply_at(service(large), 1);
    planner.apply_at(service(mk_service()), 2);
    let limit = RoundLimit { services: 1, operations_per_service: 6, ..RoundLimit::NONE };
    let mut rounds = Vec::new();
    while planner.is_dirty() {
        planner.set_now(10 * (rounds.len() as u64 + 1));
        let plan = planner.plan_round(limit);
        let subjects: Vec<String> = plan.ops.iter().map(ToString::to_string).collect();
        let of_large = subjects.iter().filter(|text| text.contains("10.96.0.1")).count();
        let binds = plan.ops.iter().filter(|op| matches!(op, Op::BindAddress(_))).count();
        rounds.push((of_large, subjects.len() - of_large, binds, planner.oldest()));
    }
    // Each port has two entries; beside them are the address, and the entry for it.
    let expected = [(5, 0, 0, Some(2)), (0, 4, 1, Some(10)), (4, 0, 0, Some(30)), (5, 0, 1, None)];
    assert_eq!(rounds, expected);

    // It goes as it came: the address first.
    planner.apply(Event::ServiceRemoved(name));
    let first = planner.plan_round(limit).ops;
    assert!(first.contains(&Op::UnbindAddress([10, 96, 0, 1].into())), "{first:?}");
    assert!(planner.is_dirty());
    let rest = std::iter::from_fn(|| planner.is_dirty().then(|| planner.plan_round(limit).ops));
    assert_eq!(rest.map(|ops| ops.len()).sum::<usize>() + first.len(), 20);
}

#[test]
fn a_set_that_would_have_too_many_entries_is_told_of_once() {
    let mut planner = mk_planner([]);
    planner.settings.limits.set_size = Capacity::new(1);
    let mut one = mk_named("one", 1);
    one.cluster_v4 = Some([10, 96, 0, 1].into());
    assert_eq!(plan(&mut planner, [service(one.clone()), service(mk_service())]).overfull.len(), 3);
    one.affinity = Some(60);
    assert_eq!(plan(&mut planner, [service(one.clone())]).overfull, []);
    assert_eq!(plan(&mut planner, [Event::ServiceRemoved(one.name.clone())]).overfull, []);
    let again = plan(&mut planner, [service(one)]).overfull;
    let texts: Vec<String> = again.iter().map(ToString::to_string).collect();
    assert!(texts[0].contains("limits.setSize (1) is reached: set KUBE-CLUSTER-IP needs 2"));
}

#[test]
fn the_rules_follow_the_range_of_this_nodes_pods_once_it_is_in_use() {
    let node = |pod_cidrs: &[&str]| {
        let pod_cidrs = pod_cidrs.iter().map(|net| net.parse().unwrap()).collect();
        Event::NodeApplied(Box::new(Node { pod_cidrs, ..Node::default() }))
    };
    let mut settings = Settings::new("n1");
    settings.local_detection = LocalDetection::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let mut planner = Planner::new(settings);
    plan(&mut planner, [local(&["192.0.2.1"])]);
    planner.apply(node(&["10.244.1.0/24", "fd00:1::/64"]));
    assert!(!planner.is_dirty(), "no address of the node is inside");
    let rules = [Op::WriteRuleSet(Family::V4)];
    assert_eq!(plan(&mut planner, [local(&["192.0.2.1", "10.244.1.1"])]).ops, rules);
    planner.apply(local(&["192.0.2.1", "10.244.1.1", "10.244.1.2"]));
    assert!(!planner.is_dirty(), "one address is enough");
    assert_eq!(plan(&mut planner, [node(&[])]).ops, rules);
}
