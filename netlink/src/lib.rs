#![warn(missing_docs)]
#![doc = include_str!("../README.md")]

mod attribute;
mod batch;
mod datagrams;
mod error;
pub mod generic;
mod home;
mod namespace;
mod option;
mod reply;
mod socket;

pub use attribute::{Attribute, AttributeWriter, DecodeError, attributes};
pub use batch::{Batch, MessageWriter};
pub use error::{Error, Refusal};
pub use namespace::Namespace;
pub use option::OptionSocket;
pub use socket::{DUMP_ATTEMPTS, Notification, Protocol, Socket, Traffic};
