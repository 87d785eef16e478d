//! A network namespace for a test, and the `ipset` tool in it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use ipset::{Client, Entry, Name};
use rustix::thread::UnshareFlags;

/// The calling thread's own network namespace. Programs that the thread starts are in it, too, and
/// it goes when the thread ends.
pub(crate) struct Sandbox(());

impl Sandbox {
    pub(crate) fn new() -> Self {
        #[expect(unsafe_code, reason = "the crate has no safe form of this system call")]
        // SAFETY: a network namespace of its own takes nothing from the thread that Rust or libc
        // rely on: no file descriptor, memory or signal handler changes.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
            .expect("unshare the network namespace: these tests need root");
        Self(())
    }

    pub(crate) fn client(&self) -> Client {
        Client::open().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs the tool with these arguments, and returns what it prints.
    pub(crate) fn ipset(&self, arguments: &str) -> String {
        self.try_ipset(arguments).unwrap_or_else(|error| panic!("ipset {arguments}: {error}"))
    }

    /// Runs the tool, and returns what it prints: on success to its output, else to its errors.
    pub(crate) fn try_ipset(&self, arguments: &str) -> Result<String, String> {
        let output = Command::new("ipset")
            .args(arguments.split_whitespace())
            .output()
            .expect("run ipset: these tests need the tool");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Has the tool carry out lines as `ipset save` prints them.
    pub(crate) fn restore(&self, lines: &str) {
        let mut child = Command::new("ipset").arg("restore").stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "ipset restore");
    }

    /// The set's entries as the tool saves them, sorted: what follows `add NAME `.
    pub(crate) fn saved(&self, set: &str) -> Vec<String> {
        let prefix = format!("add {set} ");
        let text = self.ipset(&format!("save {set}"));
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn entry(text: &str) -> Entry {
    text.parse().unwrap()
}

/// The set's entries as text, sorted.
pub(crate) fn listed(client: &mut Client, set: &str) -> Vec<String> {
    let set = client.list(name(set)).unwrap();
    assert_eq!(set.undecoded, 0);
    let mut lines: Vec<String> = set.entries.iter().map(|line| line.entry.to_string()).collect();
    lines.sort();
    lines
}
