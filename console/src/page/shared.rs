//! Pages that their viewers share, so that the number of viewers costs nothing.
//!
//! A page with live figures is asked for every two seconds in each tab, and an answer about many
//! Services takes a request to the kernel for each virtual server. So a page is made once for all
//! viewers, and all pages together take one fortieth of the time at most: where many
//! different pages are open, their figures are older. A reader who asks one question after the other has to wait:
//! a few are answered beyond that share, and then none before it is made up for. That the reader goes away
//! before the answer does not change this.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{Failure, Page};

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

/// Time that a page counts for at least whose viewer goes away: a reading of the kernel goes on.
const ABANDONED: Duration = Duration::from_millis(100);

/// Pages that are kept.
const MOST: usize = 64;

/// Bytes of pages that are kept, but for those of the newest one.
const MOST_BYTES: usize = 32 << 20;

/// The pages that were made last. Copies share them.
#[derive(Debug, Clone)]
pub(super) struct SharedAnswers {
    /// Time for which an answer is shown to others.
    pause: Duration,
    turns: Arc<Semaphore>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    pages: HashMap<String, (Instant, Page)>,
    /// Turn of each question that is being answered, for others who ask the same.
    asked: HashMap<String, Arc<Semaphore>>,
    /// End of the time in which nothing is answered anew.
    resting_until: Option<Instant>,
}

/// A page that is being made. Its time is charged when it ends, with or without a page.
struct Charge<'a> {
    shared: &'a SharedAnswers,
    began: Instant,
    is_made: bool,
}

/// Turn of a question, which ends with who asks it.
struct Turn<'a> {
    shared: &'a SharedAnswers,
    question: &'a str,
    turn: Option<OwnedSemaphorePermit>,
}

impl SharedAnswers {
    /// None yet. An answer is shown to others for this time at least.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, turns: Arc::new(Semaphore::new(AT_ONCE)), kept: Arc::default() }
    }

    /// Returns the page for a question: a recent one, or that of `ask`. One question is asked at a
    /// time, so that two viewers do not ask the same.
    ///
    /// # Errors
    /// Those of `ask`, and when there have been too many questions lately.
    pub(super) async fn get<F: Future<Output = Result<Page, Failure>>>(
        &self,
        question: &str,
        ask: impl FnOnce() -> F,
    ) -> Result<Page, Failure> {
        let turn = Turn::take(self, question).await;
        let began = Instant::now();
        let owed = {
            let kept = self.kept.lock();
            if let Some(page) = kept.recent(question, began, self.pause) {
                return Ok(page.clone());
            }
            kept.owed(began)
        };
        if !self.pause.is_zero() && owed > CREDIT {
            return Err(Failure::busy(owed - CREDIT));
        }
        // Never closed.
        let _turn_of_all = self.turns.acquire().await;
        let mut charge = Charge { shared: self, began: Instant::now(), is_made: false };
        let made = ask().await;
        charge.is_made = true;
        let began = charge.began;
        drop(charge);
        let page = made?;
        if !self.pause.is_zero() {
            self.kept.lock().keep(question, page.clone(), began, Instant::now());
        }
        drop(turn);
        Ok(page)
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        if self.shared.pause.is_zero() {
            return;
        }
        let now = Instant::now();
        let took = now.saturating_duration_since(self.began);
        let took = if self.is_made { took } else { took.max(ABANDONED) };
        self.shared.kept.lock().charge(took, now);
    }
}

impl<'a> Turn<'a> {
    async fn take(shared: &'a SharedAnswers, question: &'a str) -> Self {
        let turns = {
            let mut kept = shared.kept.lock();
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
        let mut kept = self.shared.kept.lock();
        // The last one who asks it.
        if kept.asked.get(self.question).is_some_and(|turns| Arc::strong_count(turns) == 1) {
            kept.asked.remove(self.question);
        }
    }
}

impl Kept {
    fn recent(&self, question: &str, now: Instant, pause: Duration) -> Option<&Page> {
        let (at, page) = self.pages.get(question)?;
        let age = now.saturating_duration_since(*at);
        let is_resting = !self.owed(now).is_zero();
        (age < pause || (is_resting && age < OLDEST)).then_some(page)
    }

    /// Time for which nothing is to be answered anew.
    fn owed(&self, now: Instant) -> Duration {
        self.resting_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Charges time in which a page was made.
    fn charge(&mut self, took: Duration, now: Instant) {
        let pause = took.saturating_mul(SHARE);
        self.resting_until = Some(now + (self.owed(now) + pause).min(LONGEST_REST));
    }

    /// Keeps a page for others.
    fn keep(&mut self, question: &str, page: Page, began: Instant, ended: Instant) {
        self.pages.retain(|_, (at, _)| ended.saturating_duration_since(*at) < OLDEST);
        self.pages.remove(question);
        while self.pages.len() >= MOST || self.n_bytes() + page.html.len() > MOST_BYTES {
            let oldest = self.pages.iter().min_by_key(|(_, (at, _))| *at);
            let Some(oldest) = oldest.map(|(question, _)| question.clone()) else { break };
            self.pages.remove(&oldest);
        }
        self.pages.insert(question.to_owned(), (began, page));
    }

    fn n_bytes(&self) -> usize {
        self.pages.values().map(|(_, page)| page.html.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use axum::http::StatusCode;

    use super::*;

    fn answered(text: &str) -> Page {
        Page { status: StatusCode::OK, html: text.to_owned().into() }
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
            assert_eq!(answer.html, "{}", "{viewer}");
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
        let make = |kept: &mut Kept, page: &str, began: Instant, ended: Instant| {
            kept.charge(ended.duration_since(began), ended);
            kept.keep(page, answered(page), began, ended);
        };
        make(&mut kept, "one", now, now + took);
        assert!(kept.recent("other", now + took, pause).is_none(), "it is not known yet");
        make(&mut kept, "other", now + took, now + took * 2);
        // 200 ms of work: 8 s without.
        let ended = now + took * 2;
        for (seconds, is_shared) in [(1, true), (3, true), (7, true), (9, false)] {
            let at = ended + Duration::from_secs(seconds);
            assert_eq!(kept.recent("one", at, pause).is_some(), is_shared, "{seconds}");
        }
        make(&mut kept, "long", ended, ended + OLDEST);
        assert!(kept.recent("one", ended + OLDEST, pause).is_none(), "it is too old");
        assert_eq!(kept.owed(ended + OLDEST), LONGEST_REST);
    }

    #[tokio::test(start_paused = true)]
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
        assert_eq!(n_answered, 13, "20 ms of answers are 800 ms without");
        let known = shared.get("/v1/services?namespace=r0", || async { unreachable!() }).await;
        assert!(known.is_ok(), "what is known is shown");
        assert!(shared.kept.lock().asked.is_empty());
    }

    #[tokio::test]
    async fn a_slow_page_holds_up_no_other_and_one_who_goes_leaves_nothing() {
        let shared = SharedAnswers::new(Duration::from_secs(2));
        let slow = shared.get("/v1/trace", std::future::pending);
        let slow = tokio::time::timeout(Duration::from_millis(50), slow);
        let ask = || async { Ok(answered("{}")) };
        let (slow, other) = tokio::join!(slow, shared.get("/v1/status", ask));
        assert!(slow.is_err() && other.is_ok());
        assert!(shared.kept.lock().asked.is_empty());
        assert_eq!(shared.turns.available_permits(), AT_ONCE);
        assert!(shared.get("/v1/trace", ask).await.is_ok());
    }

    #[tokio::test]
    async fn who_asks_and_goes_has_to_wait_as_well() {
        let shared = SharedAnswers::new(Duration::from_secs(2));
        for number in 0..4 {
            let question = format!("/v1/service?name=shop/{number}");
            let mut asking = Box::pin(shared.get(&question, std::future::pending));
            // It is begun, and given up.
            let begun =
                std::future::poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx).is_pending()));
            // Each counts for 100 ms, which are 4 s without.
            assert_eq!(begun.await, number < 3, "{number}");
        }
        let refused = shared.get("/v1/status", || async { unreachable!() }).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        let shared = SharedAnswers::new(Duration::from_secs(2));
        let failed = shared.get("/v1/status", || async { Err(Failure::busy(CREDIT)) }).await;
        assert!(
            failed.is_err() && shared.kept.lock().resting_until.is_some(),
            "failures are charged"
        );
    }

    #[test]
    fn so_many_bytes_of_pages_are_kept() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        let large = "x".repeat(MOST_BYTES / 2);
        for number in 0..3 {
            let at = now + Duration::from_secs(number);
            kept.keep(&number.to_string(), answered(&large), at, at);
        }
        assert_eq!((kept.pages.len(), kept.pages.contains_key("0")), (2, false));
        kept.keep("3", answered(&large.repeat(3)), now + OLDEST / 2, now + OLDEST / 2);
        assert_eq!(kept.pages.len(), 1, "the newest");
    }

    #[test]
    fn so_many_answers_are_kept() {
        let mut kept = Kept::default();
        let now = Instant::now();
        for number in 0..2 * MOST {
            kept.keep(&number.to_string(), answered(""), now, now);
        }
        assert_eq!(kept.pages.len(), MOST);
        assert!(kept.pages.contains_key(&(2 * MOST - 1).to_string()), "the newest");
        kept.keep("later", answered(""), now + OLDEST, now + OLDEST);
        assert_eq!(kept.pages.len(), 1);
    }
}
