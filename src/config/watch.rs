//! Notices that the configuration file has another content than it was read with.
//!
//! kube-proxy watches the file itself, and ends on any write to it: also on one that changes
//! nothing, but not when a ConfigMap's volume is changed, where the file is a symbolic link through
//! `..data`, which is replaced. Here the folder is watched, and the content is compared.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::{Configuration, ConfigurationFile};
use crate::spread;

/// Message that the file has changed, in kube-proxy's words.
pub const UPDATED: &str = "content of the proxy server's configuration file was updated";

/// Without any word from the kernel, the file is looked at this often: a link may lead to a folder
/// that is not watched.
const PERIOD: Duration = Duration::from_secs(10);

/// A write comes in several parts. The file is looked at when it has been left alone for this long.
const SETTLE: Duration = Duration::from_millis(200);

/// Longest time from a change to its consequence. It is random: the nodes of a cluster have the same
/// file, and must not all start, and list everything, at once.
pub const SPREAD: Duration = Duration::from_secs(30);

/// Notifications are thrown away in portions of this many bytes.
const BUFFER_BYTES: usize = 4_096;

/// Function that looks whether the program could start with the configuration as it would be read
/// now, and what follows. It may take its time.
pub type Check = Arc<dyn Fn() -> anyhow::Result<Change> + Send + Sync>;

/// Consequence of a content that can be used.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The program ends, and its supervisor starts it anew.
    Restart,
    /// The running program takes on this configuration.
    TakeOn(Box<Configuration>),
}

/// A configuration file, and what became of its changes.
struct Watched {
    file: ConfigurationFile,
    check: Check,
    /// The content that cannot be used, and was told about.
    rejected: Option<Vec<u8>>,
    is_unreadable: bool,
}

// === impl ConfigurationFile ===

impl ConfigurationFile {
    /// Ready, with what follows, some time after the file's content is another one that can be
    /// used. That time is random, and `spread` at most. One that cannot is told about, here and by
    /// `report`, and is not used. A file that is gone or cannot be read is waited for: it may be in
    /// the middle of being replaced.
    pub async fn changed(self, check: Check, spread: Duration, report: impl Fn(bool)) -> Change {
        let watch = match Watch::new(folder(&self.path)) {
            Ok(watch) => Some(watch),
            Err(error) => {
                let path = self.path.display();
                warn!(
                    "cannot watch the folder of the configuration file {path}: {error}; the file \
                     is compared every {PERIOD:?} instead"
                );
                None
            }
        };
        let mut watched = Watched { file: self, check, rejected: None, is_unreadable: false };
        loop {
            if let Some((new, change)) = watched.usable_change().await {
                let delay = spread::random_up_to(spread);
                let follows = match &change {
                    Change::Restart => "the program ends".to_owned(),
                    Change::TakeOn(new) => format!("mode {} is taken on", new.configured_mode),
                };
                info!("{UPDATED}; the new content is valid: {follows} in {delay:.0?}");
                sleep(delay).await;
                if watched.read() == Some(new) {
                    return change;
                }
                continue;
            }
            report(watched.rejected.is_some() || watched.is_unreadable);
            match &watch {
                Some(watch) => {
                    tokio::select! {
                        () = watch.notified() => sleep(SETTLE).await,
                        () = sleep(PERIOD) => {}
                    }
                }
                None => sleep(PERIOD).await,
            }
        }
    }
}

// === impl Watched ===

impl Watched {
    /// The file's content with what follows, if it is another one than is in force, and can be used.
    async fn usable_change(&mut self) -> Option<(Vec<u8>, Change)> {
        let content = self.read()?;
        if content == self.file.content {
            if self.rejected.take().is_some() {
                info!(
                    "the configuration file {} has the content again that is in force",
                    self.file.path.display()
                );
            }
            return None;
        }
        if self.rejected.as_ref() == Some(&content) {
            return None;
        }
        let check = Arc::clone(&self.check);
        // It may run programs to find out what the host can do.
        let checked =
            spawn_blocking(move || check()).await.unwrap_or_else(|ended| Err(ended.into()));
        match checked {
            Ok(change) => {
                self.rejected = None;
                Some((content, change))
            }
            Err(problem) => {
                error!(
                    "the configuration file {} has changed and is not valid: {problem:#}; the \
                     configuration read at the start stays in force, and the program could not \
                     start again",
                    self.file.path.display()
                );
                self.rejected = Some(content);
                None
            }
        }
    }

    fn read(&mut self) -> Option<Vec<u8>> {
        let content = std::fs::read(&self.file.path);
        if let Err(error) = &content
            && !self.is_unreadable
        {
            let path = self.file.path.display();
            warn!(
                "cannot read the configuration file {path}: {error}; the configuration read at the \
                 start stays in force"
            );
        }
        self.is_unreadable = content.is_err();
        content.ok()
    }
}

/// A watched folder (inotify(7)). The runtime has no word for it: it is held as what it behaves
/// like, the reading end of a pipe, which the kernel writes notifications to.
struct Watch {
    instance: Receiver,
}

// === impl Watch ===

impl Watch {
    fn new(folder: &Path) -> io::Result<Self> {
        let instance = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let instance = Receiver::from_owned_fd_unchecked(instance)?;
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&instance, folder, flags)?;
        Ok(Self { instance })
    }

    /// Returns when something in the folder changed since the last call.
    async fn notified(&self) {
        let mut buffer = [0; BUFFER_BYTES];
        let mut seen = false;
        while !seen {
            if self.instance.readable().await.is_err() {
                // The runtime is shutting down.
                return std::future::pending().await;
            }
            while matches!(self.instance.try_read(&mut buffer), Ok(1..)) {
                seen = true;
            }
        }
    }
}

/// The folder that a file is in, which is the working directory's for a bare name.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str() != OsStr::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);
    const NOT_YET: Duration = Duration::from_millis(600);

    /// A file of which nothing can be used that contains "wrong".
    fn changed(path: PathBuf, rejected: &AtomicBool) -> impl Future<Output = Change> {
        let file = ConfigurationFile { content: fs::read(&path).unwrap(), path: path.clone() };
        let check = move || match fs::read_to_string(&path) {
            Ok(text) if !text.contains("wrong") => Ok(Change::Restart),
            other => Err(anyhow::anyhow!("{other:?}")),
        };
        file.changed(Arc::new(check), Duration::ZERO, |is| rejected.store(is, Ordering::Relaxed))
    }

    #[tokio::test]
    async fn another_content_is_noticed_and_the_same_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.conf");
        fs::write(&path, "mode: ipvs").unwrap();
        let rejected = AtomicBool::new(false);
        let changed = changed(path.clone(), &rejected);
        tokio::pin!(changed);
        // Touched, removed, and written again as it was.
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::write(&path, "mode: ipvs").unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::remove_file(&path).unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::write(&path, "mode: ipvs").unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());

        fs::write(&path, "mode: \"\"").unwrap();
        assert_eq!(timeout(SOON, changed).await, Ok(Change::Restart));
    }

    #[tokio::test]
    async fn a_config_maps_volume_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |version: &str, text: &str| {
            let data = folder.path().join(version);
            fs::create_dir(&data).unwrap();
            fs::write(data.join("config.conf"), text).unwrap();
            symlink(version, folder.path().join("..tmp")).unwrap();
            fs::rename(folder.path().join("..tmp"), folder.path().join("..data")).unwrap();
        };
        write("..1", "mode: ipvs");
        let path = folder.path().join("config.conf");
        symlink("..data/config.conf", &path).unwrap();
        let rejected = AtomicBool::new(false);
        let changed = changed(path, &rejected);
        tokio::pin!(changed);
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        write("..2", "mode: ipvs");
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        write("..3", "mode: ipvs # now");
        assert_eq!(timeout(SOON, changed).await, Ok(Change::Restart));
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_told_and_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.conf");
        fs::write(&path, "mode: ipvs").unwrap();
        let rejected = AtomicBool::new(false);
        let changed = changed(path.clone(), &rejected);
        tokio::pin!(changed);
        for (text, is_rejected) in [("wrong", true), ("wrong, too", true), ("mode: ipvs", false)] {
            fs::write(&path, text).unwrap();
            let is_told = async {
                while rejected.load(Ordering::Relaxed) != is_rejected {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                _ = &mut changed => panic!("{text} is used"),
                told = timeout(SOON, is_told) => told.unwrap(),
            }
            assert!(timeout(NOT_YET, &mut changed).await.is_err());
        }
        fs::write(&path, "wrong").unwrap();
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        fs::write(&path, "mode: \"\"").unwrap();
        assert_eq!(timeout(SOON, changed).await, Ok(Change::Restart));
    }

    #[test]
    fn a_bare_name_is_in_the_working_directory() {
        assert_eq!(folder(Path::new("config.conf")), Path::new("."));
        assert_eq!(folder(Path::new("/config.conf")), Path::new("/"));
    }
}
