//! A directory for the files of one run.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PREFIX: &str = "run-";
const LOCK: &str = "lock";

/// A directory that goes away with its owner. When the owner is killed, the next one removes it.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) directory: PathBuf,
    /// Locked as long as the owner lives, which the kernel ends whatever the owner dies of.
    _lock: File,
    _removal: tempfile::TempDir,
}

impl Scratch {
    /// Makes one below `parent`, after removing what dead owners left there.
    pub(crate) fn make(parent: &Path) -> Result<Self> {
        let about = || format!("no directory can be made in {}", parent.display());
        std::fs::create_dir_all(parent).with_context(about)?;
        // Held until the new directory is locked: before, another process could remove it.
        let turn = File::create(parent.join(LOCK)).with_context(about)?;
        turn.lock().with_context(about)?;
        remove_abandoned(parent);
        let made =
            tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent).with_context(about)?;
        let lock = File::create(made.path().join(LOCK)).with_context(about)?;
        lock.lock().with_context(about)?;
        Ok(Self { directory: made.path().to_owned(), _lock: lock, _removal: made })
    }
}

/// Removes the directories that dead owners left. Errors are ignored: if space is short, a later
/// step fails as well and can report it better.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let lock = File::open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_owners_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let abandoned = parent.path().join("run-abandoned");
        let foreign = parent.path().join("other");
        for directory in [&abandoned, &foreign] {
            std::fs::create_dir(directory).unwrap();
            File::create(directory.join(LOCK)).unwrap();
        }
        let first = Scratch::make(parent.path()).unwrap();
        let second = Scratch::make(parent.path()).unwrap();
        assert!(!abandoned.exists() && foreign.exists());
        assert!(first.directory.exists() && second.directory.exists());
        let gone = second.directory.clone();
        drop(second);
        assert!(!gone.exists() && first.directory.exists());
    }
}
