//! The running kube-ipvs of this network namespace, as /proc shows it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::process::Pid;

use config::cli::{self, Invocation};
use config::{Arguments, Configuration};

/// Place of the processes.
pub const PROC: &str = "/proc";

/// Name of the program's file.
const NAME: &str = "kube-ipvs";

/// A running kube-ipvs.
#[derive(Debug)]
pub struct Running {
    pub pid: Pid,
    /// Its command line, with the path of the configuration file as it is seen from here.
    pub arguments: Arguments,
    /// Process that started it.
    parent: Option<i32>,
    folder: PathBuf,
}

/// Reason for which no process can be named.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// None is to be seen.
    #[error(
        "no {0} runs in this network namespace, or this user may not see it: run the command as \
         the same user, on the node or in the container of {0}"
    )]
    None(&'static str),
    /// There are several.
    #[error(
        "{} processes of {} run in this network namespace, and only one should: {}",
        .1.len(),
        .0,
        .1.join("; ")
    )]
    Several(&'static str, Vec<String>),
    /// Processes cannot be listed.
    #[error("{0:#}")]
    Unlisted(#[from] anyhow::Error),
}

/// Finds the one that runs in this network namespace, as this user or as root: a name is anybody's to take.
/// Other commands of this program do not count.
pub fn find(proc: &Path) -> Result<Running, FindError> {
    find_named(proc, NAME)
}

/// Finds the process of another proxy that has the same flags, by the name of its file.
pub(crate) fn find_named(proc: &Path, name: &'static str) -> Result<Running, FindError> {
    let mut found = find_all(proc, name)?;
    match found.pop() {
        Some(running) if found.is_empty() => Ok(running),
        Some(last) => {
            found.push(last);
            found.sort_unstable_by_key(|running| running.pid.as_raw_nonzero());
            Err(FindError::Several(name, found.iter().map(Running::description).collect()))
        }
        None => Err(FindError::None(name)),
    }
}

fn find_all(proc: &Path, name: &str) -> anyhow::Result<Vec<Running>> {
    let own = proc.join("self");
    let namespace = fs::read_link(own.join("ns/net")).context("read the own network namespace")?;
    let program = identity(&own.join("exe"));
    let here = fs::read_link(&own).ok();
    let mut found = Vec::new();
    for entry in fs::read_dir(proc).with_context(|| format!("list {}", proc.display()))?.flatten() {
        let number = entry.file_name();
        let is_own = here.as_deref() == Some(Path::new(&number));
        let number = number.to_str().and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = number.filter(|_| !is_own) else {
            continue;
        };
        let folder = entry.path();
        // One that ends meanwhile, or that this user must not look into, is none.
        let is_here = fs::read_link(folder.join("ns/net")).is_ok_and(|it| it == namespace);
        if is_here && runs(&folder, name, program) && is_trusted(&folder) {
            found.extend(Running::read(pid, folder)?);
        }
    }
    // Between its start and its own program, a child such as iptables looks like its parent.
    let pids: Vec<i32> = found.iter().map(|it: &Running| it.pid.as_raw_nonzero().get()).collect();
    found.retain(|running| running.parent.is_none_or(|parent| !pids.contains(&parent)));
    Ok(found)
}

/// True if a process runs a file of this name, or for our own name this program.
fn runs(folder: &Path, wanted: &str, program: Option<(u64, u64)>) -> bool {
    let link = folder.join("exe");
    if program.is_some() && identity(&link) == program {
        return wanted == NAME;
    }
    let Ok(path) = fs::read_link(link) else { return false };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // The file of a program may have been replaced since.
    name.strip_suffix(" (deleted)").unwrap_or(name) == wanted
}

/// True for a process of this user, or of root.
fn is_trusted(folder: &Path) -> bool {
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    user(&status).is_some_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
}

/// Returns the device and the inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Running {
    /// Reads what a process is about; none if it is another command of this program.
    fn read(pid: Pid, folder: PathBuf) -> anyhow::Result<Option<Self>> {
        let (Ok(line), Ok(status)) =
            (fs::read(folder.join("cmdline")), fs::read_to_string(folder.join("status")))
        else {
            return Ok(None);
        };
        // While a program is exchanged for another one, the new one is named and has no words yet.
        if line.is_empty() {
            return Ok(None);
        }
        let words = line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
        let mut words: Vec<OsString> = words.collect();
        words.pop();
        let arguments = match cli::invocation(words) {
            Ok(Invocation::Run(arguments)) => *arguments,
            _ => return Ok(None),
        };
        let actions = [arguments.cleanup, arguments.hand_over, arguments.init_only];
        if actions.contains(&Some(true)) {
            return Ok(None);
        }
        let parent = parent(&status);
        let mut running = Self { pid, arguments, parent, folder };
        if let Some(path) = running.arguments.file() {
            let path = running.as_seen_from_here(Path::new(path));
            running.arguments.config = Some(path.to_string_lossy().into_owned());
        }
        Ok(Some(running))
    }

    /// Its number and its command line.
    fn description(&self) -> String {
        let line = fs::read(self.folder.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        format!("process {} ({})", self.pid.as_raw_nonzero(), line.trim_end().escape_debug())
    }

    /// True if it has not ended.
    pub fn is_alive(&self) -> bool {
        identity(&self.folder.join("exe")).is_some()
    }

    /// True if it sees the files that are seen from here, programs among them: it runs in no other container.
    #[must_use]
    pub fn sees_the_same_files(&self) -> bool {
        let its_own = identity(&self.folder.join("root"));
        its_own.is_some() && its_own == identity(Path::new("/"))
    }

    /// Returns a path of its file system as it is seen from here.
    pub(crate) fn as_seen_from_here(&self, path: &Path) -> PathBuf {
        let place = if path.is_absolute() { "root" } else { "cwd" };
        self.folder.join(place).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Loads the configuration that it would load now.
    pub fn configuration(&self) -> anyhow::Result<Configuration> {
        let loaded = Configuration::load(&self.arguments);
        loaded.with_context(|| format!("load the configuration of {}", self.description()))
    }
}

/// The effective user (the second of `Uid` in proc_pid_status(5)).
fn user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

fn parent(status: &str) -> Option<i32> {
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a process below a folder that stands for /proc.
    pub(crate) fn mk_process(
        proc: &Path,
        pid: &str,
        namespace: &str,
        program: &str,
        words: &[&str],
    ) {
        let folder = proc.join(pid);
        fs::create_dir_all(folder.join("ns")).unwrap();
        symlink(namespace, folder.join("ns/net")).unwrap();
        symlink(program, folder.join("exe")).unwrap();
        let line: String = words.iter().map(|word| format!("{word}\0")).collect();
        fs::write(folder.join("cmdline"), line).unwrap();
        fs::write(folder.join("status"), status("")).unwrap();
    }

    /// Status of a process of this user, with more lines.
    fn status(more: &str) -> String {
        let user = rustix::process::geteuid().as_raw();
        format!("Name:\tx\nUid:\t7\t{user}\t7\t7\n{more}")
    }

    fn mk_proc() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let ours = "/usr/local/bin/kube-ipvs";
        mk_process(proc.path(), "10", "net:[1]", ours, &["kube-ipvs", "switch", "--to=ipvs"]);
        symlink("10", proc.path().join("self")).unwrap();
        mk_process(proc.path(), "11", "net:[1]", "/usr/bin/kube-proxy", &["kube-proxy"]);
        mk_process(proc.path(), "12", "net:[2]", ours, &["kube-ipvs"]);
        mk_process(proc.path(), "13", "net:[1]", ours, &["kube-ipvs", "--cleanup"]);
        mk_process(proc.path(), "14", "net:[1]", ours, &[]);
        fs::create_dir(proc.path().join("sys")).unwrap();
        proc
    }

    #[test]
    fn a_process_in_a_container_sees_other_files() {
        let proc = mk_proc();
        let running = || Running::read(Pid::INIT, proc.path().join("12")).unwrap().unwrap();
        assert!(!running().sees_the_same_files());
        symlink(proc.path(), proc.path().join("12/root")).unwrap();
        assert!(!running().sees_the_same_files());
        fs::remove_file(proc.path().join("12/root")).unwrap();
        symlink("/", proc.path().join("12/root")).unwrap();
        assert!(running().sees_the_same_files());
    }

    #[test]
    fn the_one_process_that_serves_in_the_namespace_is_found() {
        let proc = mk_proc();
        let said = find(proc.path()).unwrap_err().to_string();
        assert!(said.contains("no kube-ipvs runs in this network namespace"), "{said}");
        let other = find_named(proc.path(), "kube-proxy").unwrap();
        assert_eq!(other.pid, Pid::from_raw(11).unwrap());
        let words = ["kube-ipvs", "--config=/etc/kube-ipvs.conf"];
        mk_process(proc.path(), "20", "net:[1]", "/bin/kube-ipvs (deleted)", &words);
        let running = find(proc.path()).unwrap();
        assert_eq!(running.pid, Pid::from_raw(20).unwrap());
        let path = proc.path().join("20/root/etc/kube-ipvs.conf");
        assert_eq!(running.arguments.file(), path.to_str());
        mk_process(proc.path(), "21", "net:[1]", "/bin/kube-ipvs", &["kube-ipvs", "-v=2"]);
        let said = find(proc.path()).unwrap_err().to_string();
        assert!(said.contains("2 processes"), "{said}");
        let each =
            "process 20 (kube-ipvs --config=/etc/kube-ipvs.conf); process 21 (kube-ipvs -v=2)";
        assert!(said.ends_with(each), "{said}");
    }

    #[test]
    fn a_child_that_has_not_begun_its_own_program_is_none() {
        let proc = mk_proc();
        let words = ["kube-ipvs", "--config=/etc/kube-ipvs.conf"];
        mk_process(proc.path(), "20", "net:[1]", "/bin/kube-ipvs", &words);
        mk_process(proc.path(), "21", "net:[1]", "/bin/kube-ipvs", &words);
        let start = |parent: &str| {
            let status = status(&format!("PPid:\t{parent}\n"));
            fs::write(proc.path().join("21/status"), status).unwrap();
        };
        start("20");
        assert_eq!(find(proc.path()).unwrap().pid, Pid::from_raw(20).unwrap());
        start("1");
        assert!(matches!(find(proc.path()), Err(FindError::Several(..))));
    }

    /// Any user can name a file kube-ipvs, and give its words bytes that a terminal obeys.
    #[test]
    fn a_strangers_process_does_not_count_and_words_are_escaped() {
        let proc = mk_proc();
        mk_process(proc.path(), "20", "net:[1]", "/tmp/kube-ipvs", &["kube-ipvs"]);
        let stranger = rustix::process::geteuid().as_raw() + 1_000;
        let of_stranger = format!("Uid:\t0\t{stranger}\t0\t0\n");
        fs::write(proc.path().join("20/status"), of_stranger).unwrap();
        assert!(matches!(find(proc.path()), Err(FindError::None(_))));
        mk_process(proc.path(), "21", "net:[1]", "/bin/kube-ipvs", &["kube-ipvs", "-v=2"]);
        assert_eq!(find(proc.path()).unwrap().pid, Pid::from_raw(21).unwrap());
        let words = ["kube-ipvs", "--config=\u{1b}[2J"];
        mk_process(proc.path(), "22", "net:[1]", "/bin/kube-ipvs", &words);
        let said = find(proc.path()).unwrap_err().to_string();
        assert!(said.ends_with("process 22 (kube-ipvs --config=\\u{1b}[2J)"), "{said}");
    }
}
