//! Turns of requests, so that one connection is made and not one for each.
//!
//! A connection that carries many requests at a time is known as such once it has been made (ALPN). The
//! pool makes one for each request that comes before that: after every restart of the API server,
//! three handshakes for each node instead of one.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync;
use tokio::time::{Instant, timeout};
use tower::BoxError;

use super::error_text::innermost;

/// Time after an answer in which the connection is taken for one that lives.
const RECENT: Duration = Duration::from_secs(1);

/// Longest wait for the answer to another request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lets one request go first, unless another one was answered a moment ago. All clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns {
    turn: Arc<sync::Mutex<()>>,
    answered_at: Arc<Mutex<Option<Instant>>>,
}

impl Turns {
    /// Sends a request when it is its turn.
    pub(super) async fn send(
        self,
        client: Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let turn = if self.is_connected() {
            None
        } else {
            // What the other request waits for may be its own matter.
            // Those that have waited go together once there is a connection.
            timeout(PATIENCE, self.turn.lock()).await.ok().filter(|_| !self.is_connected())
        };
        let answer = sent(client, request).await;
        if answer.is_ok() {
            let mut answered_at = self.answered_at.lock();
            *answered_at = Some(Instant::now());
        }
        drop(turn);
        answer
    }

    fn is_connected(&self) -> bool {
        let answered_at = self.answered_at.lock();
        answered_at.is_some_and(|at| at.elapsed() < RECENT)
    }
}

/// Sends a request, with the error as it was.
pub(super) async fn sent(
    client: Client,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    client.send(request).await.map_err(innermost)
}
