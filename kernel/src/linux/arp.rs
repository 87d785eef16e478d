//! Addresses that were found on `kube-ipvs0` and bound otherwise than kube-ipvs binds them: those of IPv4
//! that answer ARP requests, and those of IPv6 that are chosen as a source.

use std::net::IpAddr;

use plan::kernel_objects::LINK;
use tracing::{info, warn};

use super::super::link::{AddressBatch, AddressScope, LinkAddress};
use super::super::sysctl::ServiceAddressesArp;
use super::{Linux, ReadError};

/// Most IPv6 addresses that one drift check changes.
const MOST_DEPRECATED: usize = 256;

impl Linux {
    /// Binds addresses from now on so that the sysctls for `arp` have their effect. Addresses bound
    /// otherwise, as after a change of the setting, are bound again: each is missing for a few
    /// microseconds. Other programs' addresses (`excluded`) stay as they are.
    ///
    /// # Errors
    /// When the addresses cannot be read, or the kernel cannot be asked to change them. One that it
    /// refuses to bind again is only missing, which the first comparison finds.
    pub fn bind_for(
        &mut self,
        arp: ServiceAddressesArp,
        excluded: impl Fn(IpAddr) -> bool,
    ) -> Result<(), ReadError> {
        self.scope = match arp {
            ServiceAddressesArp::Answered | ServiceAddressesArp::Strict => AddressScope::Universe,
            // `arp_ignore` 3 leaves out addresses of scope host (net/ipv4/arp.c).
            ServiceAddressesArp::Quiet => AddressScope::Host,
        };
        let (index, mut addresses) = self.all_addresses()?;
        let Some(index) = index else { return Ok(()) };
        addresses.retain(|found| found.index == index && !excluded(found.address));
        let preferred = addresses.iter().filter(|found| is_preferred(found));
        self.preferred = preferred.map(|found| found.address).collect();
        addresses.retain(|found| self.is_bound_otherwise(found));
        if addresses.is_empty() {
            return Ok(());
        }
        let mut batch = AddressBatch::new(index);
        for found in &addresses {
            batch.remove(found.address);
            batch.add(found.address, self.scope);
        }
        let results = self.links.send(&batch);
        let results = results.map_err(|error| ReadError::new("addresses to bind again", error))?;
        let refusals: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        if let Some(first) = refusals.first() {
            warn!(
                refused = refusals.len(),
                "cannot bind some addresses on {LINK} again, for a changed serviceAddressesArp: \
                 {first}; the first comparison repairs them"
            );
        }
        info!(
            addresses = addresses.len(),
            "bound the addresses on {LINK} again, for a changed serviceAddressesArp"
        );
        Ok(())
    }

    /// Changes some of the IPv6 addresses that were found and are chosen as a source. Each drift check
    /// does: the kernel walks the list of all addresses for each (`addrconf_verify_rtnl` in
    /// net/ipv6/addrconf.c).
    pub(super) fn deprecate_some(&mut self) {
        let rest = self.preferred.len().saturating_sub(MOST_DEPRECATED);
        let some = self.preferred.split_off(rest);
        let Some(index) = self.index.filter(|_| !some.is_empty()) else { return };
        let mut batch = AddressBatch::new(index);
        for address in &some {
            batch.deprecate(*address);
        }
        let results = self.links.send(&batch);
        let error = results.map_or_else(Some, |results| results.into_iter().find_map(Result::err));
        if let Some(error) = error {
            warn!(
                "cannot prevent the use of IPv6 addresses on {LINK} as source addresses: {error}"
            );
        }
        if self.preferred.is_empty() {
            info!("the kernel no longer uses an IPv6 address on {LINK} as source address");
        }
    }

    /// IPv6 has no ARP. An address with a prefix length other than 32 is another program's.
    fn is_bound_otherwise(&self, found: &LinkAddress) -> bool {
        found.address.is_ipv4() && found.prefix == 32 && found.scope != self.scope.number()
    }
}

/// An address with a prefix length other than 128 is another program's.
fn is_preferred(found: &LinkAddress) -> bool {
    let is_ours = found.address.is_ipv6() && found.prefix == 128 && !found.is_link_local_v6();
    is_ours && !found.is_deprecated
}
