//! The log of requests, for tests to look into.

use parking_lot::Mutex;

use crate::parameters;
use crate::resource::{Resource, Verb};

/// A request that came.
#[derive(Clone, Debug)]
pub struct LoggedRequest {
    /// The path without the query.
    pub path: String,
    /// The query as it was sent, still encoded.
    pub query: String,
    /// Resource that the request speaks of, if this server knows it.
    pub resource: Option<Resource>,
    /// Operation that the request asks for.
    pub verb: Verb,
    /// Identity that the client gave.
    pub authorization: Authorization,
    /// The header `User-Agent`.
    pub user_agent: String,
    /// True if it takes an answer in gzip.
    pub takes_gzip: bool,
    /// The header `Accept`.
    pub accept: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// True if objects of the answer are in Protobuf.
    pub is_protobuf: bool,
}

/// The credentials of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// None.
    Anonymous,
    /// A bearer token, be it good or not.
    Token(String),
    /// A client certificate of this server's authority, by its common name.
    Certificate(String),
    /// A client certificate that this server does not trust.
    UnknownCertificate,
}

#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<LoggedRequest>>);

impl LoggedRequest {
    /// A decoded query parameter.
    pub fn parameter(&self, name: &str) -> Option<String> {
        parameters::pairs(&self.query).find(|(each, _)| each == name).map(|(_, value)| value)
    }
}

impl Log {
    pub(crate) fn push(&self, request: LoggedRequest) {
        tracing::debug!(
            verb = %request.verb,
            path = request.path,
            query = request.query,
            status = request.status,
            "request"
        );
        self.0.lock().push(request);
    }

    pub(crate) fn all(&self) -> Vec<LoggedRequest> {
        self.0.lock().clone()
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
