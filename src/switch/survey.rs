//! Survey of what a switch would meet: for `kube-ipvs switch --dry-run`.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use plan::mode::Mode;
use plan::model::Family;
use plan::op::PartKind;
use plan::settings::Settings;

use super::status;
use config::Configuration;
use console::answers::mode;
use console::answers::status::{RelayedClients, Status};
use console::client::Client;
use console::process::Running;
use kernel::rules::Rules;
use kernel::sysctl;
use node::cleanup::left;
use node::host;

/// Looks at the process, the host and the kernel's state, and writes what a switch would meet. The
/// probes of the host make a few objects and remove them.
///
/// # Errors
/// With all reasons for which the node cannot switch.
pub(super) fn run(
    running: &Running,
    client: &Client,
    mode: Mode,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let configured = running.configuration()?;
    let mut reasons = Vec::new();
    let status = status(client);
    let from = status.as_ref().map(|status| &*status.mode.served);
    let from_words = from.map_or_else(
        |failure| format!("mode not known ({failure})"),
        |name| format!("serves in {}", mode::title(name)),
    );
    writeln!(out, "process: {}, {from_words}", running.pid.as_raw_nonzero())?;
    if let Err(failure) = &status {
        reasons.push(format!("it does not accept a switch: {failure}"));
    }
    let status = status.ok();
    match configured.for_mode(&running.arguments, mode) {
        Err(reason) => reasons.push(reason.to_string()),
        Ok(wanted) => match host::check(&wanted, &families(status.as_ref())) {
            Ok(()) => {
                writeln!(out, "host: supports {}", mode.title())?;
                let proc_sys = Path::new(sysctl::ROOT);
                if let Some(lack) = host::lack_of_localhost_node_ports(&wanted, proc_sys) {
                    writeln!(out, "localhost: {lack}")?;
                }
            }
            Err(reason) => reasons.push(format!("{reason:#}")),
        },
    }
    let from = status.as_ref().and_then(|status| Mode::named(&status.mode.served));
    if from == Some(mode) {
        writeln!(out, "nothing to do: the node already serves in {}", mode.title())?;
    } else {
        let relayed = status.as_ref().and_then(|status| status.mode.relayed);
        write_state(&configured, from, relayed, mode, out)?;
    }
    if reasons.is_empty() {
        writeln!(out, "the node can switch to {}", mode.title())?;
        return Ok(());
    }
    bail!("the node cannot switch to {}:\n- {}", mode.title(), reasons.join("\n- "))
}

/// Writes for which families rules cannot have IPVS forget the connections of ports that are used
/// again.
fn write_lack_of_copies(configured: &Configuration, out: &mut impl Write) -> anyhow::Result<()> {
    for family in &configured.settings.families {
        let rules = Rules::open(*family, configured.variant).map_err(|error| error.to_string());
        let tried = rules.and_then(|rules| rules.try_copies().map_err(|error| error.words));
        if let Err(why) = tried {
            writeln!(out, "{family}: {why}. {}", host::lacks_copies())?;
        }
    }
    Ok(())
}

/// Writes what there is of the mode that the node would leave. Where that mode is not known, it is
/// written what there is of each.
fn write_state(
    configured: &Configuration,
    from: Option<Mode>,
    relayed: Option<RelayedClients>,
    to: Mode,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let former = to.others();
    let left: Vec<Mode> = former.filter(|it| from.is_none_or(|from| from == *it)).collect();
    let leaves = |has: fn(Mode) -> bool| left.iter().any(|mode| has(*mode));
    if !to.uses(PartKind::VirtualServers) {
        write_ipvs(configured, leaves(Mode::has_virtual_servers), out)?;
    }
    if leaves(Mode::leads_by_rules) {
        let chosen = Settings { mode: to, ..configured.settings.clone() };
        let beside = left::rules_beside(&chosen, configured.variant)?;
        writeln!(out, "rules: {beside}; their connections continue")?;
    }
    if leaves(Mode::balances_by_rules) {
        let affinity = left::chains_with_affinity(configured.variant)?;
        writeln!(out, "session affinity: starts over for {affinity} ports of Services")?;
    }
    if leaves(Mode::relays) {
        write_relayed(configured, relayed, out)?;
    }
    Ok(())
}

/// Writes what mode ipvs has, or has left.
fn write_ipvs(
    configured: &Configuration,
    is_left_now: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let by_ipvs = left::by_ipvs(&configured.settings)?;
    if by_ipvs.is_empty() && !is_left_now {
        return Ok(());
    }
    let deadline = configured.pace.drain_deadline;
    writeln!(
        out,
        "IPVS mode: {by_ipvs}; connections of TCP and SCTP have {deadline:?} to end (drainDeadline)"
    )?;
    let affinity = by_ipvs.connections.persistent;
    writeln!(out, "session affinity: starts over for {affinity} virtual servers")?;
    write_lack_of_copies(configured, out)?;
    if sysctl::answers_for_real_servers(Path::new(sysctl::ROOT)) {
        writeln!(
            out,
            "net.ipv4.vs.nat_icmp_send: 1. kube-ipvs sets it to 0 and does not restore it: with 1, \
             IPVS cuts connections that rules handle"
        )?;
    }
    Ok(())
}

/// Writes what becomes of the clients of the relay.
fn write_relayed(
    configured: &Configuration,
    relayed: Option<RelayedClients>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Some(RelayedClients { connections, udp_clients }) = relayed else { return Ok(()) };
    let deadline = configured.pace.drain_deadline;
    writeln!(
        out,
        "relay: {connections} TCP connections, which have {deadline:?} to end (drainDeadline), and \
         {udp_clients} UDP clients, which get a new endpoint"
    )?;
    writeln!(out, "session affinity: starts over for the clients of the relay")?;
    Ok(())
}

/// Returns the families that are served now.
pub(super) fn families(status: Option<&Status>) -> Vec<Family> {
    let is_served = |family: &Family| {
        let named = status.iter().flat_map(|status| &status.mode.families);
        { named }.any(|name| *name == family.to_string())
    };
    Family::BOTH.into_iter().filter(is_served).collect()
}
