//! Bodies of responses: whole ones, and streams that may go wrong on their way.

use std::fmt;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::faults::{Fault, Faults};
use crate::resource::{Resource, Verb};

/// Body of a response, as hyper sends it.
pub(crate) enum Body {
    Whole(Option<Bytes>),
    Stream(mpsc::Receiver<Result<Bytes, Cut>>),
}

/// The connection is to be cut here.
#[derive(Debug)]
pub(crate) struct Cut;

/// The client has gone, or its connection was cut. Nothing can be written any more.
#[derive(Debug)]
pub(crate) struct Gone;

/// The other end of a [`Body::Stream`]: what is written here is subject to the faults in force.
pub(crate) struct Writer {
    chunks: mpsc::Sender<Result<Bytes, Cut>>,
    faults: Arc<Faults>,
    resource: Option<Resource>,
    verb: Verb,
    /// Set when the connection is to be reset rather than closed.
    reset: Arc<AtomicBool>,
    /// Number of bytes that come before the cut, once a reset has struck.
    left: Option<usize>,
    /// The speed, once slowness has struck.
    slow: Option<usize>,
}

/// The real server leaves alone what is shorter (`defaultGzipThresholdBytes`).
const GZIP_THRESHOLD: usize = 128 << 10;

impl Body {
    /// Compressed, if it is whole and long enough. Whether it is.
    pub(crate) fn gzipped(self) -> (Self, bool) {
        match self {
            Self::Whole(Some(bytes)) if bytes.len() >= GZIP_THRESHOLD => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                // Writing into memory cannot fail.
                let written = encoder.write_all(&bytes).and_then(|()| encoder.finish());
                match written {
                    Ok(compressed) => (Self::Whole(Some(compressed.into())), true),
                    Err(_) => (Self::Whole(Some(bytes)), false),
                }
            }
            other => (other, false),
        }
    }
}

impl Writer {
    /// A body, and what writes it. `reset` is that of the connection.
    pub(crate) fn new(
        faults: Arc<Faults>,
        resource: Option<Resource>,
        verb: Verb,
        reset: Arc<AtomicBool>,
    ) -> (Self, Body) {
        let (chunks, receiver) = mpsc::channel(1);
        let writer = Self { chunks, faults, resource, verb, reset, left: None, slow: None };
        (writer, Body::Stream(receiver))
    }

    /// True if the body is to be slow or cut, which a body that is sent whole cannot be.
    pub(crate) fn is_struck(&mut self) -> bool {
        self.take_faults();
        self.left.is_some() || self.slow.is_some()
    }

    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.take_faults();
        match self.left {
            Some(left) if left <= bytes.len() => {
                self.paced(bytes.slice(..left)).await?;
                // The connection would drop what it has not yet written.
                tokio::time::sleep(Duration::from_millis(50)).await;
                self.reset.store(true, Ordering::SeqCst);
                let _ = self.chunks.send(Err(Cut)).await;
                Err(Gone)
            }
            Some(left) => {
                self.left = Some(left.saturating_sub(bytes.len()));
                self.paced(bytes).await
            }
            None => self.paced(bytes).await,
        }
    }

    /// Completes when the client has gone.
    pub(crate) async fn gone(&self) {
        self.chunks.closed().await;
    }

    async fn paced(&mut self, mut bytes: Bytes) -> Result<(), Gone> {
        let Some(bytes_per_second) = self.slow else {
            return self.send(bytes).await;
        };
        // Ten pieces a second, or a byte at a time when that is slower.
        let piece = (bytes_per_second / 10).max(1);
        let pause = Duration::from_millis(1000) * u32::try_from(piece).unwrap_or(u32::MAX)
            / u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
        while !bytes.is_empty() {
            self.send(bytes.split_to(piece.min(bytes.len()))).await?;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    async fn send(&self, bytes: Bytes) -> Result<(), Gone> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.chunks.send(Ok(bytes)).await.map_err(|_| Gone)
    }

    fn take_faults(&mut self) {
        if self.left.is_none() {
            self.left = self.strike(|fault| match fault {
                Fault::Reset { after } => Some(*after),
                _ => None,
            });
        }
        if self.slow.is_none() {
            self.slow = self.strike(|fault| match fault {
                Fault::Slow { bytes_per_second } => Some((*bytes_per_second).max(1)),
                _ => None,
            });
        }
    }

    fn strike(&self, wanted: impl Fn(&Fault) -> Option<usize>) -> Option<usize> {
        self.faults.strike(self.resource, self.verb, wanted).map(|(picked, _)| picked)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(receiver) => {
                receiver.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the connection is cut, at a test's request")
    }
}

impl std::error::Error for Cut {}
