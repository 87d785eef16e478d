//! Progress of a switch, as the kernel shows it.

use std::fmt;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use plan::mode::Mode;
use plan::op::PartKind;

use super::served;
use config::Configuration;
use console::client::Client;
use console::process::Running;
use kernel::ReadError;
use node::cleanup::left::{self, LeftByIpvs, LeftRules};
use node::host;

/// Time between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Reading the kernel's state is to take no more than one part in this of the time.
const SHARE: u32 = 10;

/// Longest time until the process serves in the other mode.
const LIMIT: Duration = Duration::from_secs(120);

/// Time beyond the drain deadline after which state that does not become less is said to stay. Until
/// that deadline, sockets of this node may keep the addresses of mode ipvs when its virtual servers have
/// gone.
const STANDSTILL: Duration = Duration::from_secs(120);

/// State that is left of other modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Left {
    /// State of mode ipvs, if that is another one.
    by_ipvs: LeftByIpvs,
    /// None as long as virtual servers are left: rules stay until then.
    rules: Option<LeftRules>,
}

/// Writes a line whenever something changes, until nothing of the former mode is left.
///
/// # Errors
/// When the process ends, does not come to serve in the mode, or does not stay in it.
pub(super) fn follow(
    running: &Running,
    client: &Client,
    wanted: &Configuration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mode = wanted.settings.mode;
    until_served(running, client, wanted)?;
    writeln!(out, "the node serves in {}", mode.title())?;
    let (mut before, mut changed) = (None, Instant::now());
    loop {
        require_alive(running)?;
        require_served(mode, client)?;
        let started = Instant::now();
        let left = Left::read(wanted)?;
        if before != Some(left) {
            changed = started;
            if !left.is_empty() {
                writeln!(out, "left of other modes: {left}")?;
            }
        }
        if left.is_empty() {
            writeln!(out, "nothing of another mode is left")?;
            return Ok(());
        }
        if !wanted.cleanup_other_modes && left.by_ipvs.virtual_servers == 0 {
            writeln!(out, "the rest stays, because cleanupOtherModes is false")?;
            return Ok(());
        }
        if left.stays_after(changed.elapsed(), wanted.pace.drain_deadline) {
            writeln!(
                out,
                "this stays for now, because another program uses it (for example, a rule that \
                 matches a set). The log names what could not be removed. kube-ipvs retries every \
                 few minutes"
            )?;
            return Ok(());
        }
        before = Some(left);
        thread::sleep(PERIOD.max(started.elapsed() * SHARE));
    }
}

fn until_served(running: &Running, client: &Client, wanted: &Configuration) -> anyhow::Result<()> {
    let mode = wanted.settings.mode;
    let started = Instant::now();
    loop {
        require_alive(running)?;
        let served = served(client);
        if served == Ok(mode) {
            return Ok(());
        }
        if started.elapsed() >= LIMIT {
            let now =
                served.map_or_else(|error| error, |mode| format!("it serves in {}", mode.title()));
            let why = host::check(wanted, &[]).err().map_or_else(
                || "see its log and the Event ModeSwitchFailed of the Node".to_owned(),
                |error| format!("{error:#}"),
            );
            bail!("kube-ipvs has not switched to {} within {LIMIT:?} ({now}): {why}", mode.title());
        }
        thread::sleep(PERIOD);
    }
}

fn require_alive(running: &Running) -> anyhow::Result<()> {
    if !running.is_alive() {
        bail!(
            "kube-ipvs (process {}) has exited (see its log); it restarts in the mode of its \
             configuration",
            running.pid.as_raw_nonzero()
        );
    }
    Ok(())
}

/// Requires that a process which served in a mode has not gone to another one. While its parts are
/// made anew, it does not answer.
fn require_served(mode: Mode, client: &Client) -> anyhow::Result<()> {
    if let Ok(now) = served(client)
        && now != mode
    {
        bail!(
            "kube-ipvs has switched from {} to {}; see its log and the Events of the Node",
            mode.title(),
            now.title()
        );
    }
    Ok(())
}

impl Left {
    fn read(wanted: &Configuration) -> Result<Self, ReadError> {
        let mode = wanted.settings.mode;
        let by_ipvs = if mode.uses(PartKind::VirtualServers) {
            LeftByIpvs::default()
        } else {
            left::by_ipvs(&wanted.settings)?
        };
        let rules = (by_ipvs.virtual_servers == 0)
            .then(|| left::rules_beside(&wanted.settings, wanted.variant))
            .transpose()?;
        Ok(Self { by_ipvs, rules })
    }

    fn is_empty(&self) -> bool {
        self.by_ipvs.is_empty() && self.rules.is_some_and(|rules| rules.is_empty())
    }

    /// True if it will not go by itself, having been like this for so long.
    fn stays_after(&self, unchanged: Duration, drain_deadline: Duration) -> bool {
        self.by_ipvs.virtual_servers == 0 && unchanged >= drain_deadline.saturating_add(STANDSTILL)
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.rules, self.by_ipvs.is_empty()) {
            (Some(rules), true) => write!(f, "{rules}"),
            (Some(rules), false) => write!(f, "{}; {rules}", self.by_ipvs),
            (None, _) => write!(f, "{}", self.by_ipvs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_connection_keeps_is_not_waited_for_forever() {
        let interface = LeftByIpvs { interface: true, ..LeftByIpvs::default() };
        let left = Left { by_ipvs: interface, rules: Some(LeftRules::default()) };
        let deadline = Duration::from_secs(900);
        assert!(!left.stays_after(deadline, deadline), "sockets may keep it until then");
        assert!(left.stays_after(deadline + STANDSTILL, deadline));
        assert!(left.stays_after(STANDSTILL, Duration::ZERO));
        let draining = LeftByIpvs { virtual_servers: 1, ..interface };
        assert!(!Left { by_ipvs: draining, rules: None }.stays_after(deadline * 100, deadline));
    }
}
