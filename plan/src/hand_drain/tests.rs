use super::*;
use crate::actual::Actual;
use crate::endpoints::Decision;
use crate::event::Event;
use crate::fixtures::{addresses, mk_port, mk_service, mk_slice};
use crate::mode::Mode;
use crate::model::{Conditions, Family, ObjectName, Service, ServiceKind, TrafficPolicy};
use crate::planner::Planner;
use crate::scheduler::SchedulerName;
use crate::settings::Settings;

const HERE: &str = "n1";

fn drain(address: &str, port: Option<u16>) -> HandDrain {
    HandDrain {
        address: addresses(&[address])[0],
        port: port.and_then(NonZeroU16::new),
        service: None,
        is_forced: true,
    }
}

/// A planner of node `n1` in this mode, with `ns/web`, which has these endpoints by node.
fn mk_planner(settings: Settings, service: Service, endpoints: &[(&str, &str)]) -> Planner {
    let mut planner = Planner::new(settings);
    planner.apply(Event::LocalAddresses(addresses(&["127.0.0.1", "192.0.2.10"])));
    planner.apply(Event::ServiceApplied(Box::new(service)));
    planner.apply(Event::SliceApplied(Box::new(mk_slice(Family::V4, endpoints))));
    planner.plan();
    planner
}

fn in_mode(mode: Mode) -> Settings {
    Settings { mode, ..Settings::new(HERE) }
}

fn begin(planner: &mut Planner, drain: &HandDrain) -> Vec<String> {
    planner.apply(Event::HandDrainBegan(Box::new(drain.clone())));
    planner.plan().ops.iter().map(ToString::to_string).collect()
}

fn end(planner: &mut Planner, drain: &HandDrain) -> Vec<String> {
    planner.apply(Event::HandDrainEnded(Box::new(drain.clone())));
    planner.plan().ops.iter().map(ToString::to_string).collect()
}

const TWO: [(&str, &str); 2] = [("10.244.0.1", "n2"), ("10.244.0.2", "n2")];

#[test]
fn it_is_written_as_an_operator_writes_it() {
    assert_eq!(drain("10.244.0.1", Some(8080)).to_string(), "10.244.0.1:8080");
    assert_eq!(drain("fd00::1", Some(80)).to_string(), "[fd00::1]:80");
    let of_service =
        HandDrain { service: Some(ObjectName::new("ns", "web")), ..drain("fd00::1", None) };
    assert_eq!(of_service.to_string(), "fd00::1 (all ports) of Service ns/web");
}

#[test]
fn one_without_a_port_and_a_service_includes_those_with_them() {
    let all = drain("10.244.0.1", None);
    let one = HandDrain {
        service: Some(ObjectName::new("ns", "web")),
        ..drain("10.244.0.1", Some(8080))
    };
    assert!(all.includes(&one) && !one.includes(&all) && one.includes(&one));
    assert!(!all.includes(&drain("10.244.0.2", Some(8080))));
    let mut drains = HandDrains::default();
    assert!(
        drains.insert(one.clone()) && !drains.insert(one.clone()) && drains.insert(all.clone())
    );
    assert_eq!((drains.len(), drains.iter().count()), (2, 2));
    assert!(drains.remove(&one) && !drains.remove(&one) && drains.remove(&all));
    assert_eq!(drains, HandDrains::default());
}

#[test]
fn without_force_it_is_used_again_as_long_as_all_others_have_failed() {
    let mut planner = mk_planner(in_mode(Mode::Ipvs), mk_service(), &TWO);
    let gentle = HandDrain { is_forced: false, ..drain("10.244.0.1", None) };
    assert!(begin(&mut planner, &gentle).iter().any(|op| op.contains("weight 0")));
    let mut slice = mk_slice(Family::V4, &TWO);
    let mut fail = |planner: &mut Planner, has_failed: bool| -> Vec<String> {
        slice.endpoints[1].conditions.ready = !has_failed;
        slice.endpoints[1].conditions.serving = !has_failed;
        planner.apply(Event::SliceApplied(Box::new(slice.clone())));
        planner.plan().ops.iter().map(ToString::to_string).collect()
    };
    let gives = |ops: &[String], weight: &str| {
        ops.iter().any(|op| op.contains("10.244.0.1:8080") && op.contains(weight))
    };
    let failed = fail(&mut planner, true);
    assert!(gives(&failed, "weight 1"), "{failed:?}");
    let back = fail(&mut planner, false);
    assert!(gives(&back, "weight 0"), "{back:?}");
    end(&mut planner, &gentle);
    begin(&mut planner, &drain("10.244.0.1", None));
    let failed = fail(&mut planner, true);
    assert!(!gives(&failed, "weight 1"), "by force: {failed:?}");
}

#[test]
fn in_ipvs_mode_it_has_weight_0_until_the_drain_ends() {
    let mut planner = mk_planner(in_mode(Mode::Ipvs), mk_service(), &TWO);
    let one = drain("10.244.0.1", Some(8080));
    assert_eq!(
        begin(&mut planner, &one),
        ["change real server of TCP 10.96.0.9:80 to 10.244.0.1:8080 weight 0"]
    );
    // It is desired like that: nothing else is planned for it.
    assert_eq!(begin(&mut planner, &one), [""; 0]);
    assert_eq!(
        end(&mut planner, &one),
        ["change real server of TCP 10.96.0.9:80 to 10.244.0.1:8080 weight 1"]
    );
}

#[test]
fn another_port_and_another_service_are_not_touched() {
    let mut planner = mk_planner(in_mode(Mode::Ipvs), mk_service(), &TWO);
    assert_eq!(begin(&mut planner, &drain("10.244.0.1", Some(8081))), [""; 0]);
    let of_other =
        HandDrain { service: Some(ObjectName::new("ns", "other")), ..drain("10.244.0.1", None) };
    assert_eq!(begin(&mut planner, &of_other), [""; 0]);
    assert_eq!(planner.hand_drains().len(), 2);
}

#[test]
fn without_connections_to_keep_it_is_left_out() {
    let udp = Service { ports: vec![mk_port("http", Protocol::Udp, 53, None)], ..mk_service() };
    let mut planner = mk_planner(in_mode(Mode::Ipvs), udp, &TWO);
    let one = drain("10.244.0.1", None);
    planner.apply(Event::HandDrainBegan(Box::new(one.clone())));
    let plan = planner.plan();
    let ops: Vec<String> = plan.ops.iter().map(ToString::to_string).collect();
    assert_eq!(ops, ["remove real server 10.244.0.1:8080 from UDP 10.96.0.9:53"]);
    assert_eq!(plan.flows.len(), 1, "its flows are looked for");
    // `dh` would go on sending clients there.
    let settings = Settings { scheduler: SchedulerName::new("dh").unwrap(), ..in_mode(Mode::Ipvs) };
    let mut planner = mk_planner(settings, mk_service(), &TWO);
    assert_eq!(
        begin(&mut planner, &one),
        ["remove real server 10.244.0.1:8080 from TCP 10.96.0.9:80"]
    );
}

#[test]
fn the_last_endpoint_leaves_a_frontend_that_refuses() {
    let mut planner = mk_planner(in_mode(Mode::Ipvs), mk_service(), &TWO[..1]);
    let one = drain("10.244.0.1", None);
    let ops = begin(&mut planner, &one);
    assert!(ops.contains(&"add 10.96.0.9,tcp:80 to set KUBE-NO-ENDPOINTS".to_owned()), "{ops:?}");
    assert!(!ops.iter().any(|op| op.contains("weight 0")), "{ops:?}");
}

#[test]
fn rules_lead_nobody_to_it() {
    for mode in [Mode::Iptables, Mode::Userspace] {
        let mut planner = mk_planner(in_mode(mode), mk_service(), &TWO);
        let one = drain("10.244.0.1", Some(8080));
        planner.apply(Event::HandDrainBegan(Box::new(one.clone())));
        let relay = format!("{:?}", planner.plan().relay);
        assert!(!relay.contains("10.244.0.1:8080"), "{relay}");
        assert_eq!(relay.contains("10.244.0.2:8080"), mode == Mode::Userspace, "{relay}");
        let nothing = Actual::default();
        let with_other = mk_planner(in_mode(mode), mk_service(), &TWO[1..]);
        assert_eq!(planner.diff(&nothing), with_other.diff(&nothing), "{mode}");
        planner.apply(Event::HandDrainEnded(Box::new(one)));
        planner.plan();
        let with_both = mk_planner(in_mode(mode), mk_service(), &TWO);
        assert_eq!(planner.diff(&nothing), with_both.diff(&nothing), "{mode}");
    }
}

#[test]
fn endpoints_that_terminate_and_hints_go_by_the_others() {
    let mut slice = mk_slice(Family::V4, &TWO);
    slice.endpoints[1].conditions = Conditions { ready: false, serving: true, terminating: true };
    let mut planner = Planner::new(in_mode(Mode::Ipvs));
    planner.apply(Event::ServiceApplied(Box::new(mk_service())));
    planner.apply(Event::SliceApplied(Box::new(slice)));
    planner.plan();
    assert_eq!(
        begin(&mut planner, &drain("10.244.0.1", None)),
        [
            "change real server of TCP 10.96.0.9:80 to 10.244.0.1:8080 weight 0",
            "add real server 10.244.0.2:8080 weight 1 to TCP 10.96.0.9:80",
        ]
    );
}

#[test]
fn a_load_balancer_hears_of_the_endpoints_that_are_left_here() {
    let service = Service {
        kind: ServiceKind::LoadBalancer,
        external_policy: TrafficPolicy::Local,
        health_check_node_port: NonZeroU16::new(31_000),
        load_balancer: addresses(&["203.0.113.1"]),
        ..mk_service()
    };
    let here = [("10.244.0.1", HERE), ("10.244.0.2", HERE), ("10.244.1.1", "n2")];
    let mut planner = mk_planner(in_mode(Mode::Ipvs), service, &here);
    planner.apply(Event::HandDrainBegan(Box::new(drain("10.244.0.1", None))));
    let checks = planner.plan().health_checks;
    assert_eq!(checks[0].1.and_then(|check| check.local_v4), Some(1));
}

#[test]
fn the_effect_names_services_and_what_they_are_left_without() {
    let name = mk_service().name;
    let local = Service { internal_policy: TrafficPolicy::Local, ..mk_service() };
    let endpoints = [("10.244.0.1", HERE), ("10.244.1.1", "n2")];
    let here = drain("10.244.0.1", None);
    for (service, is_left_without) in [(mk_service(), false), (local, true)] {
        let mut planner = mk_planner(in_mode(Mode::Ipvs), service, &endpoints);
        let services: Vec<_> = planner.with_endpoints_of(&here).into_iter().collect();
        assert_eq!(services, std::slice::from_ref(&name));
        let effect = planner.effects_of(&here, &services);
        assert_eq!(effect[0].endpoints, [(Protocol::Tcp, "10.244.0.1:8080".parse().unwrap())]);
        assert_eq!(!effect[0].left_without.is_empty(), is_left_without);
        // The same while it is drained.
        begin(&mut planner, &here);
        assert_eq!(planner.effects_of(&here, &services), effect);
    }
    let planner = mk_planner(in_mode(Mode::Ipvs), mk_service(), &TWO);
    assert!(planner.with_endpoints_of(&drain("10.244.0.3", None)).is_empty());
    assert!(planner.with_endpoints_of(&drain("10.244.0.1", Some(9))).is_empty());
    let at: Vec<_> = planner.endpoints_at(&name, TWO[0].0.parse().unwrap()).into_iter().collect();
    assert_eq!(at, [(Protocol::Tcp, "10.244.0.1:8080".parse().unwrap())]);
}

/// Drains by the default: without force.
fn gentle(address: &str) -> HandDrain {
    HandDrain { is_forced: false, ..drain(address, None) }
}

#[test]
fn one_drain_without_force_does_not_count_on_the_endpoint_of_another() {
    let name = mk_service().name;
    let services = std::slice::from_ref(&name);
    let is_left_without = |planner: &Planner, of: &HandDrain| {
        let effects = planner.effects_of(of, services);
        effects.iter().any(|effect| !effect.left_without.is_empty())
    };
    let (one, other) = (gentle(TWO[0].0), gentle(TWO[1].0));
    let mut planner = mk_planner(in_mode(Mode::Ipvs), mk_service(), &TWO);
    assert!(!is_left_without(&planner, &one) && !is_left_without(&planner, &other));
    begin(&mut planner, &one);
    // The first one would serve as the last resort, and nothing would be drained.
    assert!(is_left_without(&planner, &other));
    // It can be set to last longer, or be forced.
    let forced = drain(TWO[0].0, None);
    assert!(!is_left_without(&planner, &one) && !is_left_without(&planner, &forced));
    // Both at once.
    begin(&mut planner, &other);
    assert!(is_left_without(&planner, &one) && is_left_without(&planner, &other));
    end(&mut planner, &one);
    assert!(!is_left_without(&planner, &other));
}

#[test]
fn one_drain_without_force_of_both_endpoints_at_once_leaves_clients_without() {
    let name = mk_service().name;
    // Two endpoints of a Service at one address.
    let mut slice = mk_slice(Family::V4, &TWO[..1]);
    let mut second = slice.ports[0].clone();
    second.port = NonZeroU16::new(8081).unwrap();
    slice.ports.push(second);
    let mut planner = Planner::new(in_mode(Mode::Ipvs));
    planner.apply(Event::ServiceApplied(Box::new(mk_service())));
    planner.apply(Event::SliceApplied(Box::new(slice)));
    planner.plan();
    let effect = planner.effects_of(&gentle(TWO[0].0), std::slice::from_ref(&name));
    assert_eq!((effect[0].endpoints.len(), effect[0].left_without.len()), (2, 1));
}

#[test]
fn the_last_resort_is_that_of_the_clients_who_may_use_it() {
    let service = Service {
        kind: ServiceKind::LoadBalancer,
        external_policy: TrafficPolicy::Local,
        health_check_node_port: NonZeroU16::new(31_000),
        load_balancer: addresses(&["203.0.113.1"]),
        ..mk_service()
    };
    let name = service.name.clone();
    let nodes = [("10.244.0.1", HERE), ("10.244.0.2", HERE), ("10.244.1.1", "n2")];
    let mut planner = mk_planner(in_mode(Mode::Ipvs), service, &nodes);
    begin(&mut planner, &gentle("10.244.0.1"));
    let mut slice = mk_slice(Family::V4, &nodes);
    slice.endpoints[1].conditions = Conditions { ready: false, serving: false, terminating: false };
    planner.apply(Event::SliceApplied(Box::new(slice)));
    let plan = planner.plan();
    let ops: Vec<String> = plan.ops.iter().map(ToString::to_string).collect();
    let again = "change real server of TCP 203.0.113.1:80 to 10.244.0.1:8080 weight 1";
    assert!(ops.iter().any(|op| op == again), "clients outside have no other: {ops:?}");
    // The cluster's own have that of the other node.
    assert!(!ops.iter().any(|op| op.contains("10.96.0.9:80 to 10.244.0.1:8080")), "{ops:?}");
    assert!(plan.health_checks.is_empty(), "one here counts, as before: {:?}", plan.health_checks);
    let explained = planner.explain_service(&name).unwrap();
    let drained = &explained.ports[0].endpoints[0];
    assert_eq!((drained.cluster, drained.local), (Decision::DrainedByHand, Decision::Used));
    // Not by force.
    begin(&mut planner, &drain("10.244.0.1", None));
    let explained = planner.explain_service(&name).unwrap();
    assert_eq!(explained.ports[0].endpoints[0].local, Decision::DrainedByHand);
}
