//! Choice between the iptables programs that are installed.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use parking_lot::Mutex;
use plan::model::Family;

use super::{READ_TIMEOUT, RulesError, TIMEOUT, Variant, present};
use crate::program::{self, Finished, NotRun};

/// Place where iptables programs keep their rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// In nf_tables.
    Nft,
    /// In the kernel's x_tables.
    Legacy,
}

/// A version of iptables: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IptablesVersion(pub u16, pub u16, pub u16);

/// The programs of one kind and family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs {
    pub(super) plain: String,
    pub(super) save: String,
    pub(super) restore: String,
    pub(super) backend: Backend,
    pub(super) version: IptablesVersion,
}

/// Degree to which a kind of iptables shows that Kubernetes uses it on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trace {
    /// Not at all.
    None,
    /// It has the chains of a proxy, which could be left by an earlier one.
    Proxy,
    /// It has a chain that the kubelet keeps alive, for this very purpose.
    Kubelet,
}

/// The kubelet's chains in the table `mangle`. The kubelet creates them again when they vanish, so
/// that a program in a container can tell which kind of iptables the host uses.
const KUBELET: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
/// Chains of kube-proxy and of ourselves.
const PROXY: [&str; 2] = ["KUBE-SERVICES", "KUBE-POSTROUTING"];

/// Programs that all programs of a kind are links to. They have one version.
const ALL_IN_ONE: [&str; 2] = ["xtables-nft-multi", "xtables-legacy-multi"];
/// Version and kind of those of [`ALL_IN_ONE`] that were asked, by their paths.
static ASKED: Mutex<BTreeMap<PathBuf, (IptablesVersion, Backend)>> = Mutex::new(BTreeMap::new());

/// Finds the programs to use.
pub(super) fn choose(family: Family, variant: Variant) -> Result<Programs, RulesError> {
    let stem = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    let plain = || Programs::find(stem);
    let nft = || of_backend(Backend::Nft, Programs::find(&format!("{stem}-nft")), plain);
    let legacy = || of_backend(Backend::Legacy, Programs::find(&format!("{stem}-legacy")), plain);
    match variant {
        Variant::Nft => nft(),
        Variant::Legacy => legacy(),
        Variant::Auto => {
            let in_nft = trace(family, Backend::Nft, nft);
            let in_legacy = trace(family, Backend::Legacy, legacy);
            automatic(in_nft.cmp(&in_legacy), plain, nft, legacy)
        }
    }
}

/// Runs a program that must succeed, and returns what it printed.
pub(super) fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, RulesError> {
    let finished = start(program, arguments, input)?;
    if finished.status.success() {
        return Ok(finished.stdout);
    }
    Err(RulesError::failed(program, arguments, input, finished))
}

/// Runs a program that may fail.
pub(super) fn start(
    program: &str,
    arguments: &[&str],
    input: &str,
) -> Result<Finished, RulesError> {
    let timeout = if program.ends_with("-save") { READ_TIMEOUT } else { TIMEOUT };
    program::run(program, arguments, input, timeout)
        .map_err(|why| RulesError::not_run(program, arguments, why))
}

/// The programs with the backend in their name, or else the plain ones if they have it: not every
/// distribution has both names.
fn of_backend(
    backend: Backend,
    named: Result<Programs, RulesError>,
    plain: impl Fn() -> Result<Programs, RulesError>,
) -> Result<Programs, RulesError> {
    or_else(named, |error| match plain() {
        Ok(plain) if plain.backend == backend => Ok(plain),
        Err(momentary) if momentary.is_momentary() => Err(momentary),
        _ => Err(error),
    })
}

/// The kind with the stronger trace, if it is installed; on a tie the plain programs, or else those
/// for nf_tables. Each that is looked for may be run.
fn automatic(
    nft_is: Ordering,
    plain: impl Fn() -> Result<Programs, RulesError>,
    nft: impl Fn() -> Result<Programs, RulesError>,
    legacy: impl Fn() -> Result<Programs, RulesError>,
) -> Result<Programs, RulesError> {
    let found = match nft_is {
        Ordering::Greater => or_else(nft(), |_| legacy()),
        Ordering::Less => or_else(legacy(), |_| nft()),
        Ordering::Equal => {
            return or_else(plain(), |why| {
                let other = or_else(nft(), |_| legacy());
                other.map_err(|other| if other.is_momentary() { other } else { why })
            });
        }
    };
    or_else(found, |_| plain())
}

/// Other programs in the place of those that are not there. A failure of a moment is no lack: the others
/// keep their rules elsewhere.
fn or_else(
    found: Result<Programs, RulesError>,
    other: impl FnOnce(RulesError) -> Result<Programs, RulesError>,
) -> Result<Programs, RulesError> {
    found.or_else(|error| if error.is_momentary() { Err(error) } else { other(error) })
}

/// Finds the trace in the chains of a kind, by its programs if there is no other way.
fn trace(
    family: Family,
    backend: Backend,
    programs: impl Fn() -> Result<Programs, RulesError>,
) -> Trace {
    if let Some(chains) = present::chain_names(family, backend) {
        return trace_of(chains.iter().map(|(_, chain)| chain.as_str()));
    }
    // Without `-t`: naming a table would make the legacy program load it into the kernel. Tables
    // that it cannot show do not hide the others: the kubelet's chain is in `mangle`.
    let saved = programs().and_then(|programs| run(&programs.save, &[], ""));
    trace_in(&saved.unwrap_or_default())
}

fn trace_in(saved: &str) -> Trace {
    let declared = saved.lines().filter_map(|line| line.strip_prefix(':'));
    trace_of(declared.filter_map(|line| line.split_whitespace().next()))
}

fn trace_of<'a>(chains: impl Iterator<Item = &'a str>) -> Trace {
    let trace = |chain: &str| match chain {
        _ if KUBELET.contains(&chain) => Trace::Kubelet,
        _ if PROXY.contains(&chain) => Trace::Proxy,
        _ => Trace::None,
    };
    chains.map(trace).max().unwrap_or(Trace::None)
}

/// Returns the path of the program that all of its kind are links to, if this one is such a link.
fn all_in_one(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&folders).map(|folder| folder.join(program));
    let path = found.find(|path| path.is_file())?.canonicalize().ok()?;
    let name = path.file_name()?.to_str()?;
    ALL_IN_ONE.contains(&name).then_some(path)
}

/// Runs a program to have it say its version and kind.
fn ask(stem: &str) -> Result<(IptablesVersion, Backend), RulesError> {
    let arguments = ["--version"];
    let finished = program::run(stem, &arguments, "", TIMEOUT).map_err(|why| match why {
        NotRun::NotFound => RulesError::NotInstalled { programs: vec![stem.to_owned()] },
        other => RulesError::not_run(stem, &arguments, other),
    })?;
    if !finished.status.success() {
        return Err(RulesError::failed(stem, &arguments, "", finished));
    }
    parse_version(&finished.stdout).ok_or_else(|| RulesError::UnknownVersion {
        command: format!("{stem} --version"),
        printed: finished.stdout.trim().to_owned(),
    })
}

impl Programs {
    /// Returns the programs with this prefix, if they are installed.
    fn find(stem: &str) -> Result<Self, RulesError> {
        let path = all_in_one(stem);
        let asked = path.as_ref().and_then(|path| ASKED.lock().get(path).copied());
        let (version, backend) = asked.map_or_else(|| ask(stem), Ok)?;
        if let Some(path) = path {
            ASKED.lock().insert(path, (version, backend));
        }
        Ok(Self {
            plain: stem.to_owned(),
            save: format!("{stem}-save"),
            restore: format!("{stem}-restore"),
            backend,
            version,
        })
    }
}

/// `iptables v1.8.9 (nf_tables)`, `iptables v1.8.9 (legacy)`, and before 1.8 `iptables v1.6.1`.
fn parse_version(printed: &str) -> Option<(IptablesVersion, Backend)> {
    let mut words = printed.split_whitespace().skip(1);
    let mut numbers = words.next()?.strip_prefix('v')?.split('.').map(str::parse::<u16>);
    let version = IptablesVersion(
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next().transpose().ok()?.unwrap_or(0),
    );
    let backend = match words.next() {
        Some("(nf_tables)") => Backend::Nft,
        _ => Backend::Legacy,
    };
    Some((version, backend))
}

impl Backend {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Nft, Self::Legacy];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nft => "nf_tables",
            Self::Legacy => "legacy",
        })
    }
}

impl fmt::Display for IptablesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_programs(stem: &str, backend: Backend) -> Programs {
        Programs {
            plain: stem.to_owned(),
            save: format!("{stem}-save"),
            restore: format!("{stem}-restore"),
            backend,
            version: IptablesVersion(1, 8, 9),
        }
    }

    fn mk_nothing() -> Result<Programs, RulesError> {
        Err(RulesError::NotInstalled { programs: vec!["iptables".to_owned()] })
    }

    fn mk_plain() -> Result<Programs, RulesError> {
        Ok(mk_programs("iptables", Backend::Nft))
    }

    fn mk_nft() -> Result<Programs, RulesError> {
        Ok(mk_programs("iptables-nft", Backend::Nft))
    }

    fn mk_legacy() -> Result<Programs, RulesError> {
        Ok(mk_programs("iptables-legacy", Backend::Legacy))
    }

    #[test]
    fn versions_are_read_as_all_generations_print_them() {
        for (printed, expected) in [
            ("iptables v1.8.9 (nf_tables)\n", Some((IptablesVersion(1, 8, 9), Backend::Nft))),
            ("ip6tables v1.8.10 (legacy)\n", Some((IptablesVersion(1, 8, 10), Backend::Legacy))),
            ("iptables v1.6.1\n", Some((IptablesVersion(1, 6, 1), Backend::Legacy))),
            ("iptables v1.7\n", Some((IptablesVersion(1, 7, 0), Backend::Legacy))),
            ("iptables v1.8.x\n", None),
            ("busybox 1.36\n", None),
            ("", None),
        ] {
            assert_eq!(parse_version(printed), expected, "{printed}");
        }
        assert!(
            IptablesVersion(1, 6, 2) > IptablesVersion(1, 6, 1)
                && IptablesVersion(1, 10, 0) > IptablesVersion(1, 8, 9)
        );
    }

    #[test]
    fn the_kind_in_use_is_chosen() {
        for (in_nft, in_legacy, chosen) in [
            (Trace::None, Trace::None, "iptables"),
            (Trace::Kubelet, Trace::None, "iptables-nft"),
            (Trace::None, Trace::Kubelet, "iptables-legacy"),
            (Trace::None, Trace::Proxy, "iptables-legacy"),
            // What a proxy left say less than the kubelet.
            (Trace::Proxy, Trace::Kubelet, "iptables-legacy"),
            (Trace::Kubelet, Trace::Proxy, "iptables-nft"),
            (Trace::Kubelet, Trace::Kubelet, "iptables"),
        ] {
            let found = automatic(in_nft.cmp(&in_legacy), mk_plain, mk_nft, mk_legacy).unwrap();
            assert_eq!(found.plain, chosen, "{in_nft:?} {in_legacy:?}");
        }
    }

    #[test]
    fn traces_are_chains_whatever_else_there_is() {
        let proxy = "*nat\n:OUTPUT ACCEPT [0:0]\n:KUBE-POSTROUTING - [0:0]\nCOMMIT\n";
        let kubelet = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n";
        let hidden = "# Table `nat' is incompatible, use 'nft' tool.\n";
        for (saved, trace) in [
            (String::new(), Trace::None),
            (hidden.to_owned(), Trace::None),
            ("*nat\n:KUBE-POSTROUTING-X - [0:0]\nCOMMIT\n".to_owned(), Trace::None),
            (proxy.to_owned(), Trace::Proxy),
            (format!("{proxy}{kubelet}"), Trace::Kubelet),
            (format!("{hidden}{kubelet}"), Trace::Kubelet),
        ] {
            assert_eq!(trace_in(&saved), trace, "{saved}");
        }
    }

    #[test]
    fn what_is_installed_limits_the_choice() {
        type Find = fn() -> Result<Programs, RulesError>;
        for nft_is in [Ordering::Less, Ordering::Equal, Ordering::Greater] {
            let chosen = |nft: Find, legacy: Find| {
                automatic(nft_is, mk_nothing, nft, legacy).map(|found| found.plain)
            };
            assert_eq!(chosen(mk_nft, mk_nothing).unwrap(), "iptables-nft");
            assert_eq!(chosen(mk_nothing, mk_legacy).unwrap(), "iptables-legacy");
            assert!(chosen(mk_nothing, mk_nothing).is_err());
        }
        let found = automatic(Ordering::Equal, mk_nothing, mk_nft, mk_legacy).unwrap();
        assert_eq!(found.plain, "iptables-nft");
    }

    #[test]
    fn programs_that_could_not_be_asked_for_a_moment_are_not_replaced() {
        type Find = fn() -> Result<Programs, RulesError>;
        let busy: Find = || {
            let source = rustix::io::Errno::NOMEM.into();
            Err(RulesError::NotStarted { command: "iptables-nft --version".to_owned(), source })
        };
        for (nft_is, plain, nft, legacy) in [
            (Ordering::Greater, mk_plain as Find, busy, mk_legacy as Find),
            (Ordering::Less, mk_plain, mk_nft, busy),
            (Ordering::Equal, busy, mk_nft, mk_legacy),
            (Ordering::Equal, mk_nothing, busy, mk_legacy),
            (Ordering::Equal, mk_nothing, mk_nothing, busy),
        ] {
            let error = automatic(nft_is, plain, nft, legacy).unwrap_err();
            assert!(error.is_momentary(), "{nft_is:?}: {error}");
        }
        assert!(of_backend(Backend::Nft, mk_nothing(), busy).unwrap_err().is_momentary());
        assert!(of_backend(Backend::Nft, busy(), mk_plain).unwrap_err().is_momentary());
    }

    #[test]
    fn the_plain_programs_do_for_the_backend_that_they_have() {
        let plain = || Ok(mk_programs("iptables", Backend::Legacy));
        let legacy = of_backend(Backend::Legacy, mk_nothing(), plain).unwrap();
        assert_eq!(legacy.plain, "iptables");
        assert!(of_backend(Backend::Nft, mk_nothing(), plain).is_err());
        assert_eq!(of_backend(Backend::Nft, mk_nft(), plain).unwrap().plain, "iptables-nft");
    }
}
