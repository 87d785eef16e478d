//! This node before and after kube-ipvs serves on it.
//!
//! - [`host`]: prepares the host: modules, probes, sysctls, connection tracking;
//! - [`cleanup`]: `--cleanup`, and removing the state of kube-proxy's other modes;
//! - [`preflight`]: checks of the host before a takeover;
//! - `mode`: what each mode does to the host, one file a mode, for these three.
//!
//! It knows the kernel's adapters and the configuration. The event loop does not know it: what it does is done
//! when the program starts, or ends for good.

pub mod cleanup;
pub mod host;
mod mode;
pub mod preflight;
