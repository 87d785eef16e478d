//! Operations on the kernel in words: what it has, and what it is to have.

use std::borrow::Cow;

use plan::actual::ActualVirtualServer;
use plan::chains::ChainOp;
use plan::comparison::Reading;
use plan::hash::HashMap;
use plan::kernel_objects::{Frontend, LINK, VirtualServer};
use plan::op::{Op, Subject};
use plan::routes::RouteOp;
use serde::{Deserialize, Serialize};

use kernel::sysctl::Sysctl;
use syntax::counted::counted;

/// Effect of an operation on its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// The object is made: the kernel lacks it.
    Add,
    /// The object is changed: the kernel has another one.
    Change,
    /// The object is removed: the kernel has it in excess.
    Remove,
}

/// An operation in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Effect on the object.
    pub effect: Effect,
    pub object: String,
    /// State that there is; none: nothing.
    pub found: Option<String>,
    /// State that is desired; none: nothing.
    pub desired: Option<String>,
}

/// State of the kernel that an operation is about, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct Beside<'a> {
    /// Virtual server of the operation's frontend.
    pub virtual_server: Option<Cow<'a, ActualVirtualServer>>,
    /// Differences of the constant rules.
    pub rules: &'a str,
    /// Number of entries of the set, and its capacity.
    pub set: Option<(usize, u32)>,
    /// True if the operation's chain is there.
    pub has_chain: bool,
}

impl<'a> Beside<'a> {
    /// The state that a reading has of an operation's object.
    #[must_use]
    pub fn of(reading: &'a Reading, op: &Op) -> Self {
        match reading {
            Reading::RuleSet(_, differences) => {
                Self { rules: differences.as_deref().unwrap_or_default(), ..Self::default() }
            }
            Reading::Set(_, found) => {
                let set = found.as_ref().map(|it| (it.n_entries(), it.capacity.entries()));
                Self { set, ..Self::default() }
            }
            Reading::Chains(_, found, _) => {
                let has_chain = matches!(
                    op,
                    Op::Chain(ChainOp::Write(chain, _)) if found.own.contains_key(chain)
                );
                Self { has_chain, ..Self::default() }
            }
            Reading::Frontends(listed, _) => {
                let frontend = op.subject();
                let found =
                    listed.iter().find(|it| Subject::VirtualServer(it.frontend) == frontend);
                let virtual_server = found.map(|it| {
                    let server = it.server.clone();
                    Cow::Owned(ActualVirtualServer { server, real_servers: HashMap::default() })
                });
                Self { virtual_server, ..Self::default() }
            }
            Reading::VirtualServer(_, found) => {
                Self { virtual_server: found.as_ref().map(Cow::Borrowed), ..Self::default() }
            }
            Reading::Addresses(_) => Self::default(),
        }
    }
}

/// Words for something whose details are its name.
const THERE: &str = "there";

/// Describes an operation.
#[must_use]
pub fn describe(op: &Op, beside: &Beside<'_>) -> Described {
    let subject = op.subject().to_string();
    let (effect, object, found, desired) = match op {
        Op::CreateLink => (Effect::Add, subject, None, Some("a dummy interface".to_owned())),
        Op::CreateSet(set, size) => {
            let desired = format!("type {} for {size}", set.set_type().name());
            (Effect::Add, subject, None, Some(desired))
        }
        Op::GrowSet(_, size) => {
            let found = beside.set.map(|(n, capacity)| format!("{n} entries, capacity {capacity}"));
            (Effect::Change, subject, found, Some(format!("capacity {size}")))
        }
        Op::WriteRuleSet(_) => {
            let found = (!beside.rules.is_empty()).then(|| beside.rules.to_owned());
            (Effect::Change, subject, found, Some("all of the constant rules".to_owned()))
        }
        Op::Route(RouteOp::Add(route)) => {
            let desired = route.attributes().unwrap_or_else(|| THERE.to_owned());
            (Effect::Add, subject, None, Some(desired))
        }
        Op::AddEntry(..) => (Effect::Add, subject, None, Some(THERE.to_owned())),
        Op::BindAddress(_) => (Effect::Add, on_link(&subject), None, Some(THERE.to_owned())),
        Op::UnbindAddress(_) => (Effect::Remove, on_link(&subject), Some(THERE.to_owned()), None),
        Op::Route(RouteOp::Remove(_)) | Op::RemoveEntry(..) => {
            (Effect::Remove, subject, Some(THERE.to_owned()), None)
        }
        Op::CreateVirtualServer(_, server) => {
            (Effect::Add, subject, None, Some(server.to_string()))
        }
        Op::ChangeVirtualServer(_, server) => {
            let found =
                beside.virtual_server.as_ref().map(|found| balancing(found.server.as_ref()));
            (Effect::Change, subject, found, Some(server.to_string()))
        }
        Op::RemoveVirtualServer(_) | Op::RemoveVirtualServerWhenDrained(_) => {
            let found =
                beside.virtual_server.as_ref().map(|found| balancing(found.server.as_ref()));
            (Effect::Remove, subject, Some(found.unwrap_or_else(|| THERE.to_owned())), None)
        }
        Op::AddRealServer(frontend, real) => {
            let object = real_server(frontend, &real.socket());
            (Effect::Add, object, None, Some(format!("weight {}", real.weight)))
        }
        Op::ChangeRealServer(frontend, real) => {
            let (object, found) = found_real_server(frontend, &real.socket(), beside);
            (Effect::Change, object, found, Some(format!("weight {}", real.weight)))
        }
        Op::DrainRealServer(frontend, socket, _) => {
            let (object, found) = found_real_server(frontend, socket, beside);
            let desired = "weight 0, until its connections have ended".to_owned();
            (Effect::Remove, object, found, Some(desired))
        }
        Op::RemoveRealServer(frontend, socket) => {
            let (object, found) = found_real_server(frontend, socket, beside);
            (Effect::Remove, object, Some(found.unwrap_or_else(|| THERE.to_owned())), None)
        }
        Op::Chain(change) => return describe_chain(change, beside),
    };
    Described { effect, object, found, desired }
}

/// Returns the operations that set sysctls, in words, each with the sysctl that it is about.
pub(super) fn describe_sysctls(
    sysctls: &[(Sysctl, Option<String>)],
) -> impl Iterator<Item = (String, Described)> {
    sysctls.iter().map(|(sysctl, found)| {
        let (name, desired) = (sysctl.name(), sysctl.value.clone());
        let operation = format!("set {name} to {desired}");
        let (object, found) = (format!("sysctl {name}"), found.clone());
        (operation, Described { effect: Effect::Change, object, found, desired: Some(desired) })
    })
}

fn describe_chain(change: &ChainOp, beside: &Beside<'_>) -> Described {
    let chain = plan::chains::ChainSubject::Chain(change.chain());
    let rule = || format!("rule of {chain}");
    let (effect, object, found, desired) = match change {
        ChainOp::Write(chain, rules) => {
            let n_rules = counted(rules.len(), "rule");
            // A shared chain is there as long as the constant rules are.
            let is_there = beside.has_chain || chain.name.is_shared();
            let effect = if is_there { Effect::Change } else { Effect::Add };
            let found = is_there.then(|| "other rules, or another order".to_owned());
            (effect, change_subject(change), found, Some(n_rules))
        }
        ChainOp::Insert(_, text) => (Effect::Add, rule(), None, Some(text.to_string())),
        ChainOp::Delete(_, text) => (Effect::Remove, rule(), Some(text.to_string()), None),
        ChainOp::Remove(_) => {
            (Effect::Remove, change_subject(change), Some(THERE.to_owned()), None)
        }
    };
    Described { effect, object, found, desired }
}

fn change_subject(change: &ChainOp) -> String {
    change.subject().to_string()
}

fn on_link(address: &str) -> String {
    format!("{address} on {LINK}")
}

fn real_server(frontend: &Frontend, socket: &std::net::SocketAddr) -> String {
    format!("real server {socket} of {frontend}")
}

fn found_real_server(
    frontend: &Frontend,
    socket: &std::net::SocketAddr,
    beside: &Beside<'_>,
) -> (String, Option<String>) {
    let found = beside.virtual_server.as_ref().and_then(|found| found.real_servers.get(socket));
    let found = found.map(|found| {
        let mut text = format!("weight {}", found.weight);
        if !found.plain {
            text += ", another forwarding method or thresholds";
        }
        match found.connections {
            0 => text,
            number => text + ", " + &counted(number, "connection"),
        }
    });
    (real_server(frontend, socket), found)
}

fn balancing(server: Option<&VirtualServer>) -> String {
    server.map_or_else(
        || "a setting that kube-ipvs never uses".to_owned(),
        |server| server.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use plan::actual::ActualRealServer;
    use plan::kernel_objects::RealServer;
    use plan::model::Protocol;
    use plan::scheduler::SchedulerName;

    use super::*;

    fn frontend() -> Frontend {
        Frontend { address: [10, 96, 0, 1].into(), protocol: Protocol::Tcp, port: 80 }
    }

    fn real(weight: u32) -> RealServer {
        RealServer { address: [10, 244, 0, 1].into(), port: 8080, weight }
    }

    fn server() -> VirtualServer {
        VirtualServer { scheduler: SchedulerName::default(), persistence: None, scheduler_flags: 0 }
    }

    fn words(op: &Op, found: &ActualVirtualServer) -> String {
        let beside = Beside { virtual_server: Some(Cow::Borrowed(found)), ..Beside::default() };
        let Described { effect, object, found, desired } = describe(op, &beside);
        let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        format!("{effect:?} {object}: {} > {}", or_nothing(found), or_nothing(desired))
    }

    #[test]
    fn a_difference_says_what_there_is_and_what_is_wanted() {
        let found = ActualRealServer { weight: 5, plain: false, deadline: None, connections: 2 };
        let found = ActualVirtualServer {
            server: None,
            real_servers: HashMap::from_iter([(real(1).socket(), found)]),
        };
        assert_eq!(
            words(&Op::ChangeRealServer(frontend(), real(1)), &found),
            "Change real server 10.244.0.1:8080 of TCP 10.96.0.1:80: \
             weight 5, another forwarding method or thresholds, 2 connections > weight 1"
        );
        assert_eq!(
            words(&Op::ChangeVirtualServer(frontend(), server()), &found),
            "Change virtual server TCP 10.96.0.1:80: a setting that kube-ipvs never uses > rr"
        );
        assert_eq!(
            words(&Op::RemoveVirtualServer(frontend()), &found),
            "Remove virtual server TCP 10.96.0.1:80: a setting that kube-ipvs never uses > -"
        );
        assert_eq!(
            words(&Op::BindAddress([10, 96, 0, 1].into()), &found),
            "Add address 10.96.0.1 on kube-ipvs0: - > there"
        );
    }
}
