//! The asking side: finds the running program, and asks it over its socket.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::socket_peercred;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::answers::{Answer, Content, FailureAnswer, Reason};
use super::harmless::harmless_json;
use super::outcome::Failure;
use super::socket_path;
use crate::process::{self, FindError};
use config::kube_ipvs::DEFAULT_CONSOLE_SOCKET;

/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Longest answer that is read.
const LONGEST: usize = 64 << 20;

/// The running program, as it is asked.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    /// The process that should answer, where it is known.
    process: Option<i32>,
    /// True if texts stay as they are: they are not for a terminal.
    is_verbatim: bool,
}

impl Client {
    /// Finds the program: at this socket; or else the one that runs in this network namespace, by the
    /// socket of its configuration; or else at the usual place.
    ///
    /// # Errors
    /// When none is there to be asked, or more than one.
    pub fn find(socket: Option<&Path>) -> Result<Self, Failure> {
        if let Some(socket) = socket {
            return Ok(Self::at(socket.to_owned(), None));
        }
        let running = match process::find(process::PROC.as_ref()) {
            Ok(running) => running,
            // It may run where /proc does not show it.
            Err(FindError::None(_) | FindError::Unlisted(_))
                if has_listener(Path::new(DEFAULT_CONSOLE_SOCKET)) =>
            {
                return Ok(Self::at(DEFAULT_CONSOLE_SOCKET.into(), None));
            }
            Err(error @ FindError::Several(..)) => {
                return Err(Failure::Unanswered(format!("{error}. Choose one with --socket")));
            }
            Err(error) => {
                return Err(Failure::Unanswered(format!(
                    "{error}. It is neither in /proc nor at its socket {DEFAULT_CONSOLE_SOCKET}; \
                     name another socket with --socket"
                )));
            }
        };
        let pid = running.pid.as_raw_nonzero().get();
        let configuration = match running.configuration() {
            Ok(configuration) => configuration,
            Err(error) => {
                // The file may have become invalid since the program read it.
                let chosen = running.arguments.value("console-socket");
                let usual = Path::new(chosen.unwrap_or(DEFAULT_CONSOLE_SOCKET));
                let socket = running.as_seen_from_here(usual);
                if has_listener(&socket) {
                    return Ok(Self::at(socket, Some(pid)));
                }
                return Err(Failure::Unanswered(format!(
                    "process {pid}: {error:#}; name its socket with --socket"
                )));
            }
        };
        let Some(socket) = socket_path(&configuration.console_socket) else {
            return Err(Failure::Unanswered(format!(
                "kube-ipvs (process {pid}) has no console: consoleSocket is empty in its configuration"
            )));
        };
        Ok(Self::at(running.as_seen_from_here(&socket), Some(pid)))
    }

    fn at(socket: PathBuf, process: Option<i32>) -> Self {
        Self { socket, process, is_verbatim: false }
    }

    /// The same with texts as they are, for other programs.
    #[must_use]
    pub fn verbatim(self) -> Self {
        Self { is_verbatim: true, ..self }
    }

    /// Asks for an answer at a path such as `/v1/status`.
    pub fn get<T: Content>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Failure> {
        let mut uri = path.to_owned();
        if !query.is_empty() {
            let mut pairs = form_urlencoded::Serializer::new(String::new());
            pairs.extend_pairs(query);
            uri += &format!("?{}", pairs.finish());
        }
        self.ask(Method::GET, &uri, Bytes::new())
    }

    /// Sends something, and returns the answer.
    pub fn post<B: Serialize, T: Content>(&self, path: &str, body: &B) -> Result<T, Failure> {
        let body = serde_json::to_vec(body)
            .map_err(|error| Failure::Asked(format!("cannot be written as JSON: {error}")))?;
        self.ask(Method::POST, path, body.into())
    }

    fn ask<T: Content>(&self, method: Method, uri: &str, body: Bytes) -> Result<T, Failure> {
        let here = self.socket.display();
        let unanswered = |error: String| Failure::Unanswered(format!("{here}: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| unanswered(error.to_string()))?;
        let bytes = runtime.block_on(async {
            let answer = timeout(LIMIT, self.exchange(method, uri, body)).await;
            answer.unwrap_or_else(|_| {
                Err(Failure::Unanswered(format!("{here}: no answer in {LIMIT:?}")))
            })
        })?;
        let answer = String::from_utf8_lossy(&bytes);
        let answer = if self.is_verbatim { answer } else { harmless_json(&answer) };
        if let Ok(refused) = serde_json::from_str::<Answer<FailureAnswer>>(&answer)
            && refused.kind == FailureAnswer::KIND
        {
            return Err(refused.content.into());
        }
        let answer: Answer<T> = serde_json::from_str(&answer).map_err(|error| {
            unanswered(format!(
                "cannot read the answer: {error}; the running kube-ipvs may be another version"
            ))
        })?;
        Ok(answer.content)
    }

    async fn exchange(&self, method: Method, uri: &str, body: Bytes) -> Result<Bytes, Failure> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|it| self.unreached(&it))?;
        self.require_process(&stream)?;
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Unanswered(format!("{}: {error}", self.socket.display()))
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(http::header::HOST, "console")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| failed(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let body = Limited::new(answer.into_body(), LONGEST).collect().await;
        Ok(body.map_err(|error| failed(&error))?.to_bytes())
    }

    /// Two programs may have the same path in different file systems, or network namespaces.
    fn require_process(&self, stream: impl AsFd) -> Result<(), Failure> {
        let (Some(wanted), Ok(peer)) = (self.process, socket_peercred(stream)) else {
            return Ok(());
        };
        let answering = peer.pid.as_raw_nonzero().get();
        if answering == wanted {
            return Ok(());
        }
        Err(Failure::Unanswered(format!(
            "two processes: {wanted} is the kube-ipvs of this network namespace, and {answering} \
             listens on {}; choose one with --socket",
            self.socket.display()
        )))
    }

    fn unreached(&self, error: &io::Error) -> Failure {
        let (here, process) = (self.socket.display(), self.process);
        let who = process.map_or_else(String::new, |pid| format!(" of kube-ipvs (process {pid})"));
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "only root and the user of kube-ipvs may connect; run the command as root"
            }
            io::ErrorKind::NotFound => {
                "kube-ipvs does not run, has another consoleSocket (--socket), or could not create \
                 it (see its log)"
            }
            io::ErrorKind::ConnectionRefused => "kube-ipvs has exited; see its log",
            _ => "look at its log",
        };
        Failure::Unanswered(format!(
            "cannot connect to the console{who} at {here}: {error}; \
                                     {advice}"
        ))
    }
}

impl From<FailureAnswer> for Failure {
    fn from(answer: FailureAnswer) -> Self {
        match answer.reason {
            Reason::BadRequest => Self::Asked(answer.message),
            Reason::NotFound => Self::NotFound(answer.message),
            Reason::Unavailable => Self::Unanswered(answer.message),
        }
    }
}

impl From<&Failure> for FailureAnswer {
    fn from(failure: &Failure) -> Self {
        let reason = match failure {
            Failure::Asked(_) => Reason::BadRequest,
            Failure::NotFound(_) => Reason::NotFound,
            Failure::Unanswered(_) | Failure::NotWritten(_) => Reason::Unavailable,
        };
        Self::new(reason, failure.text())
    }
}

/// False for a socket without a listener, such as one that a killed program left.
fn has_listener(socket: &Path) -> bool {
    let kind = std::os::unix::net::UnixStream::connect(socket).map_err(|error| error.kind());
    !matches!(kind, Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
}
