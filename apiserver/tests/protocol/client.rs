//! A client with no opinion of Kubernetes: bytes over TLS, read by hyper.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use apiserver::{ClientCertificate, Options, Server};
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// The token of the servers that these tests start.
pub(crate) const TOKEN: &str = "secret";

/// Time limit for anything that is to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection.
pub(crate) struct Client {
    requests: SendRequest<Body>,
    token: Option<String>,
}

/// A response whose body is still to be read.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    read: Vec<u8>,
}

/// The body of a request: whole.
pub(crate) struct Body(Option<Bytes>);

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }
}

/// A server that takes [`TOKEN`].
pub(crate) fn server(mut options: Options) -> Server {
    options.tokens = vec![TOKEN.to_owned()];
    Server::start(options).unwrap()
}

impl Client {
    pub(crate) async fn new(server: &Server) -> Self {
        let mut client = Self::connect(server, "127.0.0.1", None).await.unwrap();
        client.token = Some(TOKEN.to_owned());
        client
    }

    /// Connects and checks the server's certificate for a name; there is no token.
    pub(crate) async fn connect(
        server: &Server,
        name: &str,
        certificate: Option<&ClientCertificate>,
    ) -> std::io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(server.authority().as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match certificate {
            None => config.with_no_client_auth(),
            Some(client) => config
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(client.key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        let stream = TcpStream::connect(server.address()).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Ok(Self { requests, token: None })
    }

    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        (content_type, body): (&str, String),
    ) -> hyper::Result<Answer> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("Host", "test")
            .header("User-Agent", "protocol-test")
            .header("Content-Type", content_type);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let body = Body((!body.is_empty()).then(|| Bytes::from(body)));
        self.requests.ready().await?;
        let sent = self.requests.send_request(request.body(body).unwrap());
        let response = tokio::time::timeout(PATIENCE, sent).await.expect("no answer")?;
        let (head, body) = response.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body, read: Vec::new() })
    }

    pub(crate) async fn open(&mut self, path: &str) -> Answer {
        self.send(Method::GET, path, ("", String::new())).await.unwrap()
    }

    /// The status and the JSON body of a GET.
    pub(crate) async fn get(&mut self, path: &str) -> (u16, Value) {
        let answer = self.open(path).await;
        (answer.status.as_u16(), answer.json().await)
    }

    /// The JSON body of a GET that must succeed.
    pub(crate) async fn good(&mut self, path: &str) -> Value {
        let (status, value) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {value}");
        value
    }
}

impl Answer {
    /// The next piece of the body; nothing at its end.
    pub(crate) async fn piece(&mut self) -> Option<hyper::Result<Bytes>> {
        let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
        let frame = tokio::time::timeout(PATIENCE, frame).await.expect("the body has stalled");
        frame.map(|frame| frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    /// The whole body, or as much of it as came before it was cut.
    pub(crate) async fn bytes(mut self) -> (Vec<u8>, Option<hyper::Error>) {
        while let Some(piece) = self.piece().await {
            match piece {
                Ok(piece) => self.read.extend_from_slice(&piece),
                Err(error) => return (self.read, Some(error)),
            }
        }
        (self.read, None)
    }

    pub(crate) async fn json(self) -> Value {
        let (bytes, error) = self.bytes().await;
        assert!(error.is_none(), "{error:?}");
        let text = String::from_utf8_lossy(&bytes);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The next event of a watch; nothing at its end.
    pub(crate) async fn event(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            match self.piece().await {
                Some(piece) => self.read.extend_from_slice(&piece.unwrap()),
                None => {
                    assert!(self.read.is_empty(), "half an event at the end of the watch");
                    return None;
                }
            }
        }
    }

    /// The next event in words: type, name, resource version.
    pub(crate) async fn told(&mut self) -> String {
        match self.event().await {
            None => "end".to_owned(),
            Some(event) => {
                let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
                let kind = text("/type").unwrap();
                let version = text("/object/metadata/resourceVersion").unwrap_or("-");
                let name = text("/object/metadata/name").unwrap_or("-");
                format!("{kind} {name} {version}")
            }
        }
    }

    /// True if nothing comes for a while.
    pub(crate) async fn is_silent(&mut self) -> bool {
        let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
        tokio::time::timeout(Duration::from_millis(300), frame).await.is_err()
    }
}
