//! Addresses, networks and `host:port` as Go programs take them.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// An address. Leading zeros in an IPv4 address are decimal, as kube-proxy has always had them; an
/// IPv4 address written as an IPv6 one is an IPv4 address.
#[must_use]
pub fn ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    }
    let mut bytes = [0; 4];
    let mut parts = text.split('.');
    for byte in &mut bytes {
        *byte = decimal_byte(parts.next()?)?;
    }
    parts.next().is_none().then(|| bytes.into())
}

/// A network: an address and a prefix length.
#[must_use]
pub fn cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    IpNet::new(ip(address)?, length.parse().ok()?).ok()
}

/// Splits a text at its last colon into host and port, without the brackets of an IPv6 address.
#[must_use]
pub fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bare {
        Some(host) if !host.contains(['[', ']']) => Some((host, port)),
        None if !host.contains([':', '[', ']']) => Some((host, port)),
        _ => None,
    }
}

/// An address with this port, where it is an address without one. Anything else stays as it is,
/// for validation to find.
#[must_use]
pub fn with_port(text: &str, port: u16) -> String {
    match ip(text) {
        Some(IpAddr::V6(_)) => format!("[{text}]:{port}"),
        Some(IpAddr::V4(_)) => format!("{text}:{port}"),
        None => text.to_owned(),
    }
}

/// An address and a port to listen on.
#[must_use]
pub fn socket(text: &str) -> Option<SocketAddr> {
    let (host, port) = split_host_port(text)?;
    Some(SocketAddr::new(ip(host)?, port.parse().ok()?))
}

fn decimal_byte(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits && !text.is_empty() { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_leading_zeros() {
        assert_eq!(ip("010.0.00.1"), Some([10, 0, 0, 1].into()));
        assert_eq!(ip("::ffff:10.0.0.1"), Some([10, 0, 0, 1].into()));
        assert_eq!(cidr("010.0.0.1/08").unwrap().to_string(), "10.0.0.1/8");
        for text in ["", "10.0.0", "10.0.0.0.1", "10.0.0.256", "10.0.0.+1", "a", "::g"] {
            assert_eq!(ip(text), None, "{text}");
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/", "/8"] {
            assert_eq!(cidr(text), None, "{text}");
        }
    }

    #[test]
    fn a_port_is_given_to_what_is_an_address() {
        for (text, with) in [
            ("1.2.3.4", "1.2.3.4:80"),
            ("::1", "[::1]:80"),
            ("1.2.3.4:5", "1.2.3.4:5"),
            ("[::1]:5", "[::1]:5"),
            ("example", "example"),
        ] {
            assert_eq!(with_port(text, 80), with);
        }
    }

    #[test]
    fn hosts_and_ports_are_told_apart() {
        assert_eq!(split_host_port("1.2.3.4:5"), Some(("1.2.3.4", "5")));
        assert_eq!(split_host_port("[::1]:5"), Some(("::1", "5")));
        assert_eq!(split_host_port(":5"), Some(("", "5")));
        for text in ["1.2.3.4", "::1", "[::1", "[::1]", "[[::1]]:5"] {
            assert_eq!(split_host_port(text), None, "{text}");
        }
        assert_eq!(socket("[::1]:5"), "[::1]:5".parse().ok());
    }
}
