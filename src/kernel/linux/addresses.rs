//! Addresses on the dummy interface.

use plan::kernel::LINK;
use plan::op::Op;

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
        let results = match self.links.send(&mut batch) {
            Ok(results) => results,
            Err(error) => return all_failed(ops, &refusal(&error)),
        };
        let results: Vec<Result<(), Refusal>> = ops
            .iter()
            .zip(results)
            .map(|(op, result)| match (op, result) {
                (Op::BindAddress(_), Err(error)) if is(&error, rustix::io::Errno::EXIST) => Ok(()),
                (Op::UnbindAddress(_), Err(error))
                    if is(&error, rustix::io::Errno::ADDRNOTAVAIL) =>
                {
                    Ok(())
                }
                (_, result) => result.map_err(|error| refusal(&error)),
            })
            .collect();
        if results.iter().flat_map(|r| r.as_ref().err()).any(|r| r.class == RefusalClass::Surprise)
        {
            // Perhaps the interface was deleted, or made anew by somebody else.
            self.index = None;
        }
        results
    }
}
