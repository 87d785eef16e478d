//! Threads of their own for what the event loop must not hold up.
//!
//! Planning a Service that costs much occupies the loop's thread. Meanwhile health and metrics are
//! answered, and watches and leases of the API server are kept alive, because each of them has a
//! thread and a runtime of its own.

use std::future::Future;
use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Capacity of each channel between the source and the event loop. A full one makes the source
/// wait.
pub(super) const QUEUE: usize = 1_024;

/// Longest time that background tasks get to end when a tenure or kube-ipvs exits.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_millis(100);

/// A thread that runs tasks until this is dropped.
#[derive(Debug)]
pub(super) struct TaskThread {
    handle: Handle,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl TaskThread {
    /// Starts a thread of this name, which drops the token when it has ended.
    pub(super) fn start(name: &str, token: impl Send + 'static) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // It ends by an error: nothing is ever sent.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_timeout(SHUTDOWN_GRACE);
            drop(token);
        })?;
        Ok(Self { handle, _stop: stop })
    }

    /// Returns the handle to start tasks with, and to open what starts some by itself.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a task on the thread.
    pub(super) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(task)
    }
}
