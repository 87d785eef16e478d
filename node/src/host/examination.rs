//! Examination of the host: the mode and the families that it can serve.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family;
use plan::scheduler::SchedulerName;
use plan::settings::Settings;
use tracing::{info, warn};

use super::{FallenBack, fallback, remove_dummy_unless, wanted_sysctls};
use crate::cleanup;
use config::Configuration;
use kernel::linux::Linux;
use kernel::modules;
use kernel::probe::{self, Attempts, Facts, Findings, IpvsAttempts, ProbeError};
use kernel::rules::{Backend, Rules};

/// TEST-NET-2 (RFC 5737), where no cluster has a Service. kube-proxy probes with the same address.
const PROBE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0));
/// The same in the documentation prefix of IPv6 (RFC 3849).
const PROBE_ADDRESS_V6: IpAddr =
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xc633, 0x6400));
const PROBE_PORT: u16 = 20_000;

/// Number of attempts at a family's iptables while another program is in the way, and the time from one to
/// the next.
const PROBES: u32 = 3;
pub(super) const PROBE_PAUSE: Duration = Duration::from_secs(5);

/// An attempt that takes longer is not made again at the same start.
const LONGEST_PROBE: Duration = Duration::from_secs(30);

/// Host whose abilities are known. Nothing was changed but what a probe makes.
pub(super) struct Examined {
    /// The configuration for the mode that the host can do.
    pub(super) configuration: Configuration,
    /// Reason for which the mode is not the preferred one; none: it is.
    pub(super) fallen_back: Option<FallenBack>,
    /// Reasons for which families are not served that the kernel has, in words.
    pub(super) dropped_families: Vec<String>,
    /// The families that it can do, with their programs.
    pub(super) rules: HashMap<Family, Rules>,
    /// See [`Host::limits`].
    pub(super) limits: Vec<String>,
}

impl Examined {
    /// Checks that the families that are served now can be served.
    pub(super) fn keeps(&self, served: &[Family]) -> anyhow::Result<()> {
        let Settings { families, mode, .. } = &self.configuration.settings;
        keep_families(families, served, *mode, &self.dropped_families)
    }
}

fn keep_families(
    possible: &[Family],
    served: &[Family],
    mode: Mode,
    dropped: &[String],
) -> anyhow::Result<()> {
    let lost = served.iter().filter(|family| !possible.contains(family));
    let lost: Vec<String> = lost.map(ToString::to_string).collect();
    if !lost.is_empty() {
        bail!(
            "the node serves {} now, and could not any more in mode {mode}:\n- {}",
            lost.join(" and "),
            dropped.join("\n- ")
        );
    }
    Ok(())
}

/// Finds out in which mode the host can serve. In its configuration are the families that it can do.
pub(super) fn examine(configuration: &Configuration) -> anyhow::Result<Examined> {
    let mut rules = open_rules(configuration);
    let had_dummy = Linux::has_dummy();
    let (mut configuration, mut findings) = (configuration.clone(), probe(configuration, &rules));
    let mut fallen_back = None;
    // A lock that is held for a moment is no reason for another mode.
    let missing = if findings.are_momentary() { Vec::new() } else { findings.fatal() };
    if let Some(because) = fallback::decide(&configuration.modes, &missing, || {
        cleanup::ipvs_state(&configuration.settings).map_err(|error| error.to_string())
    })? {
        remove_dummy_unless(had_dummy);
        configuration = configuration.in_mode(because.mode);
        findings = probe(&configuration, &rules);
        fallen_back = Some(because);
    }
    if let Err(error) = report(configuration.settings.mode, &findings) {
        let Some(because) = fallen_back else { return Err(error) };
        bail!("{because}\nand {error}");
    }
    rules.retain(|family, _| findings.families.contains(family));
    let rules = rules.into_iter().filter_map(|(family, rules)| Some((family, rules.ok()?)));
    let rules = rules.collect();
    let (dropped_families, limits) = (findings.dropped_families(), findings.limits());
    configuration.settings.families = findings.families;
    configuration.settings.unbalanced = findings.unbalanced;
    Ok(Examined { configuration, fallen_back, dropped_families, rules, limits })
}

/// Tries a family's iptables, and again if another program is in the way: the node would go without the
/// family until its next start.
pub(super) fn patiently<T>(
    pause: Duration,
    mut attempt: impl FnMut() -> Result<T, ProbeError>,
) -> Result<T, ProbeError> {
    let mut left = PROBES - 1;
    loop {
        let began = Instant::now();
        let result = attempt();
        let took = began.elapsed();
        let is_momentary = matches!(&result, Err(error) if error.is_momentary);
        if !is_momentary || left == 0 || took > LONGEST_PROBE {
            return result;
        }
        left -= 1;
        // iptables waits for its lock itself.
        std::thread::sleep(pause.saturating_sub(took));
    }
}

/// True if a family's rules can count packets by name.
pub(super) fn counts(
    family: Family,
    pause: Duration,
    attempt: impl FnMut() -> Result<(), ProbeError>,
) -> bool {
    let tried = patiently(pause, attempt);
    match &tried {
        Ok(()) => {}
        Err(ProbeError { words, is_momentary: false }) => info!(
            "rules count no packets by name (module xt_nfacct, {family}), and two metrics are missing for \
             it: {words}"
        ),
        // Rules of Services do not wait for metrics, and with one that the kernel lacks none is written.
        Err(ProbeError { words, is_momentary: true }) => warn!(
            "it could not be tried whether rules count packets by name ({family}), and two metrics are \
             missing until kube-ipvs is started again: {words}"
        ),
    }
    tried.is_ok()
}

/// Finds the programs of each family.
pub(super) fn open_rules(
    configuration: &Configuration,
) -> HashMap<Family, Result<Rules, ProbeError>> {
    // Without nf_tables iptables-nft does not even say its version, and would count as not installed.
    // A host that lacks modules says so below, if it needs them.
    let Settings { mode, scheduler, .. } = &configuration.settings;
    let _ = modules::load(Path::new(modules::LOADED), &modules::needed(*mode, scheduler, &[]));
    let open = |family| {
        let open = || Ok(Rules::open(family, configuration.variant)?);
        (family, patiently(PROBE_PAUSE, open))
    };
    Family::BOTH.into_iter().map(open).collect()
}

/// Loads the modules of the configuration's mode, and finds out if the host can do it.
pub(super) fn probe(
    configuration: &Configuration,
    rules: &HashMap<Family, Result<Rules, ProbeError>>,
) -> Findings {
    probe::judge(&gather(configuration, rules))
}

/// Loads the modules of the configuration's mode, and asks the host about all that the mode needs.
pub(super) fn gather(
    configuration: &Configuration,
    rules: &HashMap<Family, Result<Rules, ProbeError>>,
) -> Facts {
    let Settings { mode, scheduler, .. } = &configuration.settings;
    let kinds: Vec<Backend> = rules.values().flatten().map(Rules::backend).collect();
    let needed = modules::needed(*mode, scheduler, &kinds);
    if let Err(not_loaded) = modules::load(Path::new(modules::LOADED), &needed) {
        info!("{not_loaded}");
    }
    let of_ipvs = IpvsAttempts {
        scheduler,
        try_scheduler: &mut |scheduler| {
            try_virtual_server(scheduler, PROBE_ADDRESS).map_err(|error| format!("{error:#}"))
        },
        try_ipv6: &mut |scheduler| try_ipv6(scheduler),
        unbalanced: &mut || modules::unbalanced_protocols(Path::new(modules::SYMBOLS)),
        ipset: &mut || ipset::Client::open().map(drop).map_err(|error| error.to_string()),
        dummy: &mut || Linux::try_dummy().map_err(|error| error.to_string()),
    };
    let is_ipvs = *mode == Mode::Ipvs;
    let networks = configuration.settings.short_circuit_networks;
    probe::gather(
        &probe::ProcRoot::default(),
        &wanted_sysctls(configuration),
        &mut Attempts {
            of_ipvs: is_ipvs.then_some(of_ipvs),
            iptables: &mut |family| match rules.get(&family) {
                Some(Ok(rules)) if is_ipvs => {
                    patiently(PROBE_PAUSE, || Ok(rules.probe(networks.of(family))?))
                }
                Some(Ok(rules)) => patiently(PROBE_PAUSE, || rules.try_features(*mode)),
                Some(Err(error)) => Err(error.clone()),
                None => Err("not looked for".to_owned().into()),
            },
        },
    )
}

/// Logs what was found.
///
/// # Errors
/// With all fatal findings, when there is one.
fn report(mode: Mode, findings: &Findings) -> anyhow::Result<()> {
    for finding in findings.problems.iter().filter(|finding| !finding.fatal) {
        warn!("{finding}");
    }
    let what = match mode {
        Mode::Ipvs => "IPVS service proxying",
        Mode::Iptables => "service proxying by iptables",
        Mode::Userspace => "service proxying in user space",
    };
    if !findings.is_usable() {
        bail!("this host cannot do {what}:\n- {}", findings.fatal().join("\n- "));
    }
    let families: Vec<String> = findings.families.iter().map(ToString::to_string).collect();
    info!(families = families.join(" and "), "host checked: it can do {what}");
    Ok(())
}

/// A kernel with `CONFIG_IP_VS_IPV6` takes a virtual server of IPv6; one without answers
/// `EAFNOSUPPORT` (`ip_vs_genl_parse_service` in net/netfilter/ipvs/ip_vs_ctl.c). Another refusal is not
/// the family's: operations meet it again, and retry.
fn try_ipv6(scheduler: &SchedulerName) -> Result<(), String> {
    let Err(error) = try_virtual_server(scheduler, PROBE_ADDRESS_V6) else { return Ok(()) };
    let errno = error.downcast_ref::<ipvs::Error>().and_then(ipvs::Error::raw_os_error);
    if errno == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) {
        return Err(format!("{error:#}"));
    }
    info!("cannot try a virtual server of IPv6: {error:#}");
    Ok(())
}

/// A kernel that has the module, or may load it, takes the scheduler.
fn try_virtual_server(scheduler: &SchedulerName, address: IpAddr) -> anyhow::Result<()> {
    let mut client = ipvs::Client::open()?;
    let wanted = ipvs::Scheduler::new(scheduler.as_str())?;
    let id = ipvs::VirtualServerId::tcp(address, PROBE_PORT);
    let shows = |service: &ipvs::VirtualServerStatus| {
        service.server.scheduler == wanted && service.server.id.family() == id.family()
    };
    if client.list_services()?.iter().any(shows) {
        return Ok(());
    }
    let probe = ipvs::VirtualServer::new(id, wanted);
    match client.new_service(&probe) {
        // A process was killed while it tried another scheduler.
        Err(error) if error.is_exists() => {
            client.delete_service(&id)?;
            client.new_service(&probe)?;
        }
        tried => tried?,
    }
    Ok(client.delete_service(&id)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_made_again_while_another_program_is_in_the_way() {
        let busy = || ProbeError { words: "the lock".to_owned(), is_momentary: true };
        for (results, n_attempts, works) in [
            (vec![Ok(())], 1, true),
            (vec![Err(busy()), Err(busy()), Ok(())], 3, true),
            (vec![Err(busy()), Err(busy()), Err(busy()), Ok(())], 3, false),
            (vec![Err("no module".to_owned().into()), Ok(())], 1, false),
        ] {
            let mut made = 0;
            let result = patiently(Duration::ZERO, || {
                made += 1;
                results[made - 1].clone()
            });
            assert_eq!((made, result.is_ok()), (n_attempts, works), "{results:?}");
        }
    }

    #[test]
    fn a_lock_that_is_held_for_a_moment_is_no_lack_of_counters() {
        let busy = || ProbeError { words: "the lock".to_owned(), is_momentary: true };
        for (results, n_attempts, counts_packets) in [
            (vec![Err(busy()), Err(busy()), Ok(())], 3, true),
            (vec![Err("no xt_nfacct".to_owned().into()), Ok(())], 1, false),
        ] {
            let mut made = 0;
            let counts_packets_now = counts(Family::V4, Duration::ZERO, || {
                made += 1;
                results[made - 1].clone()
            });
            assert_eq!((made, counts_packets_now), (n_attempts, counts_packets), "{results:?}");
        }
    }

    #[test]
    fn a_family_that_is_served_is_not_given_up_by_a_switch() {
        let dropped = ["ip6tables does not work".to_owned()];
        let keep = |possible: &[Family], served: &[Family]| {
            keep_families(possible, served, Mode::Iptables, &dropped).map_err(|it| it.to_string())
        };
        let lost = keep(&[Family::V4], &Family::BOTH).unwrap_err();
        assert!(lost.contains("serves IPv6 now") && lost.contains("ip6tables does not"), "{lost}");
        keep(&Family::BOTH, &[Family::V6]).unwrap();
        keep(&[Family::V4], &[]).unwrap();
    }
}
