//! Forwarding of connections in user space.
//!
//! - [`localhost`]: NodePorts on localhost, in a thread of its own;
//! - [`relay`]: the relay of kube-proxy's mode `userspace`, in a thread of its own, which outlives the mode.
//!
//! Both share [`planned`], the ports that the event loop wants listened on; `copy`, bytes from one connection to another, in both directions, each with its own end; `limit`, a
//! limit on the number of connections; `listening`, by which ports that cannot be listened on are tried again; and
//! `mailbox`, the latest value of each key, from one thread to another that never waits.

pub(crate) mod copy;
pub(crate) mod limit;
pub(crate) mod listening;
pub mod localhost;
pub(crate) mod mailbox;
pub mod planned;
pub mod relay;

use std::io;
use std::thread;

/// Runs a task, and those that it spawns, in a thread of its own. When the task ends, so do the
/// others.
pub(crate) fn start_thread(
    name: &str,
    task: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(task))?;
    Ok(())
}
