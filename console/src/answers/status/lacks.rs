//! Things for which a node is not whole.
//!
//! Each of them has an alert (`deploy/kustomize/components/prometheus/rules.yaml`) that fires when it
//! lasts. The command, its exit code and the page go by this alone.

use std::time::Duration;

use super::{KindStatus, Status};
use syntax::counted::counted;

/// Longest time for which changes may wait (`KubeIpvsProgrammingDelayed`).
const LONGEST_WAIT: f64 = 10.0;

/// Failed readings of the kernel in ten minutes that are no cause for worry (`KubeIpvsKernelReadsFailing`).
const FEW_FAILED: usize = 3;

/// Seconds for which a first list is believed without a watch, which takes three to be believed.
const LONGEST_UNWATCHED: f64 = 10.0;

/// Reason of lists up to the first one that succeeds (`ListReason::Start`).
const START: &str = "start";

/// Returns the things for which a node is not whole, each a sentence. `failed_readings`: those of the last ten
/// minutes. `is_rejected`: the configuration file cannot be used.
pub(super) fn of(status: &Status, failed_readings: usize, is_rejected: bool) -> Vec<String> {
    let mut lacks = Vec::new();
    if status.is_loop_stuck {
        lacks.push(
            "the event loop does not answer: it waits for the kernel or another process, or is \
             overloaded. Its part is missing below"
                .to_owned(),
        );
    } else if !status.kernel.in_sync_once {
        lacks.push("the kernel has not been in sync since startup".to_owned());
    }
    let (input, kernel) = (&status.input, &status.kernel);
    if let Some(seconds) = input.waiting_seconds.filter(|seconds| *seconds > LONGEST_WAIT) {
        let oldest = Duration::from_secs_f64(seconds).as_secs();
        let services = counted(input.waiting, "Service");
        lacks.push(format!("changes of {services} are pending, the oldest for {oldest} s"));
    }
    if kernel.pending > 0 {
        let writes = counted(kernel.pending, "write");
        lacks.push(format!("{writes} failed, or wait for one that failed, and are retried"));
    }
    if kernel.sysctl_mismatches > 0 {
        let sysctls = counted(kernel.sysctl_mismatches, "sysctl");
        lacks.push(format!("{sysctls} without the required value; `kube-ipvs diff` names them"));
    }
    if failed_readings > FEW_FAILED {
        lacks.push(format!("reading the kernel failed {failed_readings} times in ten minutes"));
    }
    if status.mode.is_held_up {
        lacks.push(
            "the switch to this mode is stalled: rules of the former mode still handle connections"
                .to_owned(),
        );
    }
    if is_rejected {
        lacks.push(
            "the changed configuration file is rejected: kube-ipvs runs its old configuration, and would fail to \
             start if restarted now; the log says why"
                .to_owned(),
        );
    }
    for kind in status.source.kinds.iter().filter(|kind| !is_followed(kind)) {
        lacks.push(format!("changes of {} objects do not arrive from the API server", kind.kind));
    }
    lacks
}

/// True while changes of a kind arrive, or when all objects have just been listed for the first time: a watch
/// is believed after some seconds. One that is refused leads to another list.
fn is_followed(kind: &KindStatus) -> bool {
    let is_first_list = kind.since.is_none() && kind.lists.keys().all(|reason| reason == START);
    let is_recent = kind.lag_seconds.is_some_and(|seconds| seconds <= LONGEST_UNWATCHED);
    kind.is_following || (is_first_list && is_recent)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Status);

    fn status(change: impl FnOnce(&mut Status)) -> Status {
        let mut status: Status = serde_json::from_str(include_str!("whole.json")).unwrap();
        change(&mut status);
        status
    }

    #[test]
    fn a_node_in_order_lacks_nothing() {
        assert_eq!(of(&status(|_| {}), FEW_FAILED, false), [""; 0]);
        let busy = status(|status| {
            (status.input.waiting, status.input.waiting_seconds) = (500, Some(9.0));
        });
        assert_eq!(of(&busy, 0, false), [""; 0]);
        let listed = status(|status| {
            let kind = &mut status.source.kinds[0];
            (kind.is_following, kind.since) = (false, None);
        });
        assert_eq!(of(&listed, 0, false), [""; 0], "its watch begins");
    }

    #[test]
    fn a_list_that_no_watch_follows_is_believed_for_some_seconds() {
        let after = |lag: Option<f64>, lists: &[(&str, u64)]| {
            let unwatched = status(|status| {
                let kind = &mut status.source.kinds[0];
                (kind.is_following, kind.since, kind.lag_seconds) = (false, None, lag);
                kind.lists = lists.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect();
            });
            of(&unwatched, 0, false)
        };
        assert_eq!(after(Some(9.0), &[("start", 2)]), [""; 0]);
        assert!(after(Some(11.0), &[("start", 1)])[0].contains("Service objects"), "it is gone");
        assert_eq!(after(None, &[("start", 1)]).len(), 1, "nothing was listed");
        // A refused watch has the objects listed again and again.
        assert_eq!(after(Some(1.0), &[("start", 1), ("refused", 1)]).len(), 1);
    }

    #[test]
    fn each_lack_is_named() {
        let changes: [(Change, usize, &str); 8] = [
            (|status| status.is_loop_stuck = true, 0, "event loop"),
            (|status| status.kernel.in_sync_once = false, 0, "in sync"),
            (|status| status.input.waiting_seconds = Some(180.0), 0, "oldest for 180 s"),
            (|status| status.kernel.pending = 1, 0, "1 write failed"),
            (|status| status.kernel.sysctl_mismatches = 2, 0, "2 sysctls"),
            (|_| {}, FEW_FAILED + 1, "failed 4 times"),
            (|status| status.mode.is_held_up = true, 0, "stalled"),
            (|status| status.source.kinds[0].is_following = false, 0, "Service objects"),
        ];
        for (change, failed_readings, expected) in changes {
            let lacks = of(&status(change), failed_readings, false);
            assert!(lacks.len() == 1 && lacks[0].contains(expected), "{expected}: {lacks:?}");
        }
        let lacks = of(&status(|_| {}), 0, true);
        assert!(lacks.len() == 1 && lacks[0].contains("configuration file"), "{lacks:?}");
    }
}
