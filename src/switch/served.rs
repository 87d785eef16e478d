//! Answers of the metrics server of a running kube-ipvs: the mode that it serves in, and the clients of
//! its relay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use plan::mode::Mode;
use plan::model::Family;
use tokio::time::timeout;

use crate::serve::metrics::own::{FAMILY_SERVED, RELAY_CONNECTIONS, RELAY_UDP_CLIENTS};

/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Longest answer that is read: with a mode, and with metrics.
const LONGEST: usize = 4_096;
const LONGEST_METRICS: usize = 64 << 20;

/// Clients of the relay of mode userspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Relayed {
    /// Number of TCP connections.
    pub(super) connections: u64,
    /// Number of clients of UDP that are remembered.
    pub(super) udp_clients: u64,
}

/// Asks `/proxyMode` at the address that the metrics server has.
///
/// # Errors
/// When nothing answers, or not with a mode: in words.
pub(super) fn mode(address: SocketAddr) -> Result<Mode, String> {
    let answer = ask(address, "proxyMode", LONGEST)?;
    let named = Mode::ALL.into_iter().find(|mode| mode.name() == answer.trim());
    named.ok_or_else(|| format!("{address}/proxyMode does not answer with a mode"))
}

/// Asks `/metrics` for the clients of the relay; none if the process has no relay.
///
/// # Errors
/// When nothing answers: in words.
pub(super) fn relayed(address: SocketAddr) -> Result<Option<Relayed>, String> {
    let answer = ask(address, "metrics", LONGEST_METRICS)?;
    let gauge = |name: &str| {
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.trim().parse().ok()
    };
    let (connections, udp_clients) = (gauge(RELAY_CONNECTIONS), gauge(RELAY_UDP_CLIENTS));
    Ok(connections
        .zip(udp_clients)
        .map(|(connections, udp_clients)| Relayed { connections, udp_clients }))
}

/// Asks `/metrics` for the families that are served.
///
/// # Errors
/// When nothing answers: in words.
pub(super) fn families(address: SocketAddr) -> Result<Vec<Family>, String> {
    Ok(families_in(&ask(address, "metrics", LONGEST_METRICS)?))
}

fn families_in(metrics: &str) -> Vec<Family> {
    let is_served = |family: &Family| {
        let sample = format!("{FAMILY_SERVED}{{family=\"{family}\"}} 1");
        metrics.lines().any(|line| line == sample)
    };
    Family::BOTH.into_iter().filter(is_served).collect()
}

/// An unspecified address is reached at localhost.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn ask(address: SocketAddr, page: &str, longest: usize) -> Result<String, String> {
    let asked = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let answer = timeout(LIMIT, get(reachable(address), page, longest)).await;
            answer.with_context(|| format!("it does not answer in {LIMIT:?}"))?
        })
    };
    asked().map_err(|error: anyhow::Error| format!("{address}: {error:#}"))
}

async fn get(address: SocketAddr, page: &str, longest: usize) -> anyhow::Result<String> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.get(format!("http://{address}/{page}").parse()?).await?;
    ensure!(answer.status().is_success(), "it answers {}", answer.status());
    let body = Limited::new(answer.into_body(), longest).collect().await;
    let body = body.map_err(|error| anyhow!("read its answer: {error}"))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn answered(status: &'static str, body: String) -> Result<Mode, String> {
        ask_server("/proxyMode", status, body, mode)
    }

    /// Asks a server that answers so to a request for a page.
    fn ask_server<T>(
        page: &'static str,
        status: &'static str,
        body: String,
        ask: impl FnOnce(SocketAddr) -> T,
    ) -> T {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(format!("GET {page} ").as_bytes()));
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
            // The client may have heard enough before the end.
            let _ = stream.write_all((head + &body).as_bytes());
        });
        let answer = ask((Ipv4Addr::UNSPECIFIED, address.port()).into());
        server.join().unwrap();
        answer
    }

    #[test]
    fn families_are_those_whose_sample_is_1() {
        let body = "kube_ipvs_family_served{family=\"IPv4\"} 1\nkube_ipvs_family_served{family=\"IPv6\"} 0\n";
        let served = ask_server("/metrics", "200 OK", body.to_owned(), families);
        assert_eq!(served, Ok(vec![Family::V4]));
    }

    #[test]
    fn the_mode_is_what_the_page_says() {
        assert_eq!(answered("200 OK", "iptables".to_owned()), Ok(Mode::Iptables));
        let other = answered("200 OK", "nftables".to_owned()).unwrap_err();
        assert!(other.contains("does not answer with a mode"), "{other}");
        let other = answered("503 Service Unavailable", "ipvs".to_owned()).unwrap_err();
        assert!(other.contains("it answers 503"), "{other}");
        let other = answered("200 OK", "ipvs ".repeat(LONGEST)).unwrap_err();
        assert!(other.contains("read its answer"), "{other}");
    }

    #[test]
    fn the_clients_of_the_relay_are_among_the_metrics_of_a_process_that_has_one() {
        let asked = |body: &str| ask_server("/metrics", "200 OK", body.to_owned(), relayed);
        let body = "# TYPE kube_ipvs_relay_connections gauge\nkube_ipvs_relay_connections 3\n\
                    kube_ipvs_relay_connections_total{outcome=\"x\"} 9\nkube_ipvs_relay_udp_clients 2\n";
        assert_eq!(asked(body), Ok(Some(Relayed { connections: 3, udp_clients: 2 })));
        assert_eq!(asked("kube_ipvs_mode 1\n"), Ok(None));
    }
}
