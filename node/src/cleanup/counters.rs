//! Packet counters by name, which rules of mode iptables count with.

use std::thread;

use netlink::Error;
use plan::iptables::constant::COUNTERS;
use rustix::io::Errno;

use super::{CleanupReport, RELEASE_ATTEMPTS, RELEASE_WAIT};
use kernel::nfacct::NfacctClient;

impl CleanupReport {
    /// Removes the counters. To be called when no rule of ours names one. A counter that another rule
    /// names stays.
    pub(super) fn remove_counters(&mut self) {
        let mut client = match NfacctClient::open() {
            Ok(client) => client,
            Err(error) => return self.failures.push(format!("open the packet counters: {error}")),
        };
        let mut n_removed = 0;
        for name in COUNTERS {
            match client.packets(name) {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                // `nfnetlink_rcv_msg` of net/netfilter/nfnetlink.c: the kernel has no counters.
                Err(error) if is_refused_with(&error, Errno::INVAL) => continue,
                Err(error) => {
                    self.failures.push(format!("read the packet counter {name}: {error}"));
                    continue;
                }
            }
            match remove(&mut client, name) {
                Ok(()) => n_removed += 1,
                Err(error) if is_refused_with(&error, Errno::BUSY) => self.kept.push(format!(
                    "the packet counter {name} is not removed, because a rule uses it \
                     (iptables-save | grep {name})"
                )),
                Err(error) => self.failures.push(format!(
                    "cannot remove the packet counter {name}: {error}. Remove it with: nfacct del \
                     {name}"
                )),
            }
        }
        self.note(n_removed, "packet counter");
    }
}

/// Removes a counter. That of a rule which has just gone is in use for a while (see [`RELEASE_WAIT`]).
fn remove(client: &mut NfacctClient, name: &str) -> Result<(), Error> {
    for _ in 1..RELEASE_ATTEMPTS {
        match client.remove(name) {
            Err(error) if is_refused_with(&error, Errno::BUSY) => thread::sleep(RELEASE_WAIT),
            result => return result,
        }
    }
    client.remove(name)
}

fn is_refused_with(error: &Error, errno: Errno) -> bool {
    error.refusal().is_some_and(|refusal| refusal.errno == errno.raw_os_error())
}
