//! Abilities of a host that a mode uses where they are there: each is probed here, at a start and to foresee one.

use std::path::Path;
use std::time::{Duration, Instant};

use plan::hash::HashMap;
use plan::model::{Family, Protocol};
use plan::settings::Settings;
use tracing::{info, warn};

use config::{Action, Configuration};
use kernel::linux::Linux;
use kernel::probe::ProbeError;
use kernel::rules::Rules;
use kernel::sysctl;

/// Search for the abilities of a host.
pub(crate) struct AbilitySearch<'a> {
    pub(crate) configuration: &'a Configuration,
    /// The programs of the families that the host can do.
    pub(crate) rules: &'a HashMap<Family, Rules>,
    /// Settings, which change with what is found.
    pub(crate) settings: &'a mut Settings,
    /// Lacks that Services feel, in words.
    pub(crate) limits: &'a mut Vec<String>,
}

/// Finds out if the host has an ability.
pub(crate) type Ability = fn(&mut AbilitySearch<'_>);

/// Number of attempts at a family's iptables while another program is in the way, and the time from one to
/// the next.
const PROBES: u32 = 3;
pub(crate) const PROBE_PAUSE: Duration = Duration::from_secs(5);

/// An attempt that takes longer is not made again at the same start.
const LONGEST_PROBE: Duration = Duration::from_secs(30);

/// Leaves out the networks of families whose iptables lacks the target of internal frontends. The rest works without
/// them; rules that the host cannot do would break everything.
pub(super) fn internal_frontends(search: &mut AbilitySearch<'_>) {
    let networks = &mut search.settings.internal_frontend_networks;
    for (family, rules) in search.rules {
        let Some(network) = networks.of(*family) else { continue };
        let Err(error) = patiently(PROBE_PAUSE, || rules.try_internal_frontends(network)) else {
            continue;
        };
        let remedy = if error.is_momentary {
            "Stop the process that holds the iptables lock, and restart kube-ipvs"
        } else {
            "Load the module xt_NETMAP on the host, and restart kube-ipvs"
        };
        let limit = format!(
            "clients in the cluster reach only this node's endpoints of Services with \
             externalTrafficPolicy Local ({family}): {}. {remedy}",
            error.words
        );
        warn!("{limit}");
        search.limits.push(limit);
        match family {
            Family::V4 => networks.v4 = None,
            Family::V6 => networks.v6 = None,
        }
    }
}

/// Leaves out SCTP where no rule can match its ports. A probe that another program was in the way of says nothing.
pub(super) fn sctp_ports(search: &mut AbilitySearch<'_>) {
    let lack = |(family, rules): (&Family, &Rules)| match rules.try_sctp() {
        Err(error) if !error.is_momentary => Some(format!(
            "SCTP ports are not served: {family}: {}. Load the module on the host (modprobe \
             xt_sctp), and restart kube-ipvs",
            error.words
        )),
        _ => None,
    };
    let lacks: Vec<String> = search.rules.iter().filter_map(lack).collect();
    lacks.iter().for_each(|lack| warn!("{lack}"));
    search.settings.unbalanced = if lacks.is_empty() { Vec::new() } else { vec![Protocol::Sctp] };
    search.limits.extend(lacks);
}

/// Finds the families whose rules can show IPVS copies of packets, where IPVS mode has left connections.
pub(super) fn syn_copies(search: &mut AbilitySearch<'_>) {
    let can_copy =
        |(family, rules): (&Family, &Rules)| match patiently(PROBE_PAUSE, || rules.try_copies()) {
            Ok(()) => Some(*family),
            Err(error) => {
                info!("{family}: {}. {}", error.words, lacks_copies());
                None
            }
        };
    if Linux::has_dummy() {
        search.settings.syn_copies = search.rules.iter().filter_map(can_copy).collect();
    }
}

/// The consequence of rules that cannot show IPVS copies of packets, in words.
#[must_use]
pub fn lacks_copies() -> &'static str {
    "Until the node has left IPVS mode, a connection from a client port that was used before may \
     be reset"
}

/// Has invalid packets dropped, unless connection tracking takes packets outside of the window for valid. A start has
/// set the sysctl by now, if that is wanted.
pub(super) fn dropping_invalid(search: &mut AbilitySearch<'_>) {
    let is_liberal = search.configuration.conntrack.tcp_be_liberal
        || sysctl::is_tcp_liberal(Path::new(sysctl::ROOT));
    search.settings.drop_invalid = !is_liberal;
    if is_liberal {
        info!("nf_conntrack_tcp_be_liberal set, not installing DROP rules for INVALID packets");
    }
}

/// Has rules count packets by name, if those of every family can.
pub(super) fn counters(search: &mut AbilitySearch<'_>) {
    let can_count =
        |(family, rules): (&Family, &Rules)| counts(*family, PROBE_PAUSE, || rules.try_counters());
    search.settings.nfacct = search.rules.iter().all(can_count);
}

/// Has rules lead NodePorts on localhost only where the sysctl for it can be set.
pub(super) fn localhost_node_ports(search: &mut AbilitySearch<'_>) {
    if let Some(lack) = lack_of_localhost_node_ports(search.configuration, Path::new(sysctl::ROOT))
    {
        warn!("{lack}");
        search.settings.iptables_localhost_node_ports = false;
    }
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
        "kube-ipvs keeps listening there (localhostNodePorts)"
    } else {
        "NodePorts cannot be reached at 127.0.0.1"
    };
    Some(format!(
        "rules cannot serve NodePorts on localhost: {} is not {}, and this process may not set it: \
         {instead}. Set it on the host (sysctl -w {}={}), or start the pod in iptables mode: its \
         init container then sets it",
        wanted.name(),
        wanted.value,
        wanted.name(),
        wanted.value
    ))
}

/// Tries a family's iptables, and again if another program is in the way: the node would go without the
/// family until its next start.
pub(crate) fn patiently<T>(
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
fn counts(
    family: Family,
    pause: Duration,
    attempt: impl FnMut() -> Result<(), ProbeError>,
) -> bool {
    let tried = patiently(pause, attempt);
    match &tried {
        Ok(()) => {}
        Err(ProbeError { words, is_momentary: false }) => info!(
            "two metrics of {family} are missing, because rules cannot count packets by name \
             (module xt_nfacct): {words}"
        ),
        // Rules of Services do not wait for metrics, and with one that the kernel lacks none is written.
        Err(ProbeError { words, is_momentary: true }) => warn!(
            "two metrics of {family} are missing until kube-ipvs is restarted, because it could \
             not be tested whether rules can count packets by name: {words}"
        ),
    }
    tried.is_ok()
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
}
