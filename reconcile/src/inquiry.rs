//! Questions to the event loop, answered between two of its turns.
//!
//! A question is a function that reads what the loop has. It runs on the loop's thread, so it must be
//! short: about one Service, or about a limited number of things, and the rest by another question.
//! The asker waits; the loop does not, and it changes nothing for a question. An order of an operator
//! comes the same way, and is taken as input is.

use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use plan::kernel_objects::Frontend;
use plan::planner::Planner;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::error;

use super::context::Context;
use super::hand_drains::HandDrains;
use super::input::Input;
use super::retry_queue::RetryQueue;
use super::status::Status;
use super::writer::Writer;

/// Most Services, frontends or retries that one question should walk: a few milliseconds of work.
pub const CHUNK: usize = 256;

/// Questions that wait for an answer. With so many, one more waits to be asked.
const QUEUE: usize = 16;

/// The loop's state, as a question sees it.
#[derive(Debug)]
pub struct View<'a> {
    /// The planner, with the desired state.
    pub planner: &'a Planner,
    /// Counts of the loop's work.
    pub status: Status,
    /// Writes that the kernel refused, and that are retried.
    pub pending: &'a RetryQueue,
    /// Time for which the oldest change has been waiting; none if none waits.
    pub waiting: Option<Duration>,
    /// Endpoints that an operator drains by hand.
    pub hand_drains: &'a HandDrains,
    pub(super) context: &'a Context,
    /// Time at which the reading of the kernel began that the question is about.
    pub(super) read_at: Option<Instant>,
    pub(super) writer: &'a Writer,
}

/// Question or order to the loop.
pub struct Inquiry(pub(super) Asked);

/// Content of an [`Inquiry`].
pub(super) enum Asked {
    Question(Question),
    /// Input of the operator's, and whom to tell when it is taken.
    Order(Input, oneshot::Sender<()>),
}

/// Question to the loop.
pub(super) struct Question(Box<dyn FnOnce(&View<'_>) + Send>);

/// The way for questions to reach the loop.
#[derive(Debug, Clone)]
pub struct Inquiries(mpsc::Sender<Inquiry>);

/// The loop has ended, or had no answer because of a bug, which is in the log then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the event loop does not answer: kube-ipvs is stopping, or has met a bug (see its log)")]
pub struct LoopGone;

/// Returns the way for questions to reach the loop, and its end for [`super::Reconciler::answering`].
#[must_use]
pub fn inquiries() -> (Inquiries, mpsc::Receiver<Inquiry>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Inquiries(sender), receiver)
}

impl Inquiries {
    /// Asks, and waits for the answer. `question` must be short: see [`CHUNK`].
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, LoopGone> {
        let (sender, answer) = oneshot::channel();
        let question = Question(Box::new(move |view| {
            // The asker may be gone.
            let _ = sender.send(question(view));
        }));
        self.0.send(Inquiry(Asked::Question(question))).await.map_err(|_| LoopGone)?;
        answer.await.map_err(|_| LoopGone)
    }

    /// Gives an order, and waits until the loop has taken it. What follows of it is written after that.
    pub async fn order(&self, input: Input) -> Result<(), LoopGone> {
        let (sender, taken) = oneshot::channel();
        self.0.send(Inquiry(Asked::Order(input, sender))).await.map_err(|_| LoopGone)?;
        taken.await.map_err(|_| LoopGone)
    }
}

impl Question {
    /// Answers it. A panic is the question's own: it has changed nothing, and the loop goes on.
    pub(super) fn answer(self, view: &View<'_>) {
        if catch_unwind(AssertUnwindSafe(|| (self.0)(view))).is_err() {
            error!("a query of the event loop hit a bug; please report the panic above");
        }
    }
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inquiry")
    }
}

impl<'a> View<'a> {
    pub(super) fn new(cx: &'a Context, writer: &'a Writer, hand_drains: &'a HandDrains) -> Self {
        Self {
            planner: &cx.planner,
            status: *cx.status.borrow(),
            pending: writer.retry_queue(),
            waiting: cx.planner.oldest().map(|since| cx.age(since)),
            hand_drains,
            context: cx,
            read_at: None,
            writer,
        }
    }

    /// Returns the same for a question about a reading of the kernel that began at this time: what was
    /// written since then is no drift.
    #[must_use]
    pub fn read_at(&self, began: Instant) -> Self {
        Self { read_at: Some(began), ..*self }
    }

    /// Returns the draining real servers of a virtual server, each with the time that its connections
    /// still have.
    pub fn draining(&self, frontend: &Frontend) -> impl Iterator<Item = (SocketAddr, Duration)> {
        let now = Instant::now();
        let deadlines = self.writer.drain().deadlines(frontend);
        deadlines.map(move |(server, deadline)| (server, deadline.saturating_duration_since(now)))
    }

    /// Returns the number of virtual servers that have a draining real server.
    #[must_use]
    pub fn n_with_draining(&self) -> usize {
        self.writer.drain().n_virtual_servers()
    }

    /// Returns the number of connections of draining real servers, as they were read last.
    #[must_use]
    pub fn n_draining_connections(&self) -> u64 {
        self.writer.drain().n_connections()
    }
}
