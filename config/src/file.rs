//! The file of the configuration.

use std::fmt;
use std::path::{Path, PathBuf};

use super::read::{self, Documents};

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The file that the configuration was read from, as it was then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationFile {
    /// Path of the file.
    pub path: PathBuf,
    pub content: Vec<u8>,
}

impl ConfigurationFile {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let length = std::fs::metadata(path).map_err(|error| unread(path, error))?.len();
        if length > MAX_FILE_BYTES {
            return Err(unread(
                path,
                format!("it has {length} bytes, and the limit is {MAX_FILE_BYTES}"),
            ));
        }
        let content = std::fs::read(path).map_err(|error| unread(path, error))?;
        Ok(Self { path: path.to_owned(), content })
    }

    pub(super) fn documents(&self) -> Result<Documents, String> {
        let text = std::str::from_utf8(&self.content).map_err(|error| unread(&self.path, error))?;
        read::read(text).map_err(|error| unread(&self.path, error))
    }
}

fn unread(path: &Path, why: impl fmt::Display) -> String {
    format!("read the configuration file {}: {why}", path.display())
}
