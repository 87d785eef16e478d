//! The mode that the node serves in, where it is not the preferred one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::changes::{Consequence, Switch};
use crate::events::{EventRecorder, NewEvent, Reason, Regarding, Severity};
use config::Configuration;
use config::mode::Fallback;
use config::words::OnReturn;
use node::host::{self, FallenBack};

/// Function that finds out if the host can do the preferred mode, or what it lacks.
type Look = Arc<dyn Fn() -> Result<(), Vec<String>> + Send + Sync>;

/// Reaction to a host that can do the preferred mode again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Return {
    /// The program ends, to be started again, with this reason.
    Restart(String),
    /// It goes on in the preferred mode, for this reason.
    Switch(String),
}

/// Reports that the node has fallen back, if it has. The returned future looks again and again if the
/// host can do the preferred mode, reports that once, and is ready if the node is to return to it.
pub(super) fn returned(
    configuration: &Configuration,
    fallen_back: Option<FallenBack>,
    recorder: &EventRecorder,
    at_work: &TaskTracker,
) -> impl Future<Output = Return> + use<> {
    let fallen_back = fallen_back.zip(configuration.modes.fallback);
    if let Some((fallen_back, _)) = &fallen_back {
        warn!("{fallen_back}");
        recorder.record(fallback_event(fallen_back));
    }
    let (configuration, recorder) = (configuration.clone(), recorder.clone());
    let at_work = at_work.clone();
    async move {
        let Some((fallen_back, fallback)) = fallen_back else {
            return std::future::pending().await;
        };
        let look = Arc::new(move || host::look_again(&configuration));
        until_possible(fallback.retry, look, &at_work).await;
        let FallenBack { preferred, mode, .. } = fallen_back;
        let (preferred, mode) = (preferred.title(), mode.title());
        let note = format!("this host now supports {preferred}, and serves in {mode}");
        end_or_stay(&note, fallback, &recorder).await
    }
}

/// Looks every so often. Ready when the host can do the mode.
async fn until_possible(pause: Duration, look: Look, at_work: &TaskTracker) {
    loop {
        tokio::time::sleep(pause).await;
        let look = Arc::clone(&look);
        // It runs programs, which takes its time.
        match at_work.spawn_blocking(move || look()).await {
            Ok(Ok(())) => return,
            Ok(Err(missing)) => debug!("still missing: {}", missing.join("; ")),
            Err(error) => warn!(
                "checking the host's prerequisites failed: {error}; kube-ipvs \
                                 checks again"
            ),
        }
    }
}

/// Reports that the preferred mode is possible. Ready only if the node is to return to it.
async fn end_or_stay(note: &str, fallback: Fallback, recorder: &EventRecorder) -> Return {
    let follows = match fallback.on_return {
        OnReturn::Stay => "restart kube-ipvs to switch",
        OnReturn::Restart => "kube-ipvs exits, so that it is restarted in that mode",
        OnReturn::Switch => "it switches",
    };
    let note = format!("{note}: {follows}");
    info!("{note}");
    recorder.record(event(Severity::Normal, Reason::ModeAvailable, note.clone()));
    let consequence = match fallback.on_return {
        OnReturn::Stay => return std::future::pending().await,
        OnReturn::Restart => Return::Restart(note),
        OnReturn::Switch => Return::Switch(note),
    };
    // The Event gets a second to be published.
    tokio::time::sleep(Duration::from_secs(1)).await;
    consequence
}

impl Return {
    /// Returns what follows for a program with this configuration.
    pub(super) fn of(self, configuration: Configuration) -> Consequence {
        match self {
            Self::Restart(reason) => Consequence::Restart(reason),
            Self::Switch(reason) => {
                Consequence::Switch(Box::new(Switch { configuration, is_configured: true, reason }))
            }
        }
    }
}

/// Reports the families that are not served, although the kernel has them.
pub(super) fn report_dropped(families: &[String], recorder: &EventRecorder) {
    for why in families {
        recorder.record(event(Severity::Warning, Reason::FamilyNotServed, why.clone()));
    }
}

fn fallback_event(fallen_back: &FallenBack) -> NewEvent {
    event(Severity::Warning, Reason::ModeFallback, fallen_back.to_string())
}

fn event(severity: Severity, reason: Reason, note: String) -> NewEvent {
    NewEvent::new(Regarding::Node, severity, reason, "ChooseMode", note)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use plan::mode::Mode;
    use tokio::time::{Instant, timeout};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn the_host_is_looked_at_until_it_can_do_the_mode() {
        let looks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&looks);
        let look = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(vec!["no ip_vs".to_owned()]),
            1 => panic!("a look that fails is no reason to stop"),
            _ => Ok(()),
        };
        let began = Instant::now();
        until_possible(MINUTE, Arc::new(look), &TaskTracker::new()).await;
        assert_eq!(looks.load(Ordering::Relaxed), 3);
        assert_eq!(began.elapsed().as_secs(), 180);
    }

    #[tokio::test(start_paused = true)]
    async fn the_mode_ends_only_if_it_is_to() {
        let recorder = EventRecorder::disabled();
        let fallback = |on_return| Fallback { mode: Mode::Iptables, retry: MINUTE, on_return };
        let ended = |on_return| end_or_stay("can", fallback(on_return), &recorder);
        let reason = "can: kube-ipvs exits, so that it is restarted in that mode".to_owned();
        assert_eq!(ended(OnReturn::Restart).await, Return::Restart(reason));
        let reason = "can: it switches".to_owned();
        assert_eq!(ended(OnReturn::Switch).await, Return::Switch(reason));
        let stays = ended(OnReturn::Stay);
        assert!(timeout(60 * MINUTE, stays).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_has_not_fallen_back_does_not_look() {
        let words = ["kube-ipvs", "--proxy-mode=auto"].map(Into::into);
        let configuration = Configuration::load(&config::cli::parse(words).unwrap()).unwrap();
        let never = returned(&configuration, None, &EventRecorder::disabled(), &TaskTracker::new());
        assert!(timeout(60 * MINUTE, never).await.is_err());
    }

    #[test]
    fn a_fallback_is_a_warning_about_the_node() {
        let fallen_back = FallenBack {
            preferred: Mode::Ipvs,
            mode: Mode::Iptables,
            missing: vec!["no ip_vs".to_owned()],
        };
        let event = fallback_event(&fallen_back);
        assert_eq!((&event.regarding, event.reason), (&Regarding::Node, Reason::ModeFallback));
        assert_eq!(event.severity, Severity::Warning);
        assert!(event.note.ends_with("falling back to iptables mode: no ip_vs"), "{}", event.note);
    }
}
