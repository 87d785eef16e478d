//! The mode that a running kube-ipvs serves in, as its metrics server says.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use plan::mode::Mode;
use tokio::time::timeout;

/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Longest answer that is read.
const LONGEST: usize = 4_096;

/// Asks `/proxyMode` at the address that the metrics server has.
///
/// # Errors
/// When nothing answers, or not with a mode: in words.
pub(super) fn mode(address: SocketAddr) -> Result<Mode, String> {
    let answer = ask(reachable(address)).map_err(|error| format!("{address}: {error:#}"))?;
    let named = Mode::ALL.into_iter().find(|mode| mode.name() == answer.trim());
    named.ok_or_else(|| format!("{address}/proxyMode does not answer with a mode"))
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

fn ask(address: SocketAddr) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let answer = timeout(LIMIT, get(address)).await;
        answer.with_context(|| format!("it does not answer in {LIMIT:?}"))?
    })
}

async fn get(address: SocketAddr) -> anyhow::Result<String> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.get(format!("http://{address}/proxyMode").parse()?).await?;
    ensure!(answer.status().is_success(), "it answers {}", answer.status());
    let body = Limited::new(answer.into_body(), LONGEST).collect().await;
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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /proxyMode "));
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
            // The client may have heard enough before the end.
            let _ = stream.write_all((head + &body).as_bytes());
        });
        let answer = mode((Ipv4Addr::UNSPECIFIED, address.port()).into());
        server.join().unwrap();
        answer
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
}
