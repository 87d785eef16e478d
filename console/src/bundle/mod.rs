//! Support bundles: one archive with what is needed to find out what is wrong on a node.
//!
//! - `kernel` dumps virtual servers, sets, rules, addresses, by own readers;
//! - `host` collects sysctls, versions, counters and what /proc says of the program.

pub mod host;
pub mod kernel;

#[cfg(test)]
mod tests;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use crate::secrets::scrubbed;

/// Most bytes of a file in the bundle. The end of what is longer is left out.
pub const LONGEST_FILE: usize = 64 << 20;

/// Name of the file that lists the others.
const INDEX: &str = "index.txt";

/// Content of a support bundle.
#[derive(Debug, Clone)]
pub struct Bundle {
    longest_file: usize,
    files: Vec<BundledFile>,
    missing: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct BundledFile {
    name: String,
    text: String,
}

impl Bundle {
    /// An empty one, of whose files each has at most so many bytes.
    #[must_use]
    pub fn new(longest_file: usize) -> Self {
        Self { longest_file, files: Vec::new(), missing: Vec::new() }
    }

    /// Adds a text without its secrets, or the reason for which it is missing.
    pub fn add(&mut self, name: &str, text: Result<String, String>) {
        match text {
            Err(why) => self.missing.push((name.to_owned(), scrubbed(&why))),
            Ok(text) => {
                let mut text = scrubbed(&text);
                if text.len() > self.longest_file {
                    let end = (0..=self.longest_file).rev().find(|end| text.is_char_boundary(*end));
                    let end = end.unwrap_or_default();
                    let left_out = text.len() - end;
                    text.truncate(end);
                    text += &format!("\n… {left_out} more bytes are left out\n");
                }
                self.files.push(BundledFile { name: name.to_owned(), text });
            }
        }
    }

    /// Names of the files, in order, each with its number of bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        self.files.iter().map(|file| (file.name.as_str(), file.text.len()))
    }

    /// Texts of the files, as they get into the archive.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|file| (file.name.as_str(), file.text.as_str()))
    }

    /// Files that are not there, each with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        self.missing.iter().map(|(name, why)| (name.as_str(), why.as_str()))
    }

    /// Writes it as a compressed archive, all below one folder.
    pub fn write_to<W: Write>(&self, stream: W, folder: &str) -> io::Result<W> {
        let mut archive = Builder::new(GzEncoder::new(stream, Compression::default()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let index = BundledFile { name: INDEX.to_owned(), text: self.index() };
        for file in std::iter::once(&index).chain(&self.files) {
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Regular);
            header.set_mode(0o600);
            header.set_mtime(now);
            header.set_size(file.text.len() as u64);
            let path = format!("{folder}/{}", file.name);
            archive.append_data(&mut header, path, file.text.as_bytes())?;
        }
        archive.into_inner()?.finish()
    }

    /// Writes it to a file that only its owner may read, and that is there only when it is whole.
    pub fn write_file(&self, path: &Path, folder: &str) -> io::Result<u64> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        // A link or file that another user put at this place is neither followed nor written to.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        let written = self.write_to(file, folder).and_then(|file| {
            file.sync_all()?;
            file.metadata()
        });
        let renamed = written.and_then(|metadata| {
            fs::rename(&part, path)?;
            Ok(metadata.len())
        });
        if renamed.is_err() {
            let _ = fs::remove_file(&part);
        }
        renamed
    }

    fn index(&self) -> String {
        let mut text = format!(
            "Support bundle of kube-ipvs {}.\n\nTokens, keys, passwords, client certificates, the contents of kubeconfigs and the \
             environment are left out. Addresses, and names of Services, nodes and interfaces, are in it.\n\nFiles:\n",
            *serve::version::VERSION
        );
        for (name, length) in self.files() {
            text += &format!("  {name} ({length} bytes)\n");
        }
        if !self.missing.is_empty() {
            text += "\nNot there:\n";
        }
        for (name, why) in self.missing() {
            text += &format!("  {name}: {why}\n");
        }
        text
    }
}
