//! Connections of a Service that conntrack carries, at its frontends and endpoints.

use std::collections::HashMap;
use std::net::SocketAddr;

use plan::planner::ExplainedFrontend;

use super::{EndpointState, FrontendState};
use crate::answers::decision::Use;
use crate::answers::tracked::Tracked;

/// Adds the connections that conntrack carries. They count at the internal frontend that their clients are led to, and what IPVS
/// knows of them does not. Without one, they count at the frontend itself: they began when there was one.
pub(super) fn add_tracked(
    explained: &[ExplainedFrontend],
    states: &mut [FrontendState],
    tracked: &Tracked,
) {
    // Another Service's frontend says nothing about this one.
    let is_own = |state: &FrontendState| state.is_in_kernel.is_some();
    let mut places: HashMap<(usize, SocketAddr), usize> = HashMap::new();
    for (at, (frontend, state)) in explained.iter().zip(states.iter_mut()).enumerate() {
        for (place, endpoint) in state.endpoints.iter_mut().enumerate() {
            if tracked.is_led_to(&frontend.frontend) && endpoint.active.is_some() {
                (endpoint.active, endpoint.inactive) = (Some(0), Some(0));
            }
            places.insert((at, endpoint.endpoint), place);
        }
    }
    for (asked, socket, count) in tracked.counts.iter() {
        let own = |at: &usize| states.get(*at).is_some_and(is_own);
        let leads = |at: &usize| explained.get(*at).map(|it| it.frontend != asked);
        let is_asked = |(_, it): &(usize, &ExplainedFrontend)| tracked.asked(&it.frontend) == asked;
        let all = explained.iter().enumerate().filter(is_asked).map(|(at, _)| at).filter(own);
        let mut all: Vec<usize> = all.collect();
        all.sort_by_key(|at| leads(at) == Some(false));
        let is_there = |at: &&usize| {
            let place = places.get(&(**at, socket)).copied();
            let endpoint = place.and_then(|place| states.get(**at)?.endpoints.get(place));
            endpoint.is_some_and(|it| it.weight.is_some())
        };
        let Some(at) = all.iter().find(is_there).or(all.first()).copied() else { continue };
        let Some(state) = states.get_mut(at) else { continue };
        let place = *places.entry((at, socket)).or_insert_with(|| {
            state.endpoints.push(EndpointState::new(socket, Use::Gone, None));
            state.endpoints.len() - 1
        });
        if let Some(endpoint) = state.endpoints.get_mut(place) {
            let sum = |former: Option<u32>, more: u64| {
                former.unwrap_or(0).saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
            };
            endpoint.active = Some(sum(endpoint.active, count.active));
            endpoint.inactive = Some(sum(endpoint.inactive, count.inactive));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kernel::counters::ConnectionCount;
    use plan::claimants::Origin;
    use plan::kernel_objects::Frontend;
    use plan::model::{Protocol, TrafficPolicy};

    use super::*;
    use crate::answers::decision::Hints;
    use crate::answers::service::FrontendKind;

    fn frontend(first: u8) -> Frontend {
        Frontend { address: [first, 96, 0, 10].into(), protocol: Protocol::Tcp, port: 80 }
    }

    fn socket(last: u8) -> SocketAddr {
        ([10, 244, 0, last], 8_080).into()
    }

    fn explained(frontend: Frontend, internal_frontend_of: Option<Frontend>) -> ExplainedFrontend {
        ExplainedFrontend {
            frontend,
            origin: Origin::ClusterAddress,
            port: 0,
            policy: TrafficPolicy::Cluster,
            internal_frontend_of,
            owner: None,
            server: None,
            real_servers: Arc::new([]),
        }
    }

    /// A frontend with these endpoints, each with the connections that IPVS counts.
    fn state(of: Frontend, endpoints: &[(u8, Option<u32>)]) -> FrontendState {
        let endpoint = |(last, active): &(u8, Option<u32>)| {
            let new = EndpointState::new(socket(*last), Use::Gone, None);
            EndpointState { weight: active.map(|_| 1), active: *active, inactive: *active, ..new }
        };
        FrontendState {
            protocol: "TCP".to_owned(),
            address: Some(of.address),
            port: of.port,
            port_name: String::new(),
            kind: FrontendKind::ClusterAddress,
            traffic_policy: "Cluster".to_owned(),
            hints: Hints::None,
            internal_frontend_of: None,
            taken_by: None,
            scheduler: None,
            persistence_seconds: None,
            is_in_kernel: Some(true),
            traffic: None,
            endpoints: endpoints.iter().map(endpoint).collect(),
            more_endpoints: 0,
        }
    }

    fn shown(state: &FrontendState) -> Vec<(u16, Option<u32>, Option<u32>)> {
        let last = |it: &EndpointState| {
            it.endpoint.to_string().split(&['.', ':'][..]).nth(3)?.parse().ok()
        };
        state.endpoints.iter().map(|it| (last(it).unwrap(), it.active, it.inactive)).collect()
    }

    fn count(active: u64, inactive: u64) -> ConnectionCount {
        ConnectionCount { active, inactive }
    }

    #[test]
    fn connections_count_once_at_the_internal_frontend_and_what_ipvs_knows_of_them_does_not() {
        let (asked, led_to) = (frontend(10), frontend(250));
        let all = [explained(asked, None), explained(led_to, Some(asked))];
        let mut states = [
            state(asked, &[(1, Some(5)), (2, Some(0))]),
            state(led_to, &[(1, Some(7)), (2, Some(7)), (3, None)]),
        ];
        let counts = [
            (asked, socket(1), count(3, 1)),
            (asked, socket(3), count(2, 0)),
            (asked, socket(9), count(1, 0)),
        ];
        add_tracked(&all, &mut states, &Tracked::of([(led_to, asked)], counts));
        assert_eq!(shown(&states[0]), [(1, Some(5), Some(5)), (2, Some(0), Some(0))]);
        let expected = [
            (1, Some(3), Some(1)),
            (2, Some(0), Some(0)),
            (3, Some(2), Some(0)),
            (9, Some(1), Some(0)),
        ];
        assert_eq!(shown(&states[1]), expected);
    }

    #[test]
    fn without_an_internal_frontend_they_are_added_to_those_that_ipvs_carries() {
        let asked = frontend(10);
        let mut states = [state(asked, &[(1, Some(5))])];
        let counts = [(asked, socket(1), count(3, 1)), (frontend(11), socket(1), count(9, 9))];
        add_tracked(&[explained(asked, None)], &mut states, &Tracked::of([], counts));
        assert_eq!(shown(&states[0]), [(1, Some(8), Some(6))]);
        // Another Service has it.
        states[0].is_in_kernel = None;
        add_tracked(&[explained(asked, None)], &mut states, &Tracked::of([], counts));
        assert_eq!(shown(&states[0]), [(1, Some(8), Some(6))]);
    }
}
