//! Sysctls that a start would set, time limits of idle connections, ports, and connection tracking.

use std::fs;
use std::path::Path;

use super::{Check, CheckState};
use crate::host::survey;
use crate::mode;
use config::Configuration;
use kernel::probe::Facts;
use kernel::sysctl::Sysctl;

/// Share of the connection tracking table, in hundredths, from which on it is nearly full.
const NEARLY_FULL: u64 = 80;

/// Seconds after which connections without packets are forgotten, and after which keepalives are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Idle {
    /// In IPVS; none: the mode is another one.
    ipvs: Option<u64>,
    /// In connection tracking; none: it is not loaded.
    conntrack: Option<u64>,
    /// `net.ipv4.tcp_keepalive_time`
    keepalive: u64,
}

pub(super) fn checks(configuration: &Configuration, facts: &Facts, proc_sys: &Path) -> Vec<Check> {
    let mut checks = vec![to_set(&survey::sysctls_to_set(configuration), facts)];
    checks.extend(idle(configuration, proc_sys).map(Idle::check));
    checks.extend(survey::local_ports(configuration).map(|checked| match checked {
        Ok(()) => Check::ok("local ports", "it has no NodePorts"),
        Err(warning) => Check::new("local ports", CheckState::Warning, warning),
    }));
    let buckets = survey::conntrack_buckets(configuration);
    checks.extend(buckets.map(|it| Check::new("conntrack buckets", CheckState::Warning, it)));
    checks.extend(tracked(proc_sys));
    let limit = survey::ipvs_connections(configuration);
    checks.extend(limit.map(|it| Check::new("IPVS connections", CheckState::Warning, it)));
    checks
}

/// Sysctls that cannot be set are a problem of the probe already.
fn to_set(sysctls: &[(Sysctl, Option<String>)], facts: &Facts) -> Check {
    const NAME: &str = "sysctls";
    if sysctls.is_empty() {
        return Check::ok(NAME, "all have the required values");
    }
    let changes = sysctls.iter().map(|(sysctl, value)| match value {
        Some(value) => format!("{sysctl} (it is {value})"),
        None => format!("{sysctl} (does not exist yet)"),
    });
    let changes: Vec<String> = changes.collect();
    let found = format!("a start sets {}", changes.join(", "));
    match &facts.sysctls_writable {
        Ok(()) => Check::note(NAME, found),
        Err(_) => {
            let settings: Vec<String> =
                sysctls.iter().map(|(sysctl, _)| sysctl.to_string()).collect();
            let remedy = format!("set them on the host: sysctl -w {}", settings.join(" "));
            Check::warning(NAME, format!("{found}, but cannot from here"), remedy)
        }
    }
}

/// Reads the time limits; none if the host has no keepalives.
fn idle(configuration: &Configuration, proc_sys: &Path) -> Option<Idle> {
    let read = |path: &str| fs::read_to_string(proc_sys.join(path)).ok()?.trim().parse().ok();
    let keepalive = read("net/ipv4/tcp_keepalive_time")?;
    let configured = configuration.conntrack.tcp_established.map(|it| it.as_secs());
    Some(Idle {
        ipvs: (mode::of_settings(&configuration.settings).idle_limit)(configuration),
        conntrack: configured
            .or_else(|| read("net/netfilter/nf_conntrack_tcp_timeout_established")),
        keepalive,
    })
}

impl Idle {
    fn check(self) -> Check {
        const NAME: &str = "idle connections";
        let Self { ipvs, conntrack, keepalive } = self;
        let limits = [
            (ipvs, "IPVS", "raise ipvs.tcpTimeout (--ipvs-tcp-timeout)"),
            (conntrack, "conntrack", "raise conntrack.tcpEstablishedTimeout"),
        ];
        let shortest =
            limits.into_iter().filter_map(|(limit, who, how)| Some((limit?, who, how))).min();
        let Some((limit, who, how)) = shortest else {
            return Check::note(NAME, "no timeout can be read yet");
        };
        if limit > keepalive {
            return Check::ok(
                NAME,
                format!("{who} keeps them for {limit} s, and keepalives come after {keepalive} s"),
            );
        }
        Check::warning(
            NAME,
            format!(
                "{who} drops a TCP connection after {limit} s without packets, before the first \
                 keepalive ({keepalive} s, net.ipv4.tcp_keepalive_time)"
            ),
            format!(
                "{how}, or let clients send keepalives more often; each pod has its own \
                 net.ipv4.tcp_keepalive_time"
            ),
        )
    }
}

/// Returns how full connection tracking is; none if it is not loaded.
fn tracked(proc_sys: &Path) -> Option<Check> {
    const NAME: &str = "conntrack";
    let read = |name: &str| -> Option<u64> {
        let path = proc_sys.join("net/netfilter").join(name);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let (count, most) = (read("nf_conntrack_count")?, read("nf_conntrack_max")?);
    let found = format!("{count} of {most} entries");
    if most > 0 && count.saturating_mul(100) / most >= NEARLY_FULL {
        let remedy =
            "raise conntrack.maxPerCore or conntrack.min: a full table drops new connections";
        return Some(Check::warning(NAME, found, remedy));
    }
    Some(Check::ok(NAME, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_comes_before_the_first_keepalive_is_warned_of() {
        let idle = |ipvs, conntrack| Idle { ipvs, conntrack, keepalive: 7_200 }.check();
        let of_ipvs = idle(Some(900), Some(86_400));
        assert_eq!(of_ipvs.state, CheckState::Warning);
        assert!(
            of_ipvs.found.starts_with("IPVS drops a TCP connection after 900 s"),
            "{of_ipvs:?}"
        );
        assert!(of_ipvs.remedy.unwrap().starts_with("raise ipvs.tcpTimeout"));
        assert_eq!(idle(Some(10_000), Some(86_400)).state, CheckState::Ok);
        assert_eq!(idle(None, Some(3_600)).state, CheckState::Warning);
        assert_eq!(idle(None, None).state, CheckState::Note);
    }

    #[test]
    fn a_table_that_is_nearly_full_is_warned_of() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(tracked(root.path()), None);
        let folder = root.path().join("net/netfilter");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("nf_conntrack_max"), "1000\n").unwrap();
        for (count, state) in [("799\n", CheckState::Ok), ("800\n", CheckState::Warning)] {
            fs::write(folder.join("nf_conntrack_count"), count).unwrap();
            assert_eq!(tracked(root.path()).map(|check| check.state), Some(state));
        }
    }
}
