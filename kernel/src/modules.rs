//! Loading kernel modules, where that is possible.
//!
//! Most kernels load modules on demand, and some have them built in, so a failure here is no error.
//! The [`probe`](super::probe) finds out if the kernel has the features.

use std::fmt;
use std::path::Path;

use memchr::memmem;
use plan::model::Protocol;
use plan::scheduler::SchedulerName;

use super::rules::{Backend, TIMEOUT};
use crate::program::{self, NotRun};

/// Place where the kernel lists its modules, and some of those built in.
pub const LOADED: &str = "/sys/module";

/// Modules that every mode of the proxy needs: connection tracking, matches and targets.
const ALWAYS: [&str; 9] = [
    "nf_conntrack",
    "nf_conntrack_netlink",
    "xt_comment",
    "xt_mark",
    "xt_addrtype",
    "xt_conntrack",
    "xt_MASQUERADE",
    "ipt_REJECT",
    "ip6t_REJECT",
];

/// The kernel's symbols, one on a line: address, kind, name, module.
pub const SYMBOLS: &str = "/proc/kallsyms";

/// Symbol of every kernel with IPVS loaded (net/netfilter/ipvs/ip_vs_core.c).
const OF_ANY_IPVS: &str = "ip_vs_schedule";

/// Symbols of the protocols that IPVS balances, each in a file that is compiled with
/// `CONFIG_IP_VS_PROTO_TCP`, `…_UDP`, `…_SCTP` only (net/netfilter/ipvs/ip_vs_proto_tcp.c and beside).
const OF_PROTOCOLS: [(Protocol, &str); 3] = [
    (Protocol::Tcp, "tcp_snat_handler"),
    (Protocol::Udp, "udp_snat_handler"),
    (Protocol::Sctp, "sctp_snat_handler"),
];

/// Modules that could not be loaded. The kernel may have their features all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotLoaded {
    /// Modules that were asked for and are still missing.
    pub modules: Vec<String>,
    /// Reason for that.
    pub reason: String,
}

/// True if a scheduler's module is loaded. `loaded` is [`LOADED`] except in tests.
#[must_use]
pub fn has_scheduler(loaded: &Path, scheduler: &SchedulerName) -> bool {
    loaded.join(scheduler.module()).exists()
}

/// Returns the protocols that the kernel's IPVS does not balance, once it is loaded; none if that
/// cannot be told. The kernel takes a virtual server of any protocol (`ip_vs_genl_parse_service` in
/// net/netfilter/ipvs/ip_vs_ctl.c looks at the family only), and leaves its packets to the node's own
/// sockets (`ip_vs_in_hook` in ip_vs_core.c: no `ip_vs_proto_data_get`). Nothing else tells: timeouts and
/// sysctls are there without the protocol. `symbols` is [`SYMBOLS`] except in tests.
#[must_use]
pub fn unbalanced_protocols(symbols: &Path) -> Vec<Protocol> {
    let Ok(symbols) = std::fs::read(symbols) else { return Vec::new() };
    let has = |symbol: &str| {
        let name = format!(" {symbol}");
        // A compiler may add to a name: `tcp_snat_handler.llvm.1234`, `….cold`.
        memmem::find_iter(&symbols, &name)
            .any(|at| matches!(symbols.get(at + name.len()), None | Some(b'\t' | b'\n' | b'.')))
    };
    let (present, lacking): (Vec<_>, Vec<_>) =
        OF_PROTOCOLS.into_iter().partition(|(_, symbol)| has(symbol));
    // Where none is there, the names are others, and tell nothing.
    if present.is_empty() || !has(OF_ANY_IPVS) {
        return Vec::new();
    }
    lacking.into_iter().map(|(protocol, _)| protocol).collect()
}

/// Returns the modules to load for a mode that has these of its own, for a scheduler of IPVS, and
/// for these iptables variants; without any, for nf_tables.
#[must_use]
pub fn needed(
    of_mode: &[&str],
    scheduler: Option<&SchedulerName>,
    backends: &[Backend],
) -> Vec<String> {
    let mut modules: Vec<&str> = [&ALWAYS, of_mode].concat();
    if backends.is_empty() || backends.contains(&Backend::Nft) {
        modules.extend(["nf_tables", "nft_compat", "nft_chain_nat"]);
    }
    if backends.contains(&Backend::Legacy) {
        modules.extend(["iptable_nat", "iptable_mangle", "iptable_filter"]);
        modules.extend(["ip6table_nat", "ip6table_mangle", "ip6table_filter"]);
    }
    let mut modules: Vec<String> = modules.into_iter().map(str::to_owned).collect();
    // The name becomes one word of a command line. Other characters could turn it into options.
    let is_plain =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let scheduler = scheduler.filter(|scheduler| is_plain(scheduler.as_str()));
    modules.extend(scheduler.map(SchedulerName::module));
    modules
}

/// Loads the missing modules with one call of `modprobe`. `loaded` is [`LOADED`] except in tests.
///
/// # Errors
/// When there is no `modprobe`, or it could not load all of them.
pub fn load(loaded: &Path, modules: &[String]) -> Result<(), NotLoaded> {
    load_with("modprobe", loaded, modules)
}

fn load_with(modprobe: &str, loaded: &Path, modules: &[String]) -> Result<(), NotLoaded> {
    let absent: Vec<&str> =
        modules.iter().map(String::as_str).filter(|module| !loaded.join(module).exists()).collect();
    if absent.is_empty() {
        return Ok(());
    }
    // -a: all of them, also after one has failed.
    let arguments = [&["-a"], absent.as_slice()].concat();
    let reason = match program::run(modprobe, &arguments, "", TIMEOUT) {
        Ok(finished) if finished.status.success() => return Ok(()),
        Ok(finished) => reasons(&finished.stderr),
        Err(NotRun::NotFound) => format!("{modprobe} is not installed"),
        Err(NotRun::Failed(error)) => format!("{modprobe} could not be run: {error}"),
        Err(NotRun::Hung) => {
            format!("{modprobe} did not end within {} seconds and was killed", TIMEOUT.as_secs())
        }
    };
    let absent = absent.into_iter().filter(|module| !loaded.join(module).exists());
    let modules: Vec<String> = absent.map(str::to_owned).collect();
    if modules.is_empty() { Ok(()) } else { Err(NotLoaded { modules, reason }) }
}

/// Reasons that modprobe gives, each once: the modules are named beside it.
fn reasons(stderr: &str) -> String {
    let mut reasons: Vec<String> = Vec::new();
    for line in stderr.trim().lines() {
        let reason = match line.split_once(" not found in directory ") {
            Some((_, folder)) => format!("not found in {folder}"),
            None => line.to_owned(),
        };
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons.join("; ")
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "could not load all kernel modules from here: {}. Ignore this if they are built in or \
             loaded on demand; otherwise run on the host: modprobe -a {}",
            self.reason,
            self.modules.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocols_that_ipvs_lacks_are_told_by_the_kernels_symbols() {
        let folder = tempfile::tempdir().unwrap();
        let symbols = folder.path().join("kallsyms");
        let line = |name: &str| format!("ffffffffc0a01230 t {name}\t[ip_vs]\n");
        for (names, expected) in [
            (
                &["ip_vs_schedule", "tcp_snat_handler", "udp_snat_handler", "sctp_snat_handler"][..],
                &[][..],
            ),
            (
                &["ip_vs_schedule", "tcp_snat_handler", "udp_snat_handler.llvm.17", "sctp_rcv"],
                &[Protocol::Sctp],
            ),
            (&["ip_vs_schedule", "tcp_snat_handler.cold"], &[Protocol::Udp, Protocol::Sctp]),
            // It is not loaded, or has other names.
            (&["tcp_snat_handler"], &[]),
            (&["ip_vs_schedule"], &[]),
            (&[], &[]),
        ] {
            let text: String = names.iter().map(|name| line(name)).collect();
            std::fs::write(&symbols, format!("0 A fixed_percpu_data\n{text}")).unwrap();
            assert_eq!(unbalanced_protocols(&symbols), expected, "{names:?}");
        }
        assert_eq!(unbalanced_protocols(&folder.path().join("nothing")), []);
    }

    fn mk_loaded(modules: &[String]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for module in modules {
            std::fs::create_dir(folder.path().join(module)).unwrap();
        }
        folder
    }

    #[test]
    fn the_scheduler_and_the_kind_of_iptables_have_their_modules() {
        let has = |modules: &[String], name: &str| modules.iter().any(|module| module == name);
        let scheduler = |name: &str| SchedulerName::new(name).unwrap();
        let modules = needed(&["ip_vs"], Some(&scheduler("-r/x")), &[]);
        assert!(!modules.iter().any(|module| module.starts_with("ip_vs_")), "{modules:?}");
        for (backends, nft, legacy) in [
            (&[][..], true, false),
            (&[Backend::Nft, Backend::Nft], true, false),
            (&[Backend::Legacy], false, true),
            (&[Backend::Nft, Backend::Legacy], true, true),
        ] {
            let modules = needed(&["ip_vs"], Some(&scheduler("wlc")), backends);
            assert!(has(&modules, "ip_vs") && has(&modules, "ip_vs_wlc"));
            assert_eq!((has(&modules, "nft_compat"), has(&modules, "ip6table_nat")), (nft, legacy));
        }
    }

    #[test]
    fn nothing_is_run_when_everything_is_there() {
        let modules = needed(&["ip_vs"], None, &[Backend::Nft]);
        let loaded = mk_loaded(&modules);
        assert_eq!(load_with("no-such-program", loaded.path(), &modules), Ok(()));
    }

    #[test]
    fn one_call_asks_for_all_that_is_absent() {
        let modules = ["a", "b", "c"].map(str::to_owned);
        let loaded = mk_loaded(&modules[1..2]);
        assert_eq!(load_with("true", loaded.path(), &modules), Ok(()));

        let note = load_with("no-such-program", loaded.path(), &modules).unwrap_err();
        assert_eq!(note.modules, ["a", "c"]);
        assert_eq!(note.reason, "no-such-program is not installed");
        assert!(note.to_string().ends_with("modprobe -a a c"), "{note}");

        let said = "modprobe: WARNING: Module a not found in directory /lib/modules/6.12\n\
                    modprobe: WARNING: Module c not found in directory /lib/modules/6.12\n\
                    modprobe: ERROR: could not insert 'd': Operation not permitted\n";
        assert_eq!(
            reasons(said),
            "not found in /lib/modules/6.12; \
             modprobe: ERROR: could not insert 'd': Operation not permitted"
        );

        // `ls -a a c` fails, and says both names.
        let note = load_with("ls", loaded.path(), &modules).unwrap_err();
        assert!(note.reason.contains('a') && note.reason.contains("; "), "{note}");
    }
}
