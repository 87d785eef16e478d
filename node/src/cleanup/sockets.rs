//! The node's own UDP sockets whose source is an address that goes with mode ipvs.
//!
//! A connected socket keeps the source that the kernel chose when it was connected: while an address
//! is on `kube-ipvs0`, that is the service address itself. When the address goes, nothing can be sent
//! from it any more. TCP connections of that kind are IPVS's, and it waits for them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use plan::settings::Settings;

use kernel::ReadError;
use kernel::leftovers::Leftovers;

/// Tables of UDP sockets (net/ipv4/udp.c, `udp4_seq_show`; net/ipv6/udp.c, `udp6_seq_show`), of the
/// thread's network namespace.
const TABLES: [&str; 2] = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];

/// State of a connected socket: `TCP_ESTABLISHED` of include/net/tcp_states.h, which UDP uses too.
const CONNECTED: &str = "01";

/// Addresses that are local because of mode ipvs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceAddresses {
    single: HashSet<IpAddr>,
    networks: Vec<IpNet>,
}

impl ServiceAddresses {
    /// Reads those that mode ipvs has left.
    pub fn left_by_ipvs(chosen: &Settings) -> Result<Self, ReadError> {
        let found = Leftovers::open()?.read()?.actual;
        let bound = found.addresses.into_iter().map(IpNet::from);
        Ok(Self::new(bound.chain(found.routes).filter(|net| !chosen.excludes(net.addr()))))
    }

    fn new(all: impl IntoIterator<Item = IpNet>) -> Self {
        let (single, networks): (Vec<IpNet>, Vec<IpNet>) =
            all.into_iter().partition(|net| net.prefix_len() == net.max_prefix_len());
        Self { single: single.iter().map(IpNet::addr).collect(), networks }
    }

    /// Counts the connected sockets that have one of these as their source.
    pub fn n_sockets(&self) -> io::Result<usize> {
        let mut count = 0;
        for table in TABLES {
            match fs::read_to_string(table) {
                Ok(text) => count += self.n_in(&text),
                // The kernel has no IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn n_in(&self, table: &str) -> usize {
        table.lines().filter_map(source).filter(|source| self.contains(*source)).count()
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.single.contains(&address) || self.networks.iter().any(|net| net.contains(&address))
    }
}

/// Returns the source of a connected socket, from a line of a table: `sl local_address rem_address
/// st …`, addresses as 32-bit numbers of the host's byte order. None for any other line.
fn source(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    let (local, state) = (words.nth(1)?, words.nth(1)?);
    let (address, _port) = local.split_once(':')?;
    if state != CONNECTED || !address.is_ascii() {
        return None;
    }
    let number = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    match address.len() {
        8 => Some(Ipv4Addr::from(number(0)?.to_ne_bytes()).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&number(index * 8)?.to_ne_bytes());
            }
            // A socket of IPv6 can be connected to an address of IPv4.
            Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn mk_addresses(networks: &[&str]) -> ServiceAddresses {
        ServiceAddresses::new(networks.iter().map(|net| net.parse().unwrap()))
    }

    #[test]
    fn connected_sockets_count_and_no_others() {
        let header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        let lines = [
            (" 10: 0A00600A:9C40 0B00600A:0035 01 00000000:00000000", 1),
            (" 10: 0A00600A:9C40 00000000:0000 07 00000000:00000000", 0),
            (" 11: 0100007F:9C40 0B00600A:0035 01 00000000:00000000", 0),
            (
                " 12: 0000000000000000FFFF00000A00600A:9C40 0000000000000000FFFF00000B00600A:0035 01",
                1,
            ),
            (
                " 13: 960000FD000000000000000010000000:9C40 960000FD000000000000000010000000:0035 01",
                1,
            ),
            (" 14: 0A00", 0),
            (" 15: XY00600A:9C40 0B00600A:0035 01", 0),
            ("", 0),
        ];
        if cfg!(target_endian = "little") {
            let addresses = mk_addresses(&["10.96.0.10/32", "fd00:96::/108"]);
            for (line, expected) in lines {
                assert_eq!(addresses.n_in(&format!("{header}\n{line}")), expected, "{line}");
            }
        }
    }

    #[test]
    fn a_socket_of_this_process_is_found_in_the_kernels_table() {
        let socket = UdpSocket::bind("127.0.0.71:0").unwrap();
        let addresses = mk_addresses(&["127.0.0.71/32"]);
        assert_eq!(addresses.n_sockets().unwrap(), 0, "it is not connected");
        socket.connect("127.0.0.72:9").unwrap();
        assert_eq!(addresses.n_sockets().unwrap(), 1);
        assert_eq!(mk_addresses(&["127.0.0.72/32"]).n_sockets().unwrap(), 0);
        drop(socket);
        assert_eq!(addresses.n_sockets().unwrap(), 0);
    }
}
