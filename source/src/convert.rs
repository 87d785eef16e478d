//! Conversion of Kubernetes objects to the model of `plan`.
//!
//! Nothing here fails for a bad field: the field is left out, and a warning names it. Only an
//! object without a name cannot be converted.

mod address;
mod interner;
mod overrides;
mod service;
mod slice;
#[cfg(test)]
mod tests;

pub use interner::Interner;

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use plan::event::Event;
use plan::model::{Node, ObjectName, OtherNode, Protocol};
use plan::scheduler::SchedulerName;

use super::object::{self, LONGEST_LABEL, Metadata, NodeSpec, NodeStatus};
use super::{Warning, WarningSubject};
use syntax::quoted::Quoted;

/// The namespace of an object that does not say one, as `kubectl apply` has it.
const DEFAULT_NAMESPACE: &str = "default";

/// Most warnings about one object. The rest is only counted.
const WARNINGS_PER_OBJECT: usize = 10;

/// Event and warnings that an object leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The object as it is to be planned with, or its removal if it is not to be.
    pub event: Event,
    /// Problems in the object.
    pub warnings: Vec<Warning>,
}

/// An object without `metadata.name`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {kind} without metadata.name")]
pub struct Nameless {
    pub kind: &'static str,
}

/// Turns objects into events, and shares the strings that many objects have in common.
#[derive(Debug, Default)]
pub struct Converter {
    interner: Interner,
    /// The scheduler of Services that choose none.
    scheduler: SchedulerName,
}

/// Collects the warnings about one object.
struct ObjectWarnings {
    subject: WarningSubject,
    warnings: Vec<Warning>,
    suppressed: usize,
}

impl Converter {
    /// A converter for a node where Services have this scheduler unless they choose another one.
    #[must_use]
    pub fn new(scheduler: SchedulerName) -> Self {
        Self { interner: Interner::default(), scheduler }
    }

    /// A Service: applied, or removed if it has no address to be reached at, is headless, an
    /// ExternalName, or left to another proxy.
    pub fn service(&mut self, object: &object::Service) -> Result<Converted, Nameless> {
        let name = self.object_name("Service", &object.metadata)?;
        let mut warnings = ObjectWarnings::new("Service", name.to_string());
        let event = match service::convert(object, name.clone(), &mut self.interner, &mut warnings)
        {
            Some(mut service) => {
                let annotations = &object.metadata.annotations;
                service.overrides = overrides::convert(annotations, &self.scheduler, &mut warnings);
                Event::ServiceApplied(Box::new(service))
            }
            None => Event::ServiceRemoved(name),
        };
        Ok(Converted { event, warnings: warnings.into_vec() })
    }

    /// An EndpointSlice: applied, or removed if it belongs to no Service or to a headless one, or
    /// has no addresses of a family.
    pub fn slice(&mut self, object: &object::EndpointSlice) -> Result<Converted, Nameless> {
        let name = self.object_name("EndpointSlice", &object.metadata)?;
        let mut warnings = ObjectWarnings::new("EndpointSlice", name.to_string());
        let event = match slice::convert(object, name.clone(), &mut self.interner, &mut warnings) {
            Some(slice) => Event::SliceApplied(Box::new(slice)),
            None => Event::SliceRemoved(name),
        };
        Ok(Converted { event, warnings: warnings.into_vec() })
    }

    /// A Node, which the caller knows to be this one.
    pub fn node(&mut self, object: &object::Node) -> Result<Converted, Nameless> {
        let Some(name) = object.metadata.name.as_deref().filter(|name| !name.is_empty()) else {
            return Err(Nameless { kind: "Node" });
        };
        let mut warnings = ObjectWarnings::new("Node", name);
        let mut addresses = Vec::new();
        for (index, text) in object.status.reachable() {
            let path = format_args!("status.addresses[{index}].address");
            addresses.extend(warnings.ok_or_warn(path, address::parse(text)));
        }
        let mut pod_cidrs = Vec::new();
        for (index, cidr) in object.spec.pod_cidrs.iter().enumerate() {
            let path = format_args!("spec.podCIDRs[{index}]");
            pod_cidrs.extend(warnings.ok_or_warn(path, address::parse_network(cidr)));
        }
        let zone = object.metadata.labels.zone.as_deref();
        let zone = zone.filter(|zone| zone.len() <= LONGEST_LABEL);
        let zone = zone.map(|zone| self.interner.intern(zone));
        let event = Event::NodeApplied(Box::new(Node { zone, addresses, pod_cidrs }));
        Ok(Converted { event, warnings: warnings.into_vec() })
    }

    /// The name of another Node, its addresses and its networks of pods, in order. Invalid ones cause no
    /// warning here: the kube-ipvs on that node warns of them.
    pub fn other_node(
        &mut self,
        metadata: &Metadata,
        spec: &NodeSpec,
        status: &NodeStatus,
    ) -> Option<(Arc<str>, OtherNode)> {
        let name = metadata.name.as_deref().filter(|name| !name.is_empty())?;
        let mut addresses: Vec<IpAddr> =
            status.reachable().filter_map(|(_, text)| address::parse(text).ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let pod_cidrs = spec.pod_cidrs.iter();
        let mut pod_cidrs: Vec<_> =
            pod_cidrs.filter_map(|text| address::parse_network(text).ok()).collect();
        pod_cidrs.sort_unstable();
        pod_cidrs.dedup();
        Some((self.interner.intern(name), OtherNode { addresses, pod_cidrs }))
    }

    /// Number of nodes that endpoints are on: up to twice as many where nodes have gone.
    #[must_use]
    pub fn n_nodes(&self) -> usize {
        self.interner.n_nodes()
    }

    /// The name of a Service or an EndpointSlice.
    pub fn object_name(
        &mut self,
        kind: &'static str,
        metadata: &Metadata,
    ) -> Result<ObjectName, Nameless> {
        let name = metadata.name.as_deref().filter(|name| !name.is_empty());
        let name = name.ok_or(Nameless { kind })?;
        let namespace = metadata.namespace.as_deref().filter(|name| !name.is_empty());
        let namespace = self.interner.intern(namespace.unwrap_or(DEFAULT_NAMESPACE));
        let name = ObjectName::new(namespace, name);
        // A Service's name is shared with its slices; a slice's own name occurs once.
        Ok(if kind == "Service" { self.interner.intern_service(name) } else { name })
    }
}

impl ObjectWarnings {
    fn new(kind: &'static str, name: impl Into<Arc<str>>) -> Self {
        let subject = WarningSubject::Object { kind, name: name.into() };
        Self { subject, warnings: Vec::new(), suppressed: 0 }
    }

    fn add(&mut self, path: impl fmt::Display, problem: impl fmt::Display) {
        if self.warnings.len() == WARNINGS_PER_OBJECT {
            self.suppressed += 1;
            return;
        }
        self.push(format!("{path}: {problem}"));
    }

    /// Returns the value; for an error, adds a warning and returns none.
    fn ok_or_warn<T>(&mut self, path: impl fmt::Display, value: Result<T, String>) -> Option<T> {
        value.map_err(|problem| self.add(path, format_args!("{problem}; left out"))).ok()
    }

    fn into_vec(mut self) -> Vec<Warning> {
        if self.suppressed > 0 {
            self.push(format!("and {} more problems", self.suppressed));
        }
        self.warnings
    }

    fn push(&mut self, text: String) {
        self.warnings.push(Warning { subject: self.subject.clone(), text });
    }
}

/// A port number. Absent and 0 mean that there is none.
fn port(number: Option<i64>) -> Result<Option<NonZeroU16>, String> {
    match number {
        None => Ok(None),
        Some(number) => match u16::try_from(number) {
            Ok(number) => Ok(NonZeroU16::new(number)),
            Err(_) => Err(format!("{number} is not a port number (1 to 65535)")),
        },
    }
}

/// A protocol; TCP is the API's default.
fn protocol(name: Option<&str>) -> Result<Protocol, String> {
    match name {
        None | Some("" | "TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(format!("{} is none of TCP, UDP and SCTP", Quoted(other))),
    }
}

/// The name of a port, of a Service or of a slice. None is the empty one.
fn port_name(name: Option<&str>) -> Result<&str, String> {
    let name = name.unwrap_or_default();
    if name.len() <= LONGEST_LABEL {
        Ok(name)
    } else {
        Err(format!("{} has more than {LONGEST_LABEL} bytes", Quoted(name)))
    }
}
