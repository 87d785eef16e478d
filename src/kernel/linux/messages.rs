//! Operations as messages in a batch, and a result for each operation again.

use std::collections::HashMap;
use std::fmt::Display;

use plan::op::Op;

use super::super::{Refusal, RefusalClass, translate};

/// Puts operations into a batch. What cannot even be asked is returned by its place.
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

/// Gives each operation its result: what was not asked has no result in the batch's.
pub(super) fn in_place<E>(
    ops: &[Op],
    mut unasked: HashMap<usize, Refusal>,
    results: Vec<Result<(), E>>,
    judge: impl Fn(&Op, E) -> Result<(), Refusal>,
) -> Vec<Result<(), Refusal>> {
    let mut results = results.into_iter();
    let each = ops.iter().enumerate();
    each.map(|(index, op)| match unasked.remove(&index) {
        Some(refusal) => Err(refusal),
        None => match results.by_ref().take(messages(op)).last() {
            Some(result) => result.or_else(|error| judge(op, error)),
            None => Err(Refusal::new(RefusalClass::AnswerLost, "no result")),
        },
    })
    .collect()
}

/// How many messages an operation is. The last one's result is its result.
const fn messages(op: &Op) -> usize {
    if let Op::MoveRealServer(..) = op { 2 } else { 1 }
}

pub(super) fn push_set(batch: &mut ipset::Batch, op: &Op) -> Result<(), ipset::ParseError> {
    match op {
        Op::CreateSet(set, room) => {
            batch.create(translate::set_name(*set)?, translate::set_spec(*set, *room));
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

pub(super) fn push_ipvs(batch: &mut ipvs::Batch, op: &Op) -> Result<(), ipvs::InvalidName> {
    match op {
        Op::CreateVirtualServer(frontend, server) => {
            batch.new_service(&translate::virtual_server(frontend, server)?);
        }
        Op::ChangeVirtualServer(frontend, server) => {
            batch.set_service(&translate::virtual_server(frontend, server)?);
        }
        Op::RemoveVirtualServer(frontend) | Op::RetireVirtualServer(frontend) => {
            batch.delete_service(&translate::virtual_server_id(frontend));
        }
        Op::AddRealServer(frontend, server) => {
            batch.new_destination(
                &translate::virtual_server_id(frontend),
                &translate::real_server(server),
            );
        }
        Op::MoveRealServer(frontend, server) => {
            let id = translate::virtual_server_id(frontend);
            batch.delete_destination(&id, server.socket());
            batch.new_destination(&id, &translate::real_server(server));
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
