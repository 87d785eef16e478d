//! Open connections in IPVS's table.
//!
//! The counters of a real server do not tell which of its connections are in use. With a rule for
//! DNAT before IPVS, an endpoint's answers to a client that uses a port again bring a closed
//! connection back as `SYN_SENT`, which counts as active (`tcp_state_active_table` in
//! net/netfilter/ipvs/ip_vs_proto_tcp.c).

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;

use plan::kernel_objects::Frontend;
use plan::model::Protocol;

use super::{OpenConnections, ReadError};
use crate::connection_table::{self, TableEntry};

/// States of TCP in which an end may still send data: IPVS takes the end's side into account that
/// closes first (`tcp_states` in net/netfilter/ipvs/ip_vs_proto_tcp.c).
const OPEN_TCP: [&str; 5] = ["ESTABLISHED", "SYN_RECV", "SYNACK", "FIN_WAIT", "CLOSE_WAIT"];

/// The same of SCTP (`sctp_state_name_table` in net/netfilter/ipvs/ip_vs_proto_sctp.c).
const OPEN_SCTP: [&str; 5] = ["ESTABLISHED", "C-REPLIED", "C-ECHOED", "S-SENT", "S-RECEIVED"];

/// Counts the open connections of TCP and SCTP by virtual server and real server. Breaks off after
/// `most` connections of all kinds, and returns none.
pub(super) fn count_open(most: u64) -> Result<Option<OpenConnections>, ReadError> {
    let mut counts = OpenConnections::default();
    let unread = |error: io::Error| ReadError::new("connections of IPVS", error);
    let mut n_read = 0;
    let each = |entry: TableEntry<'_>| {
        n_read += 1;
        if n_read > most {
            return ControlFlow::Break(());
        }
        if let Some(servers) = open(&entry) {
            *counts.entry(servers).or_insert(0) += 1;
        }
        ControlFlow::Continue(())
    };
    connection_table::read(each).map_err(unread)?;
    Ok((n_read <= most).then_some(counts))
}

/// Returns the virtual server and the real server of an open connection.
fn open(entry: &TableEntry<'_>) -> Option<(Frontend, SocketAddr)> {
    let is_open = match entry.protocol {
        Protocol::Tcp => OPEN_TCP.contains(&entry.state),
        Protocol::Sctp => OPEN_SCTP.contains(&entry.state),
        Protocol::Udp => false,
    };
    is_open.then_some((entry.frontend, entry.endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(line: &str) -> Option<(Frontend, SocketAddr)> {
        super::open(&TableEntry::of_line(line)?)
    }

    #[test]
    fn a_line_tells_the_servers_of_a_connection_that_may_still_carry_data() {
        let v4 = |state: &str| format!("TCP C0A80064 4E20 0A60000A 0050 0AF4010B 1F90 {state} 899");
        let v6 = "TCP fd00:0192:0000:0000:0000:0000:0000:0100 8D5C \
                  fd00:0096:0000:0000:0000:0000:0000:0010 0050 \
                  fd00:0244:0001:0000:0000:0000:0000:000b 1F90 ESTABLISHED     899";
        let sctp = |state: &str| v4(state).replace("TCP", "SCTP");
        for (line, protocol, frontend, real_server) in [
            (v4("ESTABLISHED"), Protocol::Tcp, "10.96.0.10", "10.244.1.11:8080"),
            (v4("FIN_WAIT   "), Protocol::Tcp, "10.96.0.10", "10.244.1.11:8080"),
            (v6.to_owned(), Protocol::Tcp, "fd00:96::10", "[fd00:244:1::b]:8080"),
            (sctp("ESTABLISHED"), Protocol::Sctp, "10.96.0.10", "10.244.1.11:8080"),
            (sctp("S-RECEIVED "), Protocol::Sctp, "10.96.0.10", "10.244.1.11:8080"),
        ] {
            let address = frontend.parse().unwrap();
            let frontend = Frontend { address, protocol, port: 80 };
            assert_eq!(open(&line), Some((frontend, real_server.parse().unwrap())), "{line}");
        }
        let header =
            "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData";
        let udp = v4("UDP").replace("TCP", "UDP");
        let mut others = ["TIME_WAIT", "SYN_SENT", "CLOSE", "LAST_ACK", "NONE"].map(v4).to_vec();
        others.extend(["CLOSED", "INIT", "S-ACK-SENT", "SYN_RECV"].map(sctp));
        for line in [header, udp.as_str(), "TCP C0A80064", ""]
            .into_iter()
            .chain(others.iter().map(String::as_str))
        {
            assert_eq!(open(line), None, "{line}");
        }
    }
}
