//! Switching a running process to another mode: `kube-ipvs switch`.
//!
//! The command finds the process of its network namespace (`process`) and sends it a signal. It reads
//! the kernel to say what a switch would meet (`survey`), and what is left of the former mode
//! (`progress`). The process listens on nothing for this, and keeps nothing: the order holds until it
//! ends.
//!
//! | Signal | Order |
//! | --- | --- |
//! | SIGUSR1 | serve in mode iptables |
//! | SIGUSR2 | serve in mode ipvs |
//! | SIGURG | serve in mode userspace |
//!
//! They have signals with a name, since the call that sends a signal is unsafe to Rust for any other
//! number. SIGURG is the last one left that neither the kernel nor a terminal sends unasked: only the
//! owner of a socket gets it (fcntl(2), `F_SETOWN`), and there is none here.

pub(crate) mod process;
mod progress;
mod served;
mod survey;

use std::io::Write;

use anyhow::{Context as _, bail};
use plan::mode::Mode;
use rustix::process::Signal;

use crate::cli::SwitchArguments;
use process::Running;

/// Requires that no kube-ipvs serves in this network namespace: who types the bare name there means one of
/// its commands.
///
/// # Errors
/// When one does, or several do: in words.
pub fn require_none_beside() -> anyhow::Result<()> {
    let pid = match process::find(process::PROC.as_ref()) {
        Ok(running) => running.pid.as_raw_nonzero().to_string(),
        Err(error @ process::FindError::Several(_)) => return Err(error.into()),
        Err(_) => return Ok(()),
    };
    bail!(
        "kube-ipvs serves in this network namespace already (process {pid}), and a second one beside it would \
         undo its work. To see what it does, try `kube-ipvs status`; `kube-ipvs --help` lists the commands. To \
         start another one all the same, give it a configuration: --config FILE, or flags"
    )
}

/// Returns the signal that orders a mode.
#[must_use]
pub fn signal_of(mode: Mode) -> Signal {
    match mode {
        Mode::Iptables => Signal::USR1,
        Mode::Ipvs => Signal::USR2,
        Mode::Userspace => Signal::URG,
    }
}

/// Carries out the command, and writes what it finds.
///
/// # Errors
/// When the node cannot switch, or has not: in words.
pub fn run(arguments: &SwitchArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let mode = arguments.to;
    let running = process::find(process::PROC.as_ref())?;
    if arguments.dry_run {
        return survey::run(&running, mode, out);
    }
    let configured = running.configuration()?;
    let wanted = configured.for_mode(&running.arguments, mode)?;
    require_handler(&running, mode)?;
    let pid = running.pid.as_raw_nonzero();
    if served::mode(configured.served.metrics) == Ok(mode) {
        writeln!(out, "kube-ipvs (process {pid}) serves in mode {mode} already")?;
        return Ok(());
    }
    rustix::process::kill_process(running.pid, signal_of(mode))
        .with_context(|| format!("send a signal to process {pid}"))?;
    writeln!(
        out,
        "asked kube-ipvs (process {pid}) to serve in mode {mode}. That holds until it ends: the next \
         start goes by the configuration, which says {}",
        configured.configured_mode
    )?;
    if arguments.no_wait {
        return Ok(());
    }
    progress::follow(&running, &wanted, out)
}

/// Requires that a process takes the signal for a mode: it would end one of an older version.
fn require_handler(running: &Running, mode: Mode) -> anyhow::Result<()> {
    if !running.handles(signal_of(mode)) {
        bail!(
            "kube-ipvs (process {}) does not take orders of a mode: it is of an older version, or \
             starts or ends just now. Change the mode in its configuration",
            running.pid.as_raw_nonzero()
        );
    }
    Ok(())
}
