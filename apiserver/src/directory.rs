//! Objects from a directory of files, for tests that cannot call the server.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::object::Identity;
use crate::server::Server;

/// A directory that is followed: its files are what the server has.
///
/// A file `NAME.json` holds one object, or a `List` of them. It must come by rename, so that it is
/// never seen half written; when it goes, its objects are deleted.
pub struct Directory {
    path: PathBuf,
    files: BTreeMap<PathBuf, File>,
}

struct File {
    stamp: Stamp,
    objects: Vec<Identity>,
}

/// Device and inode tell a renamed file from the one that it replaced; time and size, one that was
/// written in place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    modified: (i64, i64),
    size: u64,
}

impl Directory {
    /// A directory of which nothing has been read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), files: BTreeMap::new() }
    }

    /// Brings the server to what the files say now. What is wrong with a file is returned, and its
    /// earlier objects stay.
    ///
    /// # Errors
    ///
    /// The directory cannot be read; nothing has changed then.
    pub fn poll(&mut self, server: &Server) -> Result<Vec<String>> {
        let found = self.found()?;
        let mut gone: Vec<Identity> = Vec::new();
        let mut problems = Vec::new();
        self.files.retain(|path, file| {
            let stays = found.contains_key(path);
            if !stays {
                gone.append(&mut file.objects);
            }
            stays
        });
        for (path, stamp) in found {
            if self.files.get(&path).is_some_and(|file| file.stamp == stamp) {
                continue;
            }
            let file = self.files.entry(path.clone());
            let file = file.or_insert(File { stamp, objects: Vec::new() });
            file.stamp = stamp;
            match apply(server, &path) {
                Ok(objects) => gone.append(&mut std::mem::replace(&mut file.objects, objects)),
                Err(error) => problems.push(format!("{}: {error:#}", path.display())),
            }
        }
        // An object that has moved to another file is not deleted.
        let stays = |gone: &Identity| self.files.values().any(|file| file.objects.contains(gone));
        for identity in gone.iter().filter(|identity| !stays(identity)) {
            let namespace = identity.namespace.as_deref().unwrap_or("");
            server.delete(identity.resource, namespace, &identity.name);
        }
        Ok(problems)
    }

    fn found(&self) -> Result<BTreeMap<PathBuf, Stamp>> {
        let read = || format!("{} cannot be read", self.path.display());
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.path).with_context(read)? {
            let path = entry.with_context(read)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            // A file that has just gone is one that is not there.
            if let Ok(metadata) = fs::metadata(&path) {
                let stamp = Stamp {
                    inode: (metadata.dev(), metadata.ino()),
                    modified: (metadata.mtime(), metadata.mtime_nsec()),
                    size: metadata.size(),
                };
                found.insert(path, stamp);
            }
        }
        Ok(found)
    }
}

/// Applies the objects of a file: all of them, or none when one has no identity.
fn apply(server: &Server, path: &Path) -> Result<Vec<Identity>> {
    let text = fs::read(path).context("cannot be read")?;
    let mut content: Value = serde_json::from_slice(&text).context("is no JSON")?;
    let objects = match content.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![content],
    };
    let identities = objects.iter().map(Identity::of).collect::<Result<Vec<_>>>()?;
    for object in objects {
        server.apply(object)?;
    }
    Ok(identities)
}
