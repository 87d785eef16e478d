//! Frontends whose flows connection tracking must forget when chains change: those of UDP and SCTP.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Planner;
use super::chains::unspecified;
use crate::chains::ChainOp;
use crate::kernel_objects::Frontend;
use crate::model::{Family, Protocol, ServiceName};
use crate::rule_set::words;

impl Planner {
    /// Returns the UDP and SCTP frontends, as clients see them, that a change of a chain is about.
    #[must_use]
    pub fn stateless_frontends(&self, change: &ChainOp) -> BTreeSet<Frontend> {
        let chain = change.chain();
        let frontends = match change {
            ChainOp::Insert(_, rule) | ChainOp::Delete(_, rule) => {
                frontend_of(chain.family, rule).into_iter().collect()
            }
            ChainOp::Write(..) | ChainOp::Remove(_) => self.chains.frontends_behind(&chain),
        };
        let stateless = frontends.into_iter().filter(|it| it.protocol != Protocol::Tcp);
        stateless.flat_map(|frontend| self.seen_by_clients(frontend)).collect()
    }

    /// Returns the Service whose chains a frontend leads to, as clients see the frontend.
    #[must_use]
    pub fn chain_owner(&self, frontend: &Frontend) -> Option<&ServiceName> {
        let node_port = Frontend { address: unspecified(frontend.family()), ..*frontend };
        self.chains.owner(frontend).or_else(|| self.chains.owner(&node_port))
    }
}

/// The frontend that a rule of a shared chain is about. That of a node port has the family's
/// unspecified address.
fn frontend_of(family: Family, rule: &str) -> Option<Frontend> {
    let words = words(rule);
    let after = |option: &str| {
        let at = words.iter().position(|word| word == option)?;
        words.get(at + 1)
    };
    let named = after("-p")?;
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = protocols.into_iter().find(|protocol| protocol.name() == named)?;
    let address = after("-d").and_then(|it| it.parse::<IpNet>().ok());
    let address = address.filter(|it| it.prefix_len() == it.max_prefix_len());
    Some(Frontend {
        address: address.map_or_else(|| unspecified(family), |it: IpNet| -> IpAddr { it.addr() }),
        protocol,
        port: after("--dport")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_tells_its_frontend() {
        let of = |rule| frontend_of(Family::V4, rule).map(|it| it.to_string());
        let cluster =
            "-d 10.96.0.1/32 -p udp -m comment --comment \"ns/a -p tcp\" -m udp --dport 53 -j X";
        assert_eq!(of(cluster).unwrap(), "UDP 10.96.0.1:53");
        let node_port = "-d 127.0.0.0/8 -p sctp -m comment --comment a -m sctp --dport 30053 -j X";
        assert_eq!(of(node_port).unwrap(), "SCTP 0.0.0.0:30053");
        assert_eq!(of("-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"), None);
    }
}
