//! The kernel's table of virtual servers, as far as its order matters.
//!
//! A real server that was removed stays in a list of the kernel for two to three minutes, and for
//! each that is added, the kernel walks that list in search of its former self. After `ipvsadm -C`
//! all of them are in it, the last removed in front. A hundred thousand that are put back in any
//! order take minutes, nearly all of it walking; in the reverse of the order in which they were
//! removed, each is found near the front.
//!
//! They were removed in the order of the table's buckets. A bucket's number is a hash up to eight
//! bits that only the kernel knows, but a listing is in the same order, and betrays them.
//!
//! Source: net/netfilter/ipvs/ip_vs_ctl.c (`ip_vs_svc_hashkey`, `ip_vs_flush`,
//! `ip_vs_trash_get_dest`), Linux 5.10 to 6.12.

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::kernel_objects::Frontend;
use crate::model::Protocol;

/// Secret bits that the kernel adds to its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    secret: u8,
}

// === impl Table ===

impl Table {
    /// Learns from a listing in the kernel's order. What `known` is from former ones stays if this
    /// one does not contradict it, since a short listing fits many tables. None: there is nothing
    /// to learn from, or this kernel keeps virtual servers otherwise.
    #[must_use]
    pub fn learn(listing: &[Frontend], known: Option<Self>) -> Option<Self> {
        if listing.len() < 2 {
            return known;
        }
        let tables = (0..=u8::MAX).map(|secret| Self { secret });
        known.into_iter().chain(tables).find(|table| table.is_order_of(listing))
    }

    fn is_order_of(&self, listing: &[Frontend]) -> bool {
        listing.is_sorted_by_key(|frontend| self.bucket(frontend))
    }

    /// Puts virtual servers in the order in which the kernel takes them back fastest, if all of
    /// them have been removed at once.
    pub fn sort_for_return(&self, frontends: &mut [Frontend]) {
        frontends.sort_by_key(|frontend| Reverse(self.bucket(frontend)));
    }

    fn bucket(&self, frontend: &Frontend) -> u8 {
        let address = match frontend.address {
            IpAddr::V4(address) => last_of(&address.octets()),
            IpAddr::V6(address) => last_of(&address.octets()),
        };
        let protocol = match frontend.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        };
        let [high, low] = frontend.port.to_be_bytes();
        self.secret ^ address ^ protocol ^ high ^ low
    }
}

/// The last bytes of an address's words of four, folded.
fn last_of(address: &[u8]) -> u8 {
    address.chunks(4).filter_map(<[u8]>::last).fold(0, |folded, byte| folded ^ byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frontends() -> impl Strategy<Value = Vec<Frontend>> {
        let address = prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from),
        ];
        let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
        let frontend = (address, protocol, any::<u16>())
            .prop_map(|(address, protocol, port)| Frontend { address, protocol, port });
        prop::collection::vec(frontend, 2..600)
    }

    proptest! {
        #[test]
        fn a_listing_tells_the_order_of_any_frontends(
            mut listing in frontends(),
            others in frontends(),
            secret in any::<u8>(),
        ) {
            let kernel = Table { secret };
            listing.sort_by_key(|frontend| kernel.bucket(frontend));
            let table = Table::learn(&listing, None).unwrap();
            prop_assert_eq!(Table::learn(&listing, Some(kernel)), Some(kernel));
            let mut returning = listing.clone();
            table.sort_for_return(&mut returning);
            prop_assert!(returning.is_sorted_by_key(|it| Reverse(kernel.bucket(it))));
            if listing.len() > 500 {
                let mut returning = others;
                table.sort_for_return(&mut returning);
                prop_assert!(returning.is_sorted_by_key(|it| Reverse(kernel.bucket(it))));
            }
        }
    }

    #[test]
    fn an_order_that_is_no_hash_teaches_nothing() {
        let of = |last: u8| Frontend {
            address: [10, 96, 0, last].into(),
            protocol: Protocol::Tcp,
            port: 80,
        };
        assert_eq!(Table::learn(&[of(1), of(2), of(1)], None), None);
        assert_eq!(Table::learn(&[of(1)], None), None);
        let known = Some(Table { secret: 7 });
        assert_eq!(Table::learn(&[], known), known);
    }
}
