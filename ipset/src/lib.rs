//! ipset over nfnetlink.
//!
//! A set is a table in the kernel that iptables rules look packets up in. This library creates,
//! fills, lists and swaps sets the way the `ipset` tool does, without the tool: no process per
//! change, thousands of entries a send, and an outcome for every one of them.
//!
//! ```no_run
//! use ipset::{Batch, Client, Family, Name, SetSpec, SetType};
//!
//! let mut client = Client::open()?;
//! let set = Name::new("WEB")?;
//! let mut batch = Batch::new();
//! batch.create(set, SetSpec::new(SetType::HashIpPort, Family::Ipv4));
//! for port in 8000..9000 {
//!     batch.add(set, format!("10.0.0.1,tcp:{port}").parse()?);
//! }
//! for result in client.send(&batch)? {
//!     if let Err(error) = result {
//!         eprintln!("{error}");
//!     }
//! }
//! assert_eq!(client.list(set)?.entries.len(), 1000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Facts about the kernel:
//!
//! - **Sets have a largest number of entries** and do not grow past it ([`Error::is_set_full`]).
//!   A larger set is created under another name, filled, and exchanged by [`Batch::swap`], which
//!   packets see as one step; then the other is destroyed.
//! - **Set types have revisions**, and a tool lists only sets of revisions that it knows. So a set
//!   is created in the oldest revision that has what its options ask for.
//! - **A set exists** for [`Batch::create`] if type and options are the same; the kernel compares
//!   neither hash size nor family. Before adopting a set, check [`Client::header`].
//! - **Changes by others** are not notified: ipset has no multicast group.
//!
//! The types `hash:ip`, `hash:ip,port`, `hash:ip,port,ip`, `hash:ip,port,net` and `bitmap:port`
//! are known with their entries, for both families. Sets of any other type can be listed (without
//! those entries that have another shape), flushed, renamed, swapped and destroyed.
//!
//! Source: include/uapi/linux/netfilter/ipset/ip_set.h and net/netfilter/ipset/ in the kernel.

mod batch;
mod client;
pub mod codec;
mod entry;
mod error;
mod name;
mod set;
mod uapi;

pub use batch::Batch;
pub use client::Client;
pub use entry::{Counters, Entry, EntryOptions, Mark, Network, Protocol};
pub use error::{Error, ParseError};
pub use name::{MAX_NAME_LENGTH, Name};
pub use netlink::{DecodeError, Namespace, Traffic};
pub use set::{
    Family, Header, Identity, ListedEntry, Revisions, Set, SetOptions, SetSpec, SetType,
};
