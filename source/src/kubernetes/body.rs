//! The bytes of an answer, as they come.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::decode::{Encoding, LONGEST_OBJECT, UNLIKE_AN_ANSWER};
use super::error_text::{chain, innermost};

/// Longest event of a watch: an object, with the type of the event.
const LONGEST_EVENT: usize = LONGEST_OBJECT + (64 << 10);

/// Bytes of the length before each event in Protobuf (`lengthDelimitedFrameWriter` in apimachinery's
/// util/framer/framer.go).
const FRAME: usize = size_of::<u32>();

/// An answer's body.
pub(super) struct Body {
    /// Encoding, once it is known.
    encoding: Option<Encoding>,
    bytes: Pin<Box<dyn AsyncBufRead + Send>>,
    /// Part of an event that has come, or of the length before it.
    event: Vec<u8>,
    /// Length of the event, once it is known.
    length: Option<usize>,
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
    /// An event has more bytes than any can have.
    EndlessEvent,
    /// The body has more bytes than these, which no answer of the API server has.
    Endless(u64),
}

impl Body {
    pub(super) fn new(body: kube::client::Body, encoding: Option<Encoding>) -> Self {
        let bytes = body
            .into_data_stream()
            .map_err(|error| io::Error::other(innermost(error)))
            .into_async_read();
        let (bytes, event) = (Box::pin(bytes), Vec::new());
        Self { encoding, bytes, event, length: None, taken: 0 }
    }

    /// Its encoding; if the head of the answer does not have it, what it begins with says so.
    ///
    /// # Errors
    /// When nothing comes for `patience`, or nothing can.
    pub(super) async fn encoding(&mut self, patience: Duration) -> Result<Encoding, BodyError> {
        if let Some(encoding) = self.encoding {
            return Ok(encoding);
        }
        let encoding = Encoding::detect(read(&mut self.bytes, patience).await?);
        Ok(*self.encoding.insert(encoding))
    }

    /// The next event of a watch, without what is around it; nothing at the body's end. What was cut off there is
    /// nothing either.
    ///
    /// # Errors
    /// When nothing comes for `patience`, or nothing can. After [`BodyError::Silent`] one may go on.
    pub(super) async fn event(&mut self, patience: Duration) -> Result<Option<Vec<u8>>, BodyError> {
        let encoding = self.encoding(patience).await?;
        loop {
            let chunk = read(&mut self.bytes, patience).await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let (taken, is_complete) = match encoding {
                Encoding::Json => take_line(&mut self.event, chunk),
                Encoding::Protobuf => take_frame(&mut self.event, &mut self.length, chunk),
            };
            self.bytes.as_mut().consume(taken);
            if self.event.len().max(self.length.unwrap_or_default()) > LONGEST_EVENT {
                return Err(BodyError::EndlessEvent);
            }
            if is_complete {
                return Ok(Some(std::mem::take(&mut self.event)));
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

/// Takes up to the end of a line. Returns the number of bytes taken, and true if the line is complete.
fn take_line(line: &mut Vec<u8>, chunk: &[u8]) -> (usize, bool) {
    let end = chunk.iter().position(|byte| *byte == b'\n');
    line.extend_from_slice(chunk.split_at(end.unwrap_or(chunk.len())).0);
    (end.map_or(chunk.len(), |end| end + 1), end.is_some())
}

/// Takes up to the end of an event with its length before it, or up to the end of that length. Returns the number of
/// bytes taken, and true if the event is complete.
fn take_frame(event: &mut Vec<u8>, length: &mut Option<usize>, chunk: &[u8]) -> (usize, bool) {
    let missing = length.unwrap_or(FRAME) - event.len();
    let taken = missing.min(chunk.len());
    event.extend_from_slice(chunk.split_at(taken).0);
    if taken < missing {
        return (taken, false);
    }
    if length.take().is_some() {
        return (taken, true);
    }
    let known = event.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
    event.clear();
    *length = Some(known);
    // One without content is complete.
    (taken, known == 0 && length.take().is_some())
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
            Self::EndlessEvent => {
                write!(f, "an event has more than {} MiB; {UNLIKE_AN_ANSWER}", LONGEST_EVENT >> 20)
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
        json(vec![b'x'; length])
    }

    fn json(bytes: Vec<u8>) -> Body {
        Body::new(kube::client::Body::from(bytes), Some(Encoding::Json))
    }

    /// A body that comes in chunks of so many bytes.
    fn protobuf(bytes: &[u8], chunk: usize) -> Body {
        Body { encoding: Some(Encoding::Protobuf), ..unlabelled(bytes, chunk) }
    }

    fn unlabelled(bytes: &[u8], chunk: usize) -> Body {
        let chunks: Vec<_> = bytes.chunks(chunk).map(|chunk| Ok(chunk.to_vec())).collect();
        let bytes = Box::pin(futures::stream::iter(chunks).into_async_read());
        Body { bytes, ..Body::new(kube::client::Body::empty(), None) }
    }

    async fn events(mut body: Body) -> Vec<Vec<u8>> {
        let mut events = Vec::new();
        while let Some(event) = body.event(PATIENCE).await.unwrap() {
            events.push(event);
        }
        events
    }

    #[tokio::test]
    async fn events_are_the_same_in_chunks_of_any_size() {
        let begin = b"\0\0\0\x03abc\0\0\0\0\0\0\x01\x01".iter().copied();
        let bytes: Vec<u8> = begin.chain([b'\n'; 257]).chain(*b"\0\0\0\x09cut off").collect();
        for chunk in 1..=bytes.len() {
            for body in [protobuf(&bytes, chunk), unlabelled(&bytes, chunk)] {
                let events = events(body).await;
                assert_eq!(events, [&b"abc"[..], b"", &[b'\n'; 257]], "chunks of {chunk}");
            }
        }
        let lines = b"{}\n\nc\ncut off";
        for body in [json(lines.to_vec()), unlabelled(lines, 2)] {
            assert_eq!(events(body).await, [&b"{}"[..], b"", b"c"]);
        }
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        assert_eq!(body(1_000).all(1_000, PATIENCE).await.unwrap().len(), 1_000);
        let error = body(3 << 20).all(2 << 20, PATIENCE).await.unwrap_err().to_string();
        assert!(
            error.starts_with("it has more than 2 MiB; this is not an answer of an API server"),
            "{error}"
        );
        let mut chunks = body(1_001);
        let error = chunks.chunk(1_000, PATIENCE).await.unwrap_err();
        assert!(matches!(error, BodyError::Endless(1_000)), "{error}");
    }

    #[tokio::test]
    async fn an_event_is_read_up_to_the_longest_length() {
        // Of Protobuf, no more than the length is read.
        for mut body in [body(LONGEST_EVENT + 1), protobuf(&[0xff; FRAME], 1)] {
            let error = body.event(PATIENCE).await.unwrap_err();
            assert!(error.to_string().starts_with("an event has more than 16 MiB; "), "{error}");
        }
    }
}
