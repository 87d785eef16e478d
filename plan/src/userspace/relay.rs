//! Ports that the relay listens on, and its reports of them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::RelayProtocol;
use crate::model::{Family, ServiceName, TrafficPolicy};

/// A Service port in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPort {
    /// Name of the Service's port, empty if it has none.
    pub name: Arc<str>,
    pub protocol: RelayProtocol,
    /// Address of the node to listen on, never the unspecified one: the answers to UDP clients have
    /// to leave from it.
    pub address: IpAddr,
    /// Endpoints of its family.
    pub endpoints: Arc<[SocketAddr]>,
    /// Endpoints for clients that get this node's only, on a proxy port of their own; none: there
    /// are no such clients.
    pub local_endpoints: Option<Arc<[SocketAddr]>>,
    /// Time for which a client is led to the same endpoint, in seconds; none: it is not.
    pub affinity_seconds: Option<u32>,
    /// Time in seconds that TCP connections to an endpoint that goes have to end, as the Service has it; none:
    /// as the operator has it.
    pub drain_seconds: Option<u32>,
}

/// Identity of a proxy port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxyPortId {
    /// The Service.
    pub service: ServiceName,
    /// Name of its port, empty if it has none.
    pub port: Arc<str>,
    pub protocol: RelayProtocol,
    pub family: Family,
    /// Choice of its clients: all endpoints or this node's only.
    pub policy: TrafficPolicy,
}

/// State of a proxy port, as the relay has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyPortState {
    /// It is listened on here.
    Listening(SocketAddr),
    /// There is none, and it is tried again.
    Failed,
    /// It is no longer listened on.
    Closed,
}

/// The proxy ports of a Service that are listened on, or cannot be.
pub type ProxyPorts = BTreeMap<ProxyPortId, ProxyPortState>;

impl RelayPort {
    /// Returns the identities of its proxy ports, each with its endpoints. If all of its clients get this
    /// node's endpoints, there is no port for others.
    pub fn proxy_ports(
        &self,
        service: &ServiceName,
    ) -> impl Iterator<Item = (ProxyPortId, &Arc<[SocketAddr]>)> {
        let id = |policy| ProxyPortId {
            service: service.clone(),
            port: Arc::clone(&self.name),
            protocol: self.protocol,
            family: Family::of(self.address),
            policy,
        };
        let is_for_all = !self.endpoints.is_empty() || self.local_endpoints.is_none();
        let cluster = is_for_all.then(|| (id(TrafficPolicy::Cluster), &self.endpoints));
        let local = self.local_endpoints.as_ref();
        let local = local.map(|endpoints| (id(TrafficPolicy::Local), endpoints));
        cluster.into_iter().chain(local)
    }
}

impl fmt::Display for ProxyPortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, port, protocol, family, policy } = self;
        let colon = if port.is_empty() { "" } else { ":" };
        write!(f, "{service}{colon}{port} ({protocol}, {family}")?;
        if *policy == TrafficPolicy::Local {
            f.write_str(", this node's endpoints")?;
        }
        f.write_str(")")
    }
}
