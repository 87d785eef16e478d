//! A machine on which kube-ipvs was tried by hand is as before, after what `--cleanup` does and says.
//!
//! The guest that runs this has just booted, and its first network namespace is the machine's.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Sysctls that are compared: those of these folders, but for what the kernel counts there.
const FOLDERS: [&str; 3] = ["net.ipv4.", "net.ipv6.conf.all.", "net.netfilter."];
const COUNTED: [&str; 2] = ["nf_conntrack_count", "tcp_fastopen_key"];
/// The page by which people do the same.
const PAGE: &str = include_str!("../docs/roll-back.md");
/// Longest time for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// State of the machine, as the usual programs show it.
struct Machine {
    sysctls: BTreeMap<String, String>,
    links: String,
    sets: String,
    virtual_servers: String,
    /// Rules and chains of each kind of iptables, without the tables and chains that every table has.
    rules: Vec<String>,
}

fn shown(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

impl Machine {
    fn read() -> Self {
        let sysctls = shown("sysctl", &["-a"]);
        let named = sysctls.lines().filter_map(|line| line.split_once(" = "));
        let compared = named.filter(|(name, _)| {
            FOLDERS.iter().any(|folder| name.starts_with(folder))
                && !COUNTED.iter().any(|counted| name.ends_with(counted))
        });
        let saved = ["iptables-save", "ip6tables-save"].map(|program| shown(program, &[]));
        let lines = saved.iter().flat_map(|text| text.lines());
        let is_made = |line: &&str| line.starts_with("-A") || line.starts_with(":KUBE");
        Self {
            sysctls: compared.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            links: shown("ip", &["-brief", "link"]),
            sets: shown("ipset", &["list", "-name"]),
            virtual_servers: shown("ipvsadm", &["-Sn"]),
            rules: lines.filter(is_made).map(str::to_owned).collect(),
        }
    }

    /// Lines of this state that another one does not have, and the other way round.
    fn differences(&self, other: &Self) -> Vec<String> {
        let lines = |machine: &Self| {
            let sysctls = machine.sysctls.iter().map(|(name, value)| format!("{name} = {value}"));
            let shown = [&machine.links, &machine.sets, &machine.virtual_servers];
            let shown = shown.into_iter().flat_map(|text| text.lines()).map(str::to_owned);
            sysctls.chain(shown).chain(machine.rules.iter().cloned()).collect::<BTreeSet<_>>()
        };
        lines(self).symmetric_difference(&lines(other)).cloned().collect()
    }
}

fn kube_ipvs() -> Command {
    Command::new(std::env::var("KUBE_IPVS").unwrap())
}

/// Removes everything. Returns what the program says.
fn clean_up() -> String {
    let output = kube_ipvs().arg("--cleanup").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

fn set(arguments: &[&str]) {
    let done = Command::new("sysctl").args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {done:?}");
}

/// A mode, the sysctls that it changes from 0 to 1, and what is done by hand after `--cleanup`.
struct TriedMode {
    name: &'static str,
    sysctls: &'static [&'static str],
    by_hand: &'static str,
}

const MODES: [TriedMode; 2] = [
    TriedMode { name: "ipvs", sysctls: &["net.ipv4.ip_forward"], by_hand: "" },
    TriedMode {
        name: "iptables",
        sysctls: &["net.ipv4.ip_forward", "net.ipv4.conf.all.route_localnet"],
        // The chain may be the kubelet's.
        by_hand: "iptables -D INPUT -j KUBE-FIREWALL; iptables -D OUTPUT -j KUBE-FIREWALL; \
                  iptables -F KUBE-FIREWALL; iptables -X KUBE-FIREWALL",
    },
];

impl TriedMode {
    /// Starts the program with a Service, and stops it when that is served. Returns the state meanwhile.
    fn try_out(&self, manifests: &Path) -> Machine {
        let mut command = kube_ipvs();
        command.args(["--proxy-mode", self.name, "--hostname-override", "node", "--manifests"]);
        let mut running = command.arg(manifests).spawn().unwrap();
        let started = Instant::now();
        let is_served = || match self.name {
            "ipvs" => shown("ipvsadm", &["-Sn"]).contains("-A -t"),
            _ => shown("iptables-save", &["-t", "nat"]).contains("-A KUBE-SVC-"),
        };
        // Some are set once rules stand.
        let is_set = |name: &&str| shown("sysctl", &["-n", name]).trim() == "1";
        while !(is_served() && self.sysctls.iter().all(is_set)) {
            assert!(started.elapsed() < PATIENCE, "{}: not served after {PATIENCE:?}", self.name);
            sleep(Duration::from_millis(100));
        }
        let during = Machine::read();
        Command::new("kill").arg(running.id().to_string()).status().unwrap();
        running.wait().unwrap();
        during
    }
}

#[test]
fn a_machine_is_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let service = include_str!("../deploy/examples/web.yaml");
    std::fs::write(folder.path().join("web.yaml"), service).unwrap();
    // Modules stay, with their sysctls.
    for module in ["dummy", "ip_vs", "ip_vs_rr", "nf_conntrack"] {
        let _built_in = Command::new("modprobe").arg(module).output();
    }
    for mode in MODES {
        for name in mode.sysctls {
            set(&["-w", &format!("{name}=0")]);
        }
        let before = Machine::read();
        let during = mode.try_out(folder.path());
        assert!(during.rules != before.rules);
        assert_eq!(during.sets != before.sets, mode.name == "ipvs");
        let said = clean_up();
        for name in mode.sysctls {
            assert!(said.contains(&format!("{name}=1 (it was 0)")), "{}: {said}", mode.name);
        }
        let (_, command) = said.split_once("To restore all of them: sysctl ").unwrap();
        set(&command.lines().next().unwrap().split_whitespace().collect::<Vec<_>>());
        for command in mode.by_hand.split_terminator("; ") {
            let arguments: Vec<&str> = command.split(' ').skip(1).collect();
            let status = Command::new("iptables").args(&arguments).status().unwrap();
            assert!(status.success(), "{command}");
        }
        assert!(PAGE.contains(mode.by_hand), "{}", mode.by_hand);
        assert_eq!(Machine::read().differences(&before), [""; 0], "{}", mode.name);
        let said = clean_up();
        assert!(!said.contains("it was"), "{}: {said}", mode.name);
    }
}
