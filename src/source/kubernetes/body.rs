//! The bytes of an answer, as they come.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::failure::innermost;

/// The longest line of a watch: the largest object that etcd takes is 1.5 MiB, by default.
const LONGEST_LINE: usize = 32 << 20;

/// An answer's body.
pub(super) struct Body {
    bytes: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
}

/// Reason for which there is no more of a body.
#[derive(Debug)]
pub(super) enum BodyError {
    /// Not a byte for as long as one was ready to wait.
    Silent(Duration),
    /// The connection broke.
    Broken(io::Error),
    /// A line is longer than any event can be.
    Endless,
}

// === impl Body ===

impl Body {
    pub(super) fn new(body: kube::client::Body) -> Self {
        let bytes = body
            .into_data_stream()
            .map_err(|error| io::Error::other(innermost(error)))
            .into_async_read();
        Self { bytes: Box::pin(bytes), line: Vec::new() }
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
                return Err(BodyError::Endless);
            }
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }

    /// Returns what has come since the last one; nothing at the body's end.
    ///
    /// # Errors
    /// When nothing comes for `patience`, or nothing can.
    pub(super) async fn chunk(&mut self, patience: Duration) -> Result<Option<Vec<u8>>, BodyError> {
        let chunk = read(&mut self.bytes, patience).await?.to_vec();
        self.bytes.as_mut().consume(chunk.len());
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
            && let Some(chunk) = self.chunk(patience).await?
        {
            beginning.extend(chunk);
        }
        beginning.truncate(most);
        Ok(beginning)
    }

    /// All of it.
    ///
    /// # Errors
    /// When nothing comes for `patience`, or nothing can.
    pub(super) async fn all(mut self, patience: Duration) -> Result<Vec<u8>, BodyError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk(patience).await? {
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

// === impl BodyError ===

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(patience) => write!(f, "nothing was sent for {patience:?}"),
            Self::Broken(error) => {
                write!(f, "the connection broke: {}", super::failure::chain(error))
            }
            Self::Endless => write!(f, "a line of more than {LONGEST_LINE} bytes"),
        }
    }
}
