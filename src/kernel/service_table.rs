//! IPVS's table of virtual servers, as the kernel prints it.
//!
//! It is read in pages, where netlink takes a request for each virtual server's real servers. But it does
//! not say all: thresholds are missing, one of which is the deadline of a draining real server. And the
//! kernel walks to the place in its table again for each page of 4 KiB (`ip_vs_info_array` in
//! net/netfilter/ipvs/ip_vs_ctl.c), some six virtual servers of ten real servers: so only its beginning
//! is read.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;

use plan::actual::ActualRealServer;
use plan::hash::HashMap;
use plan::kernel_objects::Frontend;

use super::connection_table::{address_of, port_of, protocol_of};

/// The table of the calling thread's network namespace.
const TABLE: &str = "/proc/thread-self/net/ip_vs";
/// Forwarding method of all real servers of ours (`ip_vs_fwd_name` in
/// net/netfilter/ipvs/ip_vs_ctl.c).
const MASQUERADE: &str = "Masq";

/// True if the kernel has not loaded IPVS, and so has no virtual server: a question over netlink would
/// load it.
pub(super) fn is_ipvs_missing() -> bool {
    let table = Path::new(TABLE);
    table.parent().is_some_and(Path::exists) && !table.exists()
}

/// Virtual servers that are read. In user mode, where a request costs 70 µs, a page costs as much for each
/// of its virtual servers after some 8,000; requests cost less on machines.
const MOST: usize = 4_096;

/// Real servers of virtual servers, as they were when the table was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ServiceTable(HashMap<Frontend, Vec<PrintedRealServer>>);

/// A real server with a weight above 0, as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PrintedRealServer {
    socket: SocketAddr,
    weight: u32,
    connections: u64,
    is_masqueraded: bool,
}

// === impl ServiceTable ===

impl ServiceTable {
    /// Reads the beginning of the table. Virtual servers are left out of which it does not say enough.
    /// What comes and goes meanwhile may have others passed over.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    pub(super) fn read() -> io::Result<Self> {
        Self::read_from(BufReader::new(File::open(TABLE)?))
    }

    /// Takes the real servers of a virtual server out of it; none if it does not have them.
    pub(super) fn take(
        &mut self,
        frontend: &Frontend,
    ) -> Option<HashMap<SocketAddr, ActualRealServer>> {
        let printed = self.0.remove(frontend)?;
        Some(printed.iter().map(PrintedRealServer::actual).collect())
    }

    fn read_from(mut table: impl BufRead) -> io::Result<Self> {
        let mut found = Self::default();
        let (mut line, mut last) = (String::new(), None);
        loop {
            line.clear();
            if table.read_line(&mut line)? == 0 {
                return Ok(found);
            }
            let Some(server) = line.trim_start().strip_prefix("->") else {
                if found.0.len() >= MOST {
                    return Ok(found);
                }
                last = frontend_of(&line);
                if let Some(frontend) = last {
                    found.0.insert(frontend, Vec::new());
                }
                continue;
            };
            let Some(frontend) = last else { continue };
            match PrintedRealServer::of(server) {
                Some(server) => found.0.entry(frontend).or_default().push(server),
                None => {
                    found.0.remove(&frontend);
                    last = None;
                }
            }
        }
    }
}

// === impl PrintedRealServer ===

impl PrintedRealServer {
    /// Reads `0A000001:0050      Masq    1      0          0`; none for what needs another look: with
    /// weight 0, it may be draining.
    fn of(words: &str) -> Option<Self> {
        let mut words = words.split_ascii_whitespace();
        let (socket, method) = (socket_of(words.next()?)?, words.next()?);
        let weight: u32 = words.next()?.parse().ok()?;
        let mut count = || words.next()?.parse::<u64>().ok();
        let connections = count()?.checked_add(count()?)?;
        let is_masqueraded = method == MASQUERADE;
        (weight > 0).then_some(Self { socket, weight, connections, is_masqueraded })
    }

    fn actual(&self) -> (SocketAddr, ActualRealServer) {
        let Self { socket, weight, connections, is_masqueraded } = *self;
        (socket, ActualRealServer { weight, plain: is_masqueraded, deadline: None, connections })
    }
}

/// Reads `TCP  0A600001:0050 rr`; none for headings, and for other protocols and firewall marks.
fn frontend_of(line: &str) -> Option<Frontend> {
    let mut words = line.split_ascii_whitespace();
    let protocol = protocol_of(words.next()?)?;
    let socket = socket_of(words.next()?)?;
    Some(Frontend { address: socket.ip(), protocol, port: socket.port() })
}

/// Reads `0A600001:0050` or `[fd00:0096:0000:0000:0000:0000:0000:0010]:0050`.
fn socket_of(word: &str) -> Option<SocketAddr> {
    let (address, port) = word.rsplit_once(':')?;
    let address = address_of(address.trim_start_matches('[').trim_end_matches(']'))?;
    Some(SocketAddr::new(address, port_of(port)?))
}

#[cfg(test)]
mod tests {
    use plan::model::Protocol;

    use super::*;

    /// As Linux 6.12 prints it.
    const PRINTED: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A60000A:0050 rr  
  -> 0AF4010C:1F90      Masq    1      2          3         
  -> 0AF4010B:1F90      Route   100    0          0         
UDP  [fd00:0096:0000:0000:0000:0000:0000:0010]:0035 sh  persistent 10800 FFFFFFFF
  -> [fd00:0244:0001:0000:0000:0000:0000:000b]:14E9      Masq    1      0          7         
FWM  00000007 rr  
  -> 0AF4010B:0000      Masq    1      0          0         
TCP  0A600014:0050 rr  
TCP  0A60001E:0050 rr  
  -> 0AF4010B:1F90      Masq    1      0          0         
  -> 0AF4010C:1F90      Masq    0      1          0         
";

    fn tcp(last: u8) -> Frontend {
        Frontend { address: [10, 96, 0, last].into(), protocol: Protocol::Tcp, port: 80 }
    }

    #[test]
    fn real_servers_are_read_with_their_weights_and_connections() {
        let mut table = ServiceTable::read_from(PRINTED.as_bytes()).unwrap();
        let actual = |weight, plain, connections| ActualRealServer {
            weight,
            plain,
            deadline: None,
            connections,
        };
        let of_tcp = [
            (([10, 244, 1, 12], 8_080).into(), actual(1, true, 5)),
            (([10, 244, 1, 11], 8_080).into(), actual(100, false, 0)),
        ];
        assert_eq!(table.take(&tcp(10)), Some(of_tcp.into_iter().collect()));
        assert_eq!(table.take(&tcp(10)), None, "it is given away");
        let dns =
            Frontend { address: "fd00:96::10".parse().unwrap(), protocol: Protocol::Udp, port: 53 };
        let of_dns = [("[fd00:244:1::b]:5353".parse().unwrap(), actual(1, true, 7))];
        assert_eq!(table.take(&dns), Some(of_dns.into_iter().collect()));
        assert_eq!(table.take(&tcp(20)), Some(HashMap::default()));
    }

    #[test]
    fn reading_ends_where_pages_cost_more_than_requests() {
        let each = |number: usize| format!("UDP  0A60{number:04X}:0035 rr\n");
        let all: String = (0..2 * MOST).map(each).collect();
        assert_eq!(ServiceTable::read_from(all.as_bytes()).unwrap().0.len(), MOST);
    }

    #[test]
    fn what_may_be_draining_is_left_to_netlink() {
        let mut table = ServiceTable::read_from(PRINTED.as_bytes()).unwrap();
        assert_eq!(table.take(&tcp(30)), None);
    }

    proptest::proptest! {
        #[test]
        fn any_table_is_read_without_a_panic(
            lines in proptest::collection::vec("(TCP  |  -> |)[0-9A-F:\\[\\] MRasq]{0,60}|.{0,80}", 0..8)
        ) {
            let _any = ServiceTable::read_from(lines.join("\n").as_bytes());
        }
    }
}
