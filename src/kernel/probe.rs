//! Check that this host can do what we need, in plain words, with a way to get what it lacks.
//!
//! [`gather`] asks the host, [`judge`] says what the answers mean. All problems are reported at
//! once: the operator should not have to find them one restart at a time.

mod facts;

#[cfg(test)]
mod tests;

use std::fmt;

use plan::model::Family;
use plan::settings::SchedulerName;

use super::sysctl::Sysctl;

pub use facts::{Attempts, Root, gather};

/// Answers of the host. An error is in the words of the program or the part of the kernel asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// True if the process has `CAP_NET_ADMIN`; none: that could not be read.
    pub net_admin: Option<bool>,
    /// True if the process has `CAP_NET_RAW`; none: that could not be read.
    pub net_raw: Option<bool>,
    /// `Ok` if the kernel has IPVS.
    pub ipvs: Result<(), String>,
    /// The scheduler.
    pub scheduler: SchedulerName,
    /// `Ok` if the kernel takes the scheduler; none: not asked, since there is no IPVS.
    pub scheduler_taken: Option<Result<(), String>>,
    /// `Ok` if the kernel has ipset.
    pub ipset: Result<(), String>,
    /// `Ok` if a dummy interface can be made.
    pub dummy: Result<(), String>,
    /// `Ok` if iptables works.
    pub iptables_v4: Result<(), String>,
    /// `Ok` if ip6tables works; none: not asked, since there is no IPv6.
    pub iptables_v6: Option<Result<(), String>>,
    /// Support of the host for IPv6.
    pub ipv6: Ipv6,
    /// The switches that would have to be changed; none: not asked, since there is no IPVS.
    pub switches: Option<Vec<Sysctl>>,
    /// `Ok` if switches can be changed.
    pub switches_writable: Result<(), String>,
}

/// Support of a host for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// The host does IPv6.
    Available,
    /// The kernel has none: `/proc/net/if_inet6` is missing.
    NotInKernel,
    /// `net.ipv6.conf.all.disable_ipv6` is 1.
    SwitchedOff,
}

/// Meaning of the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The families that can be served.
    pub families: Vec<Family>,
    /// Everything that is not as it could be, what is fatal first.
    pub problems: Vec<Finding>,
}

/// One thing that is not as it could be.
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
}

/// Says what the answers mean.
#[must_use]
pub fn judge(facts: &Facts) -> Findings {
    let mut problems = Vec::new();
    problems.extend(net_admin(facts));
    problems.extend(net_raw(facts));
    problems.extend(ipvs(facts));
    problems.extend(scheduler(facts));
    if let Err(why) = &facts.ipset {
        problems.push(Finding::fatal(
            "the kernel does not give us ipset, which the rules look addresses up in",
            why,
            "on the host run `modprobe -a ip_set ip_set_hash_ip ip_set_hash_ipport \
             ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_bitmap_port`",
        ));
    }
    if let Err(why) = &facts.dummy {
        problems.push(Finding::fatal(
            "no dummy interface can be made, which service addresses are put on",
            why,
            "on the host run `modprobe dummy`, and see that the process has CAP_NET_ADMIN",
        ));
    }
    let families = families(facts, &mut problems);
    problems.extend(switches(facts));
    // Stable: otherwise in the order in which they are repaired best.
    problems.sort_by_key(|problem| !problem.fatal);
    Findings { families, problems }
}

/// iptables asks for a set's number over a raw socket (extensions/libxt_set.h, `get_version`), and
/// iptables-legacy for everything (libiptc/libiptc.c). Listing a chain of nf_tables does not show
/// that.
fn net_raw(facts: &Facts) -> Option<Finding> {
    (facts.net_raw == Some(false)).then(|| {
        Finding::fatal(
            "the capability CAP_NET_RAW is missing, without which iptables writes no rule that \
             looks into a set",
            "it is not among the effective capabilities in /proc/thread-self/status",
            "add NET_RAW under securityContext.capabilities.add, or run the container privileged",
        )
    })
}

fn net_admin(facts: &Facts) -> Option<Finding> {
    (facts.net_admin == Some(false)).then(|| {
        Finding::fatal(
            "the capability CAP_NET_ADMIN is missing, without which nothing of the network may \
             be changed",
            "it is not among the effective capabilities in /proc/thread-self/status",
            "run the container privileged, or add NET_ADMIN under \
             securityContext.capabilities.add; outside of containers run as root",
        )
    })
}

fn ipvs(facts: &Facts) -> Option<Finding> {
    facts.ipvs.as_ref().err().map(|why| {
        Finding::fatal(
            "the kernel does not give us IPVS",
            why,
            "on the host run `modprobe ip_vs`; if there is no such module, install the \
             distribution's package with the kernel's remaining modules (such as \
             linux-modules-extra or kernel-modules-core), or use a kernel built with CONFIG_IP_VS",
        )
    })
}

fn scheduler(facts: &Facts) -> Option<Finding> {
    let Some(Err(why)) = &facts.scheduler_taken else { return None };
    let scheduler = &facts.scheduler;
    Some(Finding::fatal(
        format!("the kernel does not take the scheduler {scheduler}"),
        why,
        format!(
            "on the host run `modprobe ip_vs_{scheduler}`, or choose another scheduler \
             (--ipvs-scheduler, ipvs.scheduler): rr is in every kernel that has IPVS"
        ),
    ))
}

/// Returns the families that can be served. Adds to `problems` what is the matter with the others.
fn families(facts: &Facts, problems: &mut Vec<Finding>) -> Vec<Family> {
    let v4 = facts.iptables_v4.is_ok();
    let v6 = facts.ipv6 == Ipv6::Available && facts.iptables_v6.as_ref().is_some_and(Result::is_ok);
    // What keeps one family from being served is fatal only when the other one is not served
    // either.
    let fatal = !v4 && !v6;
    let remedy = "see what the error says; on the host `modprobe -a` the modules that it names, or \
                  choose the other kind of iptables (--iptables-variant nft or legacy)";
    let mut add = |what: &str, why: &str, remedy: &str, fatal| {
        let [what, why, remedy] = [what, why, remedy].map(str::to_owned);
        problems.push(Finding { what, why, remedy, fatal });
    };
    if let Err(why) = &facts.iptables_v4 {
        add("iptables does not work, so that IPv4 is not served", why, remedy, fatal);
    }
    match (facts.ipv6, &facts.iptables_v6) {
        (Ipv6::Available, Some(Err(why))) => {
            add("ip6tables does not work, so that IPv6 is not served", why, remedy, fatal);
        }
        (Ipv6::Available, _) => {}
        (Ipv6::NotInKernel, _) => add(
            "IPv6 is not served",
            "the kernel has no IPv6: /proc/net/if_inet6 is missing",
            "nothing, unless IPv6 Services are wanted: then boot the host without ipv6.disable=1, \
             or with a kernel that has IPv6",
            false,
        ),
        (Ipv6::SwitchedOff, _) => add(
            "IPv6 is not served",
            "IPv6 is switched off: net.ipv6.conf.all.disable_ipv6 is 1",
            "nothing, unless IPv6 Services are wanted: then run \
             `sysctl -w net.ipv6.conf.all.disable_ipv6=0` on the host and restart",
            false,
        ),
    }
    [(v4, Family::V4), (v6, Family::V6)]
        .into_iter()
        .filter_map(|(served, family)| served.then_some(family))
        .collect()
}

/// Only a switch that has to be changed and cannot be is a problem: a host may have set them all.
fn switches(facts: &Facts) -> Option<Finding> {
    let (Some(switches), Err(why)) = (&facts.switches, &facts.switches_writable) else {
        return None;
    };
    if switches.is_empty() {
        return None;
    }
    let settings = switches.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    Some(Finding {
        what: format!("the kernel's switches are not as they should be: {settings}"),
        why: format!("they cannot be set from here: {why}"),
        remedy: format!(
            "run the container privileged, so that /proc/sys is writable, or set them on the \
             host: `sysctl -w {settings}`"
        ),
        fatal: switches.iter().any(|switch| switch.required),
    })
}

// === impl Findings ===

impl Findings {
    /// True if anything can be served.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.families.is_empty() && !self.problems.iter().any(|problem| problem.fatal)
    }
}

// === impl Finding ===

impl Finding {
    fn fatal(what: impl Into<String>, why: &str, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.to_owned(), remedy: remedy.into(), fatal: true }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}). What to do: {}", self.what, self.why, self.remedy)
    }
}
