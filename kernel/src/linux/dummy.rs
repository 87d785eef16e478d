//! Our dummy interface before there is a [`Linux`]: if there is one, and if there can be.

use super::super::link::Links;
use super::Linux;

impl Linux {
    /// Finds out whether a dummy interface can be made, by making ours, unless it is there. It
    /// stays: without an address it does nothing.
    pub fn try_dummy() -> Result<(), netlink::Error> {
        let mut links = Links::open()?;
        if links.find()?.is_some() { Ok(()) } else { links.create() }
    }

    /// True if our interface is there.
    #[must_use]
    pub fn has_dummy() -> bool {
        Links::open().and_then(|mut links| links.find()).is_ok_and(|link| link.is_some())
    }

    /// Removes our interface, unless it has an address.
    pub fn remove_empty_dummy() -> Result<(), netlink::Error> {
        let mut links = Links::open()?;
        let Some(link) = links.find()? else { return Ok(()) };
        let addresses = links.addresses()?;
        let is_used =
            addresses.iter().any(|found| found.index == link.index && !found.is_link_local_v6());
        if is_used { Ok(()) } else { links.delete(link.index) }
    }
}
