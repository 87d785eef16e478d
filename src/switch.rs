//! Switching a running process to another mode: `kube-ipvs switch`.
//!
//! The command finds the process of its network namespace and gives it the order over the console's
//! socket (`/v1/mode`). It reads the kernel to say what a switch would meet (`survey`), and what is left of the
//! former mode (`progress`). The process keeps nothing of it: the order holds until it ends.

mod progress;
mod survey;

use std::io::Write;

use anyhow::{Context as _, anyhow, bail};
use plan::mode::Mode;

use config::cli::SwitchArguments;
use console::answers::mode::{self, ModeOrder, ModeOrdered};
use console::answers::status::Status;
use console::client::Client;
use console::outcome::Failure;
use console::process;
use node::host;

/// Requires that no kube-ipvs serves in this network namespace: who types the bare name there means one of
/// its commands.
pub fn require_none_beside() -> anyhow::Result<()> {
    let pid = match process::find(process::PROC.as_ref()) {
        Ok(running) => running.pid.as_raw_nonzero().to_string(),
        Err(error @ process::FindError::Several(..)) => return Err(error.into()),
        Err(_) => return Ok(()),
    };
    bail!(
        "kube-ipvs already serves in this network namespace (process {pid}), and a second one \
         would undo its changes. `kube-ipvs status` shows its state; `kube-ipvs --help` lists the \
         commands. To start a second one anyway, give it a configuration: --config FILE, or flags"
    )
}

/// Carries out the command, and writes what it finds.
///
/// # Errors
/// When the node cannot switch, or has not: in words.
pub fn run(arguments: &SwitchArguments, out: &mut impl Write) -> anyhow::Result<()> {
    let mode = arguments.to;
    let running = process::find(process::PROC.as_ref())?;
    let client = Client::find(None).map_err(|failure| without_console(&failure))?;
    if arguments.dry_run {
        return survey::run(&running, &client, mode, out);
    }
    let configured = running.configuration()?;
    let wanted = configured.for_mode(&running.arguments, mode)?;
    let pid = running.pid.as_raw_nonzero();
    let status = status(&client).map_err(|failure| without_console(&failure))?;
    let served = &status.mode.served;
    if *served == mode.name() {
        writeln!(out, "kube-ipvs (process {pid}) already serves in {}", mode.title())?;
        return Ok(());
    }
    // The process would find the same, and refuse the order in its log. In a container it may have other programs.
    if running.sees_the_same_files() {
        host::check(&wanted, &survey::families(Some(&status))).with_context(|| {
            format!(
                "this node stays in {}, and cannot switch to {}",
                mode::title(served),
                mode.title()
            )
        })?;
    }
    let order = ModeOrder { mode: mode.name().to_owned() };
    let ordered: Result<ModeOrdered, Failure> = client.post("/v1/mode", &order);
    ordered.map_err(|failure| without_console(&failure))?;
    writeln!(
        out,
        "asked kube-ipvs (process {pid}) to switch to {}. The switch lasts until kube-ipvs is restarted: \
         it then starts in the mode of its configuration, {}",
        mode.title(),
        configured.configured_mode
    )?;
    if arguments.no_wait {
        return Ok(());
    }
    progress::follow(&running, &client, &wanted, out)
}

/// Returns the state of the process.
fn status(client: &Client) -> Result<Status, Failure> {
    client.get("/v1/status", &[])
}

/// Returns the mode that the process serves in, in words if that is not known.
fn served(client: &Client) -> Result<Mode, String> {
    let status = status(client).map_err(|failure| failure.to_string())?;
    let served = &status.mode.served;
    Mode::named(served)
        .ok_or_else(|| format!("it serves in mode {served}, which this version does not know"))
}

fn without_console(failure: &Failure) -> anyhow::Error {
    anyhow!(
        "{failure}. The switch needs the console. Without it, change the mode in the \
         configuration, which a running kube-ipvs applies"
    )
}
