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
fn a_port_of_a_protocol_that_the_kernel_does_not_balance_is_refused_in_ipvs_mode() {
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
    let problem = Problem::NotBalanced { port: number(81), protocol: Protocol::Sctp };
    assert!(problem.to_string().contains("CONFIG_IP_VS_PROTO_SCTP"), "{problem}");
    assert_eq!(endpoints(Mode::Ipvs, &[Protocol::Sctp]), (vec![true, false], vec![problem]));
    assert_eq!(endpoints(Mode::Iptables, &[Protocol::Sctp]), (vec![true, true], vec![]));
}
