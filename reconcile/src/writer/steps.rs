//! Steps in which a batch of operations goes to the kernel, one after the other.
//!
//! Operations of a step are sent together, in the order of their phases. A step begins where an operation needs that
//! one before has succeeded; [`dependencies`](super::dependencies) has the table of these needs.

use plan::op::Op;
use plan::planner::Planner;

use super::closing::unbinds;
use super::dependencies::takes_away;

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Sets, ownership markers and entries, before the first new virtual server. Clients are no longer led to a short
    /// circuit that another frontend gets.
    Mark,
    /// Virtual servers and real servers, and all else that needs nothing.
    Serve,
    /// Addresses attract clients.
    Bind,
    /// Entries that lead clients to internal frontends, or no longer do.
    Lead,
    /// Addresses and routes no longer attract clients.
    Unbind,
    /// Virtual servers and entries that served them go.
    Remove,
    /// Ownership markers go.
    Unmark,
}

/// Divides operations, which are in the order of their phases, into steps, in the order of these. `may_wait`: true if
/// one of them may have to wait for what is pending.
pub(super) fn of(planner: &Planner, mut ops: Vec<Op>, may_wait: bool) -> [(Step, Vec<Op>); 7] {
    let unmark = take(&mut ops, |op| !planner.unmarked_by(op).is_empty());
    let mut mark = take(&mut ops, |op| gives_up(planner, op));
    let bind = take(&mut ops, |op| matches!(op, Op::BindAddress(_)));
    let is_creation = |op: &Op| matches!(op, Op::CreateVirtualServer(..));
    let n_marks = ops.iter().position(is_creation).unwrap_or(0);
    let mut serve = ops.split_off(n_marks);
    mark.append(&mut ops);
    let lead = take(&mut serve, Op::leads_to_internal_frontends);
    let (mut unbind, mut remove) = (Vec::new(), Vec::new());
    // Else nothing of what is removed needs anything, and goes with what serves: in a send less.
    if may_wait || serve.iter().any(unbinds) || !lead.is_empty() || !bind.is_empty() {
        unbind = take(&mut serve, unbinds);
        remove = take(&mut serve, takes_away);
    }
    [
        (Step::Mark, mark),
        (Step::Serve, serve),
        (Step::Bind, bind),
        (Step::Lead, lead),
        (Step::Unbind, unbind),
        (Step::Remove, remove),
        (Step::Unmark, unmark),
    ]
}

/// True if it stops leading clients to what is another frontend's internal frontend now. That gets other real servers next.
fn gives_up(planner: &Planner, op: &Op) -> bool {
    let Op::RemoveEntry(set, entry) = op else { return false };
    let internal_frontend = planner.led_to(*set, entry);
    let claim = internal_frontend.and_then(|it| planner.desired().owning_claim(&it));
    claim.is_some_and(|claim| claim.internal_frontend_of != entry.frontend())
}

fn take(ops: &mut Vec<Op>, is_of_step: impl Fn(&Op) -> bool) -> Vec<Op> {
    ops.extract_if(.., |op| is_of_step(op)).collect()
}
