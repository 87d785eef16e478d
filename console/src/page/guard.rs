//! Guard of the pages: their readers, and the rights of a browser.

use std::net::{IpAddr, SocketAddr};

use axum::Extension;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use serve::listen::{Peer, Readers};

/// Everything is from here, and nothing goes elsewhere.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Answers those who may read, and tells their browsers to keep to it.
pub(super) async fn guard(
    Extension(readers): Extension<Readers>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let mut response = match refusal(readers, peer, host, request.method()) {
        Some((status, reason)) => {
            (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], format!("{reason}\n"))
                .into_response()
        }
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns the reason for which a request has no answer; none: it has one.
fn refusal(
    readers: Readers,
    peer: SocketAddr,
    host: Option<&str>,
    method: &Method,
) -> Option<(StatusCode, &'static str)> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "this page is read-only"));
    }
    if readers == Readers::Loopback && !peer.ip().to_canonical().is_loopback() {
        return Some((
            StatusCode::FORBIDDEN,
            "this page is open to the node itself only: use kubectl port-forward, or set \
             consolePage: network",
        ));
    }
    if readers == Readers::Loopback && !host.is_some_and(names_loopback) {
        // Another site's name that leads to this node: its scripts must not read the page.
        return Some((
            StatusCode::MISDIRECTED_REQUEST,
            "open this page at localhost or at a loopback address",
        ));
    }
    None
}

/// True if the header `Host` names this node's loopback interface.
fn names_loopback(host: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !name.ends_with(':') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(readers: Readers, peer: &str, host: Option<&str>) -> u16 {
        let peer = SocketAddr::new(peer.parse().unwrap(), 40_000);
        refusal(readers, peer, host, &Method::GET).map_or(200, |(status, _)| status.as_u16())
    }

    #[test]
    fn only_the_node_itself_reads_the_page_unless_the_network_may() {
        for (peer, expected) in
            [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("192.0.2.7", 403)]
        {
            assert_eq!(
                status(Readers::Loopback, peer, Some("localhost:10249")),
                expected,
                "{peer}"
            );
            assert_eq!(status(Readers::Network, peer, Some("node.example:10249")), 200, "{peer}");
        }
    }

    #[test]
    fn no_site_reads_the_page_by_a_name_that_leads_here() {
        for (host, expected) in [
            (Some("localhost"), 200),
            (Some("LOCALHOST:8080"), 200),
            (Some("127.0.0.1:10249"), 200),
            (Some("[::1]:10249"), 200),
            (Some("[::1]"), 200),
            (Some("evil.example:10249"), 421),
            (Some("localhost.evil.example"), 421),
            (Some("192.0.2.7:10249"), 421),
            (None, 421),
        ] {
            assert_eq!(status(Readers::Loopback, "127.0.0.1", host), expected, "{host:?}");
        }
    }

    #[test]
    fn nothing_is_changed_by_a_request() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            let (status, _) = refusal(Readers::Network, peer, None, &method).unwrap();
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        }
    }
}
