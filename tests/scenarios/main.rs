//! The real event loop against a kernel in memory, with faults on demand.
//!
//! Time is paused, and no test sleeps or sets a time limit: the only timers are the event loop's
//! own, so the clock moves only while the loop has nothing to do. A test waits for what it wants
//! to see by following the loop's status.

// Clippy takes it for a test only if it says so.
#![cfg(test)]

mod addresses;
mod api_server;
mod audit;
mod changes;
mod closing;
mod console;
mod drain;
mod drift;
mod explained;
mod faults;
mod first_sync;
mod flows;
mod foreign_sets;
mod hand_drain;
mod inquiries;
mod internal_frontends;
mod iptables;
mod large_sets;
mod led_by_rules;
mod log;
mod random;
mod refusals;
mod reports;
mod rounds;
mod schedulers;
mod service_routes;
mod sets;
mod sysctls;
mod userspace;
mod world;
