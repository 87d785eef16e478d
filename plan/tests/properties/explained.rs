//! Explanations say of every Service what is planned for it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use plan::mode::Mode;
use plan::model::ServiceName;
use plan::planner::{ExplainedService, Planner};
use proptest::prelude::*;

use crate::world::{World, groups, settings};

/// All Services, a few at a time.
fn names(planner: &Planner) -> Vec<ServiceName> {
    let mut names: Vec<ServiceName> = Vec::new();
    loop {
        let next = planner.service_names(names.last(), 2);
        if next.is_empty() {
            return names;
        }
        names.extend(next);
    }
}

/// Requires of each frontend that its real servers are the endpoints that are said to be used.
fn require_same_choice(explained: &ExplainedService) {
    for frontend in &explained.frontends {
        let port = explained.port_of(frontend).unwrap();
        let used = port.endpoints.iter().filter(|it| it.decision(frontend.policy).is_used());
        let used: Vec<SocketAddr> = used.map(|it| it.socket).collect();
        // What is drained manually has weight 0.
        let desired = frontend.real_servers.iter().filter(|it| it.weight > 0);
        let desired: Vec<SocketAddr> = desired.map(|it| it.socket()).collect();
        assert_eq!(used, desired, "{frontend:?}\n{explained:#?}");
    }
}

proptest! {
    #[test]
    fn an_explanation_has_the_endpoints_that_are_planned(
        settings in settings(),
        groups in groups(),
    ) {
        let world = World::after(groups.iter().flatten());
        let mut planner = Planner::new(settings.clone());
        world.events().into_iter().for_each(|event| planner.apply(event));
        planner.plan();
        let mut frontends = BTreeSet::new();
        for name in names(&planner) {
            let explained = planner.explain_service(&name).unwrap();
            require_same_choice(&explained);
            prop_assert!(!explained.is_waiting);
            let owned = explained.frontends.iter().filter(|it| it.owner.as_ref() == Some(&name));
            frontends.extend(owned.map(|it| it.frontend));
        }
        let desired: BTreeSet<_> = planner.desired().frontends().copied().collect();
        prop_assert_eq!(frontends, desired);
    }

    #[test]
    fn summaries_have_every_service_once_in_chunks_of_any_size(
        settings in settings(),
        groups in groups(),
        most in 1_usize..4,
    ) {
        for mode in Mode::ALL {
            let mut planner = Planner::new(plan::settings::Settings { mode, ..settings.clone() });
            groups.iter().flatten().for_each(|event| planner.apply(event.clone()));
            planner.plan();
            let all = names(&planner);
            prop_assert!(all.is_sorted());
            prop_assert_eq!(all.len(), planner.n_services());
            for namespace in [None, Some("a"), Some("ns"), Some("z")] {
                let mut found: Vec<ServiceName> = Vec::new();
                loop {
                    let chunk = planner.summarize_services(found.last(), namespace, most);
                    for summary in &chunk.services {
                        prop_assert!(summary.used <= summary.endpoints);
                        prop_assert!(summary.ready <= summary.endpoints);
                    }
                    found.extend(chunk.services.iter().map(|it| it.name.clone()));
                    if chunk.is_last {
                        break;
                    }
                    prop_assert!(!chunk.services.is_empty());
                }
                let inside = all.iter().filter(|it| namespace.is_none_or(|n| *it.namespace == *n));
                prop_assert_eq!(found, inside.cloned().collect::<Vec<_>>());
            }
        }
    }
}
