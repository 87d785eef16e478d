//! A folder of YAML files as the source: for a node without a cluster, and for trying things out.
//!
//! ```text
//!             inotify ("scan again")
//!                    │
//!  directory ──► scan ──► folder ──► SourceEvent channel ──► the reconciler
//!                    ▲
//!             every ten seconds
//! ```
//!
//! - `folder`: what the files say, all together; contents in, events out;
//! - `parse`: a file's text as objects; `object`: an object of any kind;
//! - `scan`: which files changed, and are not being written just now;

mod folder;
mod object;
mod parse;
mod scan;
#[cfg(test)]
mod tests;

pub use folder::{FileChange, FileName, Folder, FolderScan};
pub use object::Object;
pub(super) use parse::documents;
pub use parse::{ParseError, parse};

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{Options, SourceEvent, Warning, WarningSubject};
use crate::inotify::Inotify;
use scan::{Scan, Scanner};

/// Time for which a file has to stay unchanged before it is read: a file that is being written may
/// parse and hold only half of its objects.
const STABLE_TIME: Duration = Duration::from_millis(50);

/// Interval at which the directory is scanned without a notification: not every filesystem has
/// them.
const RESCAN: Duration = Duration::from_secs(10);

/// Interval without inotify, or while the directory is not there.
const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);

/// Longest time that the first complete list waits for files that are being written.
const FIRST_LIST_PATIENCE: Duration = Duration::from_secs(5);

/// A folder of manifests, not yet read.
#[derive(Debug)]
pub struct Manifests {
    scanner: Scanner,
}

/// The folder cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot list the manifest directory {}: {source}; \
     --manifests takes an existing directory that this process may read", directory.display()
)]
pub struct Error {
    directory: PathBuf,
    source: io::Error,
}

impl Manifests {
    /// Looks whether the directory can be listed.
    ///
    /// # Errors
    /// The directory cannot be listed: its path may be mistyped.
    pub fn new(directory: impl Into<PathBuf>, options: &Options) -> Result<Self, Error> {
        let directory = directory.into();
        match std::fs::read_dir(&directory) {
            Ok(_) => Ok(Self { scanner: Scanner::new(directory, options) }),
            Err(source) => Err(Error { directory, source }),
        }
    }

    /// Delivers what the files say, and every change as it is saved, until the receiver is
    /// dropped. Needs a runtime with time and I/O. A channel that closes while its receiver is
    /// there means that reading the files panicked.
    pub async fn run(self, sink: Sender<SourceEvent>) {
        let mut scanner = self.scanner;
        let watch = match Inotify::new() {
            Ok(watch) => Some(Arc::new(watch)),
            Err(error) => {
                let text = format!(
                    "changes are seen once a second only, because inotify_init failed: {error}; \
                     raise fs.inotify.max_user_instances"
                );
                let subject = WarningSubject::Path(scanner.directory().to_owned());
                let warning = Warning { subject, text };
                if sink.send(SourceEvent::Warning(warning)).await.is_err() {
                    return;
                }
                None
            }
        };
        scanner.watch_with(watch.clone());
        let started = Instant::now();
        let mut complete = false;
        loop {
            // Reading and parsing thousands of files must not hold up the runtime.
            let scanned = tokio::task::spawn_blocking(move || {
                let scan = scanner.scan();
                (scanner, scan)
            });
            let scan;
            (scanner, scan) = match scanned.await {
                Ok(done) => done,
                Err(error) => {
                    return warn!(%error, "reading the manifest directory panicked; this is a bug; \
                                          kube-ipvs exits");
                }
            };
            let Scan { outcome, pending, watched } = scan;
            let events = outcome.events.into_iter().map(SourceEvent::Change);
            let warnings = outcome.warnings.into_iter().map(SourceEvent::Warning);
            for event in warnings.chain(events) {
                if sink.send(event).await.is_err() {
                    return;
                }
            }
            if !complete && (!pending || started.elapsed() >= FIRST_LIST_PATIENCE) {
                complete = true;
                if sink.send(SourceEvent::Complete).await.is_err() {
                    return;
                }
            }
            let changed = async {
                match &watch {
                    Some(watch) if !pending => watch.changed().await,
                    _ => std::future::pending().await,
                }
            };
            let patience = match (pending, watched) {
                (true, _) => STABLE_TIME,
                (false, true) => RESCAN,
                (false, false) => RESCAN_UNWATCHED,
            };
            tokio::select! {
                () = sink.closed() => return,
                () = sleep(patience) => {}
                () = changed => sleep(STABLE_TIME).await,
            }
        }
    }
}
