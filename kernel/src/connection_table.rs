//! IPVS's table of connections, as the kernel prints it.

use std::fs::File;
use std::io::{self, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;

use plan::kernel_objects::Frontend;
use plan::model::Protocol;

/// The table of the calling thread's network namespace.
const TABLE: &str = "/proc/thread-self/net/ip_vs_conn";

/// A connection of IPVS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableEntry<'a> {
    pub protocol: Protocol,
    /// Address and port of the client. Port 0: a client that is to come back to its endpoint.
    pub client: SocketAddr,
    /// The virtual server.
    pub frontend: Frontend,
    /// The real server.
    pub endpoint: SocketAddr,
    /// State of the connection, in the kernel's word.
    pub state: &'a str,
    /// Number of seconds until it is forgotten, if no packet comes.
    pub expires: u32,
}

/// Reads the table, up to where `each` breaks it off.
///
/// The kernel walks to the place in its table again for each page of 4 KiB (`ip_vs_conn_array` in
/// net/netfilter/ipvs/ip_vs_conn.c), so that the cost grows with the square of what is read.
pub fn read(each: impl FnMut(TableEntry<'_>) -> ControlFlow<()>) -> io::Result<()> {
    read_from(BufReader::new(File::open(TABLE)?), each)
}

fn read_from(
    table: impl io::BufRead,
    mut each: impl FnMut(TableEntry<'_>) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut table = table;
    let mut line = String::new();
    loop {
        line.clear();
        if table.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if let Some(entry) = TableEntry::of_line(&line)
            && each(entry).is_break()
        {
            return Ok(());
        }
    }
}

impl<'a> TableEntry<'a> {
    /// Returns the connection of a line; none for the heading, and for other protocols.
    pub fn of_line(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let protocol = protocol_of(words.next()?)?;
        let mut socket = || {
            let address = address_of(words.next()?)?;
            Some(SocketAddr::new(address, port_of(words.next()?)?))
        };
        let (client, frontend, endpoint) = (socket()?, socket()?, socket()?);
        let frontend = Frontend { address: frontend.ip(), protocol, port: frontend.port() };
        let state = words.next()?;
        let expires = words.next()?.parse().ok()?;
        Some(Self { protocol, client, frontend, endpoint, state, expires })
    }
}

/// Returns the protocol by IPVS's word for it; none for those that have no ports.
fn protocol_of(word: &str) -> Option<Protocol> {
    match word {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// `0A60000A`, or `fd00:0096:0000:0000:0000:0000:0000:0010`
fn address_of(word: &str) -> Option<IpAddr> {
    if word.contains(':') {
        return word.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    u32::from_str_radix(word, 16).ok().map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
}

fn port_of(word: &str) -> Option<u16> {
    u16::from_str_radix(word, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0A80064 4E20 0A60000A 0050 0AF4010B 1F90 ESTABLISHED     899
UDP fd00:0192:0000:0000:0000:0000:0000:0100 8D5C fd00:0096:0000:0000:0000:0000:0000:0010 0035 \
fd00:0244:0001:0000:0000:0000:0000:000b 14E9 UDP             3
IP  C0A80064 0000 00000007 0000 0AF4010B 0000 NONE            899
TCP C0A80064 0000 0A60000A 0050 0AF4010B 1F90 NONE            599
";

    #[test]
    fn a_line_tells_all_of_a_connection() {
        let mut read = Vec::new();
        let each = |entry: TableEntry<'_>| {
            let TableEntry { client, frontend, endpoint, state, expires, .. } = entry;
            read.push(format!("{client} {frontend} {endpoint} {state} {expires}"));
            ControlFlow::Continue(())
        };
        read_from(TABLE.as_bytes(), each).unwrap();
        let expected = [
            "192.168.0.100:20000 TCP 10.96.0.10:80 10.244.1.11:8080 ESTABLISHED 899",
            "[fd00:192::100]:36188 UDP [fd00:96::10]:53 [fd00:244:1::b]:5353 UDP 3",
            "192.168.0.100:0 TCP 10.96.0.10:80 10.244.1.11:8080 NONE 599",
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn reading_ends_where_enough_is_read() {
        let mut n_read = 0;
        let each = |_: TableEntry<'_>| {
            n_read += 1;
            ControlFlow::Break(())
        };
        read_from(TABLE.as_bytes(), each).unwrap();
        assert_eq!(n_read, 1);
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read_without_a_panic(line in ".{0,120}") {
            let _any = TableEntry::of_line(&line);
        }
    }
}
