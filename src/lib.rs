//! kube-ipvs: kube-proxy's IPVS mode, as a program for a node.
//!
//! This crate is the edges and the wiring: planning is in `plan`, netlink in `ipvs`, `ipset` and
//! `netlink`. In reading order:
//!
//! - [`app`]: connects the parts; the only module that knows all others;
//! - [`cli`], [`config`]: kube-proxy's flags and file, resolved once to a `Configuration`;
//!   [`config::reference`] describes every field and flag, for `--help` and `docs/config.md`;
//! - [`syntax`]: durations, sizes and addresses as Go and Kubernetes write them;
//! - `host`: prepares the host: modules, probes, sysctls, connection tracking;
//! - [`source`]: where input comes from: [`source::kubernetes`] follows an API server,
//!   [`source::manifests`] a folder; [`source::object`] has the fields that matter, and
//!   [`source::convert`] the translation to the planner's words;
//! - [`reconcile`]: the event loop, and the port by which it reports;
//! - [`kernel`]: the port that the loop needs of a kernel; `kernel::linux` is the real one,
//!   `kernel::fake` one in memory, for tests; `kernel::rules` writes iptables rules and sees whether
//!   they are untouched without starting a process;
//! - [`serve`]: health, metrics, health checks of Services, pages;
//! - [`events`]: Events of the Kubernetes API;
//! - [`localhost`]: NodePorts on localhost, in user space, in a thread of its own;
//! - [`relay`]: the relay of kube-proxy's mode `userspace`, in a thread of its own, which outlives the mode;
//! - `forwarding`: what programs in user space that forward connections share: copying, limits;
//! - [`switch`]: switching a running process to another mode;
//! - [`console`]: the operator's commands, and the socket at which the running program answers them;
//! - [`preflight`]: checks of the host before a takeover;
//! - [`bundle`]: support bundles, without secrets;
//! - [`cleanup`]: `--cleanup`, and removing the state of kube-proxy's other modes;
//! - `spread`: times at which nodes do the same, apart from each other; `version`: the version and
//!   the commit.
//!
//! [`source`], [`kernel`] and [`serve`] do not see each other. [`reconcile`] sees the planner and,
//! of [`kernel`], the port, the worker and the address monitor.

pub mod app;
pub mod bundle;
pub mod cleanup;
pub mod cli;
pub mod config;
pub mod console;
pub mod events;
mod forwarding;
mod host;
pub mod kernel;
pub mod localhost;
pub mod preflight;
mod process;
mod program;
pub mod reconcile;
pub mod relay;
pub mod secrets;
pub mod serve;
pub mod source;
mod spread;
pub mod switch;
pub mod syntax;
mod version;
