use super::*;
use crate::fixtures::{mk_port, mk_service, mk_slice, number};
use crate::model::{Overrides, Protocol, Weights};
use crate::problem::Override::{DrainDeadline, Scheduler, SchedulerFlags, Weights as OfWeights};
use crate::scheduler::SchedulerName;

fn problems(service: &Service, mode: Mode) -> Vec<Problem> {
    let settings = Settings { mode, ..Settings::new("here") };
    Exposure::new(service, &[], &NodeFacts::default(), &settings).problems
}

#[test]
fn what_only_ipvs_can_do_is_a_problem_in_every_other_mode() {
    let mut service = mk_service();
    assert_eq!(problems(&service, Mode::Iptables), []);
    let all = Overrides {
        scheduler: SchedulerName::new("mh").ok(),
        scheduler_flags: Some(0),
        drain_deadline_seconds: Some(30),
        weights: Some(Weights { node: 2, zone: 1, elsewhere: 1 }),
        is_off_fast_path: true,
    };
    let only_deadline = Overrides { drain_deadline_seconds: Some(0), ..Overrides::default() };
    for (overrides, expected) in [
        (all, vec![Scheduler, SchedulerFlags, DrainDeadline, OfWeights]),
        (only_deadline, vec![DrainDeadline]),
    ] {
        service.overrides = Some(Box::new(overrides));
        assert_eq!(problems(&service, Mode::Ipvs), []);
        for mode in [Mode::Iptables, Mode::Userspace] {
            let drains = |setting: &Override| mode == Mode::Userspace && *setting == DrainDeadline;
            let expected = expected
                .iter()
                .filter(|setting| !drains(setting))
                .map(|setting| Problem::NoEffect { setting: *setting, mode });
            assert_eq!(problems(&service, mode), expected.collect::<Vec<_>>());
        }
    }
    let said = problems(&service, Mode::Iptables)[0].to_string();
    assert!(said.starts_with("annotation kube-ipvs.io/drain-deadline has no effect"), "{said}");
}

#[test]
fn a_port_of_a_protocol_that_the_kernel_lacks_is_refused_or_left_out() {
    let mut service = mk_service();
    service.ports =
        vec![mk_port("http", Protocol::Tcp, 80, None), mk_port("http", Protocol::Sctp, 81, None)];
    let slice = mk_slice(Family::V4, &[("10.244.0.1", "here")]);
    let endpoints = |mode: Mode, unbalanced: &[Protocol]| {
        let settings = Settings { mode, unbalanced: unbalanced.to_vec(), ..Settings::new("here") };
        let facts = NodeFacts::default();
        let exposure = Exposure::new(&service, &[&slice], &facts, &settings);
        let ports = &exposure.families[0].ports;
        let exist: Vec<bool> = ports.iter().map(|port| port.choice.exist).collect();
        (exist, exposure.problems)
    };
    assert_eq!(endpoints(Mode::Ipvs, &[]), (vec![true, true], vec![]));
    for (mode, exist, lack) in [
        (Mode::Ipvs, vec![true, false], "CONFIG_IP_VS_PROTO_SCTP"),
        // No rule can refuse it.
        (Mode::Iptables, vec![true], "module xt_sctp"),
        (Mode::Userspace, vec![true], "module xt_sctp"),
    ] {
        let problem = Problem::NotBalanced { port: number(81), protocol: Protocol::Sctp, mode };
        assert!(problem.to_string().contains(lack), "{problem}");
        assert_eq!(endpoints(mode, &[Protocol::Sctp]), (exist, vec![problem]));
    }
}

#[test]
fn where_rules_lead_source_ranges_count_as_endpoints_do() {
    let balancers: Vec<_> = (1..=3).map(|last| [198, 51, 100, last].into()).collect();
    let ranges: Vec<_> = (0..4).map(|last| format!("10.{last}.0.0/16").parse().unwrap()).collect();
    let service = Service {
        ports: vec![
            mk_port("http", Protocol::Tcp, 80, None),
            mk_port("http", Protocol::Tcp, 81, None),
        ],
        load_balancer: balancers,
        source_ranges: ranges,
        ..mk_service()
    };
    let slice = mk_slice(Family::V4, &[("10.244.0.1", "here"), ("10.244.0.2", "here")]);
    let n_ports = |mode: Mode, real_servers: usize| {
        let limits = crate::settings::Limits { real_servers, ..Default::default() };
        let settings = Settings { mode, limits, ..Settings::new("here") };
        let exposure = Exposure::new(&service, &[&slice], &NodeFacts::default(), &settings);
        exposure.families[0].ports.len()
    };
    for (mode, n_of_a_port) in [(Mode::Ipvs, 2), (Mode::Iptables, 9), (Mode::Userspace, 17)] {
        for (real_servers, expected) in
            [(n_of_a_port - 1, 0), (n_of_a_port, 1), (2 * n_of_a_port - 1, 1), (2 * n_of_a_port, 2)]
        {
            assert_eq!(n_ports(mode, real_servers), expected, "{mode} {real_servers}");
        }
    }
}
