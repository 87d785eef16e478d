//! Reasons for which attempts to list or to watch fail.

use std::time::Duration;

use super::body::BodyError;
use super::decode::Status;
use super::error_text::{chain, in_short, innermost};

/// The alert of TLS for a client and a server that have nothing in common (RFC 8446, 6.2), in
/// rustls' words.
const NO_AGREEMENT: &str = "received fatal alert: HandshakeFailure";

/// Reason for which an attempt to list or to watch failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The receiver of the reports is gone.
    Unwanted,
    /// The version that was to be continued from is forgotten: only a new list helps.
    Expired,
    /// The API server answered, and the answer was no.
    Refused(Status),
    /// The API server cannot be reached, or the connection broke.
    Unreachable(String),
    /// The API server sent something else than was asked for.
    Garbage(String),
    /// It does not know the selector by fields.
    NoFields(String),
    /// It sends no lists as streams.
    NoStreams(String),
    /// A list that was sent as a stream broke off.
    BrokenList(String),
}

impl Failure {
    /// An answer that cannot be read. The error of a decoder quotes what it has read.
    pub(super) fn garbage(problem: &str, error: &serde_json::Error) -> Self {
        Self::Garbage(format!("{problem}: {}", in_short(&error.to_string())))
    }

    /// In words, for a log.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::Unwanted => "the receiver of the events is gone".to_owned(),
            Self::Expired => {
                "the API server no longer has the version to continue from (410)".to_owned()
            }
            Self::Refused(status) => {
                let hint = match status.code {
                    401 => {
                        "; the API server does not accept the credentials: check the token or the \
                         certificate in use"
                    }
                    403 => {
                        "; the account needs list and watch on services, nodes and \
                         endpointslices.discovery.k8s.io (ClusterRole system:node-proxier)"
                    }
                    _ => "",
                };
                format!("the API server answered {} {}{hint}", status.code, status.message)
            }
            Self::Unreachable(cause) if cause.contains(NO_AGREEMENT) => format!(
                "no connection: {cause}; the server has no certificate, cipher or TLS version that \
                 kube-ipvs supports: it supports keys of ECDSA P-256 and P-384, RSA and Ed25519, \
                 but not ECDSA P-521"
            ),
            Self::Unreachable(cause) => format!("no connection: {cause}"),
            Self::Garbage(cause) => format!("the answer cannot be used: {cause}"),
            Self::NoFields(cause) => format!("no such field selector: {cause}"),
            Self::NoStreams(cause) => format!("no streaming list: {cause}"),
            Self::BrokenList(cause) => format!("the list broke off: {cause}"),
        }
    }

    /// True if the same request may get an answer later: the API server is away, busy, or broken.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused(status) => status.code == 429 || status.code >= 500,
            Self::Unwanted
            | Self::Expired
            | Self::Garbage(_)
            | Self::NoFields(_)
            | Self::NoStreams(_)
            | Self::BrokenList(_) => false,
        }
    }

    /// Time after which the API server wants to be asked again.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(status) => status.retry_after,
            _ => None,
        }
    }

    /// True if the API server says no because it does not know us (401) or we may not (403).
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(Status { code: 401 | 403, .. }))
    }
}

impl From<BodyError> for Failure {
    fn from(fault: BodyError) -> Self {
        match fault {
            BodyError::Silent(_) | BodyError::Broken(_) => Self::Unreachable(fault.to_string()),
            BodyError::EndlessEvent | BodyError::Endless(_) => Self::Garbage(fault.to_string()),
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Unreachable(chain(innermost(error).as_ref()))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        if status.is_expired() { Self::Expired } else { Self::Refused(status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alert of a server whose certificate has a key of ECDSA P-521 (openssl s_server 3.0).
    #[test]
    fn a_handshake_failure_names_what_to_check() {
        let text = "client error (Connect): received fatal alert: HandshakeFailure";
        let cause = Failure::Unreachable(text.to_owned()).cause();
        assert!(cause.starts_with(&format!("no connection: {text}; ")), "{cause}");
        assert!(cause.contains("but not ECDSA P-521"), "{cause}");
    }
}
