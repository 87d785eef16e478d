//! Work of a tenure that may still touch the host when the rest of the tenure has ended.
//!
//! A task ends when it is dropped. A thread in a call to the kernel, or one that waits for a
//! program, does not. So each of these holds a token for as long as it works, and the next tenure
//! begins when no token is left.

use std::convert::Infallible;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

/// Token that work holds until it is done.
#[derive(Debug, Clone)]
pub(super) struct AtWork {
    _token: mpsc::Sender<Infallible>,
}

/// End of all work of a tenure.
#[derive(Debug)]
pub(super) struct UntilIdle(mpsc::Receiver<Infallible>);

/// Returns the first token of a tenure, and the end that waits for all of them.
pub(super) fn begin() -> (AtWork, UntilIdle) {
    let (token, tokens) = mpsc::channel(1);
    (AtWork { _token: token }, UntilIdle(tokens))
}

// === impl AtWork ===

impl AtWork {
    /// Runs what waits for the kernel or for programs on a thread of the runtime's pool.
    pub(super) fn block_on_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let token = self.clone();
        spawn_blocking(move || {
            let done = work();
            drop(token);
            done
        })
    }
}

// === impl UntilIdle ===

impl UntilIdle {
    /// Ready when every token has been dropped.
    pub(super) async fn wait(mut self) {
        // Nothing is ever sent.
        let _none = self.0.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_tenure_is_idle_when_work_has_ended_that_nobody_waits_for() {
        let (at_work, idle) = begin();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = at_work.block_on_pool(move || ended.recv().is_err());
        drop(work);
        drop(at_work);
        let idle = idle.wait();
        tokio::pin!(idle);
        assert!(timeout(Duration::from_millis(50), &mut idle).await.is_err());
        drop(end);
        idle.await;
    }
}
