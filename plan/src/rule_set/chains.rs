//! The text of the rules.

use ipnet::IpNet;

use super::{Chain, LocalTraffic, RuleSetSettings, Table};
use crate::model::Family;
use crate::sets::{SetId, SetKind};

/// Comment of our rule in `KUBE-FORWARD`.
pub const UNANSWERED: &str = "kubernetes forwarding rule for unanswered connections";

/// Chain of nat that leads to internal frontends; empty where the host cannot do them.
pub const INTERNAL_FRONTEND_CHAIN: &str = "KUBE-INTERNAL-FRONTEND";

/// Writes the rules of one family.
pub(super) struct Writer<'a> {
    pub(super) family: Family,
    pub(super) settings: &'a RuleSetSettings,
}

/// Every chain of IPVS mode, in the order in which kube-proxy makes them.
pub(crate) fn ipvs_chains(family: Family, settings: &RuleSetSettings) -> Vec<Chain> {
    let writer = Writer { family, settings };
    let nat = |name, rules| Chain { table: Table::Nat, name, rules };
    let mangle = |name, rules| Chain { table: Table::Mangle, name, rules };
    let filter = |name, rules| Chain { table: Table::Filter, name, rules };
    vec![
        nat("KUBE-SERVICES", writer.services()),
        nat("KUBE-POSTROUTING", writer.postrouting()),
        nat("KUBE-NODE-PORT", writer.node_port()),
        nat("KUBE-LOAD-BALANCER", writer.load_balancer()),
        nat("KUBE-MARK-MASQ", writer.mark_masquerade()),
        nat(INTERNAL_FRONTEND_CHAIN, writer.lead_to_internal_frontends()),
        // Of what the node itself sends: IPVS takes that at OUTPUT before `filter` sees it.
        mangle("KUBE-PROXY-FIREWALL", writer.firewall()),
        mangle("KUBE-SOURCE-RANGES-FIREWALL", writer.source_ranges()),
        filter("KUBE-FORWARD", writer.forward()),
        filter("KUBE-NODE-PORT", writer.health_check()),
        filter("KUBE-PROXY-FIREWALL", writer.firewall()),
        filter("KUBE-SOURCE-RANGES-FIREWALL", writer.source_ranges()),
        filter("KUBE-IPVS-FILTER", writer.ipvs_filter()),
        // kube-proxy has a rule here for every load-balancer address and port that this node may
        // not use, which makes the number of rules grow with the services. Ours are in `mangle`,
        // before IPVS; so this chain is there, empty, and nothing leads to it.
        filter("KUBE-IPVS-OUT-FILTER", Vec::new()),
    ]
}

/// Returns kube-proxy's comment for a rule that looks into a set.
const fn comment(kind: SetKind) -> &'static str {
    match kind {
        SetKind::LoopBack => {
            "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"
        }
        SetKind::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
        SetKind::ExternalIp => {
            "Kubernetes service external ip + port for masquerade and filter purpose"
        }
        SetKind::ExternalIpLocal => {
            "Kubernetes service external ip + port with externalTrafficPolicy=local"
        }
        SetKind::LoadBalancer => "Kubernetes service lb portal",
        SetKind::LoadBalancerFirewall => {
            "Kubernetes service load balancer ip + port for load balancer with sourceRange"
        }
        SetKind::LoadBalancerLocal => {
            "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
        }
        SetKind::LoadBalancerSourceIp => {
            "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
        }
        SetKind::LoadBalancerSourceCidr => {
            "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
        }
        SetKind::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
        SetKind::NodePortLocalTcp => {
            "Kubernetes nodeport TCP port with externalTrafficPolicy=local"
        }
        SetKind::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
        SetKind::NodePortLocalUdp => {
            "Kubernetes nodeport UDP port with externalTrafficPolicy=local"
        }
        SetKind::NodePortSctp => {
            r"Kubernetes nodeport SCTP port for masquerade purpose with type \'hash ip:port\'"
        }
        SetKind::NodePortLocalSctp => {
            r"Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type \'hash ip:port\'"
        }
        SetKind::HealthCheckNodePort => "Kubernetes health check node port",
        SetKind::IpvsAddresses => "Kubernetes addresses on the ipvs interface",
        SetKind::InternalFrontend => {
            "Kubernetes service external ip + port of which clients in the cluster get all endpoints"
        }
        SetKind::LocalInternalFrontend => {
            "Kubernetes service external ip + port of which other clients get local endpoints"
        }
        SetKind::NoEndpoints => "Kubernetes service ip + port without endpoints",
        SetKind::NoLocalEndpoints => "Kubernetes service ip + port without endpoints on this node",
    }
}

/// Looks into a set and says what for.
fn commented(set: SetId, directions: &str) -> String {
    format!("-m comment --comment \"{}\" -m set --match-set {set} {directions}", comment(set.kind))
}

/// The rule of `KUBE-POSTROUTING` that masquerades a pod which reaches itself.
pub(super) fn hairpin(family: Family) -> String {
    let set = SetId { kind: SetKind::LoopBack, family };
    format!("{} -j MASQUERADE", commented(set, "dst,dst,src"))
}

impl Writer<'_> {
    /// Looks into a set.
    pub(super) fn lookup(&self, kind: SetKind, directions: &str) -> String {
        let set = SetId { kind, family: self.family };
        format!("-m set --match-set {set} {directions}")
    }

    /// Looks into a set and says what for.
    pub(super) fn commented(&self, kind: SetKind, directions: &str) -> String {
        commented(SetId { kind, family: self.family }, directions)
    }

    fn services(&self) -> Vec<String> {
        let loopback = match self.family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        let load_balancer = self.commented(SetKind::LoadBalancer, "dst,dst");
        let external = self.commented(SetKind::ExternalIp, "dst,dst");
        let external_local = self.commented(SetKind::ExternalIpLocal, "dst,dst");
        // Accepted is what comes from outside (neither by a bridge's port nor from the node
        // itself), and what is for an address of this node.
        let outside = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT";
        let node = "-m addrtype --dst-type LOCAL -j ACCEPT";

        let mut rules = vec![format!("-s {loopback} -j RETURN")];
        // Most connections are to cluster addresses, so these are looked up first. No other set has an
        // address and port of these.
        rules.extend(self.cluster_masquerade());
        // Accepting ends the traversal: no other program's DNAT may take service traffic.
        rules.push(format!("{} -j ACCEPT", self.lookup(SetKind::ClusterIp, "dst,dst")));
        // All other addresses of Services are local as well. Most other connections are not to the
        // node, and leave before they are looked up in all other sets.
        rules.push("-m addrtype ! --dst-type LOCAL -j RETURN".to_owned());
        rules.extend(self.jump_to_internal_frontends());
        rules.extend([
            format!("{load_balancer} -j KUBE-LOAD-BALANCER"),
            format!("{} -j ACCEPT", self.lookup(SetKind::LoadBalancer, "dst,dst")),
            format!("{external} -j KUBE-MARK-MASQ"),
            format!("{external} {outside}"),
            format!("{external} {node}"),
            format!("{external_local} {outside}"),
            format!("{external_local} {node}"),
            // Service addresses are local as well, and a set of node ports knows ports only. So
            // these have passed by now: kube-proxy, which asks for node ports first, masquerades a
            // service port that is another Service's node port.
            "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT".to_owned(),
        ]);
        rules
    }

    fn jump_to_internal_frontends(&self) -> Option<String> {
        self.settings.internal_frontend_network?;
        let lookup = self.commented(SetKind::InternalFrontend, "dst,dst");
        Some(format!("{lookup} -j {INTERNAL_FRONTEND_CHAIN}"))
    }

    /// Returns the rules that mark traffic to cluster IPs for masquerading.
    fn cluster_masquerade(&self) -> Vec<String> {
        let marked = |not_local: &str, directions| {
            let cluster = self.commented(SetKind::ClusterIp, directions);
            format!("{not_local}{cluster} -j KUBE-MARK-MASQ")
        };
        // The node's own connections that took a cluster IP as their source: the answers to those
        // would never come back. No pod has such an address.
        let own = || marked("", "src,dst");
        match &self.settings.local {
            _ if self.settings.masquerade_all => vec![marked("", "dst,dst")],
            LocalTraffic::Unknown => vec![own()],
            // The network may contain the service range, and then the node's own connections count as
            // pods'. If it is everything, iptables-nft refuses `! -s 0.0.0.0/0`, which matches nothing.
            LocalTraffic::Cidr(net) | LocalTraffic::ClusterCidr { cluster: net, .. } => {
                let remote = (net.prefix_len() > 0)
                    .then(|| marked(&format!("! -s {} ", with_prefix(net)), "dst,dst"));
                remote.into_iter().chain([own()]).collect()
            }
            LocalTraffic::Bridge(name) => vec![marked(&format!("! -i {name} "), "dst,dst")],
            LocalTraffic::Prefix(name) => vec![marked(&format!("! -i {name}+ "), "dst,dst")],
        }
    }

    fn postrouting(&self) -> Vec<String> {
        let [_, masquerade] = self.settings.masquerading();
        [hairpin(self.family)].into_iter().chain(masquerade).collect()
    }

    fn node_port(&self) -> Vec<String> {
        let rule = |protocol, kind, directions, target| {
            format!("-p {protocol} {} -j {target}", self.commented(kind, directions))
        };
        vec![
            rule("tcp", SetKind::NodePortLocalTcp, "dst", "RETURN"),
            rule("tcp", SetKind::NodePortTcp, "dst", "KUBE-MARK-MASQ"),
            rule("udp", SetKind::NodePortLocalUdp, "dst", "RETURN"),
            rule("udp", SetKind::NodePortUdp, "dst", "KUBE-MARK-MASQ"),
            rule("sctp", SetKind::NodePortLocalSctp, "dst,dst", "RETURN"),
            rule("sctp", SetKind::NodePortSctp, "dst,dst", "KUBE-MARK-MASQ"),
        ]
    }

    fn load_balancer(&self) -> Vec<String> {
        vec![
            format!("{} -j RETURN", self.commented(SetKind::LoadBalancerLocal, "dst,dst")),
            "-j KUBE-MARK-MASQ".to_owned(),
        ]
    }

    fn mark_masquerade(&self) -> Vec<String> {
        let [mark, _] = self.settings.masquerading();
        mark
    }

    /// Leads the cluster's own clients, which are this node's pods and the node itself, from a
    /// frontend to its internal frontend. Neither the one's packet mark nor anybody's is touched: the
    /// address is what IPVS goes by. Connection tracking remembers the way for the rest of the
    /// connection.
    fn lead_to_internal_frontends(&self) -> Vec<String> {
        let Some(network) = self.settings.internal_frontend_network else { return Vec::new() };
        let to_internal_frontend = format!("-j NETMAP --to {}", with_prefix(&network));
        let pods = match &self.settings.local {
            LocalTraffic::Unknown => Vec::new(),
            LocalTraffic::Cidr(net) => vec![format!("{}{to_internal_frontend}", from_inside(net))],
            LocalTraffic::ClusterCidr { cluster, node } => {
                self.internal_frontend_of_cluster(cluster, node.as_ref(), &to_internal_frontend)
            }
            LocalTraffic::Bridge(name) => vec![format!("-i {name} {to_internal_frontend}")],
            LocalTraffic::Prefix(name) => vec![format!("-i {name}+ {to_internal_frontend}")],
        };
        let node = "-m addrtype --src-type LOCAL";
        // First, because the pods' network may contain the frontend's address, which is the source of
        // the node's own connection.
        let mut rules = vec![format!("{node} -j KUBE-MARK-MASQ")];
        rules.extend(pods);
        rules.push(format!("{node} {to_internal_frontend}"));
        rules
    }

    /// Leads every pod of the cluster to the internal frontend, and masquerades those that may be
    /// another node's: the answer of an endpoint elsewhere would go past this node.
    ///
    /// Pods of other nodes come here only for an address of the node itself. A service address is
    /// taken by the proxy of their own node.
    fn internal_frontend_of_cluster(
        &self,
        cluster: &IpNet,
        node: Option<&IpNet>,
        to_internal_frontend: &str,
    ) -> Vec<String> {
        let pods = from_inside(cluster);
        let bound = self.lookup(SetKind::IpvsAddresses, "dst");
        let routes = self.settings.routes.iter();
        let own = node.map(|net| format!("{}{to_internal_frontend}", from_inside(net)));
        own.into_iter()
            .chain([format!("{pods}{bound} {to_internal_frontend}")])
            .chain(
                routes
                    .map(|route| format!("{pods}-d {} {to_internal_frontend}", with_prefix(route))),
            )
            .chain([format!("{pods}-j KUBE-MARK-MASQ"), format!("{pods}{to_internal_frontend}")])
            .collect()
    }

    fn forward(&self) -> Vec<String> {
        // Nearly all packets are of established connections.
        let [marked, established] = self.settings.forwarding();
        let mut rules = vec![established, marked];
        // The first packet of a local client's connection through an internal frontend goes by IPVS;
        // connection tracking sends those that follow straight to the endpoint, through FORWARD.
        // Until the endpoint has answered, the connection is new, and its packets have no mark.
        // Confirmed connections were let through before: no other program's decision is overruled.
        if self.settings.internal_frontend_network.is_some() {
            rules.push(format!(
                "-m comment --comment \"{UNANSWERED}\" -m conntrack --ctstate DNAT --ctstatus CONFIRMED \
                 -j ACCEPT"
            ));
        }
        rules
    }

    fn health_check(&self) -> Vec<String> {
        // Every packet to the node comes here, and health checks are HTTP.
        vec![format!("-p tcp {} -j ACCEPT", self.commented(SetKind::HealthCheckNodePort, "dst"))]
    }

    pub(super) fn firewall(&self) -> Vec<String> {
        let restricted = self.commented(SetKind::LoadBalancerFirewall, "dst,dst");
        vec![format!("{restricted} -j KUBE-SOURCE-RANGES-FIREWALL")]
    }

    fn source_ranges(&self) -> Vec<String> {
        let allowed = |kind| format!("{} -j RETURN", self.commented(kind, "dst,dst,src"));
        vec![
            allowed(SetKind::LoadBalancerSourceCidr),
            allowed(SetKind::LoadBalancerSourceIp),
            "-j DROP".to_owned(),
        ]
    }
}

/// Matches a source inside a network, which is every source if the network is everything.
fn from_inside(net: &IpNet) -> String {
    if net.prefix_len() == 0 { String::new() } else { format!("-s {} ", with_prefix(net)) }
}

/// Always with the prefix length, as `iptables-save` prints it.
pub(super) fn with_prefix(net: &IpNet) -> String {
    format!("{}/{}", net.network(), net.prefix_len())
}
