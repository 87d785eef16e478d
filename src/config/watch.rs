//! Notices that the configuration file has another content than it was read with.
//!
//! kube-proxy watches the file itself, and ends on any write to it: also on one that changes
//! nothing, but not when a ConfigMap's volume is changed, where the file is a symbolic link through
//! `..data`, which is replaced. Here the folder is watched, and the content is compared.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;
use tokio::time::sleep;
use tracing::warn;

use super::ConfigurationFile;

/// What happened, in kube-proxy's words.
pub const UPDATED: &str = "content of the proxy server's configuration file was updated";

/// Without any word from the kernel, the file is looked at this often: a link may lead to a folder
/// that is not watched.
const PERIOD: Duration = Duration::from_secs(10);

/// A write comes in several parts. The file is looked at when it has been left alone for this long.
const SETTLE: Duration = Duration::from_millis(200);

/// Notifications are thrown away in portions of this many octets.
const BUFFER_OCTETS: usize = 4_096;

// === impl ConfigurationFile ===

impl ConfigurationFile {
    /// Ready, with what happened, once the file's content is another one. A file that is gone or
    /// cannot be read is waited for: it may be in the middle of being replaced.
    pub async fn changed(self) -> &'static str {
        let watch = match Watch::new(folder(&self.path)) {
            Ok(watch) => Some(watch),
            Err(error) => {
                let path = self.path.display();
                warn!("cannot watch the folder of {path}: {error}; it is looked at periodically");
                None
            }
        };
        let mut complained = false;
        loop {
            match std::fs::read(&self.path) {
                Ok(content) if content != self.content => return UPDATED,
                Ok(_) => complained = false,
                Err(error) if !complained => {
                    let path = self.path.display();
                    warn!("cannot read {path}: {error}; what was read at the start stays in force");
                    complained = true;
                }
                Err(_) => {}
            }
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
        let mut buffer = [0; BUFFER_OCTETS];
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

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);
    const NOT_YET: Duration = Duration::from_millis(600);

    fn file(path: PathBuf) -> ConfigurationFile {
        ConfigurationFile { content: fs::read(&path).unwrap(), path }
    }

    #[tokio::test]
    async fn another_content_is_noticed_and_the_same_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.conf");
        fs::write(&path, "mode: ipvs").unwrap();
        let changed = file(path.clone()).changed();
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
        assert_eq!(timeout(SOON, changed).await, Ok(UPDATED));
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
        let changed = file(path).changed();
        tokio::pin!(changed);
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        write("..2", "mode: ipvs");
        assert!(timeout(NOT_YET, &mut changed).await.is_err());
        write("..3", "mode: ipvs # now");
        assert_eq!(timeout(SOON, changed).await, Ok(UPDATED));
    }

    #[test]
    fn a_bare_name_is_in_the_working_directory() {
        assert_eq!(folder(Path::new("config.conf")), Path::new("."));
        assert_eq!(folder(Path::new("/config.conf")), Path::new("/"));
    }
}
