//! The bytes of an answer, as they come.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::decode::{LONGEST_OBJECT, UNLIKE_AN_ANSWER};
use super::error_text::{chain, innermost};

/// Longest line of a watch: an object, with the type of the event.
const LONGEST_LINE: usize = LONGEST_OBJECT + (64 << 10);

/// An answer's body.
pub(super) struct Body {
    bytes: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
    /// Number of bytes that were taken in chunks.
    taken: u64,
}

/// Reason for which there is no more of a body.
#[derive(Debug)]
pub(super) enum BodyError {
    /// Not a byte for as long as one was ready to wait.
    Silent(Duration),
    /// The connection broke.
    Broken(io::Error),
    /// A line has more bytes than any event can have.
    EndlessLine,
    /// The body has more bytes than these, which no answer of the API server has.
    Endless(u64),
}

impl Body {
    pub(super) fn new(body: kube::client::Body) -> Self {
        let bytes = body
            .into_data_stream()
            .map_err(|error| io::Error::other(innermost(error)))
            .into_async_read();
        Self { bytes: Box::pin(bytes), line: Vec::new(), taken: 0 }
    }

    /// The next line, without its end; nothing at the body's end. What comes after the last line's
    /// end is part of a line that was cut off, and is nothing either.
    ///
    /// # Errors
    /// When nothing comes for `patience`, or nothing can. After [`BodyError::Silent`] one may go on.
    pub(super) async fn line(&mut self, patience: Duration) -> Result<Option<Vec<u8>>, BodyError> {
        loop {
            let chunk = read(&mut self.bytes, patience).await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(chunk.len(), |end| end + 1);
            self.line.extend_from_slice(chunk.split_at(end.unwrap_or(chunk.len())).0);
            self.bytes.as_mut().consume(taken);
            if self.line.len() > LONGEST_LINE {
                return Err(BodyError::EndlessLine);
            }
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }

    /// Returns what has come since the last one; nothing at the body's end.
    ///
    /// # Errors
    /// When nothing comes for `patience`, nothing can, or the chunks have more than `most` bytes together.
    pub(super) async fn chunk(
        &mut self,
        most: u64,
        patience: Duration,
    ) -> Result<Option<Vec<u8>>, BodyError> {
        let chunk = read(&mut self.bytes, patience).await?.to_vec();
        self.bytes.as_mut().consume(chunk.len());
        self.taken = self.taken.saturating_add(chunk.len() as u64);
        if self.taken > most {
            return Err(BodyError::Endless(most));
        }
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }

    /// As much of it as has come when these are so many bytes, or all of it.
    ///
    /// # Errors
    /// When nothing comes for `patience`, or nothing can.
    pub(super) async fn beginning(
        mut self,
        most: usize,
        patience: Duration,
    ) -> Result<Vec<u8>, BodyError> {
        let mut beginning = Vec::new();
        while beginning.len() < most
            && let Some(chunk) = self.chunk(u64::MAX, patience).await?
        {
            beginning.extend(chunk);
        }
        beginning.truncate(most);
        Ok(beginning)
    }

    /// Returns all of it.
    ///
    /// # Errors
    /// When nothing comes for `patience`, nothing can, or it has more than `most` bytes.
    pub(super) async fn all(mut self, most: u64, patience: Duration) -> Result<Vec<u8>, BodyError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk(most, patience).await? {
            all.extend(chunk);
        }
        Ok(all)
    }
}

/// Returns what came and was not consumed. Empty at the end.
async fn read(
    bytes: &mut Pin<Box<dyn AsyncBufRead + Send>>,
    patience: Duration,
) -> Result<&[u8], BodyError> {
    match timeout(patience, bytes.fill_buf()).await {
        Ok(chunk) => chunk.map_err(BodyError::Broken),
        Err(_) => Err(BodyError::Silent(patience)),
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(patience) => write!(f, "nothing was sent for {patience:?}"),
            Self::Broken(error) => {
                write!(f, "the connection broke: {}", chain(error))
            }
            Self::EndlessLine => {
                write!(f, "an event has more than {} MiB; {UNLIKE_AN_ANSWER}", LONGEST_LINE >> 20)
            }
            Self::Endless(most) => {
                write!(f, "it has more than {} MiB; {UNLIKE_AN_ANSWER}", most >> 20)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn body(length: usize) -> Body {
        Body::new(kube::client::Body::from(vec![b'x'; length]))
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        assert_eq!(body(1_000).all(1_000, PATIENCE).await.unwrap().len(), 1_000);
        let error = body(3 << 20).all(2 << 20, PATIENCE).await.unwrap_err().to_string();
        assert!(error.starts_with("it has more than 2 MiB; no API server answers so"), "{error}");
        let mut chunks = body(1_001);
        let error = chunks.chunk(1_000, PATIENCE).await.unwrap_err();
        assert!(matches!(error, BodyError::Endless(1_000)), "{error}");
    }

    #[tokio::test]
    async fn a_line_is_read_up_to_the_length_of_an_event() {
        let mut body = body(LONGEST_LINE + 1);
        let error = body.line(PATIENCE).await.unwrap_err();
        assert!(error.to_string().starts_with("an event has more than 16 MiB; "), "{error}");
    }
}
