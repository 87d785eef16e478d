//! The planning core of kube-ipvs: Services and EndpointSlices in, kernel changes out.
//!
//! Pure: no I/O, no async, no clock, no randomness, no Kubernetes types. Planning is a function:
//! the same input, in any order of events, gives the same desired state, and what is computed
//! change by change equals what is computed from scratch.
//!
//! In reading order:
//!
//! - [`model`]: services, endpoints, the node's object; [`settings`]: what the operator chose;
//!   [`scheduler`]: the kernel's schedulers;
//! - [`event`]: the closed list of everything that can change the input; [`store`]: the input as
//!   it is now, and which Services have to be looked at again; [`facts`]: this node;
//! - [`kernel_objects`]: the kernel's objects in our words; [`sets`]: the table of ipsets;
//!   [`chains`]: chains of iptables mode;
//! - [`rule_set`]: the constant iptables rules, as data; [`userspace`]: the rules of the mode
//!   `userspace`, as text;
//! - [`local`]: what follows from being for this node only, beside the kernel's state;
//!   [`localhost`]: node ports on loopback addresses;
//! - [`endpoints`]: which endpoints a frontend may use; [`hand_drain`]: those that an operator keeps
//!   clients away from; [`exposure`]: what a Service asks of the
//!   node, before any mechanism; [`claimants`]: the Services that claim a frontend, and which of them
//!   has it;
//! - [`mode`]: the mechanisms, and their properties; [`ipvs`], [`iptables`]: each compiles an exposure to
//!   a fragment of desired kernel state, and keeps all fragments; [`backend`]: what each mode has for itself;
//! - [`flows`]: what connection tracking remembers and should not;
//! - [`routes`]: local routes in the place of addresses; `address`: addresses that no client could
//!   mean;
//! - [`op`]: one kernel change as a value; [`order`]: the order of a new
//!   virtual server's real servers; [`actual`]: what was read back from the kernel;
//!   [`capacity`]: the number of entries that a set holds; [`growth`]: when sets have to grow;
//!   [`virtual_server`]: desired and actual to operations, for one virtual server; [`comparison`]: for any
//!   part of the kernel; [`adoption`]: how what is there already is adopted;
//! - [`planner`]: ties all this together; `parts`: changes too large for one round; `reports`: what
//!   is new of the reports on Services; [`problem`]: what is wrong with the input: planning
//!   returns problems, and never fails;
//! - [`hash`]: maps and sets of all this;
//! - [`trace`]: a packet's way by what is planned;
//! - `memory`: a kernel in memory, for tests, with the feature `testing`.

pub mod actual;
pub mod adoption;
pub mod backend;
pub mod capacity;
pub mod chains;
pub mod claimants;
pub mod comparison;
pub mod endpoints;
pub mod event;
pub mod exposure;
pub mod facts;
pub mod flows;
pub mod growth;
pub mod hand_drain;
pub mod hash;
pub mod iptables;
pub mod ipvs;
pub mod kernel_objects;
pub mod local;
pub mod localhost;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod mode;
pub mod model;
pub mod network;
pub mod op;
pub mod order;
pub(crate) mod parts;
pub mod planner;
pub(crate) mod pod_networks;
pub mod problem;
pub(crate) mod reports;
pub mod routes;
pub mod rule_set;
pub mod scheduler;
pub mod sets;
pub mod settings;
pub mod store;
pub mod trace;
pub mod userspace;
pub mod virtual_server;

mod address;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod work;
