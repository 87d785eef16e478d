//! Operations as messages in a batch, and a result for each operation again.

use std::fmt::Display;

use plan::hash::HashMap;
use plan::op::Op;

use super::super::{Refusal, RefusalClass, translate};

/// Pushes operations into a batch. Returns refusals of those that cannot be encoded, by position.
pub(super) fn unasked<E: Display>(
    ops: &[Op],
    mut push: impl FnMut(&Op) -> Result<(), E>,
) -> HashMap<usize, Refusal> {
    ops.iter()
        .enumerate()
        .filter_map(|(index, op)| {
            let error = push(op).err()?;
            Some((index, Refusal::new(RefusalClass::Other, error)))
        })
        .collect()
}

/// Returns a result for each operation. Those that were not sent have none among `results`.
pub(super) fn in_place<E>(
    ops: &[Op],
    mut unasked: HashMap<usize, Refusal>,
    results: Vec<Result<(), E>>,
    mut judge: impl FnMut(&Op, E) -> Result<(), Refusal>,
) -> Vec<Result<(), Refusal>> {
    let mut results = results.into_iter();
    let each = ops.iter().enumerate();
    each.map(|(index, op)| match unasked.remove(&index) {
        Some(refusal) => Err(refusal),
        None => match results.next() {
            Some(result) => result.or_else(|error| judge(op, error)),
            None => Err(Refusal::new(RefusalClass::AnswerLost, "no result")),
        },
    })
    .collect()
}

/// Operations on sets with those on the same set together, as far as their phases allow: the kernel
/// takes a thousand entries of one set in a message. With each goes its place among `ops`.
pub(super) fn set_by_set(ops: &[Op]) -> (Vec<usize>, Vec<Op>) {
    let mut ordered: Vec<(usize, &Op)> = ops.iter().enumerate().collect();
    for phase in ordered.chunk_by_mut(|(_, one), (_, next)| one.phase() == next.phase()) {
        phase.sort_by_key(|(_, op)| match op {
            Op::CreateSet(set, _) | Op::AddEntry(set, _) | Op::RemoveEntry(set, _) => Some(*set),
            _ => None,
        });
    }
    ordered.into_iter().map(|(place, op)| (place, op.clone())).unzip()
}

/// Returns the results in the order of their places.
pub(super) fn by_place<T>(places: Vec<usize>, results: Vec<T>) -> Vec<T> {
    let mut placed: Vec<(usize, T)> = places.into_iter().zip(results).collect();
    placed.sort_unstable_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, result)| result).collect()
}

pub(super) fn push_set(batch: &mut ipset::Batch, op: &Op) -> Result<(), ipset::ParseError> {
    match op {
        Op::CreateSet(set, size) => {
            batch.create(translate::set_name(*set)?, translate::set_spec(*set, *size));
        }
        Op::AddEntry(set, entry) => {
            batch.add(translate::set_name(*set)?, translate::entry(entry));
        }
        Op::RemoveEntry(set, entry) => {
            batch.delete(translate::set_name(*set)?, translate::entry(entry));
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn push_ipvs(batch: &mut ipvs::Batch, op: &Op) -> Result<(), ipvs::ParseError> {
    match op {
        Op::CreateVirtualServer(frontend, server) => {
            batch.new_service(&translate::virtual_server(frontend, server)?);
        }
        Op::ChangeVirtualServer(frontend, server) => {
            batch.set_service(&translate::virtual_server(frontend, server)?);
        }
        Op::RemoveVirtualServer(frontend) | Op::RemoveVirtualServerWhenDrained(frontend) => {
            batch.delete_service(&translate::virtual_server_id(frontend));
        }
        Op::AddRealServer(frontend, server) => {
            batch.new_destination(
                &translate::virtual_server_id(frontend),
                &translate::real_server(server),
            );
        }
        Op::ChangeRealServer(frontend, server) => {
            batch.set_destination(
                &translate::virtual_server_id(frontend),
                &translate::real_server(server),
            );
        }
        Op::DrainRealServer(frontend, server, deadline) => {
            batch.set_destination(
                &translate::virtual_server_id(frontend),
                &translate::draining_real_server(*server, *deadline),
            );
        }
        Op::RemoveRealServer(frontend, server) => {
            batch.delete_destination(&translate::virtual_server_id(frontend), *server);
        }
        _ => {}
    }
    Ok(())
}

/// True if an operation removes a virtual server.
pub(super) const fn is_removal(op: &Op) -> bool {
    matches!(op, Op::RemoveVirtualServer(_) | Op::RemoveVirtualServerWhenDrained(_))
}

/// True if an operation is to remove or drain something that is gone already.
pub(super) fn is_done_already(op: &Op, error: &ipvs::Error) -> bool {
    match op {
        _ if is_removal(op) => error.is_no_such_service(),
        Op::DrainRealServer(..) | Op::RemoveRealServer(..) => error.is_not_found(),
        _ => false,
    }
}

/// `ip_vs_add_service` and `ip_vs_edit_service` (net/netfilter/ipvs/ip_vs_ctl.c) say ENOENT for
/// nothing but a scheduler that could not be loaded.
pub(super) fn lacks_scheduler(op: &Op, error: &ipvs::Error) -> bool {
    matches!(op, Op::CreateVirtualServer(..) | Op::ChangeVirtualServer(..))
        && error.is_unknown_scheduler()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use plan::kernel_objects::Entry;
    use plan::model::Family;
    use plan::sets::{SetId, SetKind};

    use super::*;

    #[test]
    fn entries_of_one_set_go_together_and_phases_stay_in_order() {
        let set = |kind| SetId { kind, family: Family::V4 };
        let (one, other) = (set(SetKind::NoLocalEndpoints), set(SetKind::NoEndpoints));
        let entry = |last| Entry::Address(Ipv4Addr::new(10, 96, 0, last).into());
        let ops = [
            Op::AddEntry(other, entry(1)),
            Op::AddEntry(one, entry(1)),
            Op::AddEntry(other, entry(2)),
            Op::AddEntry(one, entry(2)),
            Op::RemoveEntry(other, entry(3)),
            Op::RemoveEntry(one, entry(3)),
        ];
        let (places, ordered) = set_by_set(&ops);
        let sets: Vec<SetId> = ordered
            .iter()
            .filter_map(|op| match op {
                Op::AddEntry(set, _) | Op::RemoveEntry(set, _) => Some(*set),
                _ => None,
            })
            .collect();
        assert_eq!(sets.chunk_by(PartialEq::eq).count(), 4, "{sets:?}");
        assert!(ordered.iter().is_sorted_by_key(Op::phase));
        assert_eq!(by_place(places, ordered), ops);
    }
}
