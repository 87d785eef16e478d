//! Observer that warns of NodePorts at very many addresses of this node.

use plan::planner::Planner;
use tracing::warn;

use crate::events::{EventRecorder, NewEvent, Reason, Regarding};
use reconcile::observer::{Observer, Report};

/// Number of virtual servers for NodePorts from which on there is a warning. They are some 15 MB.
const MANY: usize = 20_000;

/// Warns when very many virtual servers are for NodePorts, and again when they are twice as many.
#[derive(Debug)]
pub(super) struct NodePortObserver {
    recorder: EventRecorder,
    /// Number of them at which there is a warning next.
    limit: usize,
}

impl NodePortObserver {
    pub(super) fn new(recorder: EventRecorder) -> Self {
        Self { recorder, limit: MANY }
    }

    /// Returns the warning, if there is one now.
    fn warning(&mut self, planner: &Planner) -> Option<String> {
        let servers = planner.n_node_port_servers();
        if servers < self.limit {
            return None;
        }
        self.limit = servers.saturating_mul(2);
        let addresses = planner.count_node_port_addresses();
        Some(format!(
            "NodePorts take {servers} virtual servers, one for each of {} addresses of this node \
             ({} of them load balancer IPs or external IPs of Services). They cost memory and \
             startup time. To serve NodePorts at the node's own address only, set \
             nodePortAddresses: [primary]",
            addresses.all, addresses.of_services
        ))
    }
}

impl Observer for NodePortObserver {
    fn report(&mut self, report: &Report<'_>) {
        let Report::Planned { planner, .. } = report else { return };
        let Some(note) = self.warning(planner) else { return };
        warn!("{note}");
        self.recorder.record(NewEvent::warning(
            Regarding::Node,
            Reason::ManyNodePortAddresses,
            "Plan",
            note,
        ));
    }
}

#[cfg(test)]
mod tests {
    use plan::event::Event;
    use plan::model::{
        Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServiceKind,
        ServicePort, SlicePort,
    };
    use plan::settings::Settings;

    use super::*;

    #[test]
    fn it_warns_once_and_again_when_there_are_twice_as_many() {
        let mut observer = NodePortObserver::new(EventRecorder::disabled());
        let mut planner = Planner::new(Settings::new("node-1"));
        let port = |port: u16| ServicePort {
            name: port.to_string().into(),
            protocol: Protocol::Tcp,
            port: port.try_into().unwrap(),
            node_port: port.try_into().ok(),
        };
        let name = ObjectName::new("ns", "s");
        let service = Service {
            kind: ServiceKind::LoadBalancer,
            cluster_v4: Some([10, 96, 0, 1].into()),
            ports: (30_000..30_100).map(port).collect(),
            ..Service::new(name.clone())
        };
        let slice = EndpointSlice {
            name: name.clone(),
            service: name,
            family: Family::V4,
            ports: service
                .ports
                .iter()
                .map(|it| SlicePort { name: it.name.clone(), protocol: it.protocol, port: it.port })
                .collect(),
            endpoints: vec![Endpoint {
                address: [10, 244, 0, 1].into(),
                conditions: Conditions::default(),
                node: None,
                zone: None,
                hints: None,
            }],
        };
        planner.apply(Event::ServiceApplied(Box::new(service)));
        planner.apply(Event::SliceApplied(Box::new(slice)));
        let mut warnings = Vec::new();
        for addresses in [1, 199, 200, 201, 399, 400] {
            let local =
                (1..=addresses).map(|it| std::net::Ipv4Addr::from_bits(0xC633_6400 + it).into());
            planner.apply(Event::LocalAddresses(local.collect()));
            planner.plan();
            warnings.extend(observer.warning(&planner).map(|warning| (addresses, warning)));
        }
        let [(200, first), (400, _)] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(first.starts_with("NodePorts take 20000 virtual servers"), "{first}");
    }
}
