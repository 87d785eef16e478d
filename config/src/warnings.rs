//! Mismatches of the configuration with the host and the Node. The checks are kube-proxy's, in its
//! words, with advice where they end the program.

use std::net::IpAddr;

use ipnet::IpNet;
use plan::model::Family;

use super::networks::{cluster_networks, networks};
use super::resolved::Configuration;
use super::words::{DetectLocalMode, NODE_PORT_WORDS};

/// Host and Node, as known once the host was looked at and the Node was seen.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The families that the host can do.
    pub host: &'a [Family],
    /// The Node's addresses, in the order of the object; empty as long as it is not known.
    pub node_addresses: &'a [IpAddr],
    /// The Node's `podCIDRs`.
    pub pod_cidrs: &'a [IpNet],
}

/// The families to serve, the primary one first, and what is to be logged about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// At least one.
    pub families: Vec<Family>,
    /// Warnings of what may be incomplete or incorrect.
    pub warnings: Vec<String>,
}

/// Reason for which the configuration cannot work on this host and Node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The host cannot do the family that the node's address is of.
    #[error(
        "no support for primary IP family \"{}\"; earlier log lines name what this host lacks: \
         provide it, or set bindAddress (--bind-address) to the node's address of the other family", name(*.0)
    )]
    PrimaryFamily(Family),
    /// The networks that local traffic is recognised by are all of another family.
    #[error(
        "kube-proxy configuration is incorrect: {}; correct the networks, or choose another \
         detectLocalMode (--detect-local-mode)", .0.join(", ")
    )]
    Networks(Vec<String>),
}

struct Check<'a> {
    configuration: &'a Configuration,
    situation: Situation<'a>,
    primary: Family,
    is_dual_stack: bool,
}

impl Configuration {
    /// The family that the cluster knows this node by: that of `bindAddress` if it names one, or
    /// else of the Node's first address, or else IPv4.
    #[must_use]
    pub fn primary_family(&self, node_addresses: &[IpAddr]) -> Family {
        let named = self.bind_address.or_else(|| node_addresses.first().copied());
        named.map_or(Family::V4, Family::of)
    }

    /// Compares the configuration with the host and the Node.
    pub fn check(&self, situation: Situation<'_>) -> Result<Checked, Mismatch> {
        let primary = self.primary_family(situation.node_addresses);
        if !situation.host.contains(&primary) {
            return Err(Mismatch::PrimaryFamily(primary));
        }
        let is_dual_stack = situation.host.contains(&other(primary));
        let check = Check { configuration: self, situation, primary, is_dual_stack };
        let mut warnings = check.node_ports();
        let (networks, is_fatal) = check.networks();
        if is_fatal {
            return Err(Mismatch::Networks(networks));
        }
        warnings.extend(networks);
        warnings.extend(check.single_stack());
        let mut families = vec![primary];
        families.extend(is_dual_stack.then_some(other(primary)));
        Ok(Checked { families, warnings })
    }
}

impl Check<'_> {
    fn node_ports(&self) -> Vec<String> {
        let addresses = &self.configuration.document.node_port_addresses;
        if addresses.is_empty() {
            return vec![
                "nodePortAddresses is unset; NodePort connections will be accepted on all local \
                 IPs. Consider using `--nodeport-addresses primary`"
                    .to_owned(),
            ];
        }
        let primary = self.primary;
        // These words name addresses of both families, or none of a family that the Node lacks.
        if addresses.iter().any(|text| NODE_PORT_WORDS.contains(&text.as_str())) {
            return Vec::new();
        }
        let networks = networks(addresses);
        let of_primary = networks.iter().filter(|net| Family::of_net(net) == primary).count();
        let (primary, other) = (name(primary), name(other(primary)));
        if self.has_dual_stack_setting() && of_primary == networks.len() {
            vec![format!(
                "cluster appears to be dual-stack but nodePortAddresses contains only {primary} \
                 addresses; NodePort connections will be accepted on all local {other} IPs"
            )]
        } else if of_primary == 0 {
            vec![format!(
                "cluster appears to be {primary}-primary but nodePortAddresses contains only \
                 {other} addresses; NodePort connections will be accepted on all local {primary} \
                 IPs"
            )]
        } else {
            Vec::new()
        }
    }

    fn networks(&self) -> (Vec<String>, bool) {
        let mode = self.configuration.document.detect_local_mode.value();
        let (kind, wrong) = (self.cluster_kind(), number(other(self.primary)));
        let mut problems = Vec::new();
        let mut is_fatal = false;
        if self.all_wrong(&cluster_networks(&self.configuration.document)) {
            problems.push(format!(
                "cluster is {kind} but clusterCIDRs contains only IPv{wrong} addresses"
            ));
            is_fatal |= mode == DetectLocalMode::ClusterCidr && !self.is_dual_stack;
        }
        if self.all_wrong(self.situation.pod_cidrs) {
            problems.push(format!(
                "cluster is {kind} but node.spec.podCIDRs contains only IPv{wrong} addresses"
            ));
            is_fatal |= mode == DetectLocalMode::NodeCidr;
        }
        (problems, is_fatal)
    }

    /// Returns the problems that exist only where the host lacks the other family altogether.
    fn single_stack(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.is_dual_stack {
            return problems;
        }
        let (kind, wrong) = (self.cluster_kind(), number(other(self.primary)));
        if self.all_wrong(&self.configuration.settings.exclude) {
            problems.push(format!(
                "cluster is {kind} but ipvs.excludeCIDRs contains only IPv{wrong} addresses"
            ));
        }
        let served = &self.configuration.served;
        let sockets =
            [("healthzBindAddress", served.healthz), ("metricsBindAddress", Some(served.metrics))];
        for (field, socket) in sockets {
            let address = socket.map(|socket| socket.ip()).filter(|ip| !ip.is_unspecified());
            if address.is_some_and(|address| Family::of(address) != self.primary) {
                problems.push(format!("cluster is {kind} but {field} is IPv{wrong}"));
            }
        }
        problems
    }

    fn cluster_kind(&self) -> String {
        let suffix = if self.is_dual_stack { "primary" } else { "only" };
        format!("{}-{suffix}", name(self.primary))
    }

    fn all_wrong(&self, networks: &[IpNet]) -> bool {
        !networks.is_empty() && networks.iter().all(|net| Family::of_net(net) != self.primary)
    }

    fn has_dual_stack_setting(&self) -> bool {
        let document = &self.configuration.document;
        let is_dual = |networks: &[IpNet]| {
            Family::BOTH.iter().all(|family| networks.iter().any(|n| Family::of_net(n) == *family))
        };
        is_dual(&cluster_networks(document))
            || is_dual(&networks(&document.node_port_addresses))
            || is_dual(&self.configuration.settings.exclude)
            || is_dual(self.situation.pod_cidrs)
    }
}

fn other(family: Family) -> Family {
    match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    }
}

/// As the Kubernetes API names it.
fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}
