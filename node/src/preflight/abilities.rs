//! Privileges, kernel and iptables: what a start would probe.

use std::path::Path;

use plan::hash::HashMap;
use plan::model::Family;
use plan::rule_set::nft;
use plan::settings::{FastPath, RuleForm};

use super::{Check, CheckState};
use crate::mode::ipvs::fast_path;
use config::Configuration;
use config::words::FastPathChoice;
use kernel::probe::{self, Facts, Finding, Ipv6, ProbeError};
use kernel::rules::{Backend, Rules};
use kernel::sysctl::{self, KernelVersion};
use syntax::page;

/// The oldest kernel that kube-ipvs is made for.
const OLDEST_KERNEL: KernelVersion = KernelVersion(5, 10);

pub(super) fn checks(
    configuration: &Configuration,
    facts: &Facts,
    rules: &HashMap<Family, Result<Rules, ProbeError>>,
    without_internal_frontends: &[String],
) -> Vec<Check> {
    let mut checks = vec![kernel(sysctl::kernel_version(Path::new(sysctl::ROOT)))];
    checks.extend(in_order(facts));
    checks.extend(probe::judge(facts).problems.into_iter().map(problem));
    for family in Family::BOTH {
        let works = match family {
            Family::V4 => facts.iptables_v4.is_ok(),
            Family::V6 => facts.iptables_v6.as_ref().is_some_and(Result::is_ok),
        };
        if let Some(Ok(rules)) = rules.get(&family).filter(|_| works) {
            checks.push(Check::ok(program(family), programs(rules)));
        }
        if works && facts.rule_form == RuleForm::Nftables {
            let found = format!("accepts the rules of {family}, in tables {}", nft::TABLE);
            checks.push(Check::ok("nf_tables", found));
        }
    }
    let modes = &configuration.modes;
    if let Some(fallback) = &modes.fallback {
        let found = format!(
            "a host without support for {} serves in {}",
            modes.preferred.title(),
            fallback.mode.title()
        );
        checks.push(Check::note("fallback", found));
    }
    checks.extend(fast_path(configuration));
    checks.extend(without_internal_frontends.iter().map(|why| {
        let remedy =
            concat!("load the module xt_NETMAP on the host; see ", page!("traffic-policies"));
        Check::warning("internal frontends", why, remedy)
    }));
    checks
}

/// Returns whether the host supports the way of established connections that is chosen; none: it has the one by IPVS.
fn fast_path(configuration: &Configuration) -> Option<Check> {
    const NAME: &str = "fast path";
    let wanted = configuration.settings.fast_path;
    match fast_path::supported(&configuration.settings) {
        (FastPath::Off, None) => None,
        (found, None) => Some(Check::ok(NAME, format!("the host supports {}", found.name()))),
        (found, Some(lack)) => {
            let found = format!("{} instead of {}: {lack}", found.name(), wanted.name());
            if configuration.fast_path == FastPathChoice::Auto {
                return Some(Check::note(NAME, found));
            }
            Some(Check::warning(
                NAME,
                found,
                concat!("provide the prerequisites of the fast path: ", page!("fast-path")),
            ))
        }
    }
}

fn kernel(version: Option<KernelVersion>) -> Check {
    const NAME: &str = "kernel";
    match version {
        None => Check::warning(NAME, "its version cannot be read", "use Linux 5.10 or newer"),
        Some(KernelVersion(major, minor)) => {
            let found = format!("Linux {major}.{minor}");
            if KernelVersion(major, minor) < OLDEST_KERNEL {
                let found = format!("{found} is older than the oldest tested version");
                return Check::warning(NAME, found, "use Linux 5.10 or newer");
            }
            Check::ok(NAME, found)
        }
    }
}

/// Returns a check for each fact that is as it should be. The others are problems of the probe.
fn in_order(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |is_there: bool, name: &str, found: &str| {
        if is_there {
            checks.push(Check::ok(name, found));
        }
    };
    let has_admin = facts.net_admin == Some(true);
    let has_iptables = facts.rule_form == RuleForm::Iptables;
    add(has_admin && !has_iptables, "privileges", "CAP_NET_ADMIN");
    let has_both = has_admin && facts.net_raw == Some(true);
    add(has_both && has_iptables, "privileges", "CAP_NET_ADMIN and CAP_NET_RAW");
    add(facts.sysctls_writable.is_ok(), "/proc/sys", "writable");
    if let Some(of_ipvs) = &facts.of_ipvs {
        add(of_ipvs.ipvs.is_ok(), "IPVS", "the kernel has it");
        let scheduler = format!("the kernel takes {}", of_ipvs.scheduler);
        add(matches!(of_ipvs.scheduler_taken, Some(Ok(()))), "scheduler", &scheduler);
        add(has_iptables && of_ipvs.ipset.is_ok(), "ipset", "the kernel has it");
        add(of_ipvs.dummy.is_ok(), "interface", "kube-ipvs0 can be made");
    }
    add(facts.ipv6 == Ipv6::Available, "IPv6", "the kernel has it");
    checks
}

fn problem(finding: Finding) -> Check {
    let Finding { what, why, remedy, fatal, .. } = finding;
    let state = if fatal { CheckState::Failed } else { CheckState::Warning };
    Check::new("host", state, format!("{what} ({why})")).advised(remedy)
}

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

fn programs(rules: &Rules) -> String {
    let kind = match rules.backend() {
        Backend::Nft => "nf_tables",
        Backend::Legacy => "legacy",
    };
    format!("works: {}, {kind}", rules.version())
}
