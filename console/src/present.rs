//! Manifests as they are applied to a cluster that has their Services already.
//!
//! A manifest leaves out what the API server and controllers fill in. What the cluster has of it stays:
//! cluster addresses, node ports, a load balancer's addresses, the time of creation.

use std::collections::BTreeMap;

use jiff::Timestamp;
use plan::event::Event;
use plan::model::{ObjectName, Service, ServiceName};
use plan::scheduler::SchedulerName;

use source::convert::{Converted, Converter};
use source::manifests::{Object, parse};
use source::object;

/// Namespace of an object that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// `spec.clusterIP` of a headless Service.
const HEADLESS: &str = "None";

/// Objects of manifests, and what is to be said of them.
#[derive(Debug, Default)]
pub struct Manifests {
    services: Vec<object::Service>,
    slices: Vec<object::EndpointSlice>,
    notes: Vec<String>,
}

/// Changes that manifests ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The changes.
    pub events: Vec<Event>,
    /// Fields that were filled in, objects that were left out, and facts that are not known.
    pub notes: Vec<String>,
    /// Problems of the manifests.
    pub warnings: Vec<String>,
}

impl Manifests {
    /// Reads the objects of a file.
    pub fn read(&mut self, file: &str, text: &str) -> Result<(), String> {
        let objects = parse(text.as_bytes()).map_err(|error| format!("{file}: {error}"))?;
        let mut others = BTreeMap::<String, usize>::new();
        for object in objects {
            match object {
                Object::Service(service) => self.services.push(*service),
                Object::EndpointSlice(slice) => self.slices.push(*slice),
                Object::Node(_) => *others.entry("v1/Node".to_owned()).or_default() += 1,
                Object::Other { kind } => *others.entry(kind).or_default() += 1,
                Object::Untyped(_) | Object::List(_) => {
                    return Err(format!("{file}: holds an object without apiVersion and kind"));
                }
            }
        }
        for (kind, number) in others {
            self.notes.push(format!(
                "{file}: {number} of {kind} left out: only Services and EndpointSlices are planned"
            ));
        }
        Ok(())
    }

    /// Returns the names of the Services.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceName> {
        self.services.iter().filter_map(|it| name_of(&it.metadata)).collect()
    }

    /// Returns the changes of applying them, on a cluster with these Services.
    #[must_use]
    pub fn applied(
        self,
        present: &BTreeMap<ServiceName, Service>,
        scheduler: &SchedulerName,
    ) -> Change {
        let mut converter = Converter::new(scheduler.clone());
        let mut change = Change { notes: self.notes, ..Change::default() };
        for mut service in self.services {
            let name = name_of(&service.metadata);
            let there = name.as_ref().and_then(|name| present.get(name));
            if let Some(name) = name {
                complete(&mut service, &name, there, &mut change.notes);
            }
            change.take(converter.service(&service).map_err(|error| error.to_string()));
        }
        for slice in self.slices {
            change.take(converter.slice(&slice).map_err(|error| error.to_string()));
        }
        change
    }

    /// Returns the changes of deleting them.
    #[must_use]
    pub fn deleted(self) -> Change {
        let mut change = Change { notes: self.notes, ..Change::default() };
        let services = self.services.iter().map(|it| name_of(&it.metadata));
        let services = services.map(|name| name.map(Event::ServiceRemoved));
        let slices = self.slices.iter().map(|it| name_of(&it.metadata));
        let slices = slices.map(|name| name.map(Event::SliceRemoved));
        for event in services.chain(slices) {
            match event {
                Some(event) => change.events.push(event),
                None => change.warnings.push("an object without metadata.name".to_owned()),
            }
        }
        change
    }
}

impl Change {
    fn take(&mut self, converted: Result<Converted, String>) {
        match converted {
            Ok(Converted { event, warnings }) => {
                self.events.push(event);
                self.warnings.extend(warnings.iter().map(ToString::to_string));
            }
            Err(nameless) => self.warnings.push(nameless),
        }
    }
}

fn name_of(metadata: &object::Metadata) -> Option<ObjectName> {
    let name = metadata.name.as_deref().filter(|name| !name.is_empty())?;
    let namespace = metadata.namespace.as_deref().filter(|it| !it.is_empty());
    Some(ObjectName::new(namespace.unwrap_or(DEFAULT_NAMESPACE), name))
}

/// Fills in what the cluster has of a Service, or would give it.
fn complete(
    service: &mut object::Service,
    name: &ServiceName,
    there: Option<&Service>,
    notes: &mut Vec<String>,
) {
    if service.metadata.creation_timestamp.is_none() {
        let created = there.and_then(|it| Timestamp::from_second(it.created).ok());
        let created = created.unwrap_or_else(Timestamp::now);
        service.metadata.creation_timestamp = Some(created.to_string());
    }
    let spec = &mut service.spec;
    let is_balanced = spec.kind.as_deref() != Some("ExternalName")
        && spec.cluster_ip.as_deref() != Some(HEADLESS)
        && !spec.cluster_ips.iter().any(|it| it == HEADLESS);
    if !is_balanced {
        return;
    }
    if spec.cluster_ip.as_deref().unwrap_or_default().is_empty() && spec.cluster_ips.is_empty() {
        let v4 = there.and_then(|it| it.cluster_v4).map(|it| it.to_string());
        let v6 = there.and_then(|it| it.cluster_v6).map(|it| it.to_string());
        spec.cluster_ips = v4.into_iter().chain(v6).collect();
        spec.cluster_ip = spec.cluster_ips.first().cloned();
        // The families are those of the addresses.
        spec.ip_families.clear();
        notes.push(match spec.cluster_ips.join(" and ") {
            none if none.is_empty() => format!(
                "{name}: the API server chooses its cluster address, which is not known yet: nothing \
                 is planned for it; with spec.clusterIP, it is"
            ),
            kept => format!("{name}: keeps its cluster address {kept}"),
        });
    }
    complete_node_ports(spec, name, there, notes);
    if spec.health_check_node_port.is_none() {
        let port = there.and_then(|it| it.health_check_node_port);
        spec.health_check_node_port = port.map(|port| port.get().into());
    }
    if spec.kind.as_deref() == Some("LoadBalancer")
        && service.status.load_balancer.ingress.is_empty()
    {
        let addresses = there.into_iter().flat_map(|it| &it.load_balancer);
        let ingress = addresses.map(|address| object::LoadBalancerIngress {
            ip: Some(address.to_string()),
            ip_mode: None,
        });
        service.status.load_balancer.ingress = ingress.collect();
        if service.status.load_balancer.ingress.is_empty() {
            notes.push(format!(
                "{name}: its load balancer's addresses are not known yet, and are planned when it has \
                 some"
            ));
        }
    }
}

fn complete_node_ports(
    spec: &mut object::ServiceSpec,
    name: &ServiceName,
    there: Option<&Service>,
    notes: &mut Vec<String>,
) {
    if !matches!(spec.kind.as_deref(), Some("NodePort" | "LoadBalancer")) {
        return;
    }
    let mut n_unknown = 0;
    for port in spec.ports.iter_mut().filter(|port| port.node_port.is_none_or(|it| it == 0)) {
        let is_same = |former: &&plan::model::ServicePort| {
            port.port == Some(former.port.get().into())
                && port.protocol.as_deref().unwrap_or("TCP") == former.protocol.to_string()
        };
        let mut former = there.into_iter().flat_map(|it| &it.ports);
        let kept = former.find(is_same).and_then(|former| former.node_port);
        port.node_port = kept.map(|port| port.get().into());
        n_unknown += usize::from(kept.is_none());
    }
    if n_unknown > 0 {
        notes.push(format!(
            "{name}: the API server chooses {n_unknown} of its node ports, which are not planned; with \
             nodePort, they are"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use plan::model::{Protocol, ServicePort};

    use super::*;

    const WEB: &str = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
        spec: {type: LoadBalancer, ports: [{name: a, port: 80}, {name: b, port: 443}]}}";

    fn read(text: &str) -> Manifests {
        let mut manifests = Manifests::default();
        manifests.read("web.yaml", text).unwrap();
        manifests
    }

    fn present() -> BTreeMap<ServiceName, Service> {
        let port = |port| NonZeroU16::new(port);
        let name = ObjectName::new("shop", "web");
        let service = Service {
            created: 7,
            cluster_v4: Some([10, 96, 0, 10].into()),
            load_balancer: vec![[203, 0, 113, 5].into()],
            ports: vec![ServicePort {
                name: "".into(),
                protocol: Protocol::Tcp,
                port: port(80).unwrap(),
                node_port: port(30_080),
            }],
            ..Service::new(name.clone())
        };
        [(name, service)].into()
    }

    #[test]
    fn a_service_keeps_what_the_cluster_gave_it() {
        let manifests = read(WEB);
        assert_eq!(manifests.services(), [ObjectName::new("shop", "web")]);
        let Change { events, notes, warnings } =
            manifests.applied(&present(), &SchedulerName::default());
        let [Event::ServiceApplied(service)] = &*events else { panic!("{events:?}") };
        assert_eq!(service.created, 7);
        assert_eq!(service.cluster_v4, Some([10, 96, 0, 10].into()));
        assert_eq!(service.load_balancer, ["203.0.113.5".parse::<std::net::IpAddr>().unwrap()]);
        let node_ports: Vec<_> = service.ports.iter().map(|it| it.node_port).collect();
        assert_eq!(node_ports, [NonZeroU16::new(30_080), None]);
        assert_eq!(warnings, [""; 0]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("keeps its cluster address 10.96.0.10"), "{notes:?}");
        assert!(notes[1].contains("chooses 1 of its node ports"), "{notes:?}");
    }

    #[test]
    fn what_the_api_server_will_choose_is_said_to_be_unknown() {
        let change = read(WEB).applied(&BTreeMap::new(), &SchedulerName::default());
        assert_eq!(change.events, [Event::ServiceRemoved(ObjectName::new("shop", "web"))]);
        assert!(change.notes.iter().any(|it| it.contains("not known yet")), "{:?}", change.notes);
    }

    #[test]
    fn deleting_needs_only_names_and_other_kinds_are_left_out() {
        let slice =
            "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1}}";
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}}";
        let change = read(&[WEB, slice, pod].join("\n---\n")).deleted();
        let names = [ObjectName::new("shop", "web"), ObjectName::new("default", "web-1")];
        let [service, slice] = names;
        assert_eq!(change.events, [Event::ServiceRemoved(service), Event::SliceRemoved(slice)]);
        assert_eq!(
            change.notes,
            ["web.yaml: 1 of v1/Pod left out: only Services and EndpointSlices are planned"]
        );
        let said = Manifests::default().read("x.yaml", "{a: [}").unwrap_err();
        assert!(said.starts_with("x.yaml: "), "{said}");
    }
}
