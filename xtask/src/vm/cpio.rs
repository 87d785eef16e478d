//! Writing cpio archives in the "newc" format, which the kernel unpacks as its first root.
//!
//! Format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst. Everything
//! belongs to root, for any user that runs this, and the time stamps are zero. So the same content
//! gives the same bytes.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const TRAILER: &str = "TRAILER!!!";

/// Writes one archive entry by entry. Parents must come before what is in them.
pub(crate) struct Writer<W> {
    sink: W,
    entries: u32,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(sink: W) -> Self {
        Self { sink, entries: 0 }
    }

    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY | 0o755, &[])
    }

    /// `mode` has the permission bits alone.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, REGULAR | (mode & 0o7777), content)
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, LINK | 0o777, target.as_bytes())
    }

    /// Ends the archive. Another one may follow it directly.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry(TRAILER, 0, &[])?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::other(format!("{path} is too large for a cpio archive"));
        let content_size = u32::try_from(content.len()).map_err(too_large)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_large)?;
        self.entries += 1;
        // Inode, mode, user, group, links, time, size, two device pairs, name size, checksum. One
        // link only: with more, the kernel would look for another name of the same inode.
        let header = [self.entries, mode, 0, 0, 1, 0, content_size, 0, 0, 0, 0, name_size, 0];
        let mut head = String::from("070701");
        for number in header {
            head.push_str(&format!("{number:08x}"));
        }
        head.push_str(path);
        head.push('\0');
        self.padded(head.as_bytes())?;
        self.padded(content)
    }

    /// Header with name, and content, each end on a multiple of four bytes.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.sink.write_all([0; 4].get(..padding).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Entry {
        path: String,
        mode: u32,
        content: Vec<u8>,
    }

    fn mk_archive() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        writer.directory("etc").unwrap();
        writer.file("etc/odd", 0o640, b"odd").unwrap();
        writer.file("etc/empty", 0o4755, b"").unwrap();
        writer.link("bin", "usr/bin").unwrap();
        writer.finish().unwrap()
    }

    /// Reads an archive as the format's description says.
    fn read(mut archive: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        loop {
            let (head, rest) = archive.split_at(110);
            assert_eq!(&head[..6], b"070701");
            let number = |index: usize| {
                let digits = std::str::from_utf8(&head[6 + index * 8..14 + index * 8]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (content_size, name_size) = (number(6) as usize, number(11) as usize);
            let path = String::from_utf8(rest[..name_size - 1].to_vec()).unwrap();
            assert_eq!(rest[name_size - 1], 0);
            let rest = &rest[(110 + name_size).next_multiple_of(4) - 110..];
            if path == TRAILER {
                assert!(rest.is_empty());
                return entries;
            }
            entries.push(Entry { path, mode: number(1), content: rest[..content_size].to_vec() });
            archive = &rest[content_size.next_multiple_of(4)..];
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let entry = |path: &str, mode, content: &[u8]| Entry {
            path: path.to_owned(),
            mode,
            content: content.to_vec(),
        };
        assert_eq!(
            read(&mk_archive()),
            [
                entry("etc", 0o040_755, b""),
                entry("etc/odd", 0o100_640, b"odd"),
                entry("etc/empty", 0o104_755, b""),
                entry("bin", 0o120_777, b"usr/bin"),
            ]
        );
    }

    #[test]
    fn every_entry_has_an_inode_of_its_own_and_the_same_content_gives_the_same_bytes() {
        let archive = mk_archive();
        assert_eq!(archive, mk_archive());
        assert_eq!(archive.len() % 4, 0);
        assert!(archive.starts_with(b"07070100000001"));
    }
}
