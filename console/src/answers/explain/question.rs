//! Questions: the frontends that are asked for, and clients of each.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use plan::claimants::Origin as Claimant;
use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::{Family, Protocol, ServiceName, ServicePort};
use plan::planner::{ExplainedFrontend, ExplainedService, Planner};
use plan::trace::{Client, Origin};

use super::outcome::Followed;
use super::{Asked, ClientExplanation, ClientPlace, MOST_ENDPOINTS};
use crate::answers::{FailureAnswer, Reason, cut};
use source::pods::FoundPod;

/// Most frontends that are explained at once.
const MOST_FRONTENDS: usize = 32;

/// Ports and clients that are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    port: Option<String>,
    from: From,
    /// Way by which the packets come of a client that is asked for by its address, as the node's routes have
    /// it; none: the routes were not asked.
    origin: Option<Origin>,
}

/// Clients that are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    /// One of each kind.
    Each,
    Pod,
    Node,
    Outside,
    Address(IpAddr),
    Named(FoundPod),
}

/// Frontends and clients of a Service that are to be explained.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) explained: ExplainedService,
    pub(super) mode: Mode,
    pub(super) node: Arc<str>,
    pub(super) targets: Vec<Target>,
    /// Number of frontends that are left out.
    pub(super) more: usize,
    /// The pod that is asked for by its name.
    pub(super) pod: Option<FoundPod>,
}

/// A frontend, and clients of it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) frontend: ExplainedFrontend,
    /// An address of the node, for a node port at all of them.
    address: IpAddr,
    pub(super) more_addresses: usize,
    pub(super) source_ranges: Vec<IpNet>,
    pub(super) clients: Vec<Asker>,
}

/// A client of a frontend.
#[derive(Debug)]
pub(super) struct Asker {
    place: ClientPlace,
    /// None: no address of such a client is known.
    pub(super) client: Option<Client>,
    is_example: bool,
    pub(super) outcomes: Option<Followed>,
    /// Source of the node's own connections.
    own_source: Option<IpAddr>,
    /// Way by which its packets come; none: that by which those of its kind do.
    pub(super) origin: Option<Origin>,
}

impl Question {
    /// Reads what is asked for.
    pub(super) fn read(asked: &Asked, pod: Option<FoundPod>) -> Result<Self, FailureAnswer> {
        let from = match (asked.from.as_deref(), pod) {
            (None | Some("pod"), Some(pod)) => From::Named(pod),
            (Some(other), Some(_)) => {
                let text = format!("{other:?} takes no name: only pod does");
                return Err(FailureAnswer::new(Reason::BadRequest, text));
            }
            (from, None) => Self::client(from)?,
        };
        Ok(Self { port: asked.port.clone(), from, origin: None })
    }

    /// The address by which the client is asked for; none: by a word or a name.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.from {
            From::Address(address) => Some(address),
            _ => None,
        }
    }

    /// The same for a client whose packets come in this way.
    pub(super) fn by(self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    fn client(from: Option<&str>) -> Result<From, FailureAnswer> {
        Ok(match from {
            None => From::Each,
            Some("pod") => From::Pod,
            Some("node") => From::Node,
            Some("outside") => From::Outside,
            Some(text) => From::Address(text.parse().map_err(|_| {
                FailureAnswer::new(
                    Reason::BadRequest,
                    format!("{text:?} is not a client: write pod, node, outside or an IP address"),
                )
            })?),
        })
    }

    fn is_about(&self, port: &ServicePort) -> bool {
        self.port
            .as_deref()
            .is_none_or(|wanted| *port.name == *wanted || wanted.parse() == Ok(port.port.get()))
    }
}

impl From {
    /// Addresses that the client has; none: it has one of each family.
    fn addresses(&self) -> &[IpAddr] {
        match self {
            Self::Address(address) => std::slice::from_ref(address),
            Self::Named(pod) => &pod.addresses,
            Self::Each | Self::Pod | Self::Node | Self::Outside => &[],
        }
    }
}

impl Chosen {
    /// Chooses frontends and clients of a Service.
    ///
    /// # Errors
    /// When the Service has no such port, or no address of the client's family.
    pub(super) fn new(
        planner: &Planner,
        explained: ExplainedService,
        question: &Question,
    ) -> Result<Self, FailureAnswer> {
        let service = &explained.service;
        if !service.ports.iter().any(|port| question.is_about(port)) {
            return Err(no_such_port(&explained, question));
        }
        let addresses = question.from.addresses();
        let families: Vec<Family> = addresses.iter().map(|it| Family::of(*it)).collect();
        let is_asked_for = |it: &&ExplainedFrontend| {
            let is_of_port = service.ports.get(it.port).is_some_and(|it| question.is_about(it));
            // Clients are led to an internal frontend, and do not ask for it.
            let is_asked = it.internal_frontend_of.is_none();
            let has_family = families.is_empty() || families.contains(&it.frontend.family());
            is_of_port && is_asked && has_family
        };
        let mut targets: Vec<Target> = Vec::new();
        let mut node_ports = HashMap::default();
        for frontend in explained.frontends.iter().filter(is_asked_for) {
            let node_port = node_port(frontend);
            let same = node_port.and_then(|it| node_ports.get(&it).copied());
            match same.and_then(|place: usize| targets.get_mut(place)) {
                Some(same) => same.add_address(planner, frontend),
                None => {
                    if let Some(target) = Target::new(planner, &explained, frontend) {
                        node_ports.extend(node_port.map(|it| (it, targets.len())));
                        targets.push(target);
                    }
                }
            }
        }
        if targets.is_empty() && !families.is_empty() {
            let families: Vec<String> = families.iter().map(ToString::to_string).collect();
            let families = families.join(" or ");
            let message =
                format!("Service {} is not served by {families} on this node", service.name);
            return Err(FailureAnswer::new(Reason::NotFound, message));
        }
        let more = targets.len().saturating_sub(MOST_FRONTENDS);
        targets.truncate(MOST_FRONTENDS);
        for target in &mut targets {
            target.clients = target.askers(planner, &explained, question);
        }
        let settings = planner.settings();
        let (mode, node) = (settings.mode, Arc::clone(&settings.node_name));
        let pod = match &question.from {
            From::Named(pod) => Some(pod.clone()),
            _ => None,
        };
        Ok(Self { explained, mode, node, targets, more, pod })
    }
}

fn no_such_port(explained: &ExplainedService, question: &Question) -> FailureAnswer {
    let port = |it: &ServicePort| match &*it.name {
        "" => format!("{}/{}", it.port, it.protocol),
        name => format!("{name} ({}/{})", it.port, it.protocol),
    };
    let mut ports: Vec<String> = explained.service.ports.iter().map(port).collect();
    let n_more = cut(&mut ports, MOST_FRONTENDS);
    ports.extend((n_more > 0).then(|| format!("and {n_more} more")));
    let message = format!(
        "Service {} has no port {}; it has {}",
        explained.service.name,
        question.port.as_deref().unwrap_or_default(),
        ports.join(", ")
    );
    FailureAnswer::new(Reason::NotFound, message)
}

/// Returns the node port of a frontend, and who has it, whatever address of the node the frontend is at.
fn node_port(
    frontend: &ExplainedFrontend,
) -> Option<(Family, Protocol, u16, Option<&ServiceName>)> {
    let id = &frontend.frontend;
    let node_port = (id.family(), id.protocol, id.port, frontend.owner.as_ref());
    (frontend.origin == Claimant::NodePort).then_some(node_port)
}

impl Target {
    fn new(
        planner: &Planner,
        explained: &ExplainedService,
        frontend: &ExplainedFrontend,
    ) -> Option<Self> {
        let family = frontend.frontend.family();
        let address = if frontend.is_anywhere_on_node() {
            let of_family = |it: &&IpAddr| Family::of(**it) == family && !it.is_loopback();
            let any = || planner.local_addresses().iter().filter(of_family).min().copied();
            planner.own_address(family).or_else(any)?
        } else {
            frontend.frontend.address
        };
        let is_restricted = frontend.origin == Claimant::LoadBalancer;
        let ranges = explained.source_ranges.iter().copied();
        let ranges = ranges.filter(|net| is_restricted && Family::of_net(net) == family);
        Some(Self {
            frontend: frontend.clone(),
            address,
            more_addresses: 0,
            source_ranges: ranges.collect(),
            clients: Vec::new(),
        })
    }

    pub(super) fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.frontend.frontend.port)
    }

    /// Adds an address of a node port. The one by which the cluster knows the node stands for all.
    fn add_address(&mut self, planner: &Planner, frontend: &ExplainedFrontend) {
        self.more_addresses += 1;
        let address = frontend.frontend.address;
        if planner.own_address(Family::of(address)) == Some(address) {
            self.address = address;
            self.frontend = frontend.clone();
        }
    }

    fn askers(
        &self,
        planner: &Planner,
        explained: &ExplainedService,
        question: &Question,
    ) -> Vec<Asker> {
        // What becomes of packets to another Service's frontend is explained there.
        if self.frontend.owner.as_ref() != Some(&explained.service.name) {
            return Vec::new();
        }
        let family = Family::of(self.address);
        let own_source = planner.own_source(self.address);
        let asker = |place, client, is_example| Asker {
            place,
            client,
            is_example,
            outcomes: None,
            own_source,
            origin: question.origin.clone(),
        };
        let pod = || asker(ClientPlace::Pod, planner.example_pod(family), true);
        let node =
            |is_example| asker(ClientPlace::Node, own_source.map(|_| Client::Node), is_example);
        let outside = || {
            let outside_of = &self.source_ranges;
            asker(ClientPlace::Outside, planner.example_outside(family, outside_of), true)
        };
        // The first address of the first range.
        let inside = || {
            let address = self.source_ranges.iter().find_map(|net| net.hosts().next());
            let client = address.map(|address| planner.client_at(address));
            client.map(|client| asker(client.into(), Some(client), true))
        };
        match &question.from {
            From::Pod => vec![pod()],
            From::Node => vec![node(false)],
            From::Outside => inside().into_iter().chain([outside()]).collect(),
            From::Each => {
                [pod(), node(true)].into_iter().chain(inside()).chain([outside()]).collect()
            }
            From::Address(address) => {
                let client = match &question.origin {
                    Some(origin) => planner.client_by(*address, origin),
                    None => planner.client_at(*address),
                };
                vec![asker(client.into(), Some(client), false)]
            }
            From::Named(pod) => {
                let mut of_family = pod.addresses.iter().filter(|it| Family::of(**it) == family);
                let client = of_family.next().map(|address| match planner.client_at(*address) {
                    // Its slice says where it is, whatever the Node says of its networks.
                    Client::Pod(address) | Client::Elsewhere(address) => {
                        let here = &*planner.settings().node_name;
                        if pod.node.as_deref() == Some(here) {
                            Client::Pod(address)
                        } else {
                            Client::Elsewhere(address)
                        }
                    }
                    Client::Node => Client::Node,
                });
                client.map(|client| asker(client.into(), Some(client), false)).into_iter().collect()
            }
        }
    }
}

impl Asker {
    /// The client's address; none: it is not known.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.client.and_then(|client| match client {
            Client::Pod(address) | Client::Elsewhere(address) => Some(address),
            Client::Node => self.own_source,
        })
    }

    pub(super) fn finish(self, source_ranges: &[IpNet]) -> ClientExplanation {
        let address = self.address();
        // The node may use an address if the ranges have its own, whatever source it takes.
        let ranged = address.filter(|_| {
            !source_ranges.is_empty() && self.client.is_some_and(|it| it != Client::Node)
        });
        let is_inside = |address| source_ranges.iter().any(|net| net.contains(&address));
        let none_known = match self.place {
            ClientPlace::Pod => "this node's pod network is not known: write a pod's address",
            ClientPlace::Node => "this node's addresses are not known",
            ClientPlace::Outside => "the source ranges contain every example of an outside address",
        };
        let (mut outcomes, unknown) = match self.outcomes {
            Some(Ok(outcomes)) => (outcomes, None),
            Some(Err(reason)) => (Vec::new(), Some(reason)),
            None => (Vec::new(), Some(none_known.to_owned())),
        };
        for outcome in &mut outcomes {
            outcome.more_endpoints = cut(&mut outcome.endpoints, MOST_ENDPOINTS);
        }
        ClientExplanation {
            client: self.place,
            address,
            is_example: self.is_example,
            is_in_source_range: ranged.map(is_inside),
            outcomes,
            unknown,
        }
    }
}
