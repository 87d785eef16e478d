//! The access filter: what of the packets to service addresses, before IPVS takes them, is refused,
//! let in, or left to the host's other rules.

use std::net::IpAddr;

use ipnet::IpNet;

use super::RuleSetSettings;
use super::chains::{Writer, with_prefix};
use crate::model::Family;
use crate::sets::SetKind;

impl Writer<'_> {
    /// Rejects new connections to a service address on a port that is no service's: the address is
    /// on an interface of the node, and would lead to whatever listens on all of its addresses.
    ///
    /// Without endpoints, new connections are rejected. With endpoints, but none here, they are
    /// dropped, so that a client behind a load balancer tries again and may come to a node that has
    /// them. Both as in kube-proxy's iptables mode.
    pub(super) fn ipvs_filter(&self) -> Vec<String> {
        let unreachable = match self.family {
            Family::V4 => "icmp-port-unreachable",
            Family::V6 => "icmp6-port-unreachable",
        };
        let reject = format!("REJECT --reject-with {unreachable}");
        let mut rules = self.without_endpoints(&reject).to_vec();
        rules.push(self.frontend(SetKind::ClusterIp));
        let bound = self.lookup(SetKind::IpvsAddresses, "dst");
        if self.settings.accepted_node_ports.is_some() {
            // An accepted packet meets no later rule, so the clients that may not use a load balancer
            // are dropped here, wherever the jump to `KUBE-PROXY-FIREWALL` stands.
            rules.extend(self.firewall());
        } else if self.settings.routes.is_empty() {
            // What is for the node itself leaves before it is looked up in all other sets.
            rules.push(format!("{} -j RETURN", bound.replacen("--match-set", "! --match-set", 1)));
        }
        let frontends = [SetKind::LoadBalancer, SetKind::ExternalIp, SetKind::ExternalIpLocal];
        rules.extend(frontends.map(|kind| self.frontend(kind)));
        rules.push(format!("{} -j RETURN", self.lookup(SetKind::HealthCheckNodePort, "dst")));
        if let Some(port) = self.settings.health_port {
            // A load balancer may ask for the health of the node at its own address, which is a
            // service address here. Whether the node lets that in is for its other rules.
            rules.push(format!("-p tcp -m tcp --dport {port} -j RETURN"));
        }
        // Connections led to an internal frontend, but not those that a client opened to its address.
        let target = self.target_of_frontends();
        rules.extend(self.settings.internal_frontend_network.iter().map(|network| {
            format!("-d {} -m conntrack --ctstate DNAT -j {target}", with_prefix(network))
        }));
        rules.push(format!("-m conntrack --ctstate NEW {bound} -j {reject}"));
        rules.extend(self.outside_services(&reject));
        rules.extend(self.accepted_node_ports(None));
        rules
    }

    /// Refuses what is sent to frontends without endpoints.
    fn without_endpoints(&self, reject: &str) -> [String; 3] {
        // Most lookups find nothing, and then the state need not be asked for.
        let new = |kind, target: &str| {
            let lookup = self.commented(kind, "dst,dst");
            format!("{lookup} -m conntrack --ctstate NEW -j {target}")
        };
        [
            new(SetKind::NoLocalEndpoints, "DROP"),
            // Of ICMP errors the kernel sends one a second to each host (net.ipv4.icmp_ratelimit).
            format!("-p tcp {}", new(SetKind::NoEndpoints, "REJECT --reject-with tcp-reset")),
            // A connection of TCP has been looked up.
            format!("! -p tcp {}", new(SetKind::NoEndpoints, reject)),
        ]
    }

    /// Lets new connections to frontends in, or leaves them to the host's other rules.
    fn frontend(&self, kind: SetKind) -> String {
        let lookup = self.lookup(kind, "dst,dst");
        match self.target_of_frontends() {
            // The host goes on deciding about packets of no connection.
            "ACCEPT" => format!("{lookup} -m conntrack --ctstate NEW -j ACCEPT"),
            target => format!("{lookup} -j {target}"),
        }
    }

    fn target_of_frontends(&self) -> &'static str {
        if self.settings.accepted_node_ports.is_some() { "ACCEPT" } else { "RETURN" }
    }

    /// Lets new connections to NodePorts in: at this address of the node, or wherever NodePorts are
    /// served.
    fn accepted_node_ports(&self, at: Option<IpAddr>) -> Vec<String> {
        let Some(networks) = &self.settings.accepted_node_ports else { return Vec::new() };
        let networks: Vec<IpNet> = match at {
            None => networks.clone(),
            Some(address) if networks.iter().any(|net| net.contains(&address)) => {
                vec![IpNet::from(address)]
            }
            Some(_) => Vec::new(),
        };
        let sets = [
            ("tcp", SetKind::NodePortTcp, "dst"),
            ("udp", SetKind::NodePortUdp, "dst"),
            ("sctp", SetKind::NodePortSctp, "dst,dst"),
        ];
        let at_network = |net: &IpNet| {
            let at = match net.prefix_len() {
                0 => String::new(),
                _ => format!("-d {} ", with_prefix(net)),
            };
            sets.map(|(protocol, kind, directions)| {
                let lookup = self.lookup(kind, directions);
                format!("{at}-p {protocol} {lookup} -m conntrack --ctstate NEW -j ACCEPT")
            })
        };
        networks.iter().flat_map(at_network).collect()
    }

    /// Rejects new connections to what is local by a route and no Service's: all of it would lead
    /// to whatever listens on all of the node's addresses. An address of the node itself that
    /// happens to be inside is spared, as it is where addresses are bound one by one.
    fn outside_services(&self, reject: &str) -> Vec<String> {
        let RuleSetSettings { routes, own, .. } = self.settings;
        let own = own.iter().flat_map(|address| {
            let itself = format!("-d {} -j RETURN", with_prefix(&IpNet::from(*address)));
            self.accepted_node_ports(Some(*address)).into_iter().chain([itself])
        });
        let rejected = routes.iter().map(|route| {
            format!("-d {} -m conntrack --ctstate NEW -j {reject}", with_prefix(route))
        });
        own.chain(rejected).collect()
    }
}
