//! Traffic that goes on in the background, to prove that nothing failed while something happened.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use parking_lot::{Condvar, Mutex};

use crate::namespace::Namespace;
use crate::traffic::{Answer, Connection, Question, Refusal, ask_here};

/// Amount of traffic.
#[derive(Clone, Copy, Debug)]
pub struct StreamPlan {
    /// The time from one round to the next. In a round, each asker asks once on a fresh
    /// connection, and every connection that is kept open is asked once. A round that takes
    /// longer delays the next one.
    pub interval: Duration,
    /// Number of askers on fresh connections, side by side.
    pub askers: usize,
    /// Number of connections that are opened at the start and kept.
    pub kept_open: usize,
}

/// Requests in the background. Dropping it stops them.
#[derive(Debug)]
pub struct Stream {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Answers and failures so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// Answers on fresh connections.
    pub fresh: usize,
    /// Answers on connections that were kept open.
    pub kept: usize,
    /// Answers on fresh connections by the server's name.
    pub by_server: BTreeMap<String, usize>,
    /// Everything that went wrong, in order.
    pub failures: Vec<Failure>,
}

/// A question without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When it was noticed, counted from the stream's start.
    pub at: Duration,
    /// On what kind of connection. A kept connection fails once and is then given up.
    pub on: ConnectionKind,
    /// Reason for the failure.
    pub refusal: Refusal,
}

/// Kind of a connection: made for one question, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Made for one question.
    Fresh,
    /// Open since the stream's start.
    Kept,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    state: Mutex<State>,
    /// Told on every outcome and on the stop.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    report: StreamReport,
}

impl Default for StreamPlan {
    fn default() -> Self {
        Self { interval: Duration::from_millis(20), askers: 1, kept_open: 0 }
    }
}

impl Stream {
    /// Opens the connections to keep, then starts asking.
    ///
    /// # Errors
    /// When a connection to keep cannot be opened or a thread cannot be started.
    pub fn start(namespace: &Namespace, question: Question, plan: StreamPlan) -> Result<Self> {
        let mut kept = (0..plan.kept_open)
            .map(|_| Connection::open(namespace, question))
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("opening {} connections to {question}", plan.kept_open))?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut stream = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        for _ in 0..plan.askers {
            let shared = Arc::clone(&shared);
            stream.threads.push(namespace.start_thread(move || {
                shared.repeat(plan.interval, || {
                    shared.record(ConnectionKind::Fresh, ask_here(question));
                });
            })?);
        }
        if !kept.is_empty() {
            // The sockets belong to the namespace already, so this thread can live anywhere.
            let keeper = thread::Builder::new().name("kept connections".to_owned());
            stream.threads.push(keeper.spawn(move || {
                shared.repeat(plan.interval, || {
                    kept.retain_mut(|connection| {
                        shared.record(ConnectionKind::Kept, connection.say())
                    });
                });
            })?);
        }
        Ok(stream)
    }

    /// Returns the answers and failures so far.
    #[must_use]
    pub fn report(&self) -> StreamReport {
        self.shared.state.lock().report.clone()
    }

    /// Waits until `count` more questions have been answered than now, so that traffic is known
    /// to flow.
    ///
    /// # Errors
    /// When that takes longer than `limit`; then with what happened instead.
    pub fn wait_for_answers(&self, count: usize, limit: Duration) -> Result<()> {
        let mut state = self.shared.state.lock();
        let goal = state.report.answered() + count;
        let is_short = |state: &mut State| state.report.answered() < goal;
        let waited = self.shared.changed.wait_while_for(&mut state, is_short, limit);
        if waited.timed_out() {
            bail!("no {count} more answers within {limit:?}: {}", state.report);
        }
        Ok(())
    }

    /// Stops, lets questions that are under way come to their end, and reports.
    #[must_use]
    pub fn stop(mut self) -> StreamReport {
        self.halt();
        self.report()
    }

    fn halt(&mut self) {
        self.shared.state.lock().stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("a thread of a traffic stream panicked");
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.halt();
    }
}

impl StreamReport {
    /// All answers.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.fresh + self.kept
    }

    /// Makes sure that nothing failed and that enough was asked for that to mean something.
    ///
    /// # Errors
    /// With the whole report, when a question failed or fewer than `minimum` were answered.
    pub fn require_no_failure(&self, minimum: usize) -> Result<()> {
        if !self.failures.is_empty() || self.answered() < minimum {
            bail!("wanted no failure and at least {minimum} answers: {self}");
        }
        Ok(())
    }
}

impl fmt::Display for StreamReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} answers on fresh connections, {} on kept ones, by server {:?}, {} failures",
            self.fresh,
            self.kept,
            self.by_server,
            self.failures.len()
        )?;
        for failure in &self.failures {
            write!(formatter, "\n  after {:?}: {:?}: {}", failure.at, failure.on, failure.refusal)?;
        }
        Ok(())
    }
}

impl Shared {
    /// Counts an outcome; says whether it was an answer.
    fn record(&self, on: ConnectionKind, outcome: Result<Answer, Refusal>) -> bool {
        let answered = outcome.is_ok();
        let mut state = self.state.lock();
        let report = &mut state.report;
        match (outcome, on) {
            (Ok(answer), ConnectionKind::Fresh) => {
                report.fresh += 1;
                *report.by_server.entry(answer.server).or_default() += 1;
            }
            (Ok(_), ConnectionKind::Kept) => report.kept += 1,
            (Err(refusal), _) => {
                report.failures.push(Failure { at: self.started.elapsed(), on, refusal });
            }
        }
        drop(state);
        self.changed.notify_all();
        answered
    }

    /// Runs rounds until the stream is stopped, at least one.
    fn repeat(&self, interval: Duration, mut round: impl FnMut()) {
        loop {
            let next = Instant::now() + interval;
            round();
            let rest = next.saturating_duration_since(Instant::now());
            let mut state = self.state.lock();
            self.changed.wait_while_for(&mut state, |state| !state.stopped, rest);
            if state.stopped {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_shared() -> Shared {
        Shared { started: Instant::now(), state: Mutex::default(), changed: Condvar::new() }
    }

    fn mk_answer(server: &str) -> Result<Answer, Refusal> {
        Ok(Answer { server: server.to_owned(), seen_source: ([10, 0, 0, 1], 1).into() })
    }

    #[test]
    fn outcomes_are_recorded_by_kind() {
        let shared = mk_shared();
        assert!(shared.record(ConnectionKind::Fresh, mk_answer("one")));
        assert!(shared.record(ConnectionKind::Kept, mk_answer("two")));
        assert!(!shared.record(ConnectionKind::Kept, Err(Refusal::Reset)));
        let report = shared.state.lock().report.clone();
        assert_eq!((report.fresh, report.kept, report.failures.len()), (1, 1, 1));
        assert_eq!(report.by_server, BTreeMap::from([("one".to_owned(), 1)]));
        assert_eq!(report.failures[0].on, ConnectionKind::Kept);
        let warning = report.require_no_failure(0).unwrap_err().to_string();
        assert!(warning.contains("Kept: connection reset"), "{warning}");
    }

    #[test]
    fn too_few_answers_prove_nothing() {
        let shared = mk_shared();
        shared.record(ConnectionKind::Fresh, mk_answer("one"));
        let report = shared.state.lock().report.clone();
        assert!(report.require_no_failure(1).is_ok());
        assert!(report.require_no_failure(2).is_err());
    }

    #[test]
    fn a_stop_ends_the_rest() {
        let shared = mk_shared();
        let mut rounds = 0;
        shared.repeat(Duration::ZERO, || {
            rounds += 1;
            shared.state.lock().stopped = rounds == 3;
        });
        shared.repeat(Duration::from_secs(3600), || shared.state.lock().stopped = true);
        assert_eq!(rounds, 3);
    }
}
