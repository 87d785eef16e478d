//! Forwarding of connections in user space: what node ports on localhost
//! ([`localhost`](crate::localhost)) and the relay share.
//!
//! - [`copy`]: bytes from one connection to another, in both directions, each with its own end;
//! - [`limit`]: a limit on the number of connections;
//! - [`listening`]: ports that cannot be listened on are tried again;
//! - [`mailbox`]: the latest value of each key, from one thread to another that never waits.

pub(crate) mod copy;
pub(crate) mod limit;
pub(crate) mod listening;
pub(crate) mod mailbox;
