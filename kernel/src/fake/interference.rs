//! Faults at a place that a test chooses: at any request, before anything is done about it.

use plan::actual::Actual;
use plan::model::Family;
use plan::op::Op;

use super::super::{KernelRead, Refusal, RefusalClass};
use super::FakeState;

/// Decides on every request. It may change the kernel's state, as another program would.
pub(super) type Interference = Box<dyn FnMut(KernelCall<'_>, &mut Actual) -> FakeAnswer + Send>;

/// Request to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCall<'a> {
    /// To be read: rules and chains of a family.
    Read(KernelRead, Option<Family>),
    /// To be changed.
    Writing(&'a Op),
    /// To forget the stale flows of a family.
    Flows(Family),
}

/// Answer to a request.
pub enum FakeAnswer {
    /// The answer that the kernel's state demands.
    Honest,
    /// A refusal. A read fails.
    Refused(Refusal),
    /// The caller does not learn if an operation was carried out. A read fails.
    Lost {
        /// True if the operation is carried out.
        carried_out: bool,
    },
    /// A read returns only what this leaves, without an error: IPVS does not report that a listing
    /// was disturbed. Operations are answered honestly.
    Incomplete(Box<dyn FnOnce(&mut Actual)>),
}

impl FakeState {
    /// Asks the test for the answer.
    pub(super) fn decide(&mut self, request: KernelCall<'_>) -> FakeAnswer {
        let Some(mut decide) = self.interference.take() else { return FakeAnswer::Honest };
        let answer = self.touch(|actual| decide(request, actual));
        self.interference = Some(decide);
        answer
    }

    /// Changes the state as another program does, and notes the families whose chains are others.
    pub(super) fn touch<T>(&mut self, change: impl FnOnce(&mut Actual) -> T) -> T {
        let actual = self.memory.actual_mut();
        let before = actual.chains.clone();
        let result = change(actual);
        if before != actual.chains {
            let chains = before.keys().chain(actual.chains.keys());
            let differ = chains.filter(|it| before.get(it) != actual.chains.get(it));
            self.touched.extend(differ.map(|chain| chain.family));
        }
        result
    }

    /// Without an answer, a drift check cannot tell our change of a chain from another program's.
    pub(super) fn lose_track(&mut self, op: &Op) {
        if let Op::Chain(change) = op {
            self.touched.insert(change.chain().family);
        }
    }
}

impl FakeAnswer {
    /// A refusal of this class.
    #[must_use]
    pub fn refused(class: RefusalClass) -> Self {
        Self::Refused(Refusal::new(class, "injected"))
    }
}
