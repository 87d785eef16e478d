//! Damage by others to the kernel's state, with the tools that people have.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Something that a person, or a program, may do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Damage {
    pub(crate) name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
}

pub(crate) const ALL: [Damage; 4] = [
    Damage { name: "repair_virtual_servers", program: "ipvsadm", arguments: &["-C"] },
    Damage { name: "repair_sets", program: "ipset", arguments: &["flush"] },
    Damage { name: "repair_rules", program: "iptables", arguments: &["-F"] },
    Damage {
        name: "repair_link",
        program: "ip",
        arguments: &["link", "delete", plan::kernel_objects::LINK],
    },
];

impl Damage {
    /// True if it is to ipsets or rules of iptables.
    pub(crate) fn is_of_rules(&self) -> bool {
        matches!(self.program, "ipset" | "iptables")
    }

    pub(crate) fn inflict(&self) -> Result<()> {
        let program = self.program;
        let status = Command::new(program).args(self.arguments).status();
        let status = status.with_context(|| format!("start {program}"))?;
        ensure!(status.success(), "{program} {}: {status}", self.arguments.join(" "));
        Ok(())
    }
}
