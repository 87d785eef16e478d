//! The mode that a running kube-ipvs serves in, as its metrics server says.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use plan::mode::Mode;

/// Longest time for each part of a conversation.
const LIMIT: Duration = Duration::from_secs(2);

/// Longest answer that is read.
const LONGEST: u64 = 4_096;

/// Asks `/proxyMode` at the address that the metrics server has.
///
/// # Errors
/// When nothing answers, or not with a mode: in words.
pub(super) fn mode(address: SocketAddr) -> Result<Mode, String> {
    let answer = ask(reachable(address)).map_err(|error| format!("{address}: {error}"))?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.trim()).unwrap_or_default();
    let named = Mode::ALL.into_iter().find(|mode| mode.name() == body);
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

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    write!(stream, "GET /proxyMode HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn answered(body: &'static str) -> Result<Mode, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /proxyMode "));
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        });
        let answer = mode((Ipv4Addr::UNSPECIFIED, address.port()).into());
        server.join().unwrap();
        answer
    }

    #[test]
    fn the_mode_is_what_the_page_says() {
        assert_eq!(answered("iptables"), Ok(Mode::Iptables));
        assert!(answered("nftables").unwrap_err().contains("does not answer with a mode"));
    }
}
