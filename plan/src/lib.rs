//! The planning core of kube-ipvs: Services and EndpointSlices in, kernel changes out.
//!
//! Pure: no I/O, no async, no clock, no randomness, no Kubernetes types. Planning is a function:
//! the same input, in any order of events, gives the same desired state, and what is computed
//! change by change equals what is computed from scratch.
//!
//! In reading order:
//!
//! - [`model`]: services, endpoints, facts about the node; [`settings`]: what the operator chose;
//! - [`event`]: the closed list of everything that can change the input;
//! - [`kernel`]: the kernel's objects in our words; [`sets`]: the table of ipsets;
//! - [`layer`]: the constant iptables rules, as data;
//! - [`op`]: one kernel change as a value; [`actual`]: what was read back from the kernel;
//! - [`problem`]: what is wrong with the input: planning returns problems, and never fails.

pub mod actual;
pub mod event;
pub mod kernel;
pub mod layer;
pub mod model;
pub mod op;
pub mod problem;
pub mod sets;
pub mod settings;
