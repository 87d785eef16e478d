//! A tree of files for a guest, gathered in memory by name and written as one cpio archive.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cpio::newc::{self, ModeFileType};

use super::host_tool;

/// Files by their place in the guest. What is added later replaces what was there.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
}

#[derive(Debug, PartialEq)]
enum Node {
    Directory,
    HostFile { path: PathBuf, mode: u32 },
    Text { content: String, mode: u32 },
    Link { target: String },
}

impl Tree {
    /// Adds a directory that may stay empty.
    pub(crate) fn add_directory(&mut self, guest: &str) -> Result<()> {
        self.insert(guest, Node::Directory)
    }

    /// Adds a file with the given text.
    pub(crate) fn add_text(&mut self, guest: &str, mode: u32, content: String) -> Result<()> {
        self.insert(guest, Node::Text { content, mode })
    }

    /// Adds a symbolic link.
    pub(crate) fn add_link(&mut self, guest: &str, target: &str) -> Result<()> {
        self.insert(guest, Node::Link { target: target.to_owned() })
    }

    /// Adds a file of the host, or a directory with everything below it. The name itself may be a
    /// link and is followed; links inside a directory stay links.
    pub(crate) fn add_from_host(&mut self, guest: &str, host: &Path) -> Result<()> {
        let about = || format!("cannot read {}", host.display());
        let metadata = std::fs::metadata(host).with_context(about)?;
        if !metadata.is_dir() {
            ensure!(metadata.is_file(), "{} is neither a file nor a directory", host.display());
            let mode = metadata.permissions().mode();
            return self.insert(guest, Node::HostFile { path: host.to_owned(), mode });
        }
        self.insert(guest, Node::Directory)?;
        for entry in std::fs::read_dir(host).with_context(about)? {
            let entry = entry.with_context(about)?;
            let inside = format!("{guest}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().with_context(about)?.is_symlink() {
                let target = std::fs::read_link(entry.path()).with_context(about)?;
                self.add_link(&inside, &target.to_string_lossy())?;
            } else {
                self.add_from_host(&inside, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Adds the shared libraries that programs and libraries of the host need, at the places where
    /// the host has them.
    pub(crate) fn add_libraries_of(&mut self, files: &[PathBuf]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        // It fails for files that are not linked dynamically, and those need nothing.
        let output = host_tool::output_whatever_status(Command::new("ldd").args(files))?;
        for library in parse_ldd(&String::from_utf8_lossy(&output.stdout)) {
            self.add_from_host(&library, Path::new(&library))?;
        }
        Ok(())
    }

    /// The same for every host file that is in the tree.
    pub(crate) fn add_libraries(&mut self) -> Result<()> {
        let files: Vec<PathBuf> = self
            .nodes
            .values()
            .filter_map(|node| match node {
                Node::HostFile { path, .. } if is_elf(path) => Some(path.clone()),
                _ => None,
            })
            .collect();
        self.add_libraries_of(&files)
    }

    /// True if there is something at this place.
    pub(crate) fn contains(&self, guest: &str) -> bool {
        place(guest).is_ok_and(|place| self.nodes.contains_key(&place))
    }

    /// Writes the whole tree as one archive in the format "newc", which another one may follow
    /// directly. The same content gives the same bytes: everything belongs to root, for any user that
    /// runs this, and the time stamps are zero.
    pub(crate) fn write(&self, mut sink: impl Write) -> Result<()> {
        for ((place, node), inode) in self.nodes.iter().zip(1..) {
            let (kind, mode, content) = match node {
                Node::Directory => (ModeFileType::Directory, 0o755, Cow::default()),
                Node::Text { content, mode } => {
                    (ModeFileType::Regular, *mode, Cow::from(content.as_bytes()))
                }
                Node::Link { target } => {
                    (ModeFileType::Symlink, 0o777, Cow::from(target.as_bytes()))
                }
                Node::HostFile { path, mode } => {
                    let content = std::fs::read(path)
                        .with_context(|| format!("cannot read {}", path.display()))?;
                    (ModeFileType::Regular, *mode, Cow::from(content))
                }
            };
            let size = u32::try_from(content.len())
                .with_context(|| format!("{place} is too large for a cpio archive"))?;
            let entry = newc::Builder::new(place).ino(inode).mode(mode).set_mode_file_type(kind);
            let mut entry = entry.write(&mut sink, size);
            entry
                .write_all(&content)
                .and_then(|()| entry.finish())
                .context("cannot write the guest's initramfs")?;
        }
        newc::trailer(sink)
            .and_then(|mut sink| sink.flush())
            .context("cannot write the guest's initramfs")
    }

    fn insert(&mut self, guest: &str, node: Node) -> Result<()> {
        let place = place(guest)?;
        for (end, _) in place.match_indices('/') {
            let parent = place.get(..end).unwrap_or_default();
            self.nodes.entry(parent.to_owned()).or_insert(Node::Directory);
        }
        self.nodes.insert(place, node);
        Ok(())
    }
}

/// A guest path as the archive names it: relative to the root, and below `usr` where the root has
/// links to there. An archive with a directory `lib` would replace that link.
fn place(guest: &str) -> Result<String> {
    let parts: Vec<&str> =
        guest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    ensure!(
        !parts.is_empty() && !parts.contains(&".."),
        "`{guest}` is not a path inside the guest"
    );
    let below_usr = parts.len() > 1
        && parts.first().is_some_and(|first| ["bin", "sbin", "lib", "lib64"].contains(first));
    let path = parts.join("/");
    Ok(if below_usr { format!("usr/{path}") } else { path })
}

fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// The libraries and loaders in the output of ldd(1), each once.
fn parse_ldd(text: &str) -> Vec<String> {
    let mut libraries: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with('\t'))
        .filter_map(|line| {
            let path = line.split_once("=>").map_or(line, |(_, path)| path);
            path.split_whitespace().next().filter(|path| path.starts_with('/'))
        })
        .map(str::to_owned)
        .collect();
    libraries.sort();
    libraries.dedup();
    libraries
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn places_follow_the_merged_usr() {
        assert_eq!(
            place("/lib/x86_64-linux-gnu/libc.so.6").unwrap(),
            "usr/lib/x86_64-linux-gnu/libc.so.6"
        );
        assert_eq!(place("lib").unwrap(), "lib");
        assert_eq!(place("/job//a/./b").unwrap(), "job/a/b");
        assert!(place("/").is_err());
        assert!(place("../etc/passwd").is_err());
    }

    #[test]
    fn parents_come_with_what_is_in_them() {
        let mut tree = Tree::default();
        tree.add_text("a/b/c", 0o644, "text".to_owned()).unwrap();
        let places: Vec<&String> = tree.nodes.keys().collect();
        assert_eq!(places, ["a", "a/b", "a/b/c"]);
        assert!(tree.contains("/a/b") && !tree.contains("/a/x"));
    }

    #[test]
    fn a_host_directory_comes_whole() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("inner")).unwrap();
        std::fs::write(directory.path().join("inner/file"), "text").unwrap();
        std::os::unix::fs::symlink("inner/file", directory.path().join("link")).unwrap();
        let mut tree = Tree::default();
        tree.add_from_host("/job/data", directory.path()).unwrap();
        assert!(matches!(tree.nodes.get("job/data/inner/file"), Some(Node::HostFile { .. })));
        let link = Node::Link { target: "inner/file".to_owned() };
        assert_eq!(tree.nodes.get("job/data/link"), Some(&link));
        assert!(tree.add_from_host("/job/x", Path::new("/nowhere/at/all")).is_err());
    }

    #[test]
    fn what_was_written_is_read_back_and_the_same_content_gives_the_same_bytes() {
        let mut tree = Tree::default();
        tree.add_text("etc/odd", 0o640, "odd".to_owned()).unwrap();
        tree.add_text("etc/special", 0o4755, String::new()).unwrap();
        tree.add_link("bin", "usr/bin").unwrap();
        let archive = || {
            let mut archive = Vec::new();
            tree.write(&mut archive).unwrap();
            archive
        };
        let written = archive();
        assert_eq!(written, archive());
        assert_eq!(written.len() % 4, 0);
        let mut rest = &written[..];
        for (inode, name, mode, expected) in [
            (1, "bin", 0o120_777, "usr/bin"),
            (2, "etc", 0o040_755, ""),
            (3, "etc/odd", 0o100_640, "odd"),
            (4, "etc/special", 0o104_755, ""),
        ] {
            let mut entry = newc::Reader::new(rest).unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let head = entry.entry();
            assert_eq!((head.ino(), head.name(), head.mode()), (inode, name, mode));
            assert_eq!((head.uid(), head.gid(), head.nlink(), head.mtime()), (0, 0, 1, 0));
            assert_eq!(content, expected);
            rest = entry.finish().unwrap();
        }
        let last = newc::Reader::new(rest).unwrap();
        assert!(last.entry().is_trailer());
        assert!(last.finish().unwrap().is_empty());
    }

    #[test]
    fn ldd_lines_of_all_kinds() {
        let text = "/usr/sbin/ip:\n\tlinux-vdso.so.1 (0x00007fff)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \tlibmissing.so => not found\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\
            /bin/busybox:\n\tnot a dynamic executable\n\
            /usr/sbin/tc:\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n";
        assert_eq!(
            parse_ldd(text),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
    }
}
