//! Errors of iptables, in words for the person who can repair it.

use std::fmt;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use plan::model::Family;
use plan::rule_set::Comparison;
use rustix::process::Signal;

use super::super::probe::ProbeError;
use super::super::{Refusal, RefusalClass};
use crate::program::{Finished, NotRun};

/// Error of iptables.
#[derive(Debug)]
pub enum RulesError {
    /// None of the programs that could do it is installed.
    NotInstalled {
        /// Programs that were looked for.
        programs: Vec<String>,
    },
    /// A program could not be started or watched.
    NotStarted {
        /// The program with its arguments.
        command: String,
        /// Error that the system reported.
        source: std::io::Error,
    },
    /// A program did not end in time and was killed. Whether it had done its work is not known.
    Hung {
        /// The program with its arguments.
        command: String,
    },
    /// Output of `--version` that is not understood.
    UnknownVersion {
        /// The program with its arguments.
        command: String,
        /// Output of the program.
        printed: String,
    },
    /// The kernel did not list the chains.
    Unlisted {
        family: Family,
        /// Error of the listing.
        source: netlink::Error,
    },
    /// A program failed.
    Failed(Box<ProgramFailure>),
    /// The rules were written without an error, and yet are not as they should be.
    NotAsWritten {
        family: Family,
        /// Differences between the rules that are there and those that should be.
        comparison: Box<Comparison>,
    },
}

/// A program that failed, and all that is known about it.
#[derive(Debug)]
pub struct ProgramFailure {
    /// The program with its arguments.
    pub command: String,
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Standard error of the program.
    pub stderr: String,
    /// The lines of its input around the one that it named, if it named one.
    pub excerpt: Option<String>,
    /// The likely cause.
    pub cause: Cause,
}

/// Cause of a failure, as recognised by its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Another program changes rules at this moment, or holds the lock for that.
    Busy,
    /// The file with the lock cannot be opened.
    NoLock,
    /// The process may not do it.
    NotPermitted,
    /// The kernel cannot do this table, or nf_tables at all.
    NoTable,
    /// The kernel or iptables lacks a match or a target.
    NoExtension,
    /// A rule looks into a set that is not there.
    NoSet,
    /// A rule leads to a chain that is not there, or what is to be changed is not there.
    NoChain,
    /// A chain that is to be removed is in use.
    InUse,
    /// The kernel has no memory for it at this moment.
    Memory,
    /// The table has rules that only `nft` can show.
    ForeignRules,
    /// The table has a rule of another program with a match or a target that iptables lacks.
    ForeignExtension,
    /// The programs are not installed.
    NotInstalled,
    /// Anything else.
    Other,
}

/// Texts by which causes are recognised, the most specific first. Where glibc (string/strerror) and musl
/// (src/errno/__strerror.h) have other words for an error number, both are here. Sources:
/// iptables/iptables-restore.c, iptables/xshared.c, iptables/nft.c, libiptc/libiptc.c,
/// extensions/libxt_set.h.
const SIGNS: [(&str, Cause); 29] = [
    ("DEL failed (Device or resource busy)", Cause::InUse),
    ("DEL failed (Resource busy)", Cause::InUse),
    ("Couldn't load target `KUBE-", Cause::NoChain),
    ("' does not exist", Cause::NoChain),
    ("Cannot allocate memory", Cause::Memory),
    ("Out of memory", Cause::Memory),
    ("No buffer space available", Cause::Memory),
    ("xtables lock", Cause::Busy),
    ("Resource temporarily unavailable", Cause::Busy),
    ("Device or resource busy", Cause::Busy),
    ("Resource busy", Cause::Busy),
    ("can't open lock file", Cause::NoLock),
    ("Permission denied", Cause::NotPermitted),
    ("Operation not permitted", Cause::NotPermitted),
    ("you must be root", Cause::NotPermitted),
    ("is incompatible, use 'nft' tool", Cause::ForeignRules),
    ("Can't find library for", Cause::ForeignExtension),
    ("Parsing nftables rule failed", Cause::ForeignExtension),
    ("Table does not exist", Cause::NoTable),
    ("unable to initialize table", Cause::NoTable),
    ("can't initialize", Cause::NoTable),
    ("Could not fetch rule set generation id", Cause::NoTable),
    ("Failed to initialize nft", Cause::NoTable),
    ("Can't open socket to ipset", Cause::NotPermitted),
    ("Kernel doesn't support set", Cause::NoSet),
    ("Couldn't load", Cause::NoExtension),
    ("No chain/target/match by that name", Cause::NoExtension),
    ("RULE_APPEND failed", Cause::NoExtension),
    ("RULE_INSERT failed", Cause::NoExtension),
];

impl RulesError {
    /// The likely cause.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match self {
            Self::Failed(failure) => failure.cause,
            Self::NotInstalled { .. } => Cause::NotInstalled,
            // Another program writes the same chains at the same time.
            Self::NotAsWritten { .. } => Cause::Busy,
            Self::NotStarted { source, .. }
                if Refusal::class_of(source.raw_os_error()) == RefusalClass::Exhausted =>
            {
                Cause::Memory
            }
            Self::NotStarted { .. }
            | Self::Hung { .. }
            | Self::UnknownVersion { .. }
            | Self::Unlisted { .. } => Cause::Other,
        }
    }

    /// True if the host may have everything, and another program was in the way, or memory was short.
    pub(super) fn is_momentary(&self) -> bool {
        matches!(self, Self::Hung { .. }) || matches!(self.cause(), Cause::Busy | Cause::Memory)
    }

    pub(super) fn not_run(program: &str, arguments: &[&str], why: NotRun) -> Self {
        let command = command_line(program, arguments);
        match why {
            NotRun::NotFound => Self::NotInstalled { programs: vec![program.to_owned()] },
            NotRun::Failed(source) => Self::NotStarted { command, source },
            NotRun::Hung => Self::Hung { command },
        }
    }

    pub(super) fn failed(
        program: &str,
        arguments: &[&str],
        input: &str,
        finished: Finished,
    ) -> Self {
        let Finished { status, stderr, .. } = finished;
        Self::Failed(Box::new(ProgramFailure {
            command: command_line(program, arguments),
            status,
            excerpt: named_line(&stderr).and_then(|number| excerpt(input, number)),
            // The kernel ends processes so where memory is short.
            cause: match status.signal() == Some(Signal::KILL.as_raw()) {
                true => Cause::Memory,
                false => Cause::of(&stderr),
            },
            stderr,
        }))
    }
}

impl std::error::Error for RulesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotStarted { source, .. } => Some(source),
            Self::Unlisted { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled { programs } => write!(
                f,
                "{} not found in PATH: install the package `iptables` (Alpine: also `ip6tables`)",
                programs.join(" or ")
            ),
            Self::NotStarted { command, source } => {
                write!(f, "`{command}` could not be run: {source}")
            }
            Self::Hung { command } => write!(
                f,
                "`{command}` timed out and was killed; check which other programs change iptables \
                 rules on this host, and the number of rules"
            ),
            Self::UnknownVersion { command, printed } => write!(
                f,
                "`{command}` printed {printed:?}, which is not an iptables version; \
                 is another program installed under this name?"
            ),
            Self::Unlisted { family, source } => {
                write!(f, "the kernel does not list the {family} chains: {source}")
            }
            Self::Failed(failure) => failure.fmt(f),
            Self::NotAsWritten { family, comparison } => write!(
                f,
                "the {family} rules differ right after they were written: {comparison}; check for \
                 another program that writes the same chains (a second kube-ipvs, a kube-proxy)"
            ),
        }
    }
}

impl From<RulesError> for ProbeError {
    fn from(error: RulesError) -> Self {
        Self { words: error.to_string(), is_momentary: error.is_momentary() }
    }
}

impl ProgramFailure {
    /// The program's words on one line.
    pub(super) fn words(&self) -> String {
        let said: Vec<&str> = self
            .stderr
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("Try `"))
            .collect();
        if said.is_empty() { "without output".to_owned() } else { said.join("; ") }
    }
}

impl fmt::Display for ProgramFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed ({}): ", self.command, self.status)?;
        f.write_str(&self.words())?;
        if let Some(remedy) = self.cause.remedy() {
            let stop = if self.words().ends_with('.') { "" } else { "." };
            write!(f, "{stop} {remedy}")?;
        }
        match &self.excerpt {
            Some(excerpt) => write!(f, "\nits input around that line:\n{excerpt}"),
            None => Ok(()),
        }
    }
}

impl Cause {
    pub(super) fn of(stderr: &str) -> Self {
        // "Set KUBE-CLUSTER-IP doesn't exist."
        if stderr.lines().any(|line| line.contains("Set ") && line.contains(" doesn't exist")) {
            return Self::NoSet;
        }
        SIGNS
            .iter()
            .find(|(sign, _)| stderr.contains(sign))
            .map_or(Self::Other, |(_, cause)| *cause)
    }

    /// True if a program cannot show a rule of another program. It may be able to show others.
    #[must_use]
    pub(super) const fn is_unshown(self) -> bool {
        matches!(self, Self::ForeignRules | Self::ForeignExtension)
    }

    /// Returns the class of a refusal for this cause.
    #[must_use]
    pub const fn class(self) -> RefusalClass {
        match self {
            Self::Busy | Self::Memory => RefusalClass::Exhausted,
            Self::NotPermitted => RefusalClass::NotPermitted,
            Self::NoExtension => RefusalClass::NotSupported,
            Self::NoTable | Self::NoLock | Self::NotInstalled => RefusalClass::NotInstalled,
            Self::NoChain | Self::InUse => RefusalClass::Conflict,
            Self::NoSet | Self::ForeignRules | Self::ForeignExtension | Self::Other => {
                RefusalClass::Other
            }
        }
    }

    /// Returns advice on what to do about the cause.
    fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Busy => {
                "Another program is changing iptables rules and holds the lock \
                 (/run/xtables.lock); kube-ipvs retries"
            }
            Self::NoLock => {
                "iptables-legacy needs the host's lock file, writable: mount /run/xtables.lock \
                 into the container (hostPath, type FileOrCreate)"
            }
            Self::NotPermitted => {
                "The capabilities CAP_NET_ADMIN and CAP_NET_RAW are needed in the network \
                 namespace's user namespace: add NET_ADMIN and NET_RAW, or run the container \
                 privileged"
            }
            Self::NoTable => {
                "The kernel lacks the table, or may not load it: on the host run \
                 `modprobe -a iptable_nat iptable_filter` (IPv6: ip6table_nat ip6table_filter; \
                 nft variant: nf_tables nft_compat nft_chain_nat), or choose the other variant of \
                 iptables"
            }
            Self::NoExtension => {
                "The kernel or iptables lacks a match or target: on the host run `modprobe -a \
                 xt_set xt_comment xt_mark xt_MASQUERADE xt_addrtype xt_physdev xt_conntrack \
                 ipt_REJECT` (IPv6: ip6t_REJECT), and make sure that iptables' extensions \
                 (/usr/lib/*/xtables) are installed"
            }
            Self::NoSet => {
                "The sets that the rules match are missing: another program removed them, or the \
                 kernel lacks ip_set (on the host: `modprobe -a ip_set xt_set`)"
            }
            Self::ForeignRules => {
                "This chain or table has rules created by `nft` that iptables cannot list: remove \
                 them, or move them to a table with another name"
            }
            Self::ForeignExtension => {
                "A rule of another program has a match or a target that this iptables does not know: \
                 install its extension (/usr/lib/*/xtables) or a newer iptables, or remove the rule"
            }
            Self::NoChain | Self::InUse | Self::Memory | Self::NotInstalled | Self::Other => {
                return None;
            }
        })
    }
}

fn command_line(program: &str, arguments: &[&str]) -> String {
    [&[program], arguments].concat().join(" ")
}

/// The line of the input that the words name: `line 13 failed`, `Error occurred at line: 3`.
pub(super) fn named_line(stderr: &str) -> Option<usize> {
    stderr.split("line").skip(1).find_map(|after| {
        let digits = after.trim_start_matches([':', ' ']);
        let end = digits.find(|character: char| !character.is_ascii_digit());
        digits.get(..end.unwrap_or(digits.len()))?.parse().ok()
    })
}

/// The line of this number, from 1, and three on either side.
fn excerpt(input: &str, number: usize) -> Option<String> {
    const AROUND: usize = 3;
    input.lines().nth(number.checked_sub(1)?)?;
    let mut excerpt = String::new();
    for (at, line) in (1..).zip(input.lines()) {
        if at + AROUND >= number && at <= number + AROUND {
            let pointer = if at == number { '>' } else { ' ' };
            // Writing to a String cannot fail.
            let _ = writeln!(excerpt, "{pointer}{at:4} {line}");
        }
    }
    excerpt.truncate(excerpt.trim_end().len());
    Some(excerpt)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words as the programs print them, and the cause they show.
    const SAID: [(&str, Cause); 23] = [
        (
            "Another app is currently holding the xtables lock. Stopped waiting after 5s.",
            Cause::Busy,
        ),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: \
             Permission denied (you must be root)",
            Cause::NotPermitted,
        ),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: \
             Invalid argument",
            Cause::NoTable,
        ),
        (
            "iptables v1.8.9 (nf_tables): Failed to initialize nft: Protocol not supported",
            Cause::NoTable,
        ),
        (
            "ip6tables v1.8.9 (legacy): can't initialize ip6tables table `nat': Table does not \
             exist (do you need to insmod?)",
            Cause::NoTable,
        ),
        (
            "ip6tables-restore v1.8.9 (legacy): ip6tables-restore: unable to initialize table 'nat'",
            Cause::NoTable,
        ),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): Set KUBE-LOAD-BALANCER doesn't exist.\n\n\
             Error occurred at line: 3",
            Cause::NoSet,
        ),
        ("iptables-restore v1.8.9 (legacy): Can't open socket to ipset.", Cause::NotPermitted),
        ("Fatal: can't open lock file /run/xtables.lock: Read-only file system", Cause::NoLock),
        (
            "iptables-restore v1.8.9 (legacy): Couldn't load match `set':No such file or directory",
            Cause::NoExtension,
        ),
        ("iptables: No chain/target/match by that name.", Cause::NoExtension),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): \nline 6: RULE_APPEND failed (No such file or \
             directory): rule in chain KUBE-SERVICES",
            Cause::NoExtension,
        ),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): \nline 3: CHAIN_DEL failed (Device or resource \
             busy): chain KUBE-B",
            Cause::InUse,
        ),
        (
            "iptables-restore v1.8.11 (nf_tables): \nline 3: CHAIN_DEL failed (Resource busy): chain KUBE-B",
            Cause::InUse,
        ),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): Chain 'KUBE-NONE' does not exist\n\
             Error occurred at line: 5",
            Cause::NoChain,
        ),
        (
            "iptables-restore v1.8.9 (legacy): Couldn't load target `KUBE-NONE':No such file or \
             directory\n\nError occurred at line: 3",
            Cause::NoChain,
        ),
        (
            "iptables-nft-restore v1.8.9 (nf_tables): \nline 3: RULE_APPEND failed (Cannot allocate \
             memory): rule in chain KUBE-B",
            Cause::Memory,
        ),
        (
            "iptables-restore v1.8.11 (nf_tables): \nline 3: RULE_APPEND failed (Out of memory): rule in \
             chain KUBE-B",
            Cause::Memory,
        ),
        ("# Table `nat' is incompatible, use 'nft' tool.", Cause::ForeignRules),
        ("Can't find library for match `length'", Cause::ForeignExtension),
        (
            "Error: match extension not found\niptables-nft-save v1.8.9 (nf_tables): Parsing nftables rule \
             failed\nPerhaps iptables-nft-save or your kernel needs to be upgraded.",
            Cause::ForeignExtension,
        ),
        ("iptables-restore: line 13 failed", Cause::Other),
        ("", Cause::Other),
    ];

    #[test]
    fn a_cause_is_told_from_the_words() {
        for (stderr, cause) in SAID {
            assert_eq!(Cause::of(stderr), cause, "{stderr}");
        }
    }

    #[test]
    fn a_program_that_was_not_run_or_killed_for_want_of_memory_lacks_nothing() {
        use rustix::io::Errno;
        let not_run =
            |errno: Errno| RulesError::not_run("ip6tables", &[], NotRun::Failed(errno.into()));
        for (errno, is_momentary) in [
            (Errno::NOMEM, true),
            (Errno::AGAIN, true),
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::ACCESS, false),
            (Errno::NOEXEC, false),
        ] {
            assert_eq!(ProbeError::from(not_run(errno)).is_momentary, is_momentary, "{errno:?}");
        }
        for (signal, is_momentary) in [(Signal::KILL, true), (Signal::SEGV, false)] {
            let status = ExitStatus::from_raw(signal.as_raw());
            let finished = Finished { status, stdout: String::new(), stderr: String::new() };
            let error = RulesError::failed("ip6tables", &[], "", finished);
            assert_eq!(ProbeError::from(error).is_momentary, is_momentary, "{signal:?}");
        }
        assert!(!ProbeError::from(RulesError::not_run("x", &[], NotRun::NotFound)).is_momentary);
    }

    #[test]
    fn the_line_that_failed_is_shown_with_those_around_it() {
        let input: String = (1..=9).map(|number| format!("rule {number}\n")).collect();
        for (stderr, line) in [
            ("iptables-restore: line 4 failed", 4),
            ("x: Set A doesn't exist.\n\nError occurred at line: 4\nTry `x -h'", 4),
            ("\nline 4: RULE_APPEND failed (Invalid argument): rule in chain KUBE-X", 4),
            ("a line without a number, and line 4", 4),
        ] {
            assert_eq!(named_line(stderr), Some(line), "{stderr}");
        }
        assert_eq!(named_line("nothing of this kind, not even in line with"), None);
        let expected = ["    1 rule 1", "    2 rule 2", "    3 rule 3", ">   4 rule 4"];
        let shown = excerpt(&input, 4).unwrap();
        assert!(shown.starts_with(&expected.join("\n")), "{shown}");
        assert!(shown.ends_with("\n    7 rule 7"), "{shown}");
        assert_eq!(excerpt(&input, 9).unwrap().lines().count(), 4);
        assert_eq!(excerpt(&input, 0), None);
        assert_eq!(excerpt(&input, 10), None);
    }
}
