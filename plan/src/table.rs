//! The kernel's table of virtual servers, as far as its order matters.
//!
//! A real server that was removed stays in a list of the kernel for two to three minutes, and for
//! each that is added, the kernel walks that list in search of its former self. After `ipvsadm -C`
//! all of them are in it, the last removed in front. A hundred thousand that are put back in any
//! order take minutes, nearly all of it walking; in the reverse of the order in which they were
//! removed, each is found near the front.
//!
//! They were removed in the order of the table's buckets, and a listing is in the same order. Up to
//! Linux 6.18, a bucket's number is a hash up to eight bits that only the kernel knows, and a listing
//! betrays them. Since 7 the hash has a key, and the table grows, so the listing itself is kept.
//!
//! Source: net/netfilter/ipvs/ip_vs_ctl.c (`ip_vs_svc_hashkey`, since 7 `ip_vs_svc_hashval`;
//! `ip_vs_flush`, `ip_vs_trash_get_dest`), Linux 5.10 to 7.3.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use crate::hash::HashMap;
use crate::kernel_objects::Frontend;
use crate::model::Protocol;

/// Order of the kernel's table, as learned from listings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table(Order);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Order {
    /// Up to Linux 6.18: the order of a hash with these secret bits.
    Hash(Secret),
    /// The order of a former listing.
    Listed(Arc<[Frontend]>),
}

/// Secret bits that the kernel adds to its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Secret(u8);

// === impl Table ===

impl Table {
    /// Learns from a listing in the kernel's order. What `known` is from former ones stays if this
    /// one says less: a short listing fits many tables, and what is left after a flush does not tell
    /// the order of what was removed. None: there is nothing to learn from.
    #[must_use]
    pub fn learn(listing: &[Frontend], known: Option<Self>) -> Option<Self> {
        let says_less = match &known {
            _ if listing.len() < 2 => true,
            Some(Self(Order::Hash(secret))) => secret.is_order_of(listing),
            Some(Self(Order::Listed(longer))) => listing.len() < longer.len() / 2,
            None => false,
        };
        if says_less {
            return known;
        }
        let secret = (0..=u8::MAX).map(Secret).find(|secret| secret.is_order_of(listing));
        Some(Self(secret.map_or_else(|| Order::Listed(listing.into()), Order::Hash)))
    }

    /// Puts virtual servers in the order in which the kernel takes them back fastest, if all of
    /// them have been removed at once. Those of which nothing is known come last, when few removed
    /// ones are left to search.
    pub fn sort_for_return(&self, frontends: &mut [Frontend]) {
        match &self.0 {
            Order::Hash(secret) => frontends.sort_by_key(|it| Reverse(secret.bucket(it))),
            Order::Listed(listing) => {
                let places: HashMap<&Frontend, usize> = listing.iter().zip(0..).collect();
                frontends.sort_by_key(|it| Reverse(places.get(it)));
            }
        }
    }
}

// === impl Secret ===

impl Secret {
    fn is_order_of(self, listing: &[Frontend]) -> bool {
        listing.is_sorted_by_key(|frontend| self.bucket(frontend))
    }

    fn bucket(self, frontend: &Frontend) -> u8 {
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
        self.0 ^ address ^ protocol ^ high ^ low
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
            let kernel = Secret(secret);
            listing.sort_by_key(|frontend| kernel.bucket(frontend));
            let table = Table::learn(&listing, None).unwrap();
            let known = Table(Order::Hash(kernel));
            prop_assert_eq!(Table::learn(&listing, Some(known.clone())), Some(known));
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

    fn of(last: u8) -> Frontend {
        Frontend { address: [10, 96, 0, last].into(), protocol: Protocol::Tcp, port: 80 }
    }

    #[test]
    fn an_order_that_is_no_hash_is_kept_as_it_is() {
        let listing: Vec<Frontend> = [7, 1, 6, 2, 5, 3, 4].map(of).into();
        let table = Table::learn(&listing, None);
        assert_eq!(table, Some(Table(Order::Listed(listing.clone().into()))));
        let after_a_flush = Table::learn(&[of(2), of(7)], table.clone());
        assert_eq!(after_a_flush, table);

        let mut returning: Vec<Frontend> = [8, 1, 2, 3, 4, 5, 6, 7].map(of).into();
        table.clone().unwrap().sort_for_return(&mut returning);
        assert_eq!(returning, [4, 3, 5, 2, 6, 1, 7, 8].map(of));

        let grown: Vec<Frontend> = [4, 3, 5, 8, 2, 6, 1, 7].map(of).into();
        let table = Table::learn(&grown, table);
        assert_eq!(table, Some(Table(Order::Listed(grown.into()))));
    }

    #[test]
    fn next_to_nothing_teaches_nothing() {
        assert_eq!(Table::learn(&[of(1)], None), None);
        let known = Some(Table(Order::Hash(Secret(7))));
        assert_eq!(Table::learn(&[], known.clone()), known);
    }
}
