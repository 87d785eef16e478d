//! Answers that the viewers of a page share, so that their number costs nothing.
//!
//! A page with live figures is asked for every two seconds in each tab, and an answer about many
//! Services takes a request to the kernel for each virtual server. So an answer is made once for all
//! viewers, and the answers for all pages together take one fortieth of the time at most: where many
//! different pages are open, their figures are older. A reader who asks one question after the other has to wait:
//! a few are answered beyond that share, and then none before it is made up for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Answered, Failure};

/// Part of the time in which answers may be made, as its reciprocal.
const SHARE: u32 = 40;

/// Answers that are older are never shown.
const OLDEST: Duration = Duration::from_secs(30);

/// Pause that new questions may still add to: a quarter of a second of answers.
const CREDIT: Duration = Duration::from_secs(10);

/// Longest pause that answers may cost.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// Answers that are made at once.
const AT_ONCE: usize = 2;

/// Answers that are kept.
const MOST: usize = 64;

/// The answers that were made last. Copies share them.
#[derive(Debug, Clone)]
pub(super) struct SharedAnswers {
    /// Time for which an answer is shown to others.
    pause: Duration,
    turns: Arc<Semaphore>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    answers: HashMap<String, (Instant, Answered)>,
    /// Turn of each question that is being answered, for others who ask the same.
    asked: HashMap<String, Arc<Semaphore>>,
    /// End of the time in which nothing is answered anew.
    resting_until: Option<Instant>,
}

/// Turn of a question, which ends with who asks it.
struct Turn<'a> {
    shared: &'a SharedAnswers,
    question: &'a str,
    turn: Option<OwnedSemaphorePermit>,
}

// === impl SharedAnswers ===

impl SharedAnswers {
    /// None yet. An answer is shown to others for this time at least.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, turns: Arc::new(Semaphore::new(AT_ONCE)), kept: Arc::default() }
    }

    /// Returns the answer to a question: a recent one, or that of `ask`. One question is asked at a
    /// time, so that two viewers do not ask the same.
    ///
    /// # Errors
    /// Those of `ask`, and when there have been too many questions lately.
    pub(super) async fn get<F: Future<Output = Result<Answered, Failure>>>(
        &self,
        question: &str,
        ask: impl FnOnce() -> F,
    ) -> Result<Answered, Failure> {
        let turn = Turn::take(self, question).await;
        let began = Instant::now();
        let owed = {
            let kept = self.kept();
            if let Some(answer) = kept.recent(question, began, self.pause) {
                return Ok(answer.clone());
            }
            kept.owed(began)
        };
        if !self.pause.is_zero() && owed > CREDIT {
            return Err(Failure::busy(owed - CREDIT));
        }
        // Never closed.
        let _turn_of_all = self.turns.acquire().await;
        let began = Instant::now();
        let answer = ask().await?;
        if !self.pause.is_zero() {
            self.kept().keep(question, answer.clone(), began, Instant::now());
        }
        drop(turn);
        Ok(answer)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // It is whole at any time.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turn ===

impl<'a> Turn<'a> {
    async fn take(shared: &'a SharedAnswers, question: &'a str) -> Self {
        let turns = {
            let mut kept = shared.kept();
            let turns = kept.asked.entry(question.to_owned());
            Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // Before it waits, so that its place goes with it when it is given up.
        let mut turn = Self { shared, question, turn: None };
        turn.turn = turns.acquire_owned().await.ok();
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turn = None;
        let mut kept = self.shared.kept();
        // The last one who asks it.
        if kept.asked.get(self.question).is_some_and(|turns| Arc::strong_count(turns) == 1) {
            kept.asked.remove(self.question);
        }
    }
}

// === impl Kept ===

impl Kept {
    fn recent(&self, question: &str, now: Instant, pause: Duration) -> Option<&Answered> {
        let (at, answer) = self.answers.get(question)?;
        let age = now.saturating_duration_since(*at);
        let is_resting = !self.owed(now).is_zero();
        (age < pause || (is_resting && age < OLDEST)).then_some(answer)
    }

    /// Time for which nothing is to be answered anew.
    fn owed(&self, now: Instant) -> Duration {
        self.resting_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    fn keep(&mut self, question: &str, answer: Answered, began: Instant, ended: Instant) {
        let pause = ended.saturating_duration_since(began).saturating_mul(SHARE);
        self.resting_until = Some(ended + (self.owed(ended) + pause).min(LONGEST_REST));
        self.answers.retain(|_, (at, _)| ended.saturating_duration_since(*at) < OLDEST);
        if self.answers.len() >= MOST
            && let Some(oldest) = self.answers.iter().min_by_key(|(_, (at, _))| *at)
        {
            let oldest = oldest.0.clone();
            self.answers.remove(&oldest);
        }
        self.answers.insert(question.to_owned(), (began, answer));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::StatusCode;

    use super::*;

    fn answered(text: &str) -> Answered {
        Answered { status: StatusCode::OK, body: text.to_owned().into() }
    }

    #[tokio::test]
    async fn viewers_of_a_page_share_an_answer() {
        let shared = SharedAnswers::new(Duration::from_secs(60));
        let asked = AtomicUsize::new(0);
        let ask = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            Ok(answered("{}"))
        };
        for viewer in 0..20 {
            let answer = shared.get("/v1/services", ask).await.unwrap();
            assert_eq!(answer.body, "{}", "{viewer}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        shared.get("/v1/status", ask).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2, "another page is another answer");
    }

    #[test]
    fn many_pages_have_older_figures_instead_of_more_time() {
        let (pause, took) = (Duration::from_secs(2), Duration::from_millis(100));
        let mut kept = Kept::default();
        let now = Instant::now();
        kept.keep("one", answered("1"), now, now + took);
        assert!(kept.recent("other", now + took, pause).is_none(), "it is not known yet");
        kept.keep("other", answered("2"), now + took, now + took * 2);
        // 200 ms of work: 8 s without.
        let ended = now + took * 2;
        for (seconds, is_shared) in [(1, true), (3, true), (7, true), (9, false)] {
            let at = ended + Duration::from_secs(seconds);
            assert_eq!(kept.recent("one", at, pause).is_some(), is_shared, "{seconds}");
        }
        kept.keep("long", answered("3"), ended, ended + OLDEST);
        assert!(kept.recent("one", ended + OLDEST, pause).is_none(), "it is too old");
        assert_eq!(kept.owed(ended + OLDEST), LONGEST_REST);
    }

    #[tokio::test]
    async fn whoever_asks_one_question_after_the_other_has_to_wait() {
        let shared = SharedAnswers::new(Duration::from_secs(2));
        let mut n_answered = 0;
        let refused = loop {
            let ask = || async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(answered("{}"))
            };
            match shared.get(&format!("/v1/services?namespace=r{n_answered}"), ask).await {
                Ok(_) => n_answered += 1,
                Err(failure) => break failure,
            }
        };
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(
            (10..15).contains(&n_answered),
            "20 ms of answers are 800 ms without: {n_answered}"
        );
        let known = shared.get("/v1/services?namespace=r0", || async { unreachable!() }).await;
        assert!(known.is_ok(), "what is known is shown");
        assert!(shared.kept().asked.is_empty());
    }

    #[tokio::test]
    async fn a_slow_page_holds_up_no_other_and_one_who_goes_leaves_nothing() {
        let shared = SharedAnswers::new(Duration::from_secs(2));
        let slow = shared.get("/v1/trace", std::future::pending);
        let slow = tokio::time::timeout(Duration::from_millis(50), slow);
        let ask = || async { Ok(answered("{}")) };
        let (slow, other) = tokio::join!(slow, shared.get("/v1/status", ask));
        assert!(slow.is_err() && other.is_ok());
        assert!(shared.kept().asked.is_empty());
        assert_eq!(shared.turns.available_permits(), AT_ONCE);
        assert!(shared.get("/v1/trace", ask).await.is_ok());
    }

    #[test]
    fn so_many_answers_are_kept() {
        let mut kept = Kept::default();
        let now = Instant::now();
        for number in 0..2 * MOST {
            kept.keep(&number.to_string(), answered(""), now, now);
        }
        assert_eq!(kept.answers.len(), MOST);
        assert!(kept.answers.contains_key(&(2 * MOST - 1).to_string()), "the newest");
        kept.keep("later", answered(""), now + OLDEST, now + OLDEST);
        assert_eq!(kept.answers.len(), 1);
    }
}
