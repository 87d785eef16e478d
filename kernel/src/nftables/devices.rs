//! Devices of the node whose packets kube-ipvs' flow tables see: all but loopback, dummies, and bridges whose packets meet
//! the rules at their ports (`net.bridge.bridge-nf-call-iptables` and `-ip6tables`).
//!
//! A flow table carries a connection in each direction whose device it has. A packet that comes in by another device meets
//! all hooks, so a device that is added a moment later costs only speed.

use std::collections::BTreeSet;
use std::path::Path;

use netlink::{Error, Protocol, Socket};
use plan::model::Family;

use crate::link::{Link, Links};
use crate::sysctl::{self, Bridged};

/// `RTNLGRP_LINK` (include/uapi/linux/rtnetlink.h)
const GROUP: u32 = 1;
/// `LOOPBACK_IFINDEX` (include/net/flow.h)
const LOOPBACK: u32 = 1;

/// Devices of the network namespace in which this was opened.
#[derive(Debug)]
pub(super) struct Devices {
    monitor: Socket,
    links: Links,
}

/// Changes of a flow table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceChanges {
    pub(super) added: Vec<String>,
    /// Since Linux 6.16 a flow table keeps the name of a device that is gone (`nft_flowtable_event` in
    /// net/netfilter/nf_tables_api.c).
    pub(super) removed: Vec<String>,
}

impl Devices {
    pub(super) fn open() -> Result<Self, Error> {
        let mut monitor = Socket::open(Protocol::Route)?;
        monitor.join(GROUP)?;
        Ok(Self { monitor, links: Links::open()? })
    }

    /// True if a device has come, gone or changed since the last call.
    pub(super) fn have_changed(&mut self) -> bool {
        let mut is_news = false;
        let received = self.monitor.notifications_so_far(|_| is_news = true);
        if received.is_err() {
            self.monitor.discard_notifications();
        }
        is_news || received.is_err()
    }

    /// Returns the names of those that flow tables should have.
    pub(super) fn names(&mut self) -> Result<BTreeSet<String>, Error> {
        let shows = |family| Bridged::read(Path::new(sysctl::ROOT), family) == Bridged::Shown;
        let are_bridges_shown = Family::BOTH.into_iter().all(shows);
        let is_one = |link: &Link| {
            let is_left_out = link.kind == "dummy" || link.kind == "bridge" && are_bridges_shown;
            link.index != LOOPBACK && !is_left_out
        };
        Ok(self.links.all()?.into_iter().filter(is_one).map(|link| link.name).collect())
    }
}

/// Returns the changes from the devices of a flow table to those that it should have.
pub(super) fn changes(found: &[String], wanted: &BTreeSet<String>) -> DeviceChanges {
    DeviceChanges {
        added: wanted.iter().filter(|name| !found.contains(name)).cloned().collect(),
        removed: found.iter().filter(|name| !wanted.contains(*name)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_table_gets_what_it_lacks_and_loses_what_is_gone() {
        let found = ["eth0", "veth1", "gone"].map(str::to_owned);
        let wanted = ["eth0", "veth1", "cali1"].map(str::to_owned).into_iter().collect();
        let expected =
            DeviceChanges { added: vec!["cali1".to_owned()], removed: vec!["gone".to_owned()] };
        assert_eq!(changes(&found, &wanted), expected);
    }
}
