//! Ports of the node that a Service takes from a program that listens there.
//!
//! They are served all the same, as kube-proxy does (kubernetes#76892).

use std::num::NonZeroU16;

use super::addresses::Addresses;
use crate::facts::NodeFacts;
use crate::model::{Protocol, Service};
use crate::problem::Problem;
use crate::settings::{Listener, Settings};

/// Notes the ports that a Service has at this node's addresses, as NodePorts or because one of its own
/// addresses is the node's, and on which programs of the node listen.
pub(super) fn note(
    service: &Service,
    addresses: &Addresses,
    facts: &NodeFacts,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let mut outer = addresses.external.iter().chain(&addresses.load_balancer);
    let is_at_node = outer.any(|address| facts.local_addresses().contains(address));
    for port in service.ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
        let own = is_at_node.then_some(port.port);
        for taken in own.into_iter().chain(port.node_port).map(NonZeroU16::get) {
            let api_server = facts.own_api_server_ports().filter(|it| *it == taken);
            let api_server = api_server.map(|_| Listener::ApiServer);
            let others = settings.listeners.iter().filter(|(port, _)| *port == taken);
            for listener in others.map(|(_, listener)| *listener).chain(api_server) {
                let problem = Problem::PortOfListener { port: taken, listener };
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
    }
}
