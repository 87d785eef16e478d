//! The composition root: builds every part and connects them. Nothing else knows all of them.
//!
//! ```text
//!   source ──▶ input ──▶ reconcile ◀──▶ kernel worker
//!                │           │ observer
//!                ▼           ▼
//!              events ◀─ observers ─▶ serve
//! ```
//!
//! All of this is made for a `tenure`, the time that the program serves in one mode. `changes` end a
//! tenure: another one follows in the same process, or a supervisor starts the program anew.

mod actions;
mod changes;
mod counters;
mod former_mode;
mod held_up;
mod input;
mod localhost;
pub mod logging;
mod mode;
mod node_port_servers;
mod observers;
mod orders;
mod relay;
mod service_routes;
mod service_traffic;
mod serving;
mod signals;
mod source;
mod tenure;
#[cfg(test)]
mod tests;
mod threads;

use anyhow::Context as _;
use plan::mode::Mode;
use tracing::{error, info, warn};

use config::watch::Rejected;
use config::{Action, Arguments, Configuration};
use former_mode::Former;
use localhost::NodePortsOnLocalhost;
use logging::Log;
use orders::Orders;
use service_routes::LastChanges;
use serving::ServingThread;
use signals::Shutdown;
pub use source::check;
use tenure::{Ended, Program, TenureError};
use threads::SHUTDOWN_GRACE;

/// Runs the configuration's action: usually, balances until SIGTERM or SIGINT. The kernel's state
/// stays then, and traffic goes on. The configuration is what was loaded from the `arguments`, which
/// is done again when its file changes. If the running program cannot take on the new one, it ends.
///
/// # Errors
/// When the host lacks something, the source cannot be reached at all, or something ends that must
/// not: in words, with what to do.
pub fn run(configuration: Configuration, arguments: Arguments, log: Log) -> anyhow::Result<()> {
    log_notes(&configuration);
    match &configuration.action {
        Action::Run => {}
        Action::InitOnly => return actions::init_only(&configuration),
        Action::Cleanup => return actions::clean_up(&configuration),
        Action::HandOver => return actions::hand_over(&configuration),
        Action::WriteConfig(path) => return actions::write_configuration(&configuration, path),
    }
    info!(version = configuration.reported_version, "kube-ipvs starts");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the event loop")?;
    let ended = runtime.block_on(async {
        let program = Program {
            arguments,
            configured: configuration.clone(),
            rejected: None,
            log,
            shutdown: Shutdown::handle()?,
            families: Vec::new(),
            relay: None,
            localhost: NodePortsOnLocalhost::new()?,
            serving: ServingThread::start().context("start the thread of health and metrics")?,
            orders: Orders::default(),
            last_route_changes: LastChanges::default(),
        };
        serve(configuration, program).await
    });
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    ended
}

/// Serves in one mode after the other. If a tenure cannot begin, or does not come to carry the
/// traffic, the configuration before is taken up again: a node does not lose its proxy for a mode.
async fn serve(first: Configuration, mut program: Program) -> anyhow::Result<()> {
    let (mut configuration, mut former) = (first, None);
    let mut before: Option<Before> = None;
    loop {
        let ended = tenure::serve(configuration.clone(), former.take(), &mut program).await;
        match ended {
            Ok(Ended::Shutdown) => return Ok(()),
            Ok(Ended::Switch { from, to }) => {
                let to = *to;
                info!("leaving {}: {}", from.title(), to.reason);
                before = Some(Before::new(configuration, from, &program));
                if to.is_configured {
                    program.configured = to.configuration.clone();
                }
                (configuration, former) = (
                    to.configuration,
                    Some(Former { mode: from, reason: to.reason, has_failed: false }),
                );
                log_notes(&configuration);
            }
            Err(TenureError::NotReady(problem)) | Ok(Ended::HeldUp(problem)) => {
                let Some(Before { served, configured }) = before.take() else {
                    return Err(problem);
                };
                let wanted = configuration.modes.preferred;
                let former_mode = served.modes.preferred;
                error!(
                    "cannot serve in {}, rolling back to {}: {problem:#}",
                    wanted.title(),
                    former_mode.title()
                );
                let reason = format!("it could not serve in {}: {problem:#}", wanted.title());
                former = Some(Former { mode: wanted, reason, has_failed: true });
                if let Some(file) =
                    configuration.file.filter(|it| configured.file.as_ref() != Some(it))
                {
                    let rejected = program.rejected.take();
                    let problem = format!("{problem:#}");
                    program.rejected =
                        Some(Rejected::after_failure(rejected, file.content, problem));
                }
                (configuration, program.configured) = (served, configured);
            }
            Err(TenureError::Failed(problem)) => return Err(problem),
        }
    }
}

/// Configurations to roll back to if a tenure cannot begin.
struct Before {
    /// Configuration that served, for the mode that it served in.
    served: Configuration,
    /// Configuration of the file then.
    configured: Configuration,
}

impl Before {
    /// A node that has fallen back rolls back to that mode. It would find the preferred one possible.
    fn new(served: Configuration, mode: Mode, program: &Program) -> Self {
        let configured = program.configured.clone();
        let served = if served.modes.preferred == mode {
            served
        } else {
            served.for_mode(&program.arguments, mode).unwrap_or(served)
        };
        Self { served, configured }
    }
}

fn log_notes(configuration: &Configuration) {
    for note in &configuration.notes {
        warn!("{note}");
    }
}
