//! Proxy on the way to the API server.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// Schemes of proxies. A URL without one is taken for `http`.
const SCHEMES: [&str; 4] = ["http", "https", "socks5", "socks5h"];

/// Proxy of this URL, for this server. None if the URL names no proxy of these [`SCHEMES`].
pub(super) fn named(url: &str, server: &Uri) -> Option<Intercept> {
    let proxy = Matcher::builder().all(url).build().intercept(server)?;
    proxy.uri().scheme_str().is_some_and(|scheme| SCHEMES.contains(&scheme)).then_some(proxy)
}

/// Proxy that the environment names for this server, by Go's rules (`Config` in
/// golang.org/x/net/http/httpproxy): the name of a variable counts before the same in small letters,
/// one for the server's scheme only, and none for loopback addresses.
///
/// # Errors
/// The variable whose value names no proxy. Go goes without one then.
pub(super) fn from_environment(
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Intercept>, &'static str> {
    let first = |names: [&'static str; 2]| {
        let read = |name: &'static str| variable(name).map(|value| (name, value));
        names.into_iter().filter_map(read).find(|(_, value)| !value.is_empty())
    };
    let is_https = server.scheme_str() == Some("https");
    let names =
        if is_https { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let Some((name, url)) = first(names) else { return Ok(None) };
    let host = server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let is_loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let port = server.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let without = first(["NO_PROXY", "no_proxy"]).map(|(_, value)| value).unwrap_or_default();
    if host == "localhost" || is_loopback || is_direct(server, &host, port, &without) {
        return Ok(None);
    }
    named(&url, server).map(Some).ok_or(name)
}

/// True if one of the entries of `NO_PROXY` is of this server. What Go's rules have beyond those of
/// [`Matcher`] is brought into its form: `*` for addresses too, entries with a port, `*.domain`, and
/// `.domain`, which is not for the domain itself.
fn is_direct(server: &Uri, host: &str, port: u16, entries: &str) -> bool {
    let entries = entries.split(',').map(|entry| entry.trim().to_ascii_lowercase());
    if entries.clone().any(|entry| entry == "*") {
        return true;
    }
    let of_port = entries.filter_map(|entry| {
        let (name, of_port) = match entry.rsplit_once(':') {
            Some((name, digits)) if !name.contains(':') || name.ends_with(']') => (name, digits),
            _ => (entry.as_str(), ""),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        (of_port.is_empty() || of_port.parse() == Ok(port)).then(|| name.to_owned())
    });
    let for_matcher: Vec<String> = of_port
        .map(|name| {
            name.strip_prefix('*').map(str::to_owned).filter(|it| !it.is_empty()).unwrap_or(name)
        })
        .filter(|name| name.strip_prefix('.') != Some(host))
        .collect();
    let matcher = Matcher::builder().all("http://proxy").no(for_matcher.join(",")).build();
    matcher.intercept(server).is_none()
}
