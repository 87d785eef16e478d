//! The program under test: kube-ipvs in a node, fed from a folder of manifests or an API server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};
use crate::daemon::Daemon;
use crate::eventually::eventually;
use crate::manifest::Service;
use crate::namespace::Namespace;

/// Path of the program, if the environment variable `KUBE_IPVS` does not give one.
const PROGRAM: &str = "/job/kube-ipvs";
/// Script that does what a container runtime does for a container that is not privileged and has a
/// read-only root: no capabilities but those of its first argument, none to be had by a program's
/// file, `/proc/sys` and `/sys` read-only, the lock of iptables from the host, a folder for the
/// console's socket, and no modules. The
/// rest of its arguments is the program. setpriv comes last, because all the rest takes more
/// privileges.
const CONTAINER: &str = "set -e
capabilities=$1
shift
: >> /run/xtables.lock
mount --rbind / /mnt
mount -o remount,bind,ro /mnt
mount --bind /run/xtables.lock /mnt/run/xtables.lock
mount --bind /mnt/proc/sys /mnt/proc/sys
mount -o remount,bind,ro /mnt/proc/sys
mount -o remount,bind,ro /mnt/sys
mount -t tmpfs -o ro none /mnt/lib/modules
mkdir -p /run/kube-ipvs
mount -t tmpfs none /mnt/run/kube-ipvs
exec chroot /mnt /usr/bin/setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,$capabilities \"$@\"
";
/// A guest under emulation starts slowly: on a busy machine, two proxies with 60 Services each took more
/// than a minute.
const START_LIMIT: Duration = Duration::from_secs(120);

static STARTS: AtomicU32 = AtomicU32::new(1);

/// A running kube-ipvs.
#[derive(Debug)]
pub struct Proxy {
    daemon: Daemon,
    log: PathBuf,
}

/// A folder of manifests. It disappears when dropped.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
}

impl Manifests {
    /// An empty folder.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> Result<Self> {
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(format!("/tmp/manifests-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Saves a Service with its endpoints, as one file under its name.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn apply(&self, service: &Service) -> Result<()> {
        self.write(&format!("{}.yaml", service.name), &service.to_yaml())
    }

    /// Saves a file as editors do: beside it first, then renamed into its place.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let (beside, place) = (self.folder.join(format!(".{name}.new")), self.folder.join(name));
        fs::write(&beside, text)
            .and_then(|()| fs::rename(&beside, &place))
            .with_context(|| format!("write {}", place.display()))
    }

    /// Deletes a Service's file.
    ///
    /// # Errors
    /// When it cannot be deleted.
    pub fn remove(&self, service: &str) -> Result<()> {
        let place = self.folder.join(format!("{service}.yaml"));
        fs::remove_file(&place).with_context(|| format!("delete {}", place.display()))
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        // A folder that stays is of no harm: names are never used twice.
        let _stays = fs::remove_dir_all(&self.folder);
    }
}

impl Proxy {
    /// Starts it in a node and waits until it has compared the kernel with the manifests once.
    ///
    /// # Errors
    /// When it ends instead, or takes too long: with its log.
    pub fn start(node: &Namespace, manifests: &Manifests, arguments: &[&str]) -> Result<Self> {
        Self::start_program(&program(), node, manifests, arguments)
    }

    /// As [`Self::start`], for the program at this path, whatever the environment says.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_program(
        program: &Path,
        node: &Namespace,
        manifests: &Manifests,
        arguments: &[&str],
    ) -> Result<Self> {
        let mut proxy = Self::launch(node, from_manifests(program, manifests, arguments))?;
        proxy.wait_until_in_sync()?;
        Ok(proxy)
    }

    /// As [`Self::start`], in a container that is not privileged, with these capabilities, named as
    /// Kubernetes names them, and a file system in which nothing can be written.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_in_container(
        node: &Namespace,
        manifests: &Manifests,
        capabilities: &[String],
        arguments: &[&str],
    ) -> Result<Self> {
        let mut proxy = Self::launch(node, in_container(manifests, capabilities, arguments))?;
        proxy.wait_until_in_sync()?;
        Ok(proxy)
    }

    /// As [`Self::run_to_its_end`], in a container as with [`Self::start_in_container`].
    ///
    /// # Errors
    /// When it does not end.
    pub fn run_to_its_end_in_container(
        node: &Namespace,
        manifests: &Manifests,
        capabilities: &[String],
        arguments: &[&str],
    ) -> Result<(ExitStatus, String)> {
        Self::launch(node, in_container(manifests, capabilities, arguments))?.wait_for_end()
    }

    /// Starts it in a node with these arguments and no others, and does not wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_with(node: &Namespace, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program());
        command.args(arguments);
        Self::launch(node, command)
    }

    /// Waits until it has compared the kernel with its input once.
    ///
    /// # Errors
    /// When it ends instead, or takes too long: with its log.
    pub fn wait_until_in_sync(&mut self) -> Result<()> {
        self.wait_until_in_sync_within(START_LIMIT)
    }

    /// As [`Self::wait_until_in_sync`], for a cluster that takes longer.
    ///
    /// # Errors
    /// As [`Self::wait_until_in_sync`].
    pub fn wait_until_in_sync_within(&mut self, limit: Duration) -> Result<()> {
        let has_ended = eventually(limit, "the first comparison with the kernel", || {
            if !self.daemon.is_running()? {
                return Ok(true);
            }
            let log = self.log()?;
            if log.contains("in sync with the kernel") {
                return Ok(false);
            }
            bail!("not in sync yet:\n{log}")
        })?;
        if has_ended {
            bail!("kube-ipvs has ended:\n{}", self.log()?);
        }
        Ok(())
    }

    /// Waits until it ends by itself. Returns how, and its log.
    ///
    /// # Errors
    /// When it does not end.
    pub fn wait_for_end(mut self) -> Result<(ExitStatus, String)> {
        let status = eventually(START_LIMIT, "kube-ipvs to end by itself", || {
            self.daemon.child().try_wait()?.with_context(|| "it is still running")
        })?;
        Ok((status, self.log()?))
    }

    /// Starts it and waits until it ends by itself. Returns how, and its log.
    ///
    /// # Errors
    /// When it does not end.
    pub fn run_to_its_end(
        node: &Namespace,
        manifests: &Manifests,
        arguments: &[&str],
    ) -> Result<(ExitStatus, String)> {
        Self::launch(node, from_manifests(&program(), manifests, arguments))?.wait_for_end()
    }

    fn launch(node: &Namespace, mut command: Command) -> Result<Self> {
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let log = PathBuf::from(format!("/tmp/kube-ipvs-{}-{number}.log", std::process::id()));
        let file = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Self { daemon: node.spawn(command)?, log })
    }

    /// Its process number.
    pub fn process(&mut self) -> u32 {
        self.daemon.child().id()
    }

    /// True if it has not ended by itself.
    ///
    /// # Errors
    /// When its process cannot be asked.
    pub fn is_running(&mut self) -> Result<bool> {
        self.daemon.is_running()
    }

    /// Everything that it has logged so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("read {}", self.log.display()))
    }

    /// Waits until its log has a line with this text.
    ///
    /// # Errors
    /// When none comes in time: with the log.
    pub fn wait_for_log(&self, text: &str, limit: Duration) -> Result<()> {
        eventually(limit, &format!("a log line with {text:?}"), || {
            let log = self.log()?;
            if log.contains(text) { Ok(()) } else { bail!("not among:\n{log}") }
        })
    }

    /// Ends it with SIGTERM, as a supervisor does. Returns its log.
    ///
    /// # Errors
    /// When it does not end in time, or not well.
    pub fn stop(self) -> Result<String> {
        let log = self.log.clone();
        let status = self.daemon.terminate(Duration::from_secs(10))?;
        let text = fs::read_to_string(&log)?;
        if !status.success() {
            bail!("kube-ipvs ended with {status}:\n{text}");
        }
        Ok(text)
    }
}

/// The first node's proxy, reading a folder. Who says what is local is believed; otherwise all pods
/// are.
fn from_manifests(program: &Path, manifests: &Manifests, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("--manifests").arg(manifests.path());
    command.args(["--hostname-override", "node1"]).args(arguments);
    if !arguments.iter().any(|argument| argument.starts_with("--console-socket")) {
        // Nodes have network namespaces of their own, and one file system.
        let name = manifests.path().file_name().unwrap_or_default().to_string_lossy();
        command.arg(format!("--console-socket=/run/kube-ipvs/{name}.sock"));
    }
    let says_what_is_local = |argument: &&str| {
        argument.starts_with("--cluster-cidr") || argument.starts_with("--detect-local-mode")
    };
    if !arguments.iter().any(says_what_is_local) {
        command.arg(format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}"));
    }
    command
}

/// The same in a container.
fn in_container(manifests: &Manifests, capabilities: &[String], arguments: &[&str]) -> Command {
    let inside = from_manifests(&program(), manifests, arguments);
    let capabilities: Vec<String> =
        capabilities.iter().map(|name| format!("+{}", name.to_lowercase())).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", CONTAINER, "container", &capabilities.join(",")]);
    command.arg(inside.get_program()).args(inside.get_args());
    command
}

/// Returns the program that is tried.
#[must_use]
pub fn program() -> PathBuf {
    std::env::var_os("KUBE_IPVS").map_or_else(|| PathBuf::from(PROGRAM), PathBuf::from)
}
