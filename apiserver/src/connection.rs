//! The listener, and the connections that it accepts.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::handler::Handler;
use crate::requests::Authorization;
use crate::usage::Meter;

/// Properties that a request has from its connection.
#[derive(Clone)]
pub(crate) struct Peer {
    /// By client certificate; a token comes with each request.
    pub(crate) authorization: Authorization,
    /// Set: the connection ends with a reset.
    pub(crate) reset: Arc<AtomicBool>,
}

/// Accepts connections until told to stop, and then closes the listener. Every change of `cut`
/// ends the connections that there are.
pub(crate) async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handler: Arc<Handler>,
    mut stop: watch::Receiver<bool>,
    cut: watch::Receiver<u64>,
) {
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let (acceptor, handler) = (acceptor.clone(), Arc::clone(&handler));
                let mut cut = cut.clone();
                cut.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = cut.changed() => {}
                        () = serve(stream, from, &acceptor, handler) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, from: SocketAddr, acceptor: &TlsAcceptor, handler: Arc<Handler>) {
    let _open = Open::new(&handler.connections);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %from, "nodelay");
    }
    let reset = Arc::new(AtomicBool::new(false));
    handler.meter.accepted();
    let meter = Arc::clone(&handler.meter);
    let stream = Resettable { stream, reset: Arc::clone(&reset), meter };
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, %from, "no TLS handshake");
            return;
        }
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let authorization = match certificate {
        None => Authorization::Anonymous,
        Some(certificate) => match handler.authority.name_of(certificate) {
            Some(name) => Authorization::Certificate(name),
            None => Authorization::UnknownCertificate,
        },
    };
    let peer = Peer { authorization, reset };
    let service = service_fn(move |request| {
        let (handler, peer) = (Arc::clone(&handler), peer.clone());
        async move { Ok::<_, Infallible>(handler.handle(peer, request).await) }
    });
    let mut protocols = auto::Builder::new(TokioExecutor::new());
    protocols.http1().timer(TokioTimer::new());
    protocols.http2().timer(TokioTimer::new());
    if let Err(error) = protocols.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, %from, "connection ended");
    }
}

/// Counts the connections that are open.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection that is reset when it is dropped, if so told: with no time to linger, the kernel
/// sends RST rather than FIN (socket(7), `SO_LINGER`). What passes is counted.
struct Resettable {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
    meter: Arc<Meter>,
}

impl Drop for Resettable {
    fn drop(&mut self) {
        if self.reset.load(Ordering::SeqCst)
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::warn!(%error, "the connection is closed, and not reset");
        }
    }
}

impl AsyncRead for Resettable {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.meter.received(buffer.filled().len().saturating_sub(before));
        polled
    }
}

impl AsyncWrite for Resettable {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = &polled {
            this.meter.sent(*bytes);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
