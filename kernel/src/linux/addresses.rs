//! Addresses on the dummy interface.

use std::net::IpAddr;

use plan::hash::{HashMap, HashSet};
use plan::kernel_objects::LINK;
use plan::op::{Op, Subject};
use rustix::io::Errno;

use super::super::link::AddressBatch;
use super::{Linux, Refusal, RefusalClass, all_failed, is, refusal};

impl Linux {
    /// Returns the dummy interface's index.
    ///
    /// # Errors
    /// The refusal of an operation that needs the interface, when it is missing.
    pub(super) fn index_for_writing(&mut self) -> Result<u32, Refusal> {
        let index = self.index().map_err(|error| refusal(&error))?;
        let missing =
            || Refusal::new(RefusalClass::Conflict, format!("the interface {LINK} is missing"));
        index.ok_or_else(missing)
    }

    pub(super) fn apply_addresses(&mut self, ops: &[Op]) -> Vec<Result<(), Refusal>> {
        let index = match self.index_for_writing() {
            Ok(index) => index,
            Err(refusal) => return all_failed(ops, &refusal),
        };
        let mut batch = AddressBatch::new(index);
        for op in ops {
            match op {
                Op::BindAddress(address) => batch.add(*address, self.scope),
                Op::UnbindAddress(address) => {
                    batch.remove(*address);
                    // It would come back.
                    self.preferred.retain(|preferred| preferred != address);
                }
                _ => {}
            }
        }
        let sent = self.links.send(&batch);
        let is_missed = sent.iter().flatten().zip(ops).any(|(result, op)| {
            let missed = |error| is(error, Errno::ADDRNOTAVAIL);
            matches!(op, Op::UnbindAddress(IpAddr::V6(_))) && result.as_ref().is_err_and(missed)
        });
        let mut results = self.judge(ops, sent, |op| match op {
            Op::BindAddress(_) => Some(Errno::EXIST),
            Op::UnbindAddress(_) => Some(Errno::ADDRNOTAVAIL),
            _ => None,
        });
        if is_missed {
            match self.unbind_v6_with_prefix(index, ops) {
                Ok(refused) => {
                    for (op, result) in ops.iter().zip(&mut results) {
                        if let Some(refusal) = refused.get(&op.subject()) {
                            *result = Err(refusal.clone());
                        }
                    }
                }
                // Some of the removals are done. A retry reads the addresses again.
                Err(error) => return all_failed(ops, &refusal(&error)),
            }
        }
        results
    }

    /// The kernel removes an IPv6 address only with the prefix length that it was bound with
    /// (`inet6_addr_del` in net/ipv6/addrconf.c). With another length, the kernel answers as if
    /// there were no such address. So this reads the prefix lengths of the addresses to remove.
    /// Returns the refusals.
    fn unbind_v6_with_prefix(
        &mut self,
        index: u32,
        ops: &[Op],
    ) -> Result<HashMap<Subject, Refusal>, netlink::Error> {
        let unbound: HashSet<IpAddr> = ops
            .iter()
            .filter_map(|op| match op {
                Op::UnbindAddress(address @ IpAddr::V6(_)) => Some(*address),
                _ => None,
            })
            .collect();
        let (mut batch, mut removals) = (AddressBatch::new(index), Vec::new());
        for found in self.links.addresses()? {
            if found.index == index && unbound.contains(&found.address) {
                batch.remove_prefix(found.address, found.prefix);
                removals.push(Op::UnbindAddress(found.address));
            }
        }
        let sent = self.links.send(&batch);
        let results = self.judge(&removals, sent, |_| Some(Errno::ADDRNOTAVAIL));
        Ok(removals
            .into_iter()
            .zip(results)
            .filter_map(|(op, it)| Some((op.subject(), it.err()?)))
            .collect())
    }

    /// Turns the kernel's answers to operations on the interface into results. `done` returns the
    /// error number by which the kernel says that an operation was not needed.
    pub(super) fn judge(
        &mut self,
        ops: &[Op],
        sent: Result<Vec<Result<(), netlink::Error>>, netlink::Error>,
        done: impl Fn(&Op) -> Option<Errno>,
    ) -> Vec<Result<(), Refusal>> {
        let results = match sent {
            Ok(results) => results,
            Err(error) => return all_failed(ops, &refusal(&error)),
        };
        let judged = ops.iter().zip(results).map(|(op, result)| match result {
            Err(error) if done(op).is_some_and(|errno| is(&error, errno)) => Ok(()),
            result => result.map_err(|error| refusal_of(op, &error)),
        });
        let judged: Vec<Result<(), Refusal>> = judged.collect();
        if judged.iter().any(Result::is_err) {
            // Perhaps another program deleted the interface, or created it again.
            self.index = None;
        }
        judged
    }
}

/// Names the cure where the interface takes no address of IPv6: `inet6_addr_add` in
/// net/ipv6/addrconf.c answers `EACCES` because of `disable_ipv6` alone.
fn refusal_of(op: &Op, error: &netlink::Error) -> Refusal {
    let mut refusal = refusal(error);
    if matches!(op, Op::BindAddress(IpAddr::V6(_))) && is(error, Errno::ACCESS) {
        refusal.reason += &format!(
            ". On the host: sysctl -w net.ipv6.conf.{LINK}.disable_ipv6=0 \
             net.ipv6.conf.default.disable_ipv6=0 (the second for a new interface); kube-ipvs sets \
             the first itself if /proc/sys is writable"
        );
    }
    refusal
}
