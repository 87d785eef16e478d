//! Scrapes that are being read.
//!
//! The metrics of many Services are tens of megabytes, and a client that reads slowly, or not at all, would
//! keep them in memory until its connection ends. So only a few answers are kept at once: the oldest is cut
//! off for a new one.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Weak};

use axum::body::{Body, Bytes};
use futures::stream;
use parking_lot::Mutex;

/// Most answers in memory. Scrapers are few, and read at once.
const MOST: usize = 4;

/// Bytes that are handed over at once; what the connection takes beyond that waits here.
const CHUNK: usize = 64 << 10;

/// The answers that are being read, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Scrapes(Mutex<VecDeque<Weak<Mutex<Answer>>>>);

/// Rest of an answer, to be sent.
#[derive(Debug)]
enum Answer {
    Left(Bytes),
    /// Others were there for a newer one.
    CutOff,
}

impl Scrapes {
    /// The body of an answer, which lasts until it is read or cut off.
    pub(super) fn body(&self, text: String) -> Body {
        let answer = Arc::new(Mutex::new(Answer::Left(text.into())));
        let mut answers = self.0.lock();
        answers.retain(|answer| answer.strong_count() > 0);
        while answers.len() >= MOST {
            if let Some(oldest) = answers.pop_front().and_then(|answer| answer.upgrade()) {
                *oldest.lock() = Answer::CutOff;
            }
        }
        answers.push_back(Arc::downgrade(&answer));
        Body::from_stream(stream::unfold(answer, async |answer| {
            let chunk = answer.lock().next()?;
            Some((chunk, answer))
        }))
    }
}

impl Answer {
    fn next(&mut self) -> Option<io::Result<Bytes>> {
        match self {
            Self::Left(rest) if rest.is_empty() => None,
            Self::Left(rest) => Some(Ok(rest.split_to(rest.len().min(CHUNK)))),
            Self::CutOff => Some(Err(io::Error::other("cut off for newer scrapes"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn slow_readers_keep_a_few_answers_in_memory_and_newer_ones_are_whole() {
        let scrapes = Scrapes::default();
        let text = |number: usize| format!("{number}").repeat(3 * CHUNK / 2);
        let bodies: Vec<Body> = (0..MOST + 2).map(|number| scrapes.body(text(number))).collect();
        for (number, body) in bodies.into_iter().enumerate() {
            match to_bytes(body, usize::MAX).await {
                Ok(whole) => assert!(number >= 2 && whole == text(number), "{number}"),
                Err(error) => assert!(number < 2, "{number}: {error}"),
            }
        }
        assert!(to_bytes(scrapes.body(text(9)), usize::MAX).await.is_ok());
    }
}
