//! Programs that may have changed the kernel: processes of this network namespace that write the part
//! that was changed.
//!
//! The kernel does not say who changed it. These are candidates: programs that run here by the names of
//! their processes, or kube-proxy by the chains that it keeps to see whether rules were flushed. The loop
//! does not wait for it: notes of drift are completed afterwards.

use std::fs;
use std::path::Path;
use std::time::Duration;

use plan::mode::Mode;
use plan::model::Family;
use plan::op::Op;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::journal::Journal;
use crate::kernel::rules::Rules;

/// Pause between two looks at the processes.
const PAUSE: Duration = Duration::from_secs(5);

/// Least time between two looks at the rules, which start programs.
const RULES_PAUSE: Duration = Duration::from_secs(60);

/// Most programs that are named.
const MOST: usize = 5;

/// Longest name of a process (`TASK_COMM_LEN` of `include/linux/sched.h`, without its end).
const LONGEST_NAME: usize = 15;

/// Chain that kube-proxy makes in each of its tables (`pkg/proxy/iptables/proxier.go`, and `ipvs`).
const CANARY: &str = ":KUBE-PROXY-CANARY ";

/// Parts of the kernel, as different programs write them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Virtual and real servers.
    Ipvs,
    /// Sets.
    Sets,
    /// Rules.
    Rules,
    /// The interface, its addresses, routes.
    Addresses,
}

/// A program that may have changed the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suspect {
    /// Name of the program.
    pub name: String,
    /// Its process; none: it is not to be seen from here, and has left a trace.
    pub pid: Option<u32>,
}

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    name: String,
}

/// Programs, and the parts that they write. Proxies come first.
const PROGRAMS: [(&str, &[Part]); 20] = [
    ("kube-proxy", &[Part::Ipvs, Part::Sets, Part::Rules, Part::Addresses]),
    ("kube-ipvs", &[Part::Ipvs, Part::Sets, Part::Rules, Part::Addresses]),
    ("kube-router", &[Part::Ipvs, Part::Sets, Part::Rules, Part::Addresses]),
    ("cilium-agent", &[Part::Rules, Part::Addresses]),
    ("calico-node", &[Part::Sets, Part::Rules]),
    ("keepalived", &[Part::Ipvs, Part::Sets, Part::Rules, Part::Addresses]),
    ("firewalld", &[Part::Sets, Part::Rules]),
    ("ufw", &[Part::Rules]),
    ("dockerd", &[Part::Rules]),
    ("NetworkManager", &[Part::Addresses]),
    ("systemd-networkd", &[Part::Addresses]),
    ("ipvsadm", &[Part::Ipvs]),
    ("ipset", &[Part::Sets]),
    ("iptables", &[Part::Rules]),
    ("ip6tables", &[Part::Rules]),
    ("iptables-restore", &[Part::Rules]),
    ("ip6tables-restore", &[Part::Rules]),
    ("xtables-nft-multi", &[Part::Rules]),
    ("nft", &[Part::Rules]),
    ("ip", &[Part::Addresses]),
];

/// Completes notes of drift with the programs that may have caused it, for ever.
pub async fn name_suspects(journal: Journal, mode: Mode) {
    let mut canary: Option<(Instant, bool)> = None;
    loop {
        journal.drift_noted().await;
        let unexplained = journal.unexplained_drift();
        let Ok(processes) = spawn_blocking(|| running(Path::new("/proc"))).await else { continue };
        let names_proxy = processes.iter().any(|it| it.name == "kube-proxy");
        // In the other modes a save has all rules of Services.
        if mode == Mode::Ipvs
            && !names_proxy
            && canary.is_none_or(|(at, _)| at.elapsed() >= RULES_PAUSE)
        {
            let found = spawn_blocking(has_canary).await.unwrap_or_default();
            canary = Some((Instant::now(), found));
        }
        let has_canary = canary.is_some_and(|(_, found)| found);
        for (number, parts) in unexplained {
            journal.name_suspects(number, suspects(&processes, &parts, has_canary));
        }
        sleep(PAUSE).await;
    }
}

/// Returns the parts that operations repair, each once.
#[must_use]
pub fn parts_of<'a>(repairs: impl IntoIterator<Item = &'a Op>) -> Vec<Part> {
    let mut parts = Vec::new();
    for op in repairs {
        let part = match op {
            Op::CreateSet(..) | Op::GrowSet(..) | Op::AddEntry(..) | Op::RemoveEntry(..) => {
                Part::Sets
            }
            Op::WriteRuleSet(_) | Op::Chain(_) => Part::Rules,
            Op::CreateLink | Op::Route(_) | Op::BindAddress(_) | Op::UnbindAddress(_) => {
                Part::Addresses
            }
            Op::CreateVirtualServer(..)
            | Op::ChangeVirtualServer(..)
            | Op::RemoveVirtualServer(_)
            | Op::RemoveVirtualServerWhenDrained(_)
            | Op::AddRealServer(..)
            | Op::ChangeRealServer(..)
            | Op::DrainRealServer(..)
            | Op::RemoveRealServer(..) => Part::Ipvs,
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

/// Returns the programs that write one of these parts, proxies first.
fn suspects(processes: &[Process], parts: &[Part], has_canary: bool) -> Vec<Suspect> {
    let mut found = Vec::new();
    for (name, written) in PROGRAMS {
        if !written.iter().any(|part| parts.contains(part)) {
            continue;
        }
        let of_name = processes.iter().filter(|process| process.name == shortened(name));
        found.extend(of_name.map(|it| Suspect { name: name.to_owned(), pid: Some(it.pid) }));
        if name == "kube-proxy" && has_canary && found.is_empty() {
            found.push(Suspect { name: name.to_owned(), pid: None });
        }
    }
    found.truncate(MOST);
    found
}

/// Finds the processes of this network namespace, as far as they can be seen, but for this one and those
/// that it started.
fn running(proc: &Path) -> Vec<Process> {
    let namespace = fs::read_link(proc.join("self/ns/net")).ok();
    let own = fs::read_link(proc.join("self")).ok();
    let own = own.and_then(|it| it.to_str().and_then(|it| it.parse::<u32>().ok()));
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut found: Vec<Process> = entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let folder = entry.path();
            let name = fs::read_to_string(folder.join("comm")).ok()?.trim_end().to_owned();
            if !PROGRAMS.iter().any(|(program, _)| shortened(program) == name) {
                return None;
            }
            let is_here = fs::read_link(folder.join("ns/net")).ok() == namespace;
            let is_ours = Some(pid) == own || (own.is_some() && parent(&folder) == own);
            // A command of our own asks, and changes nothing.
            let is_command = name == "kube-ipvs" && is_command(&folder);
            (is_here && !is_ours && !is_command).then_some(Process { pid, name })
        })
        .collect();
    found.sort_unstable_by_key(|process| process.pid);
    found
}

fn parent(folder: &Path) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// True if the first word after the program's is no flag.
fn is_command(folder: &Path) -> bool {
    let line = fs::read(folder.join("cmdline")).unwrap_or_default();
    let second = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    !second.is_empty() && !second.starts_with(b"-")
}

fn shortened(name: &str) -> &str {
    name.get(..LONGEST_NAME).unwrap_or(name)
}

/// True if kube-proxy keeps its chains here: it runs, or was ended and not cleaned up.
fn has_canary() -> bool {
    let mut all = Family::BOTH.into_iter().flat_map(Rules::installed);
    all.any(|rules| rules.saved().is_ok_and(|text| text.contains(CANARY)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mk_process(proc: &Path, pid: u32, namespace: &str, parent: u32, name: &str, line: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("ns")).unwrap();
        symlink(namespace, folder.join("ns/net")).unwrap();
        fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        fs::write(folder.join("status"), format!("Name:\t{name}\nPPid:\t{parent}\n")).unwrap();
        fs::write(folder.join("cmdline"), line.replace(' ', "\0") + "\0").unwrap();
    }

    #[test]
    fn programs_of_this_network_namespace_that_write_the_part_are_suspected() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        mk_process(proc, 10, "net:[1]", 1, "kube-ipvs", "kube-ipvs --v=2");
        symlink("10", proc.join("self")).unwrap();
        mk_process(proc, 11, "net:[1]", 10, "iptables-restor", "iptables-restore");
        mk_process(proc, 12, "net:[1]", 1, "iptables-restor", "iptables-restore");
        mk_process(proc, 13, "net:[2]", 1, "kube-proxy", "kube-proxy");
        mk_process(proc, 14, "net:[1]", 1, "kube-ipvs", "kube-ipvs events --follow");
        mk_process(proc, 15, "net:[1]", 1, "keepalived", "keepalived");
        mk_process(proc, 16, "net:[1]", 1, "bash", "bash");
        mk_process(proc, 17, "net:[1]", 1, "kube-ipvs", "kube-ipvs --v=2");
        let processes = running(proc);
        let names = |parts: &[Part], has_canary| {
            let found = suspects(&processes, parts, has_canary);
            found.into_iter().map(|it| (it.name, it.pid)).collect::<Vec<_>>()
        };
        let named = |name: &str, pid| (name.to_owned(), Some(pid));
        assert_eq!(names(&[Part::Ipvs], false), [named("kube-ipvs", 17), named("keepalived", 15)]);
        let of_rules = names(&[Part::Rules], false);
        assert_eq!(of_rules.last(), Some(&named("iptables-restore", 12)));
        assert_eq!(names(&[Part::Ipvs], true)[0], ("kube-proxy".to_owned(), None));
        assert_eq!(suspects(&[], &[Part::Sets], false), []);
    }

    #[test]
    fn every_operation_repairs_a_part() {
        let repairs = [Op::CreateLink, Op::WriteRuleSet(Family::V4), Op::CreateLink];
        assert_eq!(parts_of(&repairs), [Part::Addresses, Part::Rules]);
    }
}
