//! Networks that a document names. Texts that are none are left out: validation has refused them.

use ipnet::IpNet;
use syntax::address;

use super::document::KubeProxyConfiguration;

pub(super) fn cluster_networks(document: &KubeProxyConfiguration) -> Vec<IpNet> {
    document.cluster_cidr.split(',').filter_map(address::cidr).collect()
}

pub(super) fn networks(texts: &[String]) -> Vec<IpNet> {
    texts.iter().filter_map(|text| address::cidr(text)).collect()
}
