#![warn(missing_docs)]
#![doc = include_str!("../README.md")]

mod batch;
mod client;
pub mod codec;
mod entry;
mod error;
mod name;
mod set;
mod uapi;
mod with;

pub use batch::Batch;
pub use client::Client;
pub use entry::{Counters, Entry, EntryOptions, Mark, Network, Protocol};
pub use error::{Error, ParseError};
pub use name::{MAX_NAME_LENGTH, Name};
pub use netlink::{DecodeError, Namespace, Traffic};
pub use set::{
    Family, Header, Identity, ListedEntry, Revisions, Set, SetOptions, SetSpec, SetType,
};
