use super::*;
use crate::fixtures::mk_service;
use crate::model::{Overrides, Weights};
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
