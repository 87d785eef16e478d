//! State that a takeover meets: proxies that run, and what they have left.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use plan::model::Family;

use super::Check;
use crate::cleanup::left;
use crate::mode;
use config::Configuration;
use kernel::rules::{Backend, READ_BY_CHAIN, Rules};
use syntax::counted::first_named;
use syntax::page;

/// Programs that lead connections to Services, or do so in some of their modes.
const PROXIES: [&str; 5] =
    ["kube-proxy", "kube-ipvs", "kube-router", "cilium-agent", "calico-node"];

/// Rules of one kind of iptables, as the program that saves them prints them.
pub(super) struct Saved {
    pub(super) family: Family,
    pub(super) backend: Backend,
    pub(super) text: Result<String, String>,
}

/// A program that leads connections to Services.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunningProxy {
    pub(super) name: String,
    pub(super) pid: u32,
}

/// Reads the rules of every kind of iptables that is installed.
pub(super) fn saved() -> Vec<Saved> {
    let all = Family::BOTH.into_iter().flat_map(Rules::installed);
    let read = |rules: Rules| Saved {
        family: rules.family(),
        backend: rules.backend(),
        text: rules.saved().map_err(|error| error.to_string()),
    };
    all.map(read).collect()
}

pub(super) fn checks(configuration: &Configuration, saved: &[Saved]) -> Vec<Check> {
    let mut checks = proxies(&running(Path::new("/proc")));
    checks.push(of_ipvs(configuration));
    checks.extend(of_rules(configuration, saved));
    checks.push(of_nftables(configuration));
    checks
}

/// Finds the proxies in this network namespace, as far as their processes can be seen.
fn running(proc: &Path) -> Vec<RunningProxy> {
    let namespace = fs::read_link(proc.join("self/ns/net")).ok();
    let own = fs::read_link(proc.join("self")).ok();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut found: Vec<RunningProxy> = entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let folder = entry.path();
            let is_here = fs::read_link(folder.join("ns/net")).ok() == namespace;
            if !is_here || own.as_deref() == Some(Path::new(&entry.file_name())) {
                return None;
            }
            Some(RunningProxy { name: proxy_of(&folder)?, pid })
        })
        .collect();
    found.sort_unstable();
    found
}

/// Returns the name of the proxy that a process is; none: it is none, or only a command of one.
fn proxy_of(folder: &Path) -> Option<String> {
    let line = fs::read(folder.join("cmdline")).ok()?;
    let words: Vec<String> = line
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let program = Path::new(words.first()?).file_name().and_then(OsStr::to_str)?;
    let is_command = words.get(1).is_some_and(|word| !word.is_empty() && !word.starts_with('-'));
    let is_ours_and_no_proxy = program == "kube-ipvs" && is_command;
    (PROXIES.contains(&program) && !is_ours_and_no_proxy).then(|| program.to_owned())
}

pub(super) fn proxies(running: &[RunningProxy]) -> Vec<Check> {
    const NAME: &str = "other proxies";
    if running.is_empty() {
        let found = "none among the visible processes";
        return vec![Check::ok(NAME, found)];
    }
    let check = |proxy: &RunningProxy| {
        let RunningProxy { name, pid } = proxy;
        match name.as_str() {
            "kube-ipvs" => {
                let found =
                    format!("kube-ipvs already runs (process {pid}): this node is migrated");
                Check::note(NAME, found)
            }
            "calico-node" => {
                let found = format!("calico-node runs (process {pid})");
                let advice =
                    "its eBPF dataplane serves Services itself: make sure that it is not enabled";
                Check::note(NAME, found).advised(advice)
            }
            _ => Check::warning(
                NAME,
                format!(
                    "{name} runs (process {pid}): two proxies undo each other's changes if both \
                     serve the same Services"
                ),
                concat!(
                    "stop it, or its Service proxy, before kube-ipvs starts; traffic continues meanwhile; see ",
                    page!("migrate-by-image")
                ),
            ),
        }
    };
    running.iter().map(check).collect()
}

fn of_ipvs(configuration: &Configuration) -> Check {
    const NAME: &str = "state of IPVS";
    let left = match left::by_ipvs(&configuration.settings) {
        Ok(left) => left,
        Err(error) => return Check::unread(NAME, error),
    };
    let of_others = left::of_other_programs(&configuration.settings).unwrap_or_default();
    let others = match of_others {
        0 => String::new(),
        count => format!(". {count} unowned virtual servers stay unchanged"),
    };
    if left.is_empty() {
        return Check::ok(NAME, format!("none of a proxy's{others}"));
    }
    let fate = mode::of_settings(&configuration.settings).fate_of_ipvs_state;
    Check::note(NAME, format!("{left}. {fate}{others}"))
}

fn of_rules(configuration: &Configuration, saved: &[Saved]) -> Vec<Check> {
    const NAME: &str = "rules of proxies";
    let mut checks = Vec::new();
    for family in Family::BOTH {
        let of_family = saved.iter().filter(|it| it.family == family);
        let mut kinds = Vec::new();
        for Saved { backend, text, .. } in of_family {
            match text {
                Err(error) => checks.push(Check::unread(NAME, error)),
                Ok(text) => {
                    let (of_proxies, others) = left::sort_chains(text);
                    if of_proxies > 0 {
                        kinds.push(format!("{} ({of_proxies} chains)", kind(*backend)));
                    }
                    checks.extend(foreign(family, *backend, &others));
                    checks.extend(unshown(family, text));
                }
            }
        }
        if kinds.len() > 1 {
            checks.push(both_kinds(configuration, family, &kinds.join(" and ")));
        } else if let Some(kind) = kinds.first() {
            checks.push(Check::note(NAME, format!("{family}: KUBE- chains in {kind}")));
        }
    }
    checks.push(of_other_modes(configuration));
    checks
}

/// Rules of both kinds hold at the same time, the older ones first or last, as it happens.
fn both_kinds(configuration: &Configuration, family: Family, kinds: &str) -> Check {
    const NAME: &str = "iptables variants";
    let found = format!("{family}: KUBE- chains in {kinds}; the kernel applies both");
    if configuration.cleanup_other_modes {
        let found = format!(
            "{found}. kube-ipvs removes a proxy's chains in the other variant after the \
                     takeover"
        );
        return Check::note(NAME, found);
    }
    let remedy = "set cleanupOtherModes: true, or run kube-proxy --cleanup with the other variant";
    Check::warning(NAME, found, remedy)
}

fn of_other_modes(configuration: &Configuration) -> Check {
    const NAME: &str = "rules of other modes";
    match left::rules_beside(&configuration.settings, configuration.variant) {
        Err(error) => Check::unread(NAME, error),
        Ok(left) if left.is_empty() => Check::ok(NAME, "none"),
        Ok(left) if configuration.cleanup_other_modes => Check::note(
            NAME,
            format!(
                "{left}. They handle connections until kube-ipvs does; then kube-ipvs removes \
                     them"
            ),
        ),
        Ok(left) => Check::warning(
            NAME,
            format!("{left}. They stay, because cleanupOtherModes is false"),
            "set cleanupOtherModes: true, or remove them once kube-ipvs serves (kube-proxy --cleanup)",
        ),
    }
}

fn of_nftables(configuration: &Configuration) -> Check {
    const NAME: &str = "kube-proxy's nftables mode";
    match left::nftables_families() {
        Err(error) => Check::unread(NAME, error),
        Ok(families) if families.is_empty() => Check::ok(NAME, "has left no table"),
        Ok(families) => {
            let families: Vec<String> = families.iter().map(ToString::to_string).collect();
            let found = format!("has a table of {}", families.join(" and "));
            if configuration.cleanup_other_modes {
                return Check::note(NAME, format!("{found}; kube-ipvs removes it once it serves"));
            }
            let remedy = "set cleanupOtherModes: true, or remove it once kube-ipvs serves (nft delete table ip \
                          kube-proxy; nft delete table ip6 kube-proxy)";
            Check::warning(
                NAME,
                format!("{found}; it stays and keeps handling connections"),
                remedy,
            )
        }
    }
}

/// KUBE- chains that no proxy of ours or kube-proxy's made.
fn foreign(family: Family, backend: Backend, chains: &BTreeSet<&str>) -> Option<Check> {
    let found = format!(
        "{family}, {}: {} belong neither to kube-proxy nor to kube-ipvs, and stay unchanged",
        kind(backend),
        first_named(chains.iter())
    );
    let advice = "if the program that created them no longer runs, remove them";
    (!chains.is_empty()).then(|| Check::note("other KUBE- chains", found).advised(advice))
}

/// Tables in which other programs made rules that iptables cannot show.
fn unshown(family: Family, saved: &str) -> Option<Check> {
    let read = saved.lines().filter_map(|line| line.strip_prefix(READ_BY_CHAIN));
    let tables: Vec<&str> = read.chain(left::unreadable(saved)).collect();
    let found = format!(
        "{family}: the table {} has rules of other programs that iptables cannot list. kube-ipvs \
         writes its own rules there, and reads them chain by chain",
        tables.join(" and ")
    );
    let advice = "move rules created by nft to a table with another name; for other rules, install \
                  the iptables extension that they need";
    (!tables.is_empty()).then(|| Check::note("rules iptables cannot list", found).advised(advice))
}

pub(super) const fn kind(backend: Backend) -> &'static str {
    match backend {
        Backend::Nft => "nf_tables",
        Backend::Legacy => "legacy iptables",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::preflight::CheckState;
    use kernel::rules::UNREAD;

    fn mk_process(proc: &Path, pid: &str, namespace: &str, words: &[&str]) {
        let folder = proc.join(pid);
        fs::create_dir_all(folder.join("ns")).unwrap();
        symlink(namespace, folder.join("ns/net")).unwrap();
        let line: String = words.iter().map(|word| format!("{word}\0")).collect();
        fs::write(folder.join("cmdline"), line).unwrap();
    }

    #[test]
    fn proxies_of_this_network_namespace_are_found() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        mk_process(proc, "10", "net:[1]", &["/usr/bin/kube-ipvs", "preflight"]);
        symlink("10", proc.join("self")).unwrap();
        mk_process(proc, "11", "net:[1]", &["/usr/local/bin/kube-proxy", "--config=/c"]);
        mk_process(proc, "12", "net:[2]", &["kube-proxy"]);
        mk_process(proc, "13", "net:[1]", &["kube-ipvs", "status"]);
        mk_process(proc, "14", "net:[1]", &["kube-ipvs", "--v=2"]);
        mk_process(proc, "15", "net:[1]", &["bash", "kube-proxy"]);
        let found = running(proc);
        let found: Vec<(&str, u32)> = found.iter().map(|it| (it.name.as_str(), it.pid)).collect();
        assert_eq!(found, [("kube-ipvs", 14), ("kube-proxy", 11)]);
        let states: Vec<CheckState> =
            proxies(&running(proc)).iter().map(|check| check.state).collect();
        assert_eq!(states, [CheckState::Note, CheckState::Warning]);
        assert_eq!(proxies(&[])[0].state, CheckState::Ok);
    }

    #[test]
    fn chains_of_other_programs_are_named_and_left_alone() {
        let saved = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ABC - [0:0]\n\
                     :KUBE-KUBELET-CANARY - [0:0]\n:KUBE-NWPLCY-1 - [0:0]\nCOMMIT\n";
        let (of_proxies, others) = left::sort_chains(saved);
        assert_eq!(
            (of_proxies, others.iter().copied().collect::<Vec<_>>()),
            (2, vec!["KUBE-NWPLCY-1"])
        );
        let check = foreign(Family::V4, Backend::Nft, &others).unwrap();
        assert_eq!(check.state, CheckState::Note);
        assert!(check.found.contains("KUBE-NWPLCY-1 belong neither"), "{}", check.found);
        assert_eq!(foreign(Family::V4, Backend::Nft, &BTreeSet::new()), None);
    }

    #[test]
    fn tables_that_iptables_cannot_show_are_named() {
        let saved = format!("{READ_BY_CHAIN}filter\n*filter\nCOMMIT\n");
        let check = unshown(Family::V6, &saved).unwrap();
        assert!(check.found.contains("IPv6") && check.found.contains("filter"), "{}", check.found);
        let saved = format!("{UNREAD}nat\n");
        assert!(unshown(Family::V4, &saved).unwrap().found.contains("the table nat"));
        assert_eq!(unshown(Family::V4, "*nat\nCOMMIT\n"), None);
    }
}
