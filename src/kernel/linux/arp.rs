//! Answers to ARP requests for the addresses on `kube-ipvs0`.

use std::net::IpAddr;

use plan::kernel_objects::LINK;
use tracing::{info, warn};

use super::super::link::{AddressBatch, AddressScope, LinkAddress};
use super::super::sysctl::ServiceAddressesArp;
use super::{Linux, ReadError};

// === impl Linux ===

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
        addresses.retain(|found| found.index == index && self.is_bound_otherwise(found));
        addresses.retain(|found| !excluded(found.address));
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

    /// IPv6 has no ARP. An address with a prefix length other than 32 is another program's.
    fn is_bound_otherwise(&self, found: &LinkAddress) -> bool {
        found.address.is_ipv4() && found.prefix == 32 && found.scope != self.scope.number()
    }
}
