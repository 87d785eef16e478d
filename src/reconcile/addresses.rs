//! Address changes that the kernel reports: of the node's own, and removals of ours by others.

use std::net::IpAddr;

use plan::event::Event;
use plan::op::Op;
use tokio::time::Instant;

use super::Reconciler;
use super::audit::AuditedPart;
use crate::kernel::address_monitor::Happened;
use crate::kernel::worker::WorkerGone;
use crate::kernel::{Addresses, KernelRead};

impl Reconciler {
    /// Takes over what the node's addresses are now, and puts back at once what was taken.
    pub(super) async fn addresses_changed(&mut self, happened: Happened) -> Result<(), WorkerGone> {
        if !self.is_running() {
            // Before the kernel was taken over there is nothing that could have been taken from us.
            if happened.others {
                self.read_addresses().await?;
            }
            return Ok(());
        }
        if happened.anything {
            return self.look_at(AuditedPart::Addresses).await;
        }
        if happened.others && self.read_addresses().await?.is_none() {
            self.audit.failed(AuditedPart::Addresses, Instant::now());
        }
        // What was to go is gone.
        let wanted = self.wanted_back(&happened);
        if self.repair(wanted, None).await? > 0 {
            self.alarm();
        }
        Ok(())
    }

    fn wanted_back(&self, happened: &Happened) -> Vec<Op> {
        let wanted = |address: &IpAddr| self.planner.desired().has_address(*address);
        happened.taken.iter().copied().filter(wanted).map(Op::BindAddress).collect()
    }

    /// Reads the addresses and takes over the node's own; none if they could not be read.
    pub(super) async fn read_addresses(&mut self) -> Result<Option<Addresses>, WorkerGone> {
        let read = self.kernel.read(KernelRead::Addresses, |kernel| kernel.read_addresses()).await;
        let addresses = self.or_report(read)?;
        if let Some(addresses) = &addresses {
            self.take(Event::LocalAddresses(addresses.local.iter().copied().collect()));
        }
        Ok(addresses)
    }
}
