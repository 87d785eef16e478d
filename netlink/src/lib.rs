//! A netlink socket that sends many requests at once and says how each one went.
//!
//! Netlink clients usually send one request, wait for its acknowledgement, and send the next. The
//! kernel does not ask for that: it works through every message of a send, in order, before the
//! send returns, and answers a failing one with that message's sequence number whether or not an
//! acknowledgement was asked for. [`Socket::send`] builds on it: it packs hundreds of requests into
//! a send, asks for the last one's acknowledgement only, and still returns a result for each.
//!
//! Three things make answers go missing on a netlink socket, and none is passed over in silence:
//!
//! - a full receive buffer (`ENOBUFS`): sends are sized so that their worst case fits, and should
//!   it happen all the same, the requests concerned get [`Error::is_answer_lost`];
//! - a datagram larger than the buffer it is read into: an error, never a half-read message;
//! - a dump that the kernel marks as interrupted by a change (`NLM_F_DUMP_INTR`): it is asked for
//!   again, and after [`DUMP_ATTEMPTS`] tries it is an error ([`Error::is_interrupted`]).
//!
//! A socket that fails itself, because something closed its descriptor for example, is opened again
//! before its next use ([`Error::is_socket_failure`]).
//!
//! The crate knows no subsystem but the generic netlink controller ([`generic`]), which gives other
//! families their numbers. `ipvs-rs` and `ipset-netlink` are written on it. [`OptionSocket`] is for
//! the little that netfilter tells over no netlink socket at all.
//!
//! ```no_run
//! use netlink::{Batch, Protocol, Socket};
//!
//! // Sets the link with index 5 down, and the one with index 6 up, in one send.
//! fn link_state(index: i32, flags: u32, body: &mut Vec<u8>) {
//!     body.extend([0, 0, 0, 0]); // address family, padding, device type
//!     body.extend(index.to_ne_bytes());
//!     body.extend(flags.to_ne_bytes());
//!     body.extend(1_u32.to_ne_bytes()); // the mask: IFF_UP
//! }
//! let mut socket = Socket::open(Protocol::Route)?;
//! let mut batch = Batch::new();
//! batch.push(19, 0, |message| link_state(5, 0, message.body())); // RTM_SETLINK
//! batch.push(19, 0, |message| link_state(6, 1, message.body()));
//! for (index, result) in socket.send(&mut batch)?.into_iter().enumerate() {
//!     if let Err(error) = result {
//!         eprintln!("request {index}: {error}");
//!     }
//! }
//! # Ok::<(), netlink::Error>(())
//! ```

mod attribute;
mod batch;
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
