//! IPVS, the Linux kernel's load balancer for transport connections, over generic netlink.
//!
//! [`Client`] has a method for each of the family's commands, and [`Batch`] carries thousands of
//! them in a few sends. [`codec`] is the same without a socket. [`Counter`] tells how many virtual
//! servers there are at the cost of two system calls.
//!
//! ```no_run
//! use ipvs::{Client, RealServer, Scheduler, VirtualServer, VirtualServerId};
//!
//! let mut client = Client::open()?;
//! let id = VirtualServerId::tcp([10, 96, 0, 1], 80);
//!
//! let mut batch = client.batch();
//! batch.new_service(&VirtualServer::new(id, Scheduler::ROUND_ROBIN));
//! batch.new_destination(&id, &RealServer::new([10, 0, 0, 1], 8080));
//! batch.new_destination(&id, &RealServer { weight: 2, ..RealServer::new([10, 0, 0, 2], 8080) });
//! for result in client.send(&mut batch)? {
//!     match result {
//!         Err(error) if error.is_exists() => {} // as it should be
//!         result => result?,
//!     }
//! }
//!
//! for listing in client.snapshot()? {
//!     println!("{}: {} real servers", listing.virtual_server.server.id, listing.real_servers.len());
//! }
//! # Ok::<(), ipvs::Error>(())
//! ```
//!
//! The words: a *virtual server* is an address, port and protocol that clients connect to (the
//! kernel: service), a *real server* is what its connections are given to (the kernel:
//! destination), a *scheduler* picks the real server, a *forwarding method* gets packets there.
//!
//! Numbers the kernel has and this crate has no name for are kept as they are, so that what a
//! newer kernel lists can be read and written back. It is tested on Linux 5.10, 6.1 and 6.12; what
//! the answers of older ones lack is allowed for.

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

pub use batch::Batch;
pub use client::{Client, Listing};
pub use count::{Count, Counter};
pub use error::Error;
pub use flags::{Flags, TunnelFlags};
pub use id::{AddressFamily, Protocol, VirtualServerId};
pub use name::{InterfaceName, InvalidName, PersistenceEngine, Scheduler};
pub use netlink::{DecodeError, Namespace, Traffic};
pub use real_server::{ForwardingMethod, RealServer, RealServerStatus, TunnelOptions, TunnelType};
pub use settings::{Info, SyncDaemon, SyncRole, Timeouts, Version};
pub use statistics::Statistics;
pub use virtual_server::{Netmask, VirtualServer, VirtualServerStatus};
