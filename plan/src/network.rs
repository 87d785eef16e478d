//! Networks without parts of them.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

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
