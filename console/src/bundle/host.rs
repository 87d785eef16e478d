//! Files of the host: sysctls, versions, counters, and the program's process.

use std::fs;
use std::path::{Path, PathBuf};

use super::Bundle;

/// Folders below /proc/sys of which every sysctl is read.
const SYSCTL_FOLDERS: [&str; 4] = ["net/ipv4/vs", "net/netfilter", "net/bridge", "net/ipv4/conf"];

/// Sysctls below /proc/sys that are read beside them.
const SYSCTLS: [&str; 14] = [
    "kernel/osrelease",
    "kernel/version",
    "kernel/modprobe",
    "net/core/somaxconn",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/ip_nonlocal_bind",
    "net/ipv4/tcp_keepalive_time",
    "net/ipv4/tcp_keepalive_intvl",
    "net/ipv4/tcp_keepalive_probes",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
];

/// Files below /proc with counters and tables.
const COUNTERS: [&str; 13] = [
    "net/ip_vs_stats",
    "net/ip_vs_stats_percpu",
    "net/stat/nf_conntrack",
    "net/softnet_stat",
    "net/snmp",
    "net/snmp6",
    "net/netstat",
    "net/dev",
    "net/route",
    "net/ipv6_route",
    "net/fib_triestat",
    "loadavg",
    "meminfo",
];

/// Files of a process below /proc. Never its environment.
const OF_PROCESS: [&str; 5] = ["status", "limits", "cgroup", "stat", "oom_score_adj"];

/// Beginnings of the modules' names that matter.
const MODULES: [&str; 8] =
    ["ip_vs", "nf_", "nft_", "xt_", "ip_set", "ip_tables", "ip6_tables", "br_netfilter"];

/// Longest file that is read.
const LONGEST: u64 = 8 << 20;

/// Folders in which the host shows itself.
#[derive(Debug, Clone)]
pub struct Root {
    pub proc: PathBuf,
    pub sys: PathBuf,
    pub etc: PathBuf,
}

/// Adds what the host says, and the process with this number, if it is known.
pub fn add_to(bundle: &mut Bundle, root: &Root, process: Option<u32>) {
    bundle.add("host/sysctls.txt", Ok(sysctls(&root.proc.join("sys"))));
    bundle.add("host/version.txt", read(&root.proc.join("version")));
    bundle.add("host/os-release.txt", read(&root.etc.join("os-release")));
    bundle.add("host/modules.txt", Ok(modules(&root.sys.join("module"))));
    for name in COUNTERS {
        // Which of them there are depends on the kernel.
        if let Ok(text) = read(&root.proc.join(name)) {
            bundle.add(&format!("host/proc/{name}"), Ok(text));
        }
    }
    let Some(process) = process else { return };
    let folder = root.proc.join(process.to_string());
    for name in OF_PROCESS {
        bundle.add(&format!("process/{name}"), read(&folder.join(name)));
    }
    let line = read(&folder.join("cmdline")).map(|line| line.replace('\0', " "));
    bundle.add("process/cmdline", line);
}

/// Returns the sysctls as `sysctl -a` writes them.
fn sysctls(root: &Path) -> String {
    let mut paths: Vec<PathBuf> = SYSCTLS.iter().map(PathBuf::from).collect();
    for folder in SYSCTL_FOLDERS {
        files_below(root, Path::new(folder), &mut paths);
    }
    paths.sort();
    paths.dedup();
    let line = |path: &PathBuf| {
        let value = read(&root.join(path)).ok()?;
        let name = path.to_string_lossy().replace('/', ".");
        Some(format!("{name} = {}\n", value.trim()))
    };
    paths.iter().filter_map(line).collect()
}

fn files_below(root: &Path, folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
        let path = folder.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_below(root, &path, paths),
            Ok(kind) if kind.is_file() => paths.push(path),
            _ => {}
        }
    }
}

/// Returns the modules that matter, built in or loaded, with their versions where they have one.
fn modules(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| MODULES.iter().any(|beginning| name.starts_with(beginning))).collect();
    names.sort();
    let line = |name: &String| {
        let of = |file: &str| fs::read_to_string(folder.join(name).join(file)).unwrap_or_default();
        let words = [name.clone(), of("version"), of("srcversion")];
        let words: Vec<&str> =
            words.iter().map(|word| word.trim()).filter(|it| !it.is_empty()).collect();
        words.join(" ") + "\n"
    };
    names.iter().map(line).collect()
}

fn read(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > LONGEST {
        return Err(format!(
            "{}: it has {length} bytes, and the limit is {LONGEST}",
            path.display()
        ));
    }
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(failed)
}

impl Default for Root {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), etc: "/etc".into() }
    }
}
