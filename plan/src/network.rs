//! Networks without parts of them, and addresses mapped into them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// A network without some others that may be inside it, or around it: in as few networks as
/// possible, in order.
pub(crate) fn without(network: IpNet, excluded: &[IpNet]) -> Vec<IpNet> {
    let network = network.trunc();
    if excluded.iter().any(|other| other.contains(&network)) {
        return Vec::new();
    }
    if !excluded.iter().any(|other| network.contains(other)) {
        return vec![network];
    }
    // Something smaller is inside, so there are halves.
    match network.subnets(network.prefix_len() + 1) {
        Ok(halves) => halves.flat_map(|half| without(half, excluded)).collect(),
        Err(_) => Vec::new(),
    }
}

/// An address with its first bits replaced by a network's, as the kernel's `NETMAP` does it. One of another family
/// stays as it is.
pub(crate) fn inside(network: IpNet, address: IpAddr) -> IpAddr {
    match (network, address) {
        (IpNet::V4(network), IpAddr::V4(address)) => {
            let host = address.to_bits() & network.hostmask().to_bits();
            Ipv4Addr::from_bits(network.network().to_bits() | host).into()
        }
        (IpNet::V6(network), IpAddr::V6(address)) => {
            let host = address.to_bits() & network.hostmask().to_bits();
            Ipv6Addr::from_bits(network.network().to_bits() | host).into()
        }
        (_, address) => address,
    }
}

/// The same in the other half of the network, which has several addresses.
#[must_use]
pub fn in_other_half(network: IpNet, address: IpAddr) -> IpAddr {
    match (first_bit(network), inside(network, address)) {
        (IpAddr::V4(bit), IpAddr::V4(address)) => {
            Ipv4Addr::from_bits(address.to_bits() ^ bit.to_bits()).into()
        }
        (IpAddr::V6(bit), IpAddr::V6(address)) => {
            Ipv6Addr::from_bits(address.to_bits() ^ bit.to_bits()).into()
        }
        (_, address) => address,
    }
}

/// Returns the first bit of the addresses in a network behind its prefix: its halves differ in that.
#[must_use]
pub fn first_bit(network: IpNet) -> IpAddr {
    let place = u32::from(network.prefix_len()) + 1;
    match network {
        IpNet::V4(_) => Ipv4Addr::from_bits(1_u32.rotate_right(place)).into(),
        IpNet::V6(_) => Ipv6Addr::from_bits(1_u128.rotate_right(place)).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn what_is_excluded_is_cut_out() {
        for (network, excluded, left) in [
            ("10.96.0.0/12", &[][..], &["10.96.0.0/12"][..]),
            ("10.96.0.0/12", &["10.0.0.0/8"], &[]),
            ("10.96.0.0/12", &["10.96.0.0/12"], &[]),
            ("10.96.0.0/12", &["10.112.0.0/16", "fd00:96::/108"], &["10.96.0.0/12"]),
            ("10.96.0.7/30", &["10.96.0.6/32"], &["10.96.0.4/31", "10.96.0.7/32"]),
            ("fd00:96::/126", &["fd00:96::2/127"], &["fd00:96::/127"]),
        ] {
            let found = without(network.parse().unwrap(), &nets(excluded));
            assert_eq!(found, nets(left), "{network} without {excluded:?}");
        }
        assert_eq!(without("10.96.0.0/12".parse().unwrap(), &nets(&["10.96.0.10/32"])).len(), 20);
    }

    #[test]
    fn the_halves_of_a_network_differ_in_the_first_bit_behind_its_prefix() {
        for (network, address, first, second) in [
            ("240.0.0.0/4", "203.0.113.5", "251.0.113.5", "243.0.113.5"),
            ("240.0.0.0/4", "10.96.0.10", "250.96.0.10", "242.96.0.10"),
            ("feff::/16", "fd00:96::a", "feff:96::a", "feff:8096::a"),
        ] {
            let (network, address): (IpNet, IpAddr) =
                (network.parse().unwrap(), address.parse().unwrap());
            assert_eq!(inside(network, address), first.parse::<IpAddr>().unwrap());
            assert_eq!(in_other_half(network, address), second.parse::<IpAddr>().unwrap());
        }
    }

    proptest! {
        #[test]
        fn an_address_is_in_what_is_left_if_it_is_in_nothing_excluded(
            network in (0_u8..=32, any::<u32>()),
            excluded in proptest::collection::vec((0_u8..=32, any::<u32>()), 0..5),
            offset in any::<u32>(),
        ) {
            let net = |(length, bits): (u8, u32)| {
                IpNet::new(IpAddr::V4(Ipv4Addr::from_bits(bits)), length).unwrap().trunc()
            };
            let network = net(network);
            // Near the network, or hardly any would be inside.
            let near = |(length, bits): (u8, u32)| match network {
                IpNet::V4(v4) => {
                    let host = bits & v4.hostmask().to_bits();
                    net((length, v4.network().to_bits() | host))
                }
                IpNet::V6(_) => network,
            };
            let excluded: Vec<IpNet> = excluded.into_iter().map(near).collect();
            let left = without(network, &excluded);
            let address = near((32, offset)).addr();
            let n_with_it = left.iter().filter(|net| net.contains(&address)).count();
            let is_excluded = excluded.iter().any(|net| net.contains(&address));
            prop_assert_eq!(n_with_it, usize::from(!is_excluded));
        }
    }
}
