//! Files of the directory that changed, and are not being written just now.
//!
//! A look at the directory gives every manifest's stamp (which file it is, its size, its times). A
//! file is acted upon when its stamp is not the one that it was read with, and is the same as at
//! the look before: then no program wrote to it in between. A file that is gone has to be gone at
//! two looks too, because many editors move a file away before they write the new one.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::info;

use super::folder::{FileChange, FileName, Folder, FolderScan};
use super::parse::MAX_FILE_BYTES;
use crate::inotify::{Inotify, WatchDescriptor};
use crate::{Options, Warning, WarningSubject};

/// Extensions of the files that are read.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Looks at a directory time and again, and says what the changes in it lead to.
#[derive(Debug)]
pub(super) struct Scanner {
    directory: PathBuf,
    folder: Folder,
    watch: Option<Arc<Inotify>>,
    watched: Option<WatchDescriptor>,
    /// The directory that was listed last.
    identity: Option<DirectoryIdentity>,
    state: DirectoryState,
    /// The files as they were read.
    read: Stamps,
    /// The files as they were at the last look.
    seen: Stamps,
}

/// Result of a look at the directory.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) outcome: FolderScan,
    /// True if there are files that have to be looked at again soon.
    pub(super) pending: bool,
    /// True if the kernel says when something changes.
    pub(super) watched: bool,
}

/// The directory, from one look to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectoryState {
    /// There, as always.
    Present,
    /// Gone or not readable, which has been reported.
    Missing,
    /// There again, or another one by the same name. As long as it holds no manifest at all it is
    /// taken to be still being filled, or to be what was below a mount that went away.
    Replaced,
}

#[derive(Debug, Clone, Copy)]
struct DirectoryIdentity {
    device: u64,
    inode: u64,
    watched: Option<WatchDescriptor>,
}

type Stamps = BTreeMap<FileName, Stamp>;

/// Properties that tell one state of a file from another one without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stamp {
    File { device: u64, inode: u64, size: u64, modified: (i64, i64), changed: (i64, i64) },
    Unreadable(String),
}

impl Scanner {
    pub(super) fn new(directory: PathBuf, options: &Options) -> Self {
        Self {
            folder: Folder::new(&directory, options),
            directory,
            watch: None,
            watched: None,
            identity: None,
            state: DirectoryState::Present,
            read: Stamps::new(),
            seen: Stamps::new(),
        }
    }

    pub(super) fn watch_with(&mut self, watch: Option<Arc<Inotify>>) {
        self.watch = watch;
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Looks at the directory.
    pub(super) fn scan(&mut self) -> Scan {
        let mut warnings = Vec::new();
        let listing = match self.look(&mut warnings) {
            Ok(listing) => listing,
            Err(error) => {
                warnings.extend(self.missing(&error));
                let outcome = FolderScan { warnings, ..FolderScan::default() };
                return Scan { outcome, pending: false, watched: false };
            }
        };
        let may_be_gone = self.update_state(&listing);
        let names: BTreeSet<_> = self.read.keys().chain(listing.keys()).cloned().collect();
        let mut changes = Vec::new();
        let mut pending = false;
        for name in names {
            let now = listing.get(&name);
            if now == self.read.get(&name) || (now.is_none() && !may_be_gone) {
                continue;
            }
            if now != self.seen.get(&name) {
                pending = true;
                continue;
            }
            match self.read_again(&name, now) {
                Some(change) => changes.push((name, change)),
                None => pending = true,
            }
        }
        self.seen = listing;
        let mut outcome = self.folder.apply(changes);
        outcome.warnings.splice(0..0, warnings);
        Scan { outcome, pending, watched: self.watched.is_some() }
    }

    /// The manifests that are there. The directory is watched before it is listed, so that what
    /// happens after the listing is noticed.
    fn look(&mut self, warnings: &mut Vec<Warning>) -> io::Result<Stamps> {
        let now = self.watch.as_ref().map(|watch| watch.add(&self.directory)).transpose();
        let metadata = std::fs::metadata(&self.directory)?;
        let watched = now.unwrap_or_else(|error| {
            if self.watched.is_some() || self.identity.is_none() {
                let text = format!(
                    "changes are seen once a second only, because inotify_add_watch failed: {error}; \
                     raise fs.inotify.max_user_watches"
                );
                warnings.push(self.warning(text));
            }
            None
        });
        if let (Some(watch), Some(old)) = (&self.watch, self.watched)
            && watched != Some(old)
        {
            watch.remove(old);
        }
        self.watched = watched;
        let identity = DirectoryIdentity { device: metadata.dev(), inode: metadata.ino(), watched };
        if self.identity.is_some_and(|before| !before.is(identity)) {
            self.state = DirectoryState::Replaced;
        }
        self.identity = Some(identity);
        let mut listing = Stamps::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let Some(name) =
                entry.file_name().to_str().filter(|name| is_manifest(name)).map(Arc::from)
            else {
                continue;
            };
            listing.extend(Stamp::of(&entry.path()).map(|stamp| (name, stamp)));
        }
        Ok(listing)
    }

    /// Updates the state. Returns true if a file that is not listed may be taken as gone.
    fn update_state(&mut self, listing: &Stamps) -> bool {
        match self.state {
            DirectoryState::Present => return true,
            DirectoryState::Missing | DirectoryState::Replaced if listing.is_empty() => {
                self.state = DirectoryState::Replaced;
                return false;
            }
            DirectoryState::Missing | DirectoryState::Replaced => {}
        }
        info!(directory = %self.directory.display(), "manifest directory available again; its \
                                                      files are read");
        self.state = DirectoryState::Present;
        true
    }

    fn missing(&mut self, error: &io::Error) -> Option<Warning> {
        let was_reported =
            std::mem::replace(&mut self.state, DirectoryState::Missing) == DirectoryState::Missing;
        let text =
            format!("cannot list the manifest directory: {error}; its former content stays in use");
        (!was_reported).then(|| self.warning(text))
    }

    fn warning(&self, text: String) -> Warning {
        Warning { subject: WarningSubject::Path(self.directory.clone()), text }
    }

    /// Reads a file again. Returns what became of it, unless it is changing at this very moment.
    fn read_again(&mut self, name: &FileName, now: Option<&Stamp>) -> Option<FileChange> {
        let Some(stamp) = now else {
            self.read.remove(name);
            return Some(FileChange::Gone);
        };
        let change = match stamp {
            Stamp::Unreadable(reason) => FileChange::Unreadable(reason.clone()),
            Stamp::File { size, .. } if *size > MAX_FILE_BYTES => FileChange::Unreadable(format!(
                "it has {size} bytes, and the limit is {MAX_FILE_BYTES}"
            )),
            Stamp::File { .. } => {
                let path = self.directory.join(&**name);
                let change = match read(&path) {
                    Ok(bytes) => FileChange::Read(bytes),
                    Err(error) => FileChange::Unreadable(error.to_string()),
                };
                if Stamp::of(&path).as_ref() != Some(stamp) {
                    return None;
                }
                change
            }
        };
        self.read.insert(Arc::clone(name), stamp.clone());
        Some(change)
    }
}

impl DirectoryIdentity {
    /// A new directory may have an old one's inode number; what the kernel watches it by tells.
    fn is(self, other: Self) -> bool {
        let same_watch = match (self.watched, other.watched) {
            (Some(one), Some(another)) => one == another,
            _ => true,
        };
        same_watch && (self.device, self.inode) == (other.device, other.inode)
    }
}

impl Stamp {
    /// The stamp of a file, of what it points at if it is a symbolic link; nothing if there is no
    /// file.
    fn of(path: &Path) -> Option<Self> {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => Some(Self::of_file(&metadata)),
            Ok(metadata) if metadata.is_dir() => None,
            Ok(_) => Some(Self::Unreadable("it is not a regular file".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(Self::Unreadable(error.to_string())),
        }
    }

    fn of_file(metadata: &Metadata) -> Self {
        Self::File {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Hidden files are editors' and the kubelet's: a ConfigMap's files are links into `..data`.
fn is_manifest(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    !name.starts_with('.') && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// A file that grows while it is read ends at the limit, and its stamp then says that it changed.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
