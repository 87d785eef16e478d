//! Virtual servers as the socket option `IP_VS_SO_GET_SERVICES` lists them: those of IPv4.
//!
//! `struct ip_vs_get_services` and `struct ip_vs_service_entry` (include/uapi/linux/ip_vs.h), in the byte
//! order of the machine but for addresses and ports. Their 64-bit counters are aligned to 8 bytes, as
//! everywhere but on 32-bit x86.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;

use crate::id::{AddressFamily, Protocol, VirtualServerId};

/// Bytes before the first entry: `num_services`, and what aligns the entries.
const HEADER: usize = 8;
/// Bytes of an entry.
const ENTRY: usize = 104;
/// A request for so many entries at most, with room for them. The kernel wants its length to be exact, and
/// says in its log if it is not.
pub(crate) fn request(most: u32) -> Vec<u8> {
    let mut request = most.to_ne_bytes().to_vec();
    request.resize(HEADER + most as usize * ENTRY, 0);
    request
}

/// The identities in an answer. The kernel does not say how many entries it has filled in: each of them
/// has a protocol or a mark.
pub(crate) fn decode(answer: &[u8]) -> Vec<VirtualServerId> {
    let entries = answer.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY);
    entries.map_while(identity).collect()
}

/// Of its first fields: protocol, addr, port and fwmark, each aligned to 4 bytes.
fn identity(entry: &[u8]) -> Option<VirtualServerId> {
    let &[p0, p1, _, _, a0, a1, a2, a3, high, low, _, _, m0, m1, m2, m3, ..] = entry else {
        return None;
    };
    if let Some(mark) = NonZeroU32::new(u32::from_ne_bytes([m0, m1, m2, m3])) {
        return Some(VirtualServerId::FirewallMark { family: AddressFamily::Ipv4, mark });
    }
    let protocol = Protocol(u16::from_ne_bytes([p0, p1]));
    let address = Ipv4Addr::from([a0, a1, a2, a3]).into();
    let port = u16::from_be_bytes([high, low]);
    (protocol.0 > 0).then_some(VirtualServerId::Address { protocol, address, port })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(protocol: u16, address: [u8; 4], port: u16, mark: u32) -> [u8; ENTRY] {
        let mut entry = [0xee; ENTRY];
        entry[..2].copy_from_slice(&protocol.to_ne_bytes());
        entry[4..8].copy_from_slice(&address);
        entry[8..10].copy_from_slice(&port.to_be_bytes());
        entry[12..16].copy_from_slice(&mark.to_ne_bytes());
        entry
    }

    #[test]
    fn entries_are_read_up_to_the_first_that_the_kernel_did_not_fill_in() {
        let mut answer = request(4);
        assert_eq!(answer.len(), 8 + 4 * 104);
        assert_eq!(answer[..4], 4_u32.to_ne_bytes());
        let filled = [
            entry(6, [10, 96, 0, 1], 80, 0),
            entry(0, [0; 4], 0, 7),
            entry(132, [10, 96, 0, 2], 9, 0),
        ];
        answer[8..8 + 3 * 104].copy_from_slice(filled.as_flattened());
        let mark = 7.try_into().unwrap();
        assert_eq!(
            decode(&answer),
            [
                VirtualServerId::tcp([10, 96, 0, 1], 80),
                VirtualServerId::FirewallMark { family: AddressFamily::Ipv4, mark },
                VirtualServerId::sctp([10, 96, 0, 2], 9),
            ]
        );
        assert_eq!(decode(&request(0)), []);
    }

    proptest! {
        #[test]
        fn no_answer_is_too_strange(answer in prop::collection::vec(any::<u8>(), 0..1_000)) {
            prop_assert!(decode(&answer).len() <= answer.len() / ENTRY);
        }
    }
}
