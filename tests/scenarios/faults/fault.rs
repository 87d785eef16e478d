//! The faults, and how one is put at a place.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use kernel::fake::{Fake, FakeAnswer, KernelCall};
use kernel::{KernelRead, RefusalClass};
use plan::actual::{Actual, ActualRealServer, ActualVirtualServer};
use plan::chains::{ChainId, ChainOp};
use plan::kernel_objects::{Entry, Frontend};
use plan::mode::Mode;
use plan::model::Family;
use plan::op::{Op, PartKind};
use plan::routes::{LocalRoute, RouteOp};
use plan::sets::SetId;

use crate::internal_frontends::misleads;

/// A reading, and the family that it is of.
pub(super) type Reading = (KernelRead, Option<Family>);

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// The operation is refused, and not carried out.
    Refused(RefusalClass),
    /// Its answer is lost, and it was not carried out.
    NotDone,
    /// Its answer is lost, and it was carried out.
    NotAnswered,
    /// Another program does the same with other values, right before the operation.
    TheirsFirst,
    /// Another program removes the operation's prerequisites right before it.
    Undermined,
    /// Another program undoes the operation right after it.
    Undone,
    /// From this operation on nothing can be written or read, so many requests long.
    Closed,
    /// A reading of this kind fails.
    Unread(Reading),
    /// A reading of this kind misses something and says nothing of it.
    Missed(Reading),
    /// Connection tracking cannot be cleaned.
    FlowsKept,
}

/// A fault at a place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) mode: Mode,
    pub(super) fault: Fault,
    /// The first operation, reading of this kind, or cleaning that it concerns, from 0 on.
    pub(super) at: usize,
    /// Number of operations, readings or cleanings in a row that it concerns.
    pub(super) times: usize,
    /// True if the program is killed when the fault has happened, and started again.
    pub(super) dies: bool,
}

/// Requests that the kernel got, and what is left to do of the fault.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) writings: Vec<Op>,
    pub(super) readings: BTreeMap<Reading, usize>,
    pub(super) flows: usize,
    /// True if the fault has happened.
    pub(super) struck: bool,
    /// True if the life is over: a fault that has not happened by then is not to happen any more.
    pub(super) over: bool,
    /// Operations that would have led clients to an internal frontend that is not there.
    pub(super) misleading: Vec<String>,
    /// Number of requests that the closed socket still concerns.
    closed: usize,
    /// Operation that is to be taken back at the next request.
    undo: Option<Op>,
}

impl Fault {
    /// True if the kernel could do this to an operation.
    pub(super) fn concerns(self, op: &Op) -> bool {
        match self {
            Self::Refused(RefusalClass::SetFull) => matches!(op, Op::AddEntry(..)),
            Self::Refused(RefusalClass::NoScheduler) => {
                matches!(op, Op::CreateVirtualServer(..) | Op::ChangeVirtualServer(..))
            }
            Self::TheirsFirst => !matches!(op, Op::WriteRuleSet(_) | Op::GrowSet(..)),
            Self::Undermined => !matches!(op, Op::CreateLink | Op::CreateSet(..)),
            // A program that puts back a virtual server that is no longer ours makes its own.
            Self::Undone => !matches!(
                op,
                Op::RemoveVirtualServer(_)
                    | Op::RemoveVirtualServerWhenDrained(_)
                    | Op::GrowSet(..)
            ),
            _ => true,
        }
    }

    /// True for listings that the kernel makes in parts without saying that one was disturbed.
    pub(super) fn can_miss((what, _): Reading) -> bool {
        matches!(what, KernelRead::Frontends | KernelRead::Part(PartKind::VirtualServers))
    }

    /// True if the kernel is not as we left it, or does not look like it.
    pub(super) fn disturbs(self) -> bool {
        matches!(self, Self::TheirsFirst | Self::Undermined | Self::Undone | Self::Missed(_))
    }
}

impl Case {
    /// Puts it into this kernel, and keeps account of the requests.
    pub(super) fn inject(self, fake: &Fake) -> Arc<Mutex<Seen>> {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let account = Arc::clone(&seen);
        fake.interfere(move |request, actual| {
            account.lock().unwrap().decide(self, request, actual)
        });
        seen
    }

    fn includes(&self, number: usize) -> bool {
        (self.at..self.at + self.times).contains(&number)
    }
}

impl Seen {
    fn decide(&mut self, case: Case, request: KernelCall<'_>, actual: &mut Actual) -> FakeAnswer {
        if let Some(op) = self.undo.take() {
            undo(&op, actual);
        }
        if let Some(left) = self.closed.checked_sub(1) {
            self.closed = left;
            return FakeAnswer::Lost { carried_out: false };
        }
        if self.over && !self.struck {
            return FakeAnswer::Honest;
        }
        match request {
            KernelCall::Writing(op) => {
                self.writings.push(op.clone());
                if !case.fault.disturbs() {
                    self.misleading.extend(misleads(op, actual));
                }
                self.decide_writing(case, op, actual)
            }
            KernelCall::Read(what, family) => {
                let reading = (what, family);
                let count = self.readings.entry(reading).or_default();
                *count += 1;
                let number = *count - 1;
                match case.fault {
                    Fault::Unread(concerned) if concerned == reading && case.includes(number) => {
                        self.struck = true;
                        FakeAnswer::refused(RefusalClass::Other)
                    }
                    Fault::Missed(concerned) if concerned == reading && case.includes(number) => {
                        self.struck = true;
                        FakeAnswer::Incomplete(Box::new(move |shown| hide(shown, number)))
                    }
                    _ => FakeAnswer::Honest,
                }
            }
            KernelCall::Flows(_) => {
                self.flows += 1;
                if case.fault == Fault::FlowsKept && case.includes(self.flows - 1) {
                    self.struck = true;
                    return FakeAnswer::refused(RefusalClass::Exhausted);
                }
                FakeAnswer::Honest
            }
        }
    }

    fn decide_writing(&mut self, case: Case, op: &Op, actual: &mut Actual) -> FakeAnswer {
        if !case.includes(self.writings.len() - 1) || !case.fault.concerns(op) {
            return FakeAnswer::Honest;
        }
        let answer = match case.fault {
            Fault::None | Fault::Unread(_) | Fault::Missed(_) | Fault::FlowsKept => {
                return FakeAnswer::Honest;
            }
            Fault::Refused(class) => FakeAnswer::refused(class),
            Fault::NotDone => FakeAnswer::Lost { carried_out: false },
            Fault::NotAnswered => FakeAnswer::Lost { carried_out: true },
            Fault::TheirsFirst => {
                forestall(op, actual);
                FakeAnswer::Honest
            }
            Fault::Undermined => {
                undermine(op, actual);
                FakeAnswer::Honest
            }
            Fault::Undone => {
                self.undo = Some(op.clone());
                FakeAnswer::Honest
            }
            Fault::Closed if !self.struck => {
                self.closed = case.times - 1;
                FakeAnswer::Lost { carried_out: false }
            }
            Fault::Closed => return FakeAnswer::Honest,
        };
        self.struck = true;
        answer
    }
}

const THEIRS: ActualRealServer =
    ActualRealServer { weight: 7, plain: false, deadline: None, connections: 0 };

/// Does what the operation does, with another program's values.
fn forestall(op: &Op, actual: &mut Actual) {
    match op {
        Op::CreateLink => actual.link = true,
        Op::CreateSet(set, _) => drop(actual.sets.entry(*set).or_default()),
        Op::WriteRuleSet(_) | Op::GrowSet(..) => {}
        Op::AddEntry(set, entry) => put_entry(*set, *entry, actual),
        Op::RemoveEntry(set, entry) => take_entry(*set, *entry, actual),
        Op::CreateVirtualServer(frontend, _) => {
            let theirs: IpAddr = [172, 16, 0, 9].into();
            let real_servers = [((theirs, 80).into(), THEIRS)].into_iter().collect();
            let made = ActualVirtualServer { server: None, real_servers };
            actual.virtual_servers.entry(*frontend).or_insert(made);
        }
        Op::ChangeVirtualServer(frontend, _) => {
            if let Some(found) = actual.virtual_servers.get_mut(frontend) {
                found.server = None;
            }
        }
        Op::AddRealServer(frontend, real) | Op::ChangeRealServer(frontend, real) => {
            put_real_server(frontend, real.socket(), actual);
        }
        Op::DrainRealServer(frontend, socket, _) | Op::RemoveRealServer(frontend, socket) => {
            take_real_server(frontend, *socket, actual);
        }
        Op::RemoveVirtualServer(frontend) | Op::RemoveVirtualServerWhenDrained(frontend) => {
            drop(actual.virtual_servers.remove(frontend));
        }
        Op::BindAddress(address) => drop(actual.addresses.insert(*address)),
        Op::UnbindAddress(address) => drop(actual.addresses.remove(address)),
        Op::Route(RouteOp::Add(LocalRoute { network, .. })) => {
            actual.routes.insert(*network);
        }
        Op::Route(RouteOp::Remove(network)) => drop(actual.routes.remove(network)),
        Op::Chain(op) => forestall_chain(op, actual),
    }
}

/// Removes the prerequisites of the operation, as another program would.
fn undermine(op: &Op, actual: &mut Actual) {
    match op {
        Op::CreateLink | Op::CreateSet(..) => {}
        Op::WriteRuleSet(family) => actual.sets.retain(|set, _| set.family != *family),
        Op::AddEntry(set, _) | Op::RemoveEntry(set, _) | Op::GrowSet(set, _) => {
            drop(actual.sets.remove(set));
        }
        Op::CreateVirtualServer(frontend, _)
        | Op::ChangeVirtualServer(frontend, _)
        | Op::AddRealServer(frontend, _)
        | Op::ChangeRealServer(frontend, _)
        | Op::DrainRealServer(frontend, ..)
        | Op::RemoveRealServer(frontend, _)
        | Op::RemoveVirtualServer(frontend)
        | Op::RemoveVirtualServerWhenDrained(frontend) => {
            drop(actual.virtual_servers.remove(frontend));
        }
        Op::BindAddress(_) | Op::UnbindAddress(_) | Op::Route(_) => {
            delete_link(actual);
        }
        Op::Chain(_) => {
            actual.chains.clear();
            actual.rule_sets.clear();
        }
    }
}

/// Undoes the operation, as another program would.
fn undo(op: &Op, actual: &mut Actual) {
    match op {
        Op::CreateLink => delete_link(actual),
        Op::CreateSet(set, _) => drop(actual.sets.remove(set)),
        Op::GrowSet(..) => {}
        Op::WriteRuleSet(family) => drop(actual.rule_sets.remove(family)),
        Op::AddEntry(set, entry) => take_entry(*set, *entry, actual),
        Op::RemoveEntry(set, entry) => put_entry(*set, *entry, actual),
        Op::CreateVirtualServer(frontend, _) => drop(actual.virtual_servers.remove(frontend)),
        Op::ChangeVirtualServer(frontend, _) => {
            if let Some(found) = actual.virtual_servers.get_mut(frontend) {
                found.server = None;
            }
        }
        Op::AddRealServer(frontend, real) | Op::ChangeRealServer(frontend, real) => {
            take_real_server(frontend, real.socket(), actual);
        }
        Op::DrainRealServer(frontend, socket, _) | Op::RemoveRealServer(frontend, socket) => {
            put_real_server(frontend, *socket, actual);
        }
        Op::RemoveVirtualServer(_) | Op::RemoveVirtualServerWhenDrained(_) => {}
        Op::BindAddress(address) => drop(actual.addresses.remove(address)),
        Op::UnbindAddress(address) => {
            if actual.link {
                actual.addresses.insert(*address);
            }
        }
        Op::Route(RouteOp::Add(LocalRoute { network, .. })) => {
            actual.routes.remove(network);
        }
        Op::Chain(op) => undo_chain(op, actual),
        Op::Route(RouteOp::Remove(network)) => {
            if actual.link {
                actual.routes.insert(*network);
            }
        }
    }
}

/// Does what the operation does, with rules of another program where there is a choice.
fn forestall_chain(op: &ChainOp, actual: &mut Actual) {
    match op {
        ChainOp::Write(chain, _) => {
            actual.chains.entry(*chain).or_default().push("-j ACCEPT".into());
        }
        ChainOp::Insert(chain, rule) => put_rule(chain, rule, actual),
        ChainOp::Delete(chain, rule) => take_rule(chain, rule, actual),
        ChainOp::Remove(chain) => drop(actual.chains.remove(chain)),
    }
}

fn undo_chain(op: &ChainOp, actual: &mut Actual) {
    match op {
        // A chain that rules lead to cannot be removed.
        ChainOp::Write(chain, _) => drop(actual.chains.insert(*chain, Vec::new())),
        ChainOp::Insert(chain, rule) => take_rule(chain, rule, actual),
        ChainOp::Delete(chain, rule) => put_rule(chain, rule, actual),
        ChainOp::Remove(chain) => drop(actual.chains.insert(*chain, Vec::new())),
    }
}

fn put_rule(chain: &ChainId, rule: &str, actual: &mut Actual) {
    if let Some(rules) = actual.chains.get_mut(chain) {
        rules.insert(0, rule.into());
    }
}

fn take_rule(chain: &ChainId, rule: &str, actual: &mut Actual) {
    if let Some(rules) = actual.chains.get_mut(chain)
        && let Some(at) = rules.iter().position(|it| **it == *rule)
    {
        rules.remove(at);
    }
}

/// Deletes the link. The addresses and routes on it go with it.
fn delete_link(actual: &mut Actual) {
    actual.link = false;
    actual.addresses.clear();
    actual.routes.clear();
}

fn put_entry(set: SetId, entry: Entry, actual: &mut Actual) {
    if let Some(there) = actual.sets.get_mut(&set) {
        there.entries.insert(entry);
    }
}

fn take_entry(set: SetId, entry: Entry, actual: &mut Actual) {
    if let Some(there) = actual.sets.get_mut(&set) {
        there.entries.remove(&entry);
    }
}

fn put_real_server(frontend: &Frontend, socket: SocketAddr, actual: &mut Actual) {
    if let Some(there) = actual.virtual_servers.get_mut(frontend) {
        there.real_servers.insert(socket, THEIRS);
    }
}

fn take_real_server(frontend: &Frontend, socket: SocketAddr, actual: &mut Actual) {
    if let Some(there) = actual.virtual_servers.get_mut(frontend) {
        there.real_servers.remove(&socket);
    }
}

/// Leaves out a virtual server, or a real server, other ones for other numbers.
fn hide(shown: &mut Actual, number: usize) {
    let mut frontends: Vec<_> = shown.virtual_servers.keys().copied().collect();
    frontends.sort_unstable();
    let Some(frontend) = frontends.get(number / 2 % frontends.len().max(1)) else { return };
    if number.is_multiple_of(2) {
        shown.virtual_servers.remove(frontend);
    } else if let Some(found) = shown.virtual_servers.get_mut(frontend) {
        let first = found.real_servers.keys().min().copied();
        found.real_servers.retain(|socket, _| Some(*socket) != first);
    }
}
