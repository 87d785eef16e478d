//! Answers that the viewers of a page share, so that their number costs nothing.
//!
//! A page with live figures is asked for every two seconds in each tab, and an answer about many
//! Services takes a request to the kernel for each virtual server. So an answer is made once for all
//! viewers, and the answers for all pages together take one fortieth of the time at most: where many
//! different pages are open, their figures are older.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::{Answered, Failure};

/// Part of the time in which answers may be made, as its reciprocal.
const SHARE: u32 = 40;

/// Answers that are older are never shown.
const OLDEST: Duration = Duration::from_secs(30);

/// Answers that are kept.
const MOST: usize = 64;

/// The answers that were made last. Copies share them.
#[derive(Debug, Clone)]
pub(super) struct SharedAnswers {
    /// Time for which an answer is shown to others.
    pause: Duration,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    answers: HashMap<String, (Instant, Answered)>,
    /// End of the time in which nothing is answered anew.
    resting_until: Option<Instant>,
}

// === impl SharedAnswers ===

impl SharedAnswers {
    /// None yet. An answer is shown to others for this time at least.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, kept: Arc::default() }
    }

    /// Returns the answer to a question: a recent one, or that of `ask`. One question is asked at a
    /// time, so that two viewers do not ask the same.
    pub(super) async fn get<F: Future<Output = Result<Answered, Failure>>>(
        &self,
        question: &str,
        ask: impl FnOnce() -> F,
    ) -> Result<Answered, Failure> {
        let mut kept = self.kept.lock().await;
        let began = Instant::now();
        if let Some(answer) = kept.recent(question, began, self.pause) {
            return Ok(answer.clone());
        }
        let answer = ask().await?;
        let ended = Instant::now();
        if !self.pause.is_zero() {
            kept.keep(question, answer.clone(), began, ended);
        }
        Ok(answer)
    }
}

// === impl Kept ===

impl Kept {
    fn recent(&self, question: &str, now: Instant, pause: Duration) -> Option<&Answered> {
        let (at, answer) = self.answers.get(question)?;
        let age = now.saturating_duration_since(*at);
        let is_resting = self.resting_until.is_some_and(|until| now < until);
        (age < pause || (is_resting && age < OLDEST)).then_some(answer)
    }

    fn keep(&mut self, question: &str, answer: Answered, began: Instant, ended: Instant) {
        let pause = ended.saturating_duration_since(began).saturating_mul(SHARE);
        let from = self.resting_until.map_or(ended, |until| until.max(ended));
        // However long one answer took, figures are not older than that.
        self.resting_until = Some((from + pause).min(ended + OLDEST));
        self.answers.retain(|_, (at, _)| ended.saturating_duration_since(*at) < OLDEST);
        if self.answers.len() < MOST {
            self.answers.insert(question.to_owned(), (began, answer));
        }
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
    }

    #[test]
    fn so_many_answers_are_kept() {
        let mut kept = Kept::default();
        let now = Instant::now();
        for number in 0..2 * MOST {
            kept.keep(&number.to_string(), answered(""), now, now);
        }
        assert_eq!(kept.answers.len(), MOST);
        kept.keep("later", answered(""), now + OLDEST, now + OLDEST);
        assert_eq!(kept.answers.len(), 1);
    }
}
