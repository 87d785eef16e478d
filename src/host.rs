//! Preparation of the host: modules, the probe, sysctls, and the handles.

mod conntrack;
mod local_ports;
mod oom;

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use plan::model::Family;
use plan::scheduler::SchedulerName;
use plan::settings::{Settings, ShortCircuitNetworks};
use tracing::{info, warn};

use crate::config::{Configuration, Conntrack, IpvsTimeouts};
use crate::kernel::estimators::{self, EstimatorSettings};
use crate::kernel::linux::Linux;
use crate::kernel::probe::{self, Attempts, Findings};
use crate::kernel::rules::{Backend, Rules};
use crate::kernel::sysctl::ServiceAddressesArp;
use crate::kernel::{modules, sysctl};

/// TEST-NET-2 (RFC 5737), where no cluster has a Service. kube-proxy probes with the same address.
const PROBE_ADDRESS: [u8; 4] = [198, 51, 100, 0];
const PROBE_PORT: u16 = 20_000;

/// A host that is ready.
pub(crate) struct Host {
    /// The families that it can do.
    pub(crate) families: Vec<Family>,
    /// True if masquerading may pick source ports at random.
    pub(crate) random_fully: bool,
    /// Networks of the short circuits, as far as the host can lead to them.
    pub(crate) short_circuit_networks: ShortCircuitNetworks,
    /// The kind of iptables that holds the rules of each of these families. Nothing says that it
    /// is the same one: what is installed and in use is found out for each.
    pub(crate) backends: HashMap<Family, Backend>,
    /// Its kernel.
    pub(crate) linux: Linux,
}

/// Prepares the host for planning. An error names everything that is missing.
pub(crate) fn prepare(configuration: &Configuration) -> anyhow::Result<Host> {
    oom::set_score(Path::new(oom::PATH), configuration.oom_score_adj);
    let (settings, variant) = (&configuration.settings, configuration.variant);
    // Without it iptables-nft does not even say its version, and would count as not installed. A
    // host that has no such module says so below, if it needs it.
    let _ = modules::load(Path::new(modules::LOADED), &["nf_tables".to_owned()]);
    let mut rules: HashMap<Family, Result<Rules, String>> = Family::BOTH
        .into_iter()
        .map(|family| {
            let opened = Rules::open(family, variant).map_err(|error| error.to_string());
            (family, opened)
        })
        .collect();
    let kinds: Vec<Backend> = rules.values().flatten().map(Rules::backend).collect();
    let needed = modules::needed(&settings.scheduler, &kinds);
    if let Err(not_loaded) = modules::load(Path::new(modules::LOADED), &needed) {
        info!("{not_loaded}");
    }
    let proc_sys = Path::new(sysctl::ROOT);
    let arp = configuration.service_addresses_arp;
    let wanted = sysctl::wanted(arp, sysctl::kernel_version(proc_sys));
    let findings = probe(&settings.scheduler, &wanted, &rules);
    report(&findings)?;
    let mut failed = set_sysctls(proc_sys, &wanted);
    let of_estimators = set_estimators(proc_sys, &configuration.estimators);
    failed.extend(track_connections(&configuration.conntrack));
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    rules.retain(|family, _| findings.families.contains(family));
    let rules: HashMap<Family, Rules> =
        rules.into_iter().filter_map(|(family, rules)| Some((family, rules.ok()?))).collect();
    let random_fully = rules.values().all(Rules::random_fully);
    let short_circuit_networks =
        possible_short_circuit_networks(settings.short_circuit_networks, &rules);
    let backends = rules.iter().map(|(family, rules)| (*family, rules.backend())).collect();
    let mut linux = Linux::open(rules)?;
    let mut kept = sysctl::existing(proc_sys, wanted);
    kept.extend(of_estimators);
    linux.keep_sysctls(kept);
    linux.keep_timeouts(timeouts(configuration.ipvs_timeouts)?).context("set the IPVS timeouts")?;
    linux.bind_for(arp, |address| settings.excludes(address))?;
    spare_neighbours(settings, &linux.neighbourhoods()?)?;
    warn_of_local_networks(proc_sys, arp);
    if let Some(warning) = local_ports::warning(proc_sys) {
        warn!("{warning}");
    }
    Ok(Host { families: findings.families, random_fully, short_circuit_networks, backends, linux })
}

/// With `route_localnet`, the kernel answers ARP requests for addresses of scope host as well
/// (`confirm_addr_indev` in net/ipv4/devinet.c). kube-proxy's mode iptables sets it.
fn warn_of_local_networks(proc_sys: &Path, arp: ServiceAddressesArp) {
    if arp == ServiceAddressesArp::Quiet && sysctl::routes_local_networks(proc_sys) {
        warn!(
            "ARP requests for service addresses are answered in spite of serviceAddressesArp: \
             quiet, because net.ipv4.conf.all.route_localnet is 1. kube-proxy's mode iptables sets \
             it, and perhaps something else needs it; if nothing does: sysctl -w \
             net.ipv4.conf.all.route_localnet=0"
        );
    }
}

/// A local route goes before every other route: with one around the node's own network, nothing
/// beyond the node could be reached any more.
fn spare_neighbours(settings: &Settings, neighbourhoods: &[IpNet]) -> anyhow::Result<()> {
    if let Some(own) = neighbourhoods.iter().find(|own| settings.is_routed(own.addr())) {
        bail!(
            "serviceRoutes has a network around {own}, which is an address of this node and its \
             network: its neighbours would be cut off. Name only what Services use \
             (kube-apiserver's --service-cluster-ip-range)"
        );
    }
    Ok(())
}

/// Returns the networks of the families whose iptables has the target of short circuits. The rest
/// works without them; rules that the host cannot do would break everything.
fn possible_short_circuit_networks(
    mut networks: ShortCircuitNetworks,
    rules: &HashMap<Family, Rules>,
) -> ShortCircuitNetworks {
    for (family, rules) in rules {
        let Some(network) = networks.of(*family) else { continue };
        if let Err(error) = rules.try_short_circuits(network) {
            warn!(
                "{error}. Without that target (module xt_NETMAP), clients in the cluster get this \
                 node's endpoints only where a Service has externalTrafficPolicy Local ({family})"
            );
            match family {
                Family::V4 => networks.v4 = None,
                Family::V6 => networks.v6 = None,
            }
        }
    }
    networks
}

fn probe(
    scheduler: &SchedulerName,
    wanted: &[sysctl::Sysctl],
    rules: &HashMap<Family, Result<Rules, String>>,
) -> Findings {
    let facts = probe::gather(
        &probe::ProcRoot::default(),
        scheduler,
        wanted,
        &mut Attempts {
            scheduler: &mut |scheduler| try_scheduler(scheduler).map_err(|e| format!("{e:#}")),
            ipset: &mut || ipset::Client::open().map(drop).map_err(|error| error.to_string()),
            dummy: &mut || Linux::try_dummy().map_err(|error| error.to_string()),
            iptables: &mut |family| match rules.get(&family) {
                Some(Ok(rules)) => rules.probe().map_err(|error| error.to_string()),
                Some(Err(error)) => Err(error.clone()),
                None => Err("not looked for".into()),
            },
        },
    );
    probe::judge(&facts)
}

/// Logs what was found.
///
/// # Errors
/// With all fatal findings, when there is one.
fn report(findings: &Findings) -> anyhow::Result<()> {
    let mut fatal = Vec::new();
    for finding in &findings.problems {
        if finding.fatal {
            fatal.push(finding.to_string());
        } else {
            warn!("{finding}");
        }
    }
    if !findings.is_usable() {
        bail!("this host cannot do IPVS service proxying:\n- {}", fatal.join("\n- "));
    }
    let families: Vec<String> = findings.families.iter().map(ToString::to_string).collect();
    info!(families = families.join(" and "), "host checked: it can do IPVS service proxying");
    Ok(())
}

/// A kernel that has the module, or may load it, takes the scheduler.
fn try_scheduler(scheduler: &SchedulerName) -> anyhow::Result<()> {
    let mut client = ipvs::Client::open()?;
    let wanted = ipvs::Scheduler::new(scheduler.as_str())?;
    if client.list_services()?.iter().any(|service| service.server.scheduler == wanted) {
        return Ok(());
    }
    let id = ipvs::VirtualServerId::tcp(PROBE_ADDRESS, PROBE_PORT);
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

/// Sets sysctls. Returns the failures of those without which Services do not work.
fn set_sysctls(proc_sys: &Path, wanted: &[sysctl::Sysctl]) -> Vec<String> {
    let outcome = sysctl::apply(proc_sys, wanted);
    for change in &outcome.changed {
        info!("{change}");
    }
    let mut required = Vec::new();
    for failed in &outcome.failed {
        if failed.sysctl.required {
            required.push(failed.to_string());
        } else {
            warn!("{failed}");
        }
    }
    required
}

/// Sets the sysctls of the estimators, which exist once the probe has loaded IPVS. Returns those
/// that have their value.
fn set_estimators(proc_sys: &Path, chosen: &EstimatorSettings) -> Vec<sysctl::Sysctl> {
    let processors = estimators::possible_processors(Path::new(estimators::SYS));
    let (wanted, notes) = chosen.sysctls(estimators::EstimatorKind::of(proc_sys), processors);
    for note in &notes {
        warn!("{note}");
    }
    // None of them is required.
    let _none = set_sysctls(proc_sys, &wanted);
    let differing = sysctl::differing(proc_sys, &wanted);
    wanted.into_iter().filter(|sysctl| !differing.contains(sysctl)).collect()
}

/// Sets up connection tracking. Returns the failures.
fn track_connections(chosen: &Conntrack) -> Vec<String> {
    let outcome = conntrack::set(&conntrack::Root::default(), chosen);
    for change in &outcome.changed {
        info!("{change}");
    }
    for tolerated in &outcome.tolerated {
        warn!("{tolerated}");
    }
    outcome.failed
}

fn timeouts(wanted: IpvsTimeouts) -> anyhow::Result<ipvs::Timeouts> {
    let seconds = |duration: std::time::Duration| {
        u32::try_from(duration.as_secs()).context("an IPVS timeout is longer than the kernel takes")
    };
    Ok(ipvs::Timeouts::default()
        .with_tcp(seconds(wanted.tcp)?)
        .with_tcp_fin(seconds(wanted.tcp_fin)?)
        .with_udp(seconds(wanted.udp)?))
}
