//! Cases that kube-proxy's own tests check and a planner can show, and the bugs that its users
//! reported, in the same themes with data of our own. What is expected is what the API promises:
//! where kube-proxy's ipvs mode does something else, the row says so.
//!
//! Each test runs events through a planner and carries out what it plans on a kernel in memory,
//! which refuses whatever the real one would.

// Clippy takes it for a test only if it says so.
#![cfg(test)]

mod addresses;
mod bugs;
mod choice;
mod claims;
mod external;
mod health_checks;
mod leftovers;
mod no_endpoints;
mod node;
mod node_ports;
mod packets;
mod policies;
mod rules;
mod services;
mod sets;
mod slices;
mod terminating;
mod virtual_servers;
mod words;
