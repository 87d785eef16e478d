//! Addresses that a host cannot have, or that no client on another machine could mean.

use std::net::IpAddr;

/// True if the kernel takes it for one host's address.
pub(crate) fn can_be_bound(address: IpAddr) -> bool {
    let special = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        // On the wire it would be the IPv4 address.
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    };
    !special && !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

/// True if a client on another machine could mean it.
pub(crate) fn can_be_reached(address: IpAddr) -> bool {
    let special = match address {
        // "This network" (RFC 1122, 3.2.1.3).
        IpAddr::V4(address) => address.is_link_local() || address.to_bits() >> 24 == 0,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    can_be_bound(address) && !special
}
