use super::*;
use crate::planner::service_routes::MOST_LOOKED_AT;
use crate::settings::{FastPath, RuleForm};

const V4: &str = "10.96.0.0/12";
const V6: &str = "fd00:96::/108";

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A planner of a node that is as it should be, with its kernel.
fn mk_node() -> (Planner, MemoryKernel) {
    let (mut planner, mut kernel) = (with_routes(&[]), MemoryKernel::default());
    plan(&mut planner, cluster_services());
    for op in planner.diff(kernel.actual()) {
        kernel.apply(&op).unwrap();
    }
    (planner, kernel)
}

/// Carries out what is planned, and asserts that each service address is local all the time. Returns the
/// operations.
fn write(planner: &mut Planner, kernel: &mut MemoryKernel) -> Vec<String> {
    let ops = planner.plan().ops;
    for op in &ops {
        // One without endpoints was not there.
        let is_done = kernel.apply(op).is_ok() || matches!(op, Op::RemoveVirtualServer(_));
        assert!(is_done, "{op}");
        for address in addresses(&["10.96.0.9", "10.96.0.10", "fd00:96::10", "203.0.113.9"]) {
            let Actual { addresses, routes, .. } = kernel.actual();
            let is_routed = routes.iter().any(|route| route.contains(&address));
            assert!(addresses.contains(&address) || is_routed, "{address} after {op}: {ops:#?}");
        }
    }
    assert_eq!(planner.diff(kernel.actual()), [], "nothing is out of order in the middle");
    ops.iter().map(Op::to_string).collect()
}

/// Plans one outdated Service after the other. Returns the operations for each.
fn planned_anew(
    planner: &mut Planner,
    kernel: &mut MemoryKernel,
    family: Family,
) -> Vec<Vec<String>> {
    let (mut written, mut after) = (Vec::new(), None);
    loop {
        let (services, last) = planner.plan_outdated(family, after.as_ref(), 1);
        assert!(services.iter().all(|service| planner.waits(service)));
        if !services.is_empty() {
            written.push(write(planner, kernel));
        }
        let Some(last) = last else { return written };
        after = Some(last);
    }
}

#[test]
fn a_family_changes_to_routes_and_back_without_a_gap() {
    let (mut planner, mut kernel) = mk_node();
    let v4 = nets(&[V4]);
    planner.set_service_routes(Family::V4, v4.clone(), v4.clone());
    assert!(planner.is_dirty() && planner.has_unplanned_routes());
    let added = ["write IPv4 rules", "add local route 10.96.0.0/12"];
    assert_eq!(write(&mut planner, &mut kernel), added);
    assert_eq!(
        planned_anew(&mut planner, &mut kernel, Family::V4),
        [[""; 0]; 0],
        "none changes yet"
    );

    planner.set_service_routes(Family::V4, v4.clone(), Vec::new());
    assert!(!planner.is_dirty(), "routes and rules are the same");
    let unbound = |address: &str| {
        let set = "KUBE-IPVS-IPS";
        [
            format!("remove address {address} from kube-ipvs0"),
            format!("remove {address} from set {set}"),
        ]
    };
    let written = planned_anew(&mut planner, &mut kernel, Family::V4);
    assert_eq!(written, [unbound("10.96.0.10"), unbound("10.96.0.9")]);
    assert_eq!(planned_anew(&mut planner, &mut kernel, Family::V6), [[""; 0]; 0]);
    let mut routed = with_routes(&[V4]);
    plan(&mut routed, cluster_services());
    assert_eq!(routed.diff(kernel.actual()), [], "as if it had begun so");

    planner.set_service_routes(Family::V4, v4.clone(), v4);
    let bound = |address: &str| {
        let set = "KUBE-IPVS-IPS";
        [format!("add {address} to set {set}"), format!("add address {address} to kube-ipvs0")]
    };
    let written = planned_anew(&mut planner, &mut kernel, Family::V4);
    assert_eq!(written, [bound("10.96.0.10"), bound("10.96.0.9")]);
    planner.set_service_routes(Family::V4, Vec::new(), Vec::new());
    // Until the route has gone, the rules refuse what it leads to the node.
    assert_eq!(write(&mut planner, &mut kernel), ["remove local route 10.96.0.0/12"]);
    assert_eq!(write(&mut planner, &mut kernel), ["write IPv4 rules"]);
    assert!(!planner.is_dirty());
    let mut each = with_routes(&[]);
    plan(&mut each, cluster_services());
    assert_eq!(each.diff(kernel.actual()), []);
}

#[test]
fn what_changes_in_the_middle_is_planned_in_the_new_way() {
    let (mut planner, mut kernel) = mk_node();
    let v6 = nets(&[V6]);
    planner.set_service_routes(Family::V6, v6.clone(), v6.clone());
    write(&mut planner, &mut kernel);
    planner.set_service_routes(Family::V6, v6, Vec::new());
    let mut new = mk_named("new", 2);
    new.cluster_v4 = Some([10, 96, 0, 11].into());
    new.cluster_v6 = Some("fd00:96::11".parse().unwrap());
    planner.apply(service(new));
    planner.apply(slice(mk_slice_of("new-1", "new", &["10.244.1.4"])));
    let written = write(&mut planner, &mut kernel);
    let of =
        |address: &str| written.iter().any(|op| op.contains(&format!("add address {address} ")));
    assert!(of("10.96.0.11") && !of("fd00:96::11"), "{written:#?}");
    // One that goes needs no change.
    planner.apply(Event::ServiceRemoved(ObjectName::new("ns", "new")));
    write(&mut planner, &mut kernel);
    assert_eq!(planned_anew(&mut planner, &mut kernel, Family::V6).len(), 1, "outer");
}

#[test]
fn networks_become_others_without_a_gap() {
    let (mut planner, mut kernel) = mk_node();
    let [old, new] = [nets(&[V4]), nets(&["10.96.0.8/31", "10.98.0.0/16"])];
    planner.set_service_routes(Family::V4, old.clone(), Vec::new());
    planned_anew(&mut planner, &mut kernel, Family::V4);
    // 10.96.0.10 has no route of the new ones.
    let both = [old.clone(), new.clone()].concat();
    planner.set_service_routes(Family::V4, both.clone(), new.clone());
    write(&mut planner, &mut kernel);
    planner.set_service_routes(Family::V4, both, old);
    let written = planned_anew(&mut planner, &mut kernel, Family::V4);
    assert!(
        written.len() == 1 && written[0][1] == "add address 10.96.0.10 to kube-ipvs0",
        "{written:?}"
    );
    planner.set_service_routes(Family::V4, new, Vec::new());
    assert_eq!(write(&mut planner, &mut kernel), ["remove local route 10.96.0.0/12"]);
}

#[test]
fn a_walk_looks_at_a_limited_number_of_services() {
    let mut planner = with_routes(&[]);
    for number in 0..2_000_u16 {
        let mut named = mk_named(&format!("s{number:04}"), 1);
        let [high, low] = number.to_be_bytes();
        named.cluster_v4 = Some([10, 96, high, low].into());
        planner.apply(service(named));
    }
    planner.plan();
    let last = |number: usize| Some(ObjectName::new("ns", format!("s{number:04}")));
    assert_eq!(planner.plan_outdated(Family::V4, None, 8), (vec![], last(MOST_LOOKED_AT - 1)));
    planner.set_service_routes(Family::V4, nets(&[V4]), Vec::new());
    let (services, after) = planner.plan_outdated(Family::V4, None, 8);
    assert_eq!((services.len(), after), (8, last(7)));
}

/// On the fast path, each frontend has an internal frontend: with a route for cluster IPs, theirs have one as well.
#[test]
fn internal_frontends_change_to_a_route_and_back_with_the_network_that_they_are_for() {
    let settings = Settings {
        rule_form: RuleForm::Nftables,
        fast_path: FastPath::Conntrack,
        ..Settings::new("n1")
    };
    let (mut planner, mut kernel) = (Planner::new(settings), MemoryKernel::default());
    plan(&mut planner, cluster_services());
    for op in planner.diff(kernel.actual()) {
        kernel.apply(&op).unwrap();
    }
    let bound = |kernel: &MemoryKernel| {
        let mut bound: Vec<String> =
            kernel.actual().addresses.iter().map(ToString::to_string).collect();
        bound.sort();
        bound.join(" ")
    };
    let each = bound(&kernel);
    assert_eq!(
        each,
        "10.96.0.10 10.96.0.9 203.0.113.9 250.96.0.10 250.96.0.9 251.0.113.9 fd00:96::10"
    );
    let v4 = nets(&[V4]);
    planner.set_service_routes(Family::V4, v4.clone(), v4.clone());
    let routes = |ops: Vec<String>| -> Vec<String> {
        ops.into_iter().filter(|op| op.contains("local route")).collect()
    };
    assert_eq!(
        routes(write(&mut planner, &mut kernel)),
        ["add local route 10.96.0.0/12", "add local route 250.96.0.0/12"]
    );
    planner.set_service_routes(Family::V4, v4.clone(), Vec::new());
    planned_anew(&mut planner, &mut kernel, Family::V4);
    assert_eq!(bound(&kernel), "203.0.113.9 251.0.113.9 fd00:96::10");

    planner.set_service_routes(Family::V4, v4.clone(), v4);
    planned_anew(&mut planner, &mut kernel, Family::V4);
    assert_eq!(bound(&kernel), each);
    planner.set_service_routes(Family::V4, Vec::new(), Vec::new());
    assert_eq!(
        routes(write(&mut planner, &mut kernel)),
        ["remove local route 10.96.0.0/12", "remove local route 250.96.0.0/12"]
    );
}
