//! Preparation of the host: modules, the probe, sysctls, and the handles.

mod conntrack;
mod examination;
mod fallback;
pub mod foresight;
mod local_ports;
mod oom;
pub mod survey;
pub mod sysctls;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use plan::hash::HashMap;
use plan::iptables::constant::COUNTERS;
use plan::mode::Mode;
use plan::model::{Family, Protocol};
use plan::settings::{AcceptServiceTraffic, Settings, ShortCircuitNetworks};
use tracing::{info, warn};

use config::{Action, Configuration, IpvsTimeouts};
use examination::{Examined, PROBE_PAUSE, counts, examine, gather, open_rules, patiently, probe};
pub use fallback::FallenBack;
use kernel::ReadError;
use kernel::input_rules::{self, Obstacle};
use kernel::linux::{self, Linux};
use kernel::nfacct::NfacctClient;
use kernel::rules::{Backend, Rules};
use kernel::sysctl;
use kernel::sysctl::ServiceAddressesArp;

/// A host that is ready.
pub struct Host {
    /// The configuration for the mode that the host can do, with the families and abilities that it
    /// has.
    pub configuration: Configuration,
    /// Reason for which the mode is not the preferred one; none: it is.
    pub fallen_back: Option<FallenBack>,
    /// Reasons for which families are not served that the kernel has, in words.
    pub dropped_families: Vec<String>,
    /// The kind of iptables that holds the rules of each of these families. Nothing says that it
    /// is the same one: what is installed and in use is found out for each.
    pub backends: HashMap<Family, Backend>,
    /// Its kernel.
    pub linux: Linux,
    /// Limits of the host that Services feel, in words. Each has been logged.
    pub limits: Vec<String>,
}

/// Prepares the host for planning, in the mode that it can do. An error names everything that is
/// missing, and the families of those `served` so far that would not be served any more.
pub fn prepare(configuration: &Configuration, served: &[Family]) -> anyhow::Result<Host> {
    oom::set_score(Path::new(oom::PATH), configuration.oom_score_adj);
    let examined = examine(configuration)?;
    examined.keeps(served)?;
    let Examined { configuration, fallen_back, dropped_families, rules, mut limits } = examined;
    let settings = Settings {
        random_fully: rules.values().all(Rules::random_fully),
        ..configuration.settings.clone()
    };
    let backends = rules.iter().map(|(family, rules)| (*family, rules.backend())).collect();
    let (settings, linux) = match settings.mode {
        Mode::Ipvs => prepare_ipvs(&configuration, settings, rules, &mut limits)?,
        Mode::Userspace => prepare_userspace(&configuration, settings, rules, &mut limits)?,
        Mode::Iptables => prepare_iptables(&configuration, settings, rules, &mut limits)?,
    };
    if let Some(warning) = local_ports::warning(Path::new(sysctl::ROOT)) {
        warn!("{warning}");
    }
    let configuration = Configuration { settings, ..configuration };
    Ok(Host { configuration, fallen_back, dropped_families, backends, linux, limits })
}

/// Checks that the host can be prepared for a configuration, while it serves with another one.
/// Removes what the check has made.
///
/// # Errors
/// With everything that is missing, and the families of those `served` now that would not be served
/// any more.
pub fn check(configuration: &Configuration, served: &[Family]) -> anyhow::Result<()> {
    let had_dummy = Linux::has_dummy();
    let examined = examine(configuration);
    remove_dummy_unless(had_dummy);
    examined?.keeps(served)
}

/// Looks again at whether this host can do the preferred mode, which it could not when the program
/// started, without losing a family that it serves now. Removes what the look has made.
///
/// # Errors
/// With everything that is missing.
pub fn look_again(configuration: &Configuration) -> Result<(), Vec<String>> {
    let served = &configuration.settings.families;
    let configuration = configuration.in_mode(configuration.modes.preferred);
    let had_dummy = Linux::has_dummy();
    let findings = probe(&configuration, &open_rules(&configuration));
    remove_dummy_unless(had_dummy);
    if !findings.is_usable() {
        return Err(findings.fatal());
    }
    let keeps = served.iter().all(|family| findings.families.contains(family));
    if keeps { Ok(()) } else { Err(findings.dropped_families()) }
}

/// Removes the interface that a probe of mode ipvs has made, unless it was there before.
fn remove_dummy_unless(was_there: bool) {
    if !was_there && let Err(error) = Linux::remove_empty_dummy() {
        warn!("cannot remove the interface that the probe of mode ipvs made: {error}");
    }
}

/// Sets what mode ipvs needs, and opens the kernel.
fn prepare_ipvs(
    configuration: &Configuration,
    mut settings: Settings,
    rules: HashMap<Family, Rules>,
    limits: &mut Vec<String>,
) -> anyhow::Result<(Settings, Linux)> {
    let proc_sys = Path::new(sysctl::ROOT);
    let arp = configuration.service_addresses_arp;
    let wanted = wanted_sysctls(configuration);
    let mut failed = sysctls::set(proc_sys, &wanted);
    let of_estimators = sysctls::set_estimators(proc_sys, configuration.estimators);
    failed.extend(sysctls::track_connections(&configuration.conntrack, limits));
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    settings.short_circuit_networks =
        possible_short_circuit_networks(settings.short_circuit_networks, &rules, limits);
    warn_of_obstacles(&settings, &rules);
    let mut linux = Linux::open(rules, Mode::Ipvs)?;
    let mut kept = sysctl::existing(proc_sys, wanted);
    kept.extend(of_estimators);
    linux.keep_sysctls(kept);
    linux.keep_timeouts(timeouts(configuration.ipvs_timeouts)?).context("set the IPVS timeouts")?;
    linux.bind_for(arp, |address| settings.excludes(address))?;
    let neighbourhoods = linux.neighbourhoods()?;
    if configuration.service_routes.is_automatic {
        leave_out_neighbours(&mut settings.service_routes, &neighbourhoods);
    }
    spare_neighbours(&settings, &neighbourhoods)?;
    warn_of(input_rules::in_exclusions(&settings.exclude, &neighbourhoods));
    warn_of_local_networks(proc_sys, arp);
    Ok((settings, linux))
}

/// Logs what of the host's own rules keeps Service traffic from IPVS.
fn warn_of_obstacles(settings: &Settings, rules: &HashMap<Family, Rules>) {
    let read = |(family, rules): (&Family, &Rules)| Some((*family, rules.saved().ok()?));
    let saved: Vec<(Family, String)> = match settings.accept_service_traffic {
        AcceptServiceTraffic::Always => Vec::new(),
        AcceptServiceTraffic::Never => rules.iter().filter_map(read).collect(),
    };
    let saved = saved.iter().map(|(family, text)| (*family, text.as_str()));
    warn_of(input_rules::in_input(settings, saved));
    warn_of(input_rules::in_routing(settings));
}

fn warn_of(obstacles: Vec<Obstacle>) {
    for Obstacle { what, remedy } in obstacles {
        warn!("{what}; {remedy}");
    }
}

/// Makes the counters that rules name: without one, the kernel refuses the rule. Returns false if
/// they cannot be made.
fn make_counters() -> bool {
    let made = patiently(PROBE_PAUSE, || {
        let mut client = NfacctClient::open()?;
        Ok(COUNTERS.into_iter().try_for_each(|name| client.ensure(name))?)
    });
    if let Err(error) = &made {
        let names = COUNTERS.join(" and ");
        info!("cannot make the packet counters {names}: {}; no rule counts", error.words);
    }
    made.is_ok()
}

/// Sets what mode iptables needs, and opens the kernel.
fn prepare_iptables(
    configuration: &Configuration,
    mut settings: Settings,
    rules: HashMap<Family, Rules>,
    limits: &mut Vec<String>,
) -> anyhow::Result<(Settings, Linux)> {
    let proc_sys = Path::new(sysctl::ROOT);
    let mut wanted = wanted_sysctls(configuration);
    if Linux::has_dummy() {
        // IPVS mode left it, and leads connections until they end.
        wanted.extend(sysctl::left_by_ipvs());
        settings.syn_copies = possible_syn_copies(&rules);
    }
    let mut failed = sysctls::set(proc_sys, &wanted);
    // Before the sysctl is read that decides about invalid packets.
    failed.extend(sysctls::track_connections(&configuration.conntrack, limits));
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    settings.drop_invalid = !sysctl::is_tcp_liberal(proc_sys);
    if !settings.drop_invalid {
        info!("nf_conntrack_tcp_be_liberal set, not installing DROP rules for INVALID packets");
    }
    settings.unbalanced = unmatched_protocols(&rules, limits);
    settings.nfacct = can_count(&rules) && make_counters();
    let lack = lack_of_localhost_node_ports(configuration, proc_sys);
    if let Some(lack) = &lack {
        warn!("{lack}");
        settings.iptables_localhost_node_ports = false;
    }
    let local_networks = settings.iptables_localhost_node_ports.then(sysctl::local_networks_routed);
    let mut linux = Linux::open(rules, Mode::Iptables)?;
    linux.keep_sysctls(sysctl::existing(proc_sys, wanted));
    if configuration.action == Action::InitOnly {
        // The process that this prepares for may not be allowed to set it.
        let _not_required = sysctls::set(proc_sys, local_networks.as_slice());
    } else {
        sysctls::record_before(proc_sys, local_networks.as_slice());
        linux.keep_sysctls_behind_rules(local_networks.into_iter().collect());
    }
    Ok((settings, linux))
}

/// Returns why rules of mode iptables cannot lead NodePorts on localhost, in words; none: they can, or
/// are not to.
#[must_use]
pub fn lack_of_localhost_node_ports(
    configuration: &Configuration,
    proc_sys: &Path,
) -> Option<String> {
    let wanted = sysctl::local_networks_routed();
    let is_asked = configuration.settings.iptables_localhost_node_ports
        && configuration.action != Action::InitOnly;
    if !is_asked || sysctl::can_have(proc_sys, &wanted) {
        return None;
    }
    let instead = if configuration.localhost_node_ports {
        "kube-ipvs goes on listening there (localhostNodePorts)"
    } else {
        "NodePorts are not reached at 127.0.0.1"
    };
    Some(format!(
        "rules cannot lead NodePorts on localhost: {} is not {}, and this process may not set it: \
         {instead}. Set it on the host (sysctl -w {}={}), or have the pod start in mode iptables, whose \
         init container sets it",
        wanted.name(),
        wanted.value,
        wanted.name(),
        wanted.value
    ))
}

/// Sets what mode userspace needs, and opens the kernel.
fn prepare_userspace(
    configuration: &Configuration,
    mut settings: Settings,
    rules: HashMap<Family, Rules>,
    limits: &mut Vec<String>,
) -> anyhow::Result<(Settings, Linux)> {
    let proc_sys = Path::new(sysctl::ROOT);
    let mut wanted = wanted_sysctls(configuration);
    if Linux::has_dummy() {
        wanted.extend(sysctl::left_by_ipvs());
        settings.syn_copies = possible_syn_copies(&rules);
    }
    let mut failed = sysctls::set(proc_sys, &wanted);
    failed.extend(sysctls::track_connections(&configuration.conntrack, limits));
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    settings.unbalanced = unmatched_protocols(&rules, limits);
    let mut linux = Linux::open(rules, Mode::Userspace)?;
    linux.keep_sysctls(sysctl::existing(proc_sys, wanted));
    Ok((settings, linux))
}

/// Returns the families whose rules can show IPVS copies of packets.
fn possible_syn_copies(rules: &HashMap<Family, Rules>) -> Vec<Family> {
    let can_copy =
        |(family, rules): (&Family, &Rules)| match patiently(PROBE_PAUSE, || rules.try_copies()) {
            Ok(()) => Some(*family),
            Err(error) => {
                info!("{family}: {}. {}", error.words, lacks_copies());
                None
            }
        };
    rules.iter().filter_map(can_copy).collect()
}

/// Returns the protocols whose ports no rule can match; adds them to the `limits`, in words. A probe that
/// another program was in the way of says nothing.
fn unmatched_protocols(rules: &HashMap<Family, Rules>, limits: &mut Vec<String>) -> Vec<Protocol> {
    let lack = |(family, rules): (&Family, &Rules)| match rules.try_sctp() {
        Err(error) if !error.is_momentary => Some(format!(
            "ports of SCTP are not served: {family}: {}. Load the module on the host (modprobe xt_sctp), and \
             restart kube-ipvs",
            error.words
        )),
        _ => None,
    };
    let lacks: Vec<String> = rules.iter().filter_map(lack).collect();
    lacks.iter().for_each(|lack| warn!("{lack}"));
    let unmatched = if lacks.is_empty() { Vec::new() } else { vec![Protocol::Sctp] };
    limits.extend(lacks);
    unmatched
}

/// The consequence of rules that cannot show IPVS copies of packets, in words.
#[must_use]
pub fn lacks_copies() -> &'static str {
    "Until the node has left mode ipvs, a client that uses the port of a closed connection again may \
     be reset"
}

/// True if the rules of every family can count packets by name.
fn can_count(rules: &HashMap<Family, Rules>) -> bool {
    rules.iter().all(|(family, rules)| counts(*family, PROBE_PAUSE, || rules.try_counters()))
}

/// Returns the sysctls that a mode sets at the start and keeps, but for those of connection tracking.
fn kept_sysctls(configuration: &Configuration) -> Vec<sysctl::Sysctl> {
    let mut kept = wanted_sysctls(configuration);
    match configuration.settings.mode {
        Mode::Ipvs => {
            kept.extend(sysctls::of_estimators(Path::new(sysctl::ROOT), configuration.estimators));
        }
        Mode::Iptables | Mode::Userspace if Linux::has_dummy() => {
            kept.extend(sysctl::left_by_ipvs());
        }
        Mode::Iptables | Mode::Userspace => {}
    }
    let has_localhost = configuration.settings.mode == Mode::Iptables
        && configuration.settings.iptables_localhost_node_ports
        && lack_of_localhost_node_ports(configuration, Path::new(sysctl::ROOT)).is_none();
    kept.extend(has_localhost.then(sysctl::local_networks_routed));
    kept
}

/// Returns the sysctls that the mode needs from the start.
fn wanted_sysctls(configuration: &Configuration) -> Vec<sysctl::Sysctl> {
    match configuration.settings.mode {
        Mode::Ipvs => {
            let kernel = sysctl::kernel_version(Path::new(sysctl::ROOT));
            let mut wanted = sysctl::wanted(configuration.service_addresses_arp, kernel);
            if configuration.settings.families.contains(&Family::V6) {
                wanted.push(sysctl::ipv6_of_link());
            }
            wanted
        }
        Mode::Iptables | Mode::Userspace => sysctl::wanted_by_iptables(),
    }
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

/// Leaves out the routes that would cut neighbours off as the node's addresses are now.
pub fn without_neighbours(routes: &mut Vec<IpNet>) -> Result<(), ReadError> {
    leave_out_neighbours(routes, &linux::neighbourhoods()?);
    Ok(())
}

/// Leaves out the routes that would cut neighbours off, where no operator has asked for them.
fn leave_out_neighbours(routes: &mut Vec<IpNet>, neighbourhoods: &[IpNet]) {
    routes.retain(|network| {
        let around = neighbourhoods.iter().find(|own| network.contains(&own.addr()));
        if let Some(own) = around {
            warn!(
                "serviceRoutes: auto has no route to {network}, and binds the addresses there one by one, \
                 since {own} is an address of this node and its network"
            );
        }
        around.is_none()
    });
}

/// Returns the networks of the families whose iptables has the target of short circuits; adds the others to the
/// `limits`, in words. The rest works without them; rules that the host cannot do would break everything.
fn possible_short_circuit_networks(
    mut networks: ShortCircuitNetworks,
    rules: &HashMap<Family, Rules>,
    limits: &mut Vec<String>,
) -> ShortCircuitNetworks {
    for (family, rules) in rules {
        let Some(network) = networks.of(*family) else { continue };
        let Err(error) = patiently(PROBE_PAUSE, || rules.try_short_circuits(network)) else {
            continue;
        };
        let remedy = if error.is_momentary {
            "End what holds the lock of iptables, and restart kube-ipvs"
        } else {
            "Load the module xt_NETMAP on the host, and restart kube-ipvs"
        };
        let limit = format!(
            "clients in the cluster get this node's endpoints only, where a Service has externalTrafficPolicy \
             Local ({family}): {}. {remedy}",
            error.words
        );
        warn!("{limit}");
        limits.push(limit);
        match family {
            Family::V4 => networks.v4 = None,
            Family::V6 => networks.v6 = None,
        }
    }
    networks
}

fn timeouts(wanted: IpvsTimeouts) -> anyhow::Result<ipvs::Timeouts> {
    let seconds = |duration: Duration| {
        u32::try_from(duration.as_secs()).context("an IPVS timeout is longer than the kernel takes")
    };
    Ok(ipvs::Timeouts::default()
        .with_tcp(seconds(wanted.tcp)?)
        .with_tcp_fin(seconds(wanted.tcp_fin)?)
        .with_udp(seconds(wanted.udp)?))
}
