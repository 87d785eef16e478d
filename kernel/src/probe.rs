//! Check of the host's features, with advice for each that is missing.
//!
//! [`gather`] collects facts from the host, [`judge`] turns them into findings. All problems are
//! reported together, so that an operator need not find them one restart at a time.

mod facts;

#[cfg(test)]
mod tests;

use std::fmt;

use plan::model::{Family, Protocol};
use plan::settings::RuleForm;

pub use facts::{Attempts, Facts, Ipv6, IpvsAttempts, IpvsFacts, ProbeError, ProcRoot, gather};

/// Findings from the facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The families that can be served.
    pub families: Vec<Family>,
    /// Protocols that IPVS mode cannot balance.
    pub unbalanced: Vec<Protocol>,
    /// Problems, the fatal ones first.
    pub problems: Vec<Finding>,
}

/// One problem of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Thing that is missing, and what follows.
    pub what: String,
    /// Observation by which that was noticed.
    pub why: String,
    /// Advice on what to do.
    pub remedy: String,
    /// True if nothing can be served.
    pub fatal: bool,
    /// True if an operator chose it: nothing of the host is missing.
    pub is_chosen: bool,
    /// True if the reason may be that the kernel's modules are not installed.
    lacks_modules: bool,
    /// True if a family is not served for it that the kernel has.
    drops_family: bool,
    /// True if the same probe may succeed in a moment.
    is_momentary: bool,
}

/// Advice on modules that a distribution leaves out of its default packages. A container sees the
/// host's kernel, and not its distribution.
fn where_modules_are(kernel_release: &str) -> &'static str {
    // The issues of those who met it: kubernetes/kops#18724, rancher/rke2#8498.
    if kernel_release.contains(".el10") {
        ". RHEL 10 and its relatives have nft_compat, br_netfilter, ip_set and all xt_ modules in a \
         package that is not installed by default: `dnf install kernel-modules-extra-$(uname -r)`"
    } else {
        ""
    }
}

/// Turns facts into findings.
#[must_use]
pub fn judge(facts: &Facts) -> Findings {
    let mut problems = Vec::new();
    problems.extend(net_admin(facts));
    if let Some(of_ipvs) = &facts.of_ipvs {
        problems.extend(net_raw(facts));
        problems.extend(of_ipvs.problems());
    }
    let families = families(facts, &mut problems);
    for problem in problems.iter_mut().filter(|problem| problem.lacks_modules) {
        problem.remedy += where_modules_are(&facts.kernel_release);
    }
    problems.extend(sysctls(facts));
    // A stable sort keeps the order in which problems are solved best.
    problems.sort_by_key(|problem| !problem.fatal);
    let unbalanced = facts.of_ipvs.as_ref().map_or_else(Vec::new, |it| it.unbalanced.clone());
    Findings { families, unbalanced, problems }
}

/// iptables asks for a set's number over a raw socket (extensions/libxt_set.h, `get_version`), and
/// iptables-legacy for everything (libiptc/libiptc.c). Listing a chain of nf_tables does not show
/// that.
fn net_raw(facts: &Facts) -> Option<Finding> {
    (facts.net_raw == Some(false)).then(|| {
        Finding::fatal(
            "the capability CAP_NET_RAW is missing: without it, iptables cannot write rules that \
             match a set",
            "it is not among the effective capabilities in /proc/thread-self/status",
            "add NET_RAW under securityContext.capabilities.add, or run the container privileged",
        )
    })
}

fn net_admin(facts: &Facts) -> Option<Finding> {
    (facts.net_admin == Some(false)).then(|| {
        Finding::fatal(
            "the capability CAP_NET_ADMIN is missing: without it, kube-ipvs cannot change the \
             network",
            "it is not among the effective capabilities in /proc/thread-self/status",
            "run the container privileged, or add NET_ADMIN under \
             securityContext.capabilities.add; outside of containers run as root",
        )
    })
}

impl IpvsFacts {
    fn problems(&self) -> Vec<Finding> {
        let ipset = self.ipset.as_ref().err().map(|why| {
            Finding::without_modules(
                "ipset is not available in this kernel",
                why,
                "on the host run `modprobe -a ip_set ip_set_hash_ip ip_set_hash_ipport \
                 ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_bitmap_port`",
            )
        });
        let dummy = self.dummy.as_ref().err().map(|why| {
            Finding::without_modules(
                "cannot create a dummy interface, which holds the Service addresses",
                why,
                "on the host run `modprobe dummy`, and make sure that the process has \
                 CAP_NET_ADMIN",
            )
        });
        let unbalanced = self.unbalanced.iter().map(|protocol| unbalanced(*protocol));
        let problems = [ipvs(self), scheduler(self), ipset, dummy];
        problems.into_iter().flatten().chain(unbalanced).collect()
    }
}

fn unbalanced(protocol: Protocol) -> Finding {
    Finding {
        fatal: false,
        ..Finding::fatal(
            format!(
                "IPVS of this kernel does not support {protocol}: {protocol} ports of Services are \
                 rejected"
            ),
            "its functions are not among the kernel's symbols (/proc/kallsyms)",
            format!(
                "only if a Service has a {protocol} port: use a kernel built with \
                 CONFIG_IP_VS_PROTO_{protocol}, or iptables mode"
            ),
        )
    }
}

fn ipvs(facts: &IpvsFacts) -> Option<Finding> {
    facts.ipvs.as_ref().err().map(|why| {
        Finding::without_modules(
            "IPVS is not available in this kernel",
            why,
            "on the host run `modprobe ip_vs`; if there is no such module, install the \
             distribution's package with the kernel's remaining modules (such as \
             linux-modules-extra or kernel-modules-core), or use a kernel built with CONFIG_IP_VS",
        )
    })
}

fn scheduler(facts: &IpvsFacts) -> Option<Finding> {
    let Some(Err(why)) = &facts.scheduler_taken else { return None };
    let scheduler = &facts.scheduler;
    Some(Finding::fatal(
        format!("the kernel does not have the IPVS scheduler {scheduler}"),
        why,
        format!(
            "on the host run `modprobe {}`, or choose another scheduler (--ipvs-scheduler, \
             ipvs.scheduler): rr is in every kernel that has IPVS",
            scheduler.module()
        ),
    ))
}

/// Returns the families that can be served. Adds the others' problems to `problems`.
fn families(facts: &Facts, problems: &mut Vec<Finding>) -> Vec<Family> {
    let v4 = facts.iptables_v4.is_ok();
    let of_ipvs = facts.of_ipvs.as_ref().and_then(|of_ipvs| of_ipvs.ipv6_taken.as_ref());
    let v6 = facts.ipv6 == Ipv6::Available
        && facts.iptables_v6.as_ref().is_some_and(Result::is_ok)
        && of_ipvs.is_none_or(Result::is_ok);
    // What keeps one family from being served is fatal only when the other one is not served
    // either.
    let fatal = !v4 && !v6;
    let (programs, remedy) = match facts.rule_form {
        RuleForm::Iptables => (
            ["iptables", "ip6tables"],
            "on the host, `modprobe -a` the modules that the error names, or choose the other \
             iptables variant (--iptables-variant nft or legacy)",
        ),
        RuleForm::Nftables => (
            ["nf_tables"; 2],
            "read the error: rules in nf_tables need Linux 5.9 and nf_tables, nft_chain_nat, \
             nft_nat, nft_masq, nft_fib and nft_reject of both families, which the kernel loads \
             itself",
        ),
    };
    let dropped = |program: &str, family: Family, why: &ProbeError| match why.is_momentary {
        false => Finding {
            fatal,
            drops_family: true,
            ..Finding::without_modules(
                &format!("{family} is not served: {program} does not work"),
                &why.words,
                remedy,
            )
        },
        // The family may work in a moment. A start without it would last until the next start.
        true => Finding {
            is_momentary: true,
            ..Finding::fatal(
                format!("{family} may not work: {program} could not be tested"),
                &why.words,
                "find the process that holds the iptables lock (/run/xtables.lock) or uses the \
                 memory; kube-ipvs tries again at the next start",
            )
        },
    };
    if let (Ipv6::Available, Some(Err(why))) = (facts.ipv6, of_ipvs) {
        problems.push(Finding {
            fatal,
            drops_family: true,
            ..Finding::fatal(
                "IPv6 is not served: IPVS of this kernel does not support it",
                why,
                "use a kernel built with CONFIG_IP_VS_IPV6, or iptables mode",
            )
        });
    }
    if let Err(why) = &facts.iptables_v4 {
        problems.push(dropped(programs[0], Family::V4, why));
    }
    let without = |why: &str, remedy: &str| Finding {
        fatal: false,
        is_chosen: true,
        ..Finding::fatal("IPv6 is not served", why, remedy)
    };
    match (facts.ipv6, &facts.iptables_v6) {
        (Ipv6::Available, Some(Err(why))) => problems.push(dropped(programs[1], Family::V6, why)),
        (Ipv6::Available, _) => {}
        (Ipv6::NotInKernel, _) => problems.push(without(
            "the kernel has no IPv6: /proc/net/if_inet6 is missing",
            "only if IPv6 Services are wanted: boot the host without ipv6.disable=1, or with a \
             kernel that has IPv6",
        )),
        (Ipv6::SwitchedOff, _) => problems.push(without(
            "IPv6 is disabled: net.ipv6.conf.all.disable_ipv6 is 1",
            "only if IPv6 Services are wanted: run `sysctl -w net.ipv6.conf.all.disable_ipv6=0` on \
             the host and restart",
        )),
    }
    [(v4, Family::V4), (v6, Family::V6)]
        .into_iter()
        .filter_map(|(served, family)| served.then_some(family))
        .collect()
}

/// Sysctls are a problem only if they have to be changed and cannot be.
fn sysctls(facts: &Facts) -> Option<Finding> {
    let (Some(sysctls), Err(why)) = (&facts.sysctls, &facts.sysctls_writable) else {
        return None;
    };
    if sysctls.is_empty() {
        return None;
    }
    let settings = sysctls.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    Some(Finding {
        what: format!("sysctls have wrong values; they must be: {settings}"),
        why: format!("kube-ipvs cannot set them: {why}"),
        remedy: format!(
            "run the container privileged, so that /proc/sys is writable, or set them on the \
             host: `sysctl -w {settings}`"
        ),
        fatal: sysctls.iter().any(|sysctl| sysctl.required),
        is_chosen: false,
        lacks_modules: false,
        drops_family: false,
        is_momentary: false,
    })
}

impl Findings {
    /// Returns the problems for which nothing can be served, in words.
    #[must_use]
    pub fn fatal(&self) -> Vec<String> {
        self.problems.iter().filter(|problem| problem.fatal).map(ToString::to_string).collect()
    }

    /// Adds what the host lacks for another form of rules, which it cannot do either.
    pub fn add_of_other_form(&mut self, other: Self, form: &str) {
        let fatal = other.problems.into_iter().filter(|problem| problem.fatal);
        for problem in fatal.filter(|problem| !self.problems.contains(problem)).collect::<Vec<_>>()
        {
            let what = format!("with ruleBackend {form}, {}", problem.what);
            self.problems.push(Finding { what, ..problem });
        }
    }

    /// True if something could not be tried, which may be there.
    #[must_use]
    pub fn are_momentary(&self) -> bool {
        self.problems.iter().any(|problem| problem.is_momentary)
    }

    /// Returns the problems for which a family is not served that the kernel has, in words.
    #[must_use]
    pub fn dropped_families(&self) -> Vec<String> {
        let dropping = self.problems.iter().filter(|problem| problem.drops_family);
        dropping.map(ToString::to_string).collect()
    }

    /// Returns what the host lacks, in words, but for families: these are
    /// [`Findings::dropped_families`].
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let limits = self.problems.iter().filter(|it| !it.is_chosen && !it.drops_family);
        limits.map(ToString::to_string).collect()
    }

    /// True if anything can be served.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.families.is_empty() && !self.problems.iter().any(|problem| problem.fatal)
    }
}

impl Finding {
    fn fatal(what: impl Into<String>, why: &str, remedy: impl Into<String>) -> Self {
        let (what, why, remedy) = (what.into(), why.to_owned(), remedy.into());
        Self {
            what,
            why,
            remedy,
            fatal: true,
            is_chosen: false,
            lacks_modules: false,
            drops_family: false,
            is_momentary: false,
        }
    }

    fn without_modules(what: &str, why: &str, remedy: &str) -> Self {
        Self { lacks_modules: true, ..Self::fatal(what, why, remedy) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}). What to do: {}", self.what, self.why, self.remedy)
    }
}
