//! State that another mode has left on the node: its removal, and the reports of it.
//!
//! The other mode is the one that this process served in before, or one whose state a start finds.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use plan::hash::HashMap;
use plan::mode::Mode;
use plan::model::Family;
use plan::op::PartKind;
use plan::settings::Settings;
use prometheus::IntGaugeVec;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::localhost::NodePortsOnLocalhost;
use super::relay::RunningRelay;
use crate::events::{EventRecorder, NewEvent, Reason, Regarding, Severity};
use kernel::rules::{Backend, ProgramsRun, programs_run};
use node::cleanup::left::LeftByIpvs;
use node::cleanup::sockets::ServiceAddresses;
use node::cleanup::{self, CleanupReport};
use reconcile::Status;
use serve::metrics::own::VIRTUAL_SERVERS;

/// Time between two looks at the node's sockets.
const CHECK: Duration = Duration::from_secs(1);

/// Pauses before what could not be removed is tried again: the first, and the longest. Each is twice as
/// long as the one before.
const PAUSES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(600)];

/// The mode that this process served in before, and the reason for which it serves in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Former {
    pub(super) mode: Mode,
    pub(super) reason: String,
    /// True if it could not be served in, and the one before it is taken up again.
    pub(super) has_failed: bool,
}

/// State to be removed.
#[derive(Debug, Clone, Copy)]
enum Removal {
    /// State of other modes, but for what connections of mode ipvs may need.
    OtherModes,
    /// State of mode ipvs.
    Ipvs,
}

/// Removal of what another mode has left. The event loop lets connections end; the rest is done here,
/// once our own state carries the traffic.
pub(super) struct FormerMode {
    pub(super) settings: Settings,
    /// None at the start of the program.
    pub(super) former: Option<Former>,
    /// The relay that served in mode userspace before, if it did.
    pub(super) relay: Option<RunningRelay>,
    /// Node ports on localhost, if this mode does not want them.
    pub(super) localhost: Option<NodePortsOnLocalhost>,
    /// Programs that remove rules. None: what needs them stays.
    pub(super) backends: Option<HashMap<Family, Backend>>,
    pub(super) status: watch::Receiver<Status>,
    pub(super) recorder: EventRecorder,
    /// Amount of it that is left, by kind.
    pub(super) left: IntGaugeVec,
    pub(super) at_work: TaskTracker,
    /// Longest time for what mode ipvs has left to end.
    pub(super) drain_deadline: Duration,
}

impl FormerMode {
    /// Ends when nothing is left, or when the loop has ended.
    pub(super) async fn run(mut self) {
        let mode = self.settings.mode;
        if let Some(former) = &self.former {
            self.recorder.record(begun(mode, former));
        }
        // A single Service that the kernel refuses must not keep another mode's stale rules in force.
        let is_carried = |status: &Status| status.is_carried && !status.has_pending_prerequisite;
        if self.status.wait_for(is_carried).await.is_err() {
            return;
        }
        let mut removed = self.remove(Removal::OtherModes).await;
        let ProgramsRun { count, took } = programs_run();
        debug!("programs run so far: {count}, in {took:?}");
        // What follows may wait for minutes.
        removed.log();
        self.stop_relay(&removed);
        if let Some(localhost) = &self.localhost {
            localhost.stop_listening();
        }
        if !mode.uses(PartKind::VirtualServers) {
            let Some(was_left) = self.until_none_is_left().await else { return };
            if was_left && self.former.is_none() {
                let reason = "the program found its state".to_owned();
                self.former = Some(Former { mode: LeftByIpvs::MODE, reason, has_failed: false });
            }
            if self.backends.is_some() && self.until_no_socket_needs_addresses().await.is_none() {
                return;
            }
            let of_ipvs = self.remove(Removal::Ipvs).await;
            of_ipvs.log();
            removed.extend(of_ipvs);
        }
        self.report_end(&removed);
        self.until_all_is_removed(removed).await;
    }

    /// Tries again to remove what could not be removed, until all of it is gone or the loop has ended.
    async fn until_all_is_removed(&self, removed: CleanupReport) {
        let again = || {
            async move {
                let mut again = self.remove(Removal::OtherModes).await;
                if !self.settings.mode.uses(PartKind::VirtualServers) {
                    again.extend(self.remove(Removal::Ipvs).await);
                }
                self.stop_relay(&again);
                again
            }
            .boxed()
        };
        let report_end = |removed: &CleanupReport| self.report_end(removed);
        until_complete(removed, self.status.clone(), again, report_end).await;
    }

    /// Has the relay stop listening once no portal leads to it. A portal that could not be removed may
    /// come before the rules that lead now, and its clients are served as before.
    fn stop_relay(&self, removed: &CleanupReport) {
        if let Some(relay) = self.relay.as_ref().filter(|_| removed.is_complete())
            && self.backends.is_some()
        {
            relay.stop_listening();
        }
    }

    /// Reports what has become of the state of other modes.
    fn report_end(&self, removed: &CleanupReport) {
        let (mode, is_removed) = (self.settings.mode, self.backends.is_some());
        if let Some(event) = ended(mode, self.former.as_ref(), is_removed, removed) {
            info!("{}", event.note);
            self.recorder.record(event);
        }
    }

    /// Waits until the event loop has no virtual server of mode ipvs left, and reports how many there
    /// are meanwhile. Returns true if there was one; nothing if the loop has ended.
    async fn until_none_is_left(&mut self) -> Option<bool> {
        let left = self.left.with_label_values(&[VIRTUAL_SERVERS]);
        let mut was_left = false;
        loop {
            let is_known = |status: &Status| status.n_left_by_ipvs.is_some();
            let known = self.status.wait_for(is_known).await.map(|status| status.n_left_by_ipvs);
            let n_left = known.ok()?.unwrap_or_default();
            left.set(i64::try_from(n_left).unwrap_or(i64::MAX));
            if n_left == 0 {
                return Some(was_left);
            }
            if !was_left {
                let note = format!(
                    "IPVS mode left {n_left} virtual servers: new connections follow the rules of \
                     {}; existing IPVS connections continue until they end, or until drainDeadline",
                    self.settings.mode.title()
                );
                self.recorder.record(event(Severity::Normal, Reason::ModeSwitching, note));
            }
            was_left = true;
            self.status.wait_for(|status| status.n_left_by_ipvs != Some(n_left)).await.ok()?;
        }
    }

    /// Waits until none of the node's own UDP sockets has a source that goes with mode ipvs, or the
    /// drain deadline is over. Returns nothing if the loop has ended.
    async fn until_no_socket_needs_addresses(&mut self) -> Option<()> {
        let deadline = Instant::now() + self.drain_deadline;
        let settings = self.settings.clone();
        let read = move || ServiceAddresses::left_by_ipvs(&settings).map_err(anyhow::Error::from);
        let read = self.at_work.spawn_blocking(read).await;
        let addresses = match read.map_err(anyhow::Error::from).flatten() {
            Ok(addresses) => addresses,
            Err(error) => {
                warn!("{error}; kube-ipvs does not wait for UDP sockets of this node");
                return Some(());
            }
        };
        let mut is_first = true;
        loop {
            match addresses.n_sockets() {
                Ok(0) => return Some(()),
                Ok(_) if Instant::now() >= deadline => return Some(()),
                Ok(sockets) if std::mem::take(&mut is_first) => info!(
                    sockets,
                    "keeping the addresses of IPVS mode: UDP sockets of this node use them as \
                     source (until the sockets are closed, or until drainDeadline)"
                ),
                Ok(_) => {}
                Err(error) => {
                    warn!(
                        "cannot read the table of UDP sockets: {error}; kube-ipvs does not wait \
                           for them"
                    );
                    return Some(());
                }
            }
            tokio::select! {
                _ = self.status.wait_for(|_| false) => return None,
                () = tokio::time::sleep(CHECK) => {}
            }
        }
    }

    /// Removes state of other modes, on a thread of the pool: it runs programs, which takes its time.
    /// Without programs for it, nothing is removed.
    async fn remove(&self, removal: Removal) -> CleanupReport {
        let Some(backends) = self.backends.clone() else { return CleanupReport::default() };
        let settings = self.settings.clone();
        let removing = self.at_work.spawn_blocking(move || match removal {
            Removal::OtherModes => cleanup::other_modes(&settings, &backends),
            Removal::Ipvs => cleanup::ipvs_mode(&settings, &backends),
        });
        removing.await.unwrap_or_else(|error| {
            let failure = format!("cannot remove the state of other modes: {error}");
            CleanupReport { failures: vec![failure], ..CleanupReport::default() }
        })
    }
}

/// Removes again, with growing pauses, until a report has no failures, which is reported, or the loop
/// has ended.
async fn until_complete<'a>(
    mut removed: CleanupReport,
    mut status: watch::Receiver<Status>,
    mut remove: impl FnMut() -> BoxFuture<'a, CleanupReport>,
    report_end: impl Fn(&CleanupReport),
) {
    let [mut pause, longest] = PAUSES;
    while !removed.is_complete() {
        tokio::select! {
            _ = status.wait_for(|_| false) => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = longest.min(pause * 2);
        let again = remove().await;
        if !again.removed.is_empty() || again.failures != removed.failures {
            again.log();
        }
        if again.is_complete() {
            report_end(&again);
        }
        removed = again;
    }
}

/// Returns the Event of a node that begins to serve in another mode, or rolls back to one.
fn begun(mode: Mode, Former { mode: former, reason, has_failed }: &Former) -> NewEvent {
    if *has_failed {
        let note = format!("this node rolls back to {}: {reason}", mode.title());
        return event(Severity::Warning, Reason::ModeSwitchFailed, note);
    }
    if *former == mode {
        let note =
            format!("this node serves in {} with another configuration: {reason}", mode.title());
        return event(Severity::Normal, Reason::ConfigurationChanged, note);
    }
    let (former, mode) = (former.title(), mode.title());
    let note = format!("this node switches from {former} to {mode}: {reason}");
    event(Severity::Normal, Reason::ModeSwitching, note)
}

/// Returns the Event of a node that has left another mode; none if there was nothing to leave.
fn ended(
    mode: Mode,
    former: Option<&Former>,
    is_removed: bool,
    report: &CleanupReport,
) -> Option<NewEvent> {
    let of = match former.filter(|former| former.mode != mode) {
        Some(former) => former.mode.title().to_owned(),
        None if report.removed.is_empty() && report.failures.is_empty() => return None,
        None => "other modes".to_owned(),
    };
    let serves = format!("this node serves in {}", mode.title());
    let (severity, note) = if !report.failures.is_empty() {
        let failures = report.failures.join("; ");
        (Severity::Warning, format!("{serves}, and some of {of} is left: {failures}"))
    } else if is_removed {
        (Severity::Normal, format!("{serves}, and nothing of {of} is left"))
    } else {
        let note = format!(
            "{serves}; rules and sets of {of} stay, because cleanupOtherModes is false; --cleanup \
             removes the state of all modes"
        );
        (Severity::Normal, note)
    };
    Some(event(severity, Reason::ModeSwitched, note))
}

fn event(severity: Severity, reason: Reason, note: String) -> NewEvent {
    NewEvent::new(Regarding::Node, severity, reason, "SwitchMode", note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_former() -> Former {
        Former { mode: Mode::Ipvs, reason: "asked by a signal".to_owned(), has_failed: false }
    }

    fn mk_report(removed: &[&str], failures: &[&str]) -> CleanupReport {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        CleanupReport { removed: owned(removed), kept: Vec::new(), failures: owned(failures) }
    }

    #[test]
    fn a_node_that_goes_back_to_a_mode_warns_of_the_other() {
        let said = begun(Mode::Iptables, &mk_former());
        assert_eq!((said.reason, said.severity), (Reason::ModeSwitching, Severity::Normal));
        assert_eq!(
            said.note,
            "this node switches from IPVS mode to iptables mode: asked by a signal"
        );
        let said = begun(Mode::Ipvs, &mk_former());
        let note = "this node serves in IPVS mode with another configuration: asked by a signal";
        assert_eq!((said.reason, said.note.as_str()), (Reason::ConfigurationChanged, note));
        let said = begun(Mode::Iptables, &Former { has_failed: true, ..mk_former() });
        assert_eq!((said.reason, said.severity), (Reason::ModeSwitchFailed, Severity::Warning));
        assert_eq!(said.note, "this node rolls back to iptables mode: asked by a signal");
    }

    #[test]
    fn a_node_that_left_a_mode_says_what_is_left_of_it() {
        let note = |former: Option<&Former>, is_removed, report: &CleanupReport| {
            ended(Mode::Iptables, former, is_removed, report).map(|event| event.note)
        };
        let (former, none) = (mk_former(), mk_report(&[], &[]));
        assert_eq!(note(None, true, &none), None);
        let same = Former { mode: Mode::Iptables, ..mk_former() };
        assert_eq!(note(Some(&same), true, &none), None, "no mode was left");
        assert_eq!(
            note(Some(&former), true, &none).unwrap(),
            "this node serves in iptables mode, and nothing of IPVS mode is left"
        );
        assert_eq!(
            note(None, true, &mk_report(&["rules"], &[])).unwrap(),
            "this node serves in iptables mode, and nothing of other modes is left"
        );
        assert!(note(Some(&former), false, &none).unwrap().contains("cleanupOtherModes is false"));
        let failed = mk_report(&["rules"], &["a set is in use"]);
        let said = ended(Mode::Iptables, Some(&former), true, &failed).unwrap();
        assert_eq!(said.severity, Severity::Warning);
        assert!(said.note.ends_with("some of IPVS mode is left: a set is in use"), "{}", said.note);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_removed_is_tried_again_with_growing_pauses() {
        let status = watch::Sender::new(Status::default());
        let (began, ended) = (Instant::now(), std::cell::RefCell::new(Vec::new()));
        let mut tried_after = Vec::new();
        let remove = || {
            tried_after.push(began.elapsed().as_secs());
            let report = match tried_after.len() {
                ..9 => mk_report(&[], &["a set is in use"]),
                _ => mk_report(&["a set"], &[]),
            };
            async { report }.boxed()
        };
        let failed = mk_report(&["rules"], &["a set is in use"]);
        let report_end = |removed: &CleanupReport| ended.borrow_mut().push(removed.clone());
        until_complete(failed, status.subscribe(), remove, report_end).await;
        // 10, 20, 40 … seconds apart, at most ten minutes.
        assert_eq!(tried_after, [10, 30, 70, 150, 310, 630, 1_230, 1_830, 2_430]);
        assert_eq!(ended.into_inner(), [mk_report(&["a set"], &[])]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_tried_again_once_the_loop_has_ended() {
        let status = watch::Sender::new(Status::default());
        let receiver = status.subscribe();
        drop(status);
        let failed = mk_report(&[], &["a set is in use"]);
        let remove = || panic!("it is over");
        until_complete(failed, receiver, remove, |_| panic!("it is over")).await;
    }

    #[tokio::test]
    async fn the_gauge_follows_the_loop_and_ends_at_zero() {
        let (recorder, _queue) = EventRecorder::new();
        let left = IntGaugeVec::new(prometheus::Opts::new("left", "left"), &["kind"]).unwrap();
        let status = watch::Sender::new(Status::default());
        let at_work = TaskTracker::new();
        let settings = Settings { mode: Mode::Iptables, ..Settings::new("node-1") };
        let former = FormerMode {
            settings,
            former: Some(mk_former()),
            relay: None,
            localhost: None,
            backends: None,
            status: status.subscribe(),
            recorder,
            left: left.clone(),
            at_work,
            drain_deadline: Duration::ZERO,
        };
        let running = tokio::spawn(former.run());
        let gauge = || left.with_label_values(&[VIRTUAL_SERVERS]).get();
        status.send_modify(|status| status.is_carried = true);
        for n_left in [3, 2] {
            status.send_modify(|status| status.n_left_by_ipvs = Some(n_left));
            while gauge() != i64::try_from(n_left).unwrap() {
                tokio::task::yield_now().await;
            }
        }
        assert!(!running.is_finished());
        status.send_modify(|status| status.n_left_by_ipvs = Some(0));
        running.await.unwrap();
        assert_eq!(gauge(), 0);
    }
}
