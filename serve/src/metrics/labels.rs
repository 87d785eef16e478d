//! The values of labels. Each table is what a label says and the list of what it can say, in one,
//! so that nothing is left out of the list.

use plan::chains::ChainOp;
use plan::op::{Op, PartKind};
use plan::routes::RouteOp;

use kernel::KernelRead;
use kernel::RefusalClass;

/// Defines a function from a type to its label value, and the list of all label values. A missing
/// variant is a compile error.
macro_rules! labels {
    (
        $(#[$docs:meta])* $all:ident;
        $function:ident($type:ty) { $($pattern:pat => $label:literal,)* }
    ) => {
        $(#[$docs])*
        pub(super) const $all: &[&str] = &[$($label),*];

        pub(super) const fn $function(value: &$type) -> &'static str {
            match value {
                $($pattern => $label,)*
            }
        }
    };
}

labels! {
    /// Every value of the label `operation`, in the order of phases.
    OPERATIONS;
    operation(Op) {
        Op::CreateLink => "create_link",
        Op::CreateSet(..) => "create_set",
        Op::WriteRuleSet(_) => "write_rules",
        Op::GrowSet(..) => "grow_set",
        Op::Route(RouteOp::Add(_)) => "add_route",
        Op::AddEntry(..) => "add_entry",
        Op::CreateVirtualServer(..) => "create_virtual_server",
        Op::ChangeVirtualServer(..) => "change_virtual_server",
        Op::AddRealServer(..) => "add_real_server",
        Op::ChangeRealServer(..) => "change_real_server",
        Op::BindAddress(_) => "bind_address",
        Op::UnbindAddress(_) => "unbind_address",
        Op::Route(RouteOp::Remove(_)) => "remove_route",
        Op::DrainRealServer(..) => "drain_real_server",
        Op::RemoveVirtualServerWhenDrained(_) => "drain_virtual_server",
        Op::RemoveRealServer(..) => "remove_real_server",
        Op::RemoveVirtualServer(_) => "remove_virtual_server",
        Op::RemoveEntry(..) => "remove_entry",
        Op::Chain(ChainOp::Write(..)) => "write_chain",
        Op::Chain(ChainOp::Insert(..)) => "insert_rule",
        Op::Chain(ChainOp::Delete(..)) => "delete_rule",
        Op::Chain(ChainOp::Remove(_)) => "remove_chain",
    }
}

labels! {
    /// Every value of the label `class`. With `done`, those of `result`.
    CLASSES;
    class(RefusalClass) {
        RefusalClass::Conflict => "conflict",
        RefusalClass::AnswerLost => "answer_lost",
        RefusalClass::SetFull => "set_full",
        RefusalClass::Exhausted => "exhausted",
        RefusalClass::NotPermitted => "not_permitted",
        RefusalClass::NotSupported => "not_supported",
        RefusalClass::NotInstalled => "not_installed",
        RefusalClass::NoScheduler => "no_scheduler",
        RefusalClass::Foreign => "foreign",
        RefusalClass::Other => "other",
    }
}

labels! {
    /// Every value of the label `part`.
    PARTS;
    part(PartKind) {
        PartKind::Link => "interface",
        PartKind::Sets => "sets",
        PartKind::Rules => "rules",
        PartKind::VirtualServers => "virtual_servers",
        PartKind::Addresses => "addresses",
        PartKind::Routes => "routes",
        PartKind::Chains => "chains",
    }
}

labels! {
    /// Every value of the label `what`.
    READINGS;
    reading(KernelRead) {
        KernelRead::DriftCheck => "drift_check",
        KernelRead::Frontends => "frontends",
        KernelRead::Part(PartKind::VirtualServers) => "virtual_servers",
        KernelRead::Connections => "connections",
        KernelRead::Part(PartKind::Sets) => "set",
        KernelRead::Part(PartKind::Link | PartKind::Addresses | PartKind::Routes) => "addresses",
        KernelRead::Part(PartKind::Rules) => "rules",
        KernelRead::Part(PartKind::Chains) => "chains",
    }
}

labels! {
    /// Every value of the label `result` of drift checks.
    DRIFT_CHECKS;
    drift_check(bool) {
        true => "clean",
        false => "drifted",
    }
}

labels! {
    /// Every value of the label `speed` of audit passes.
    PACES;
    pace(bool) {
        false => "background",
        true => "full",
    }
}
