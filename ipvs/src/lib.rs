#![warn(missing_docs)]
#![doc = include_str!("../README.md")]

mod batch;
mod client;
pub mod codec;
mod count;
mod error;
mod flags;
mod id;
mod name;
mod real_server;
mod settings;
mod statistics;
mod uapi;
mod virtual_server;
mod with;

pub use batch::Batch;
pub use client::{Client, Listing};
pub use count::{Count, Counter};
pub use error::Error;
pub use flags::{Flags, TunnelFlags};
pub use id::{AddressFamily, Protocol, VirtualServerId};
pub use name::{InterfaceName, ParseError, PersistenceEngine, Scheduler};
pub use netlink::{DecodeError, Namespace, Traffic};
pub use real_server::{ForwardingMethod, RealServer, RealServerStatus, TunnelOptions, TunnelType};
pub use settings::{Info, SyncDaemon, SyncRole, Timeouts, Version};
pub use statistics::Statistics;
pub use virtual_server::{Netmask, VirtualServer, VirtualServerStatus};
