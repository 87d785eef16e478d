//! A Kubernetes API server for tests.
//!
//! It speaks the protocol of the real one over TLS: lists in chunks, watches with bookmarks,
//! streaming lists, resource versions and their expiry. The yardstick is the public documentation,
//! "Kubernetes API Concepts" (`docs/reference/using-api/api-concepts`) and the common parameters of
//! the API reference; comments name the section a rule comes from.
//!
//! [`Server::start`] runs it in a thread of its own, so that a test may be synchronous, may be
//! asynchronous, and may stop its own clock. What goes wrong in real clusters is asked for with
//! [`Server::inject`].

mod access;
mod body;
mod connection;
mod faults;
mod handler;
mod kubeconfig;
mod list;
mod negotiation;
mod object;
mod options;
mod parameters;
pub mod protobuf;
mod requests;
mod resource;
mod selector;
mod server;
mod status;
mod store;
mod table;
mod tls;
mod usage;
mod watch;
mod write;

pub use faults::{Fault, Injected, On};
pub use kubeconfig::Credentials;
pub use options::{Options, Release};
pub use requests::{Authorization, LoggedRequest};
pub use resource::{Resource, Verb};
pub use server::Server;
pub use tls::ClientCertificate;
pub use usage::Usage;
