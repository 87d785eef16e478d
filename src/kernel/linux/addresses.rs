//! Addresses on the dummy interface.

use plan::kernel::LINK;
use plan::op::Op;
use rustix::io::Errno;

use super::super::link::AddressBatch;
use super::{Linux, Refusal, RefusalClass, all_failed, is, refusal};

// === impl Linux ===

impl Linux {
    /// The dummy interface's index.
    ///
    /// # Errors
    /// When there is none, which is said as what becomes of an operation that needs it.
    pub(super) fn index_for_writing(&mut self) -> Result<u32, Refusal> {
        let index = self.index().map_err(|error| refusal(&error))?;
        let missing =
            || Refusal::new(RefusalClass::Surprise, format!("the interface {LINK} is missing"));
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
                Op::UnbindAddress(address) => batch.remove(*address),
                _ => {}
            }
        }
        let sent = self.links.send(&mut batch);
        self.judge(ops, sent, |op| match op {
            Op::BindAddress(_) => Some(Errno::EXIST),
            Op::UnbindAddress(_) => Some(Errno::ADDRNOTAVAIL),
            _ => None,
        })
    }

    /// What became of operations on the interface. `done`: the kernel's word for what was so
    /// already.
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
            result => result.map_err(|error| refusal(&error)),
        });
        let judged: Vec<Result<(), Refusal>> = judged.collect();
        if judged.iter().any(Result::is_err) {
            // Perhaps the interface was deleted, or made anew by somebody else.
            self.index = None;
        }
        judged
    }
}
