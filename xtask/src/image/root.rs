//! A root file system in memory, from which layers are made.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, GzBuilder};
use tar::{Archive, Builder, EntryType, Header};

use crate::vm::debian::Package;
use crate::vm::host_tool;

/// Folders of which an image has no use: documentation but for licences, and other languages.
const LEFT_OUT: [&str; 8] = [
    "usr/share/bash-completion/",
    "usr/share/bug/",
    "usr/share/info/",
    "usr/share/lintian/",
    "usr/share/locale/",
    "usr/share/man/",
    "usr/share/zsh/",
    "usr/share/initramfs-tools/",
];
/// Conversions between character sets, which nothing in here does.
const CONVERSIONS: &str = "/gconv/";
/// Folders of `/` that are links into `/usr`.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// Files by their paths without the first slash.
#[derive(Debug, Default)]
pub(crate) struct Root(BTreeMap<String, Node>);

#[derive(Debug, PartialEq, Eq)]
enum Node {
    Folder { mode: u32 },
    File { mode: u32, contents: Vec<u8> },
    Link { target: String },
}

impl Root {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, contents: Vec<u8>) -> Result<()> {
        self.insert(path, Node::File { mode, contents })
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.insert(path, Node::Link { target: target.to_owned() })
    }

    pub(crate) fn folder(&mut self, path: &str, mode: u32) -> Result<()> {
        self.insert(path, Node::Folder { mode })
    }

    /// Takes out the files below a folder, in the order of their names.
    pub(crate) fn take_all(&mut self, folder: &str) -> Vec<Vec<u8>> {
        let all = std::mem::take(&mut self.0);
        let (taken, left) = all.into_iter().partition(|(path, _)| path.starts_with(folder));
        self.0 = left;
        let taken: BTreeMap<String, Node> = taken;
        let contents = taken.into_values().filter_map(|node| match node {
            Node::File { contents, .. } => Some(contents),
            Node::Folder { .. } | Node::Link { .. } => None,
        });
        contents.collect()
    }

    /// Adds what a package has, as dpkg would, without running its scripts. What is installed is noted
    /// where scanners of images look for it (`/var/lib/dpkg/status.d`).
    pub(crate) fn unpack(&mut self, package: &Package) -> Result<()> {
        for path in MERGED {
            self.link(path, &format!("usr/{path}"))?;
        }
        let name = package.field("Package");
        let mut dpkg = Command::new("dpkg-deb");
        let files = host_tool::output(dpkg.arg("--fsys-tarfile").arg(&package.file))?;
        let mut archive = Archive::new(files.as_slice());
        for entry in archive.entries()? {
            let mut entry = entry.with_context(|| format!("read the package {name}"))?;
            let path = entry.path()?.to_string_lossy().into_owned();
            let path = merged(path.trim_start_matches("./").trim_end_matches('/'));
            if path.is_empty() || is_left_out(&path) {
                continue;
            }
            let mode = entry.header().mode()? & 0o7777;
            match entry.header().entry_type() {
                EntryType::Directory if MERGED.contains(&path.as_str()) => {}
                EntryType::Directory => self.folder(&path, mode)?,
                EntryType::Regular => {
                    let mut contents = Vec::new();
                    entry.read_to_end(&mut contents)?;
                    self.file(&path, mode, contents)?;
                }
                EntryType::Symlink => {
                    let target = entry.link_name()?.with_context(|| {
                        format!("{path} in the package {name} is a link without a target")
                    })?;
                    self.link(&path, &target.to_string_lossy())?;
                }
                EntryType::Link => {
                    let target = entry.link_name()?.with_context(|| {
                        format!("{path} in the package {name} is a link without a target")
                    })?;
                    let target = target.to_string_lossy();
                    let target = merged(target.trim_start_matches("./"));
                    self.copy(&target, &path)
                        .with_context(|| format!("cannot unpack the package {name}"))?;
                }
                other => bail!(
                    "{path} in the package {name} is a {other:?}, and only files, folders and links are supported"
                ),
            }
        }
        let status = format!("var/lib/dpkg/status.d/{name}");
        let installed = format!("{}Status: install ok installed\n", package.control);
        self.file(&status, 0o644, installed.into_bytes())
    }

    /// Another name of a file, which becomes another file.
    fn copy(&mut self, from: &str, to: &str) -> Result<()> {
        match self.0.get(from) {
            Some(Node::File { mode, contents }) => {
                let (mode, contents) = (*mode, contents.clone());
                self.file(to, mode, contents)
            }
            other => bail!("{to} is a hard link to {from}, which is no file: {other:?}"),
        }
    }

    fn insert(&mut self, path: &str, node: Node) -> Result<()> {
        ensure!(
            !path.starts_with('/') && !path.contains(".."),
            "{path} is not a relative path inside the image"
        );
        let parents: Vec<&str> = path.match_indices('/').map(|(at, _)| &path[..at]).collect();
        for parent in parents {
            match self.0.get(parent) {
                None => drop(self.0.insert(parent.to_owned(), Node::Folder { mode: 0o755 })),
                Some(Node::Folder { .. }) => {}
                Some(other) => bail!("cannot add {path}: {parent} is no folder: {other:?}"),
            }
        }
        match (self.0.get(path), &node) {
            (None, _) => {}
            // Packages share folders.
            (Some(Node::Folder { .. }), Node::Folder { .. }) => return Ok(()),
            (Some(there), new) if there == new => return Ok(()),
            (Some(_), _) => bail!("two packages have a different {path}"),
        }
        self.0.insert(path.to_owned(), node);
        Ok(())
    }

    /// Adds the files below a folder of the machine, under a path.
    pub(crate) fn add_folder(&mut self, folder: &Path, path: &str) -> Result<()> {
        let entries =
            fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = format!("{path}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.add_folder(&entry.path(), &path)?;
            } else {
                let contents = fs::read(entry.path());
                let contents =
                    contents.with_context(|| format!("cannot read {}", entry.path().display()))?;
                self.file(&path, 0o644, contents)?;
            }
        }
        Ok(())
    }

    /// The same as [`archive`](Self::archive), compressed: the same files are the same bytes.
    pub(crate) fn compressed(&self, time: u64) -> Result<Vec<u8>> {
        compress(&self.archive(time)?)
    }

    /// The files as a tar archive, in the order of their paths, root's, with this time.
    pub(crate) fn archive(&self, time: u64) -> Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, node) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_mtime(time);
            header.set_uid(0);
            header.set_gid(0);
            match node {
                Node::Folder { mode } => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    builder.append_data(&mut header, format!("{path}/"), [].as_slice())?;
                }
                Node::File { mode, contents } => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(contents.len() as u64);
                    builder.append_data(&mut header, path, contents.as_slice())?;
                }
                Node::Link { target } => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    builder.append_link(&mut header, path, target)?;
                }
            }
        }
        Ok(builder.into_inner()?)
    }
}

/// Compresses without a time and a name in the header.
pub(super) fn compress(archive: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(archive)?;
    Ok(encoder.finish()?)
}

/// A path of a package that still has the folders of `/` apart.
fn merged(path: &str) -> String {
    match path.split_once('/') {
        Some((first, rest)) if MERGED.contains(&first) => format!("usr/{first}/{rest}"),
        _ => path.to_owned(),
    }
}

fn is_left_out(path: &str) -> bool {
    let is_documentation = path.starts_with("usr/share/doc/") && !path.ends_with("/copyright");
    is_documentation
        || path.contains(CONVERSIONS)
        || LEFT_OUT.iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(archive: &[u8]) -> Vec<String> {
        let mut archive = Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| entry.path().unwrap().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn files_come_in_order_with_the_folders_that_they_need() {
        let mut root = Root::new();
        root.file("usr/sbin/b", 0o755, b"b".to_vec()).unwrap();
        root.link("usr/sbin/a", "b").unwrap();
        root.folder("tmp", 0o1777).unwrap();
        let archive = root.archive(7).unwrap();
        assert_eq!(names(&archive), ["tmp/", "usr/", "usr/sbin/", "usr/sbin/a", "usr/sbin/b"]);
        assert_eq!(root.archive(7).unwrap(), archive);
        assert_ne!(root.archive(8).unwrap(), archive);
    }

    #[test]
    fn a_path_has_one_file() {
        let mut root = Root::new();
        root.file("etc/x", 0o644, b"one".to_vec()).unwrap();
        root.file("etc/x", 0o644, b"one".to_vec()).unwrap();
        assert!(root.file("etc/x", 0o644, b"two".to_vec()).is_err());
        assert!(root.file("etc/x/y", 0o644, Vec::new()).is_err());
        assert!(root.file("../x", 0o644, Vec::new()).is_err());
        assert_eq!(root.take_all("etc/"), [b"one"]);
    }

    #[test]
    fn what_an_image_has_no_use_for_is_left_out() {
        assert_eq!(merged("lib/x86_64-linux-gnu/libc.so.6"), "usr/lib/x86_64-linux-gnu/libc.so.6");
        assert_eq!(merged("usr/lib/a"), "usr/lib/a");
        assert!(
            is_left_out("usr/share/doc/kmod/changelog.gz") && is_left_out("usr/share/man/man8/x")
        );
        assert!(!is_left_out("usr/share/doc/kmod/copyright"));
    }
}
