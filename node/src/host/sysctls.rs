//! Sysctls that are set at the start, and a record of the values that they had.
//!
//! Nothing puts them back when kube-ipvs exits, since the next proxy needs them, too. For a machine
//! that is to be as it was, the record is a file that `sysctl -p` reads. It is in `/run`, which
//! ends when the sysctls' values do: with the next boot.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use tracing::{info, warn};

use super::conntrack;
use config::Conntrack;
use kernel::sysctl::{self, Sysctl, SysctlChange};

/// The record, of the host's network namespace. Its folder is the console's.
const RECORD: &str = "/run/kube-ipvs/sysctls-before.conf";

/// First line of the record.
const HEADING: &str = "# Sysctls that kube-ipvs has changed since boot, with their former \
                       values.\n";

/// Sets sysctls. Returns the failures of those without which Services do not work.
pub(super) fn set(proc_sys: &Path, wanted: &[Sysctl]) -> Vec<String> {
    let outcome = sysctl::apply(proc_sys, wanted);
    report(&outcome.changed);
    let mut required = Vec::new();
    for failed in &outcome.failed {
        if failed.sysctl.required {
            required.push(failed.to_string());
        } else {
            warn!("{failed}");
        }
    }
    required
}

/// Records the values of sysctls that are to be set later, when rules stand.
pub(super) fn record_before(proc_sys: &Path, wanted: &[Sysctl]) {
    let changes = sysctl::differing(proc_sys, wanted).into_iter().filter_map(|sysctl| {
        let before = fs::read_to_string(proc_sys.join(sysctl.path)).ok()?.trim().to_owned();
        Some(SysctlChange { sysctl, before })
    });
    record_for_host(&changes.collect::<Vec<_>>());
}

/// Sets sysctls that an operator chose, of which none is required. Returns those that have their values.
pub(super) fn set_chosen(proc_sys: &Path, chosen: Vec<Sysctl>) -> Vec<Sysctl> {
    let _none = set(proc_sys, &chosen);
    let differing = sysctl::differing(proc_sys, &chosen);
    chosen.into_iter().filter(|sysctl| !differing.contains(sysctl)).collect()
}

/// Sets up connection tracking. Returns the failures; adds the limits that result to `limits`.
pub(super) fn track_connections(chosen: &Conntrack, limits: &mut Vec<String>) -> Vec<String> {
    let outcome = conntrack::set(&conntrack::Root::default(), chosen);
    report(&outcome.changed);
    for tolerated in &outcome.tolerated {
        warn!("{tolerated}");
    }
    limits.extend(outcome.tolerated);
    outcome.failed
}

/// Logs what was changed, and records it.
fn report(changes: &[SysctlChange]) {
    for change in changes {
        info!("{change}");
    }
    record_for_host(changes);
}

fn record_for_host(changes: &[SysctlChange]) {
    // Another network namespace has sysctls of its own, and ends at any time.
    if !changes.is_empty()
        && is_of_host(Path::new("/proc"))
        && let Err(error) = record(Path::new(RECORD), changes)
    {
        info!(
            "cannot write the former values of sysctls to {RECORD}: {error}; --cleanup will not \
             report how to restore them. The log has the values; make the directory writable to \
             keep them in the file, too"
        );
    }
}

/// True if this process is in the network namespace of the first one.
fn is_of_host(proc: &Path) -> bool {
    let namespace = |process: &str| fs::read_link(proc.join(process).join("ns/net")).ok();
    namespace("self").is_some_and(|own| namespace("1") == Some(own))
}

/// Adds to the record the values that sysctls had. One that is in it already keeps the first.
fn record(path: &Path, changes: &[SysctlChange]) -> io::Result<()> {
    let mut text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => HEADING.to_owned(),
        Err(error) => return Err(error),
    };
    let before = text.len();
    for change in changes {
        let name = change.sysctl.name();
        if values(&text).all(|(known, _)| known != name) {
            text += &format!("{name} = {}\n", change.before);
        }
    }
    if text.len() == before {
        return Ok(());
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // In one step: a process that is killed leaves no half of it.
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

/// Returns the names and values in a record.
fn values(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "))
}

/// Returns which sysctls have another value than before kube-ipvs changed them, in words, and how to
/// put them back; none if all are as they were, as far as is known.
pub fn changed() -> Option<String> {
    is_of_host(Path::new("/proc"))
        .then(|| changed_by(Path::new(RECORD), Path::new(sysctl::ROOT)))
        .flatten()
}

fn changed_by(record: &Path, proc_sys: &Path) -> Option<String> {
    let text = fs::read_to_string(record).ok()?;
    let changed = values(&text).filter_map(|(name, before)| {
        let now = fs::read_to_string(proc_sys.join(name.replace('.', "/"))).ok()?;
        let now = now.trim();
        (now != before).then(|| format!("{name}={now} (it was {before})"))
    });
    let changed: Vec<String> = changed.collect();
    (!changed.is_empty()).then(|| {
        format!(
            "these sysctls are not restored, because another program may need them by now: {}. To \
             restore all of them: sysctl -e -p {}",
            changed.join(", "),
            record.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn change(path: &'static str, before: &str) -> SysctlChange {
        let sysctl = Sysctl::new(path, 1, true, "of a test");
        SysctlChange { sysctl, before: before.to_owned() }
    }

    #[test]
    fn the_first_value_is_recorded_and_what_differs_from_it_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let (record_path, proc_sys) = (folder.path().join("run/record"), folder.path().join("sys"));
        let (forward, conntrack) = ("net/ipv4/ip_forward", "net/ipv4/vs/conntrack");
        fs::create_dir_all(proc_sys.join("net/ipv4/vs")).unwrap();
        for path in [forward, conntrack] {
            fs::write(proc_sys.join(path), "1\n").unwrap();
        }
        assert_eq!(changed_by(&record_path, &proc_sys), None);
        record(&record_path, &[change(forward, "0")]).unwrap();
        // Another program has changed it meanwhile.
        record(&record_path, &[change(forward, "2"), change(conntrack, "1")]).unwrap();
        let text = fs::read_to_string(&record_path).unwrap();
        assert_eq!(
            text.strip_prefix(HEADING).unwrap(),
            "net.ipv4.ip_forward = 0\nnet.ipv4.vs.conntrack = 1\n"
        );
        let said = changed_by(&record_path, &proc_sys).unwrap();
        assert!(said.contains(": net.ipv4.ip_forward=1 (it was 0). "), "{said}");
        fs::write(proc_sys.join(forward), "0\n").unwrap();
        assert_eq!(changed_by(&record_path, &proc_sys), None);
    }

    #[test]
    fn only_the_network_namespace_of_the_first_process_is_the_hosts() {
        let proc = tempfile::tempdir().unwrap();
        for (process, namespace) in [("self", "net:[7]"), ("1", "net:[8]")] {
            fs::create_dir_all(proc.path().join(process).join("ns")).unwrap();
            symlink(namespace, proc.path().join(process).join("ns/net")).unwrap();
        }
        assert!(!is_of_host(proc.path()));
        fs::remove_file(proc.path().join("1/ns/net")).unwrap();
        assert!(!is_of_host(proc.path()));
        symlink("net:[7]", proc.path().join("1/ns/net")).unwrap();
        assert!(is_of_host(proc.path()));
    }
}
