//! Addresses as the kernel tells of them: the node's own, and those that somebody took from us.

use std::net::IpAddr;

use plan::event::Event;
use plan::op::Op;
use tokio::time::Instant;

use super::observer::RoundKind;
use super::{Basis, Reconciler};
use crate::kernel::Addresses;
use crate::kernel::address_monitor::Happened;
use crate::kernel::worker::WorkerGone;

impl Reconciler {
    /// Takes over what the node's addresses are now, and puts back at once what was taken.
    pub(super) async fn addresses_changed(&mut self, happened: Happened) -> Result<(), WorkerGone> {
        // Before the first comparison there is nothing that could have been taken from us.
        let began = self.status.borrow().in_sync_once;
        let started = Instant::now();
        let found = if happened.others || (happened.anything && began) {
            self.read_addresses().await?
        } else {
            None
        };
        if !began {
            return Ok(());
        }
        let mut ops = match found {
            Some(found) if happened.anything => {
                let link = (!found.link).then_some(Op::CreateLink);
                link.into_iter().chain(self.planner.compare_addresses(&found.bound)).collect()
            }
            // What was to go is gone. What has been put back since is no change.
            _ => self.wanted_back(&happened),
        };
        // What is owed comes when it is due.
        ops.retain(|op| !self.ledger.owes(&op.subject()));
        if ops.is_empty() {
            return Ok(());
        }
        self.count_drift(&ops, &[]);
        self.carry_out(ops, Basis::SecondLook).await?;
        self.round_ended(RoundKind::SecondLook, started);
        Ok(())
    }

    fn wanted_back(&self, happened: &Happened) -> Vec<Op> {
        let wanted = |address: &IpAddr| self.planner.desired().has_address(*address);
        happened.taken.iter().copied().filter(wanted).map(Op::BindAddress).collect()
    }

    /// Reads the addresses and takes over the node's own; none if they could not be read.
    pub(super) async fn read_addresses(&mut self) -> Result<Option<Addresses>, WorkerGone> {
        match self.kernel.read_addresses().await? {
            Ok(addresses) => {
                self.take(Event::LocalAddresses(addresses.local.iter().copied().collect()));
                Ok(Some(addresses))
            }
            Err(error) => {
                self.reading_failed(&error);
                Ok(None)
            }
        }
    }
}
