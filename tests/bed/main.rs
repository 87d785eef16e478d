//! Nodes, pods and clients, real traffic, the real program, on a real kernel with IPVS.
//!
//! `cargo xtask test --tier bed` builds this and runs it in a virtual machine. What is asserted is
//! what packets do and what the usual tools show, never what the program says of itself.

#![cfg(test)]

mod affinity;
mod api;
mod api_server_address;
mod arp;
mod balance;
mod choices;
mod churn;
mod claims;
mod cluster;
mod coexistence;
mod console;
mod disturbance;
mod drain;
mod enterprise_linux;
mod estimators;
mod fixture;
mod flows;
mod flows_move;
mod handover;
mod hints;
mod host;
mod host_firewall;
mod host_limits;
mod internal_frontends;
mod iptables_mode;
mod killed;
mod lacking;
mod leaving_ipvs;
mod limits;
mod load;
mod load_balancer;
mod localhost;
mod masquerade;
mod meanwhile;
mod node;
mod order;
mod ownership;
mod ports_again;
mod privileges;
mod removed_frontends;
mod rollout;
mod routes;
mod rule_backend;
mod schedulers;
mod service_metrics;
mod switch;
mod tenant;
mod tenures;
mod way_out;
