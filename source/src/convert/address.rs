//! Addresses and networks as people and old API servers write them.
//!
//! Two liberties are taken, because Kubernetes takes them: bytes of an IPv4 address may have
//! leading zeros and are decimal nevertheless, and an IPv4-mapped IPv6 address is the IPv4 address.

use std::net::IpAddr;

use ipnet::IpNet;

use syntax::address;
use syntax::quoted::Quoted;

/// An IPv4-mapped IPv6 address has its IPv4 address after this many bits.
const MAPPED_PREFIX: u8 = 96;

/// An address of a host.
pub(super) fn parse(text: &str) -> Result<IpAddr, String> {
    let address =
        address::ip(text).ok_or_else(|| format!("{} is not an IP address", Quoted(text)))?;
    if address.is_unspecified() {
        return Err(format!("{} is not a host address", Quoted(text)));
    }
    Ok(address)
}

/// A network, without the bits behind its prefix.
pub(super) fn parse_network(text: &str) -> Result<IpNet, String> {
    let wrong = || format!("{} is not a network such as 10.0.0.0/8", Quoted(text));
    let (host, prefix) = text.trim().split_once('/').ok_or_else(wrong)?;
    let is_number = !prefix.is_empty() && prefix.bytes().all(|digit| digit.is_ascii_digit());
    let mut prefix: u8 = prefix.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
    let address = address::ip(host).ok_or_else(wrong)?;
    if address.is_ipv4() && text.contains(':') {
        prefix = prefix.checked_sub(MAPPED_PREFIX).ok_or_else(wrong)?;
    }
    IpNet::new(address, prefix).map(|network| network.trunc()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let cases = [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0.08", Some("10.0.0.8")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("FD00::0001", Some("fd00::1")),
            ("127.0.0.1", Some("127.0.0.1")),
            ("", None),
            (" 10.0.0.1", None),
            ("10.0.0", None),
            ("10.0.0.1.", None),
            ("10.0.0.256", None),
            ("+1.0.0.1", None),
            ("fe80::1%eth0", None),
            ("0.0.0.0", None),
            ("::", None),
        ];
        for (text, expected) in cases {
            let expected: Option<IpAddr> = expected.map(|text| text.parse().unwrap());
            assert_eq!(parse(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn networks() {
        let cases = [
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            (" 10.1.2.3/32\t", Some("10.1.2.3/32")),
            ("010.0.0.0/08", Some("10.0.0.0/8")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("fd00::5/64", Some("fd00::/64")),
            ("::ffff:10.1.2.3/104", Some("10.0.0.0/8")),
            ("::ffff:10.1.2.3/64", None),
            ("10.0.0.0", None),
            ("10.0.0.0/33", None),
            ("10.0.0.0/+8", None),
            ("fd00::/129", None),
            ("", None),
            ("/", None),
        ];
        for (text, expected) in cases {
            let expected: Option<IpNet> = expected.map(|text| text.parse().unwrap());
            assert_eq!(parse_network(text).ok(), expected, "{text:?}");
        }
    }
}
