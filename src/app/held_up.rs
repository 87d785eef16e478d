//! A switch that does not come to its end: the mode that the program switched to lacks something that
//! the check of the host did not find.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use reconcile::Status;
use reconcile::observer::{Observer, Report};

/// Time for which a mode may lack something until the node rolls back to the former one. Retries
/// come after 1, 3, 7, 15 and 31 s, and changes of Services do not reach clients meanwhile.
const LIMIT: Duration = Duration::from_secs(30);

/// Number of readings that may fail before the kernel's state is one that cannot be read. They come
/// every 5 s.
const FAILED_READINGS: u64 = 3;

/// Lack of the mode, as the event loop said last.
#[derive(Debug, Clone, Default)]
pub(super) struct Lack(Arc<Mutex<String>>);

impl Lack {
    fn note(&self, text: String) {
        *self.0.lock() = text;
    }

    fn text(&self) -> String {
        self.0.lock().clone()
    }
}

impl Observer for Lack {
    fn report(&mut self, report: &Report<'_>) {
        match report {
            Report::ReadingFailed(error) => {
                self.note(format!("the kernel cannot be read: {error}"));
            }
            Report::HeldUp(note) => self.note(note.unwrap_or_default().to_owned()),
            _ => {}
        }
    }
}

/// Ready with the problem when the event loop has not come to carry the traffic, and lacked something
/// for [`LIMIT`]. Never ready without a mode to roll back to.
pub(super) async fn for_too_long(
    mut status: watch::Receiver<Status>,
    lack: Lack,
    can_go_back: bool,
) -> anyhow::Error {
    while can_go_back && status.wait_for(lacks_something).await.is_ok() {
        tokio::select! {
            () = sleep(LIMIT) => {
                return anyhow!("this lasted for {LIMIT:?}: {}", lack.text());
            }
            _ = status.wait_for(|status| !lacks_something(status)) => {}
        }
    }
    std::future::pending().await
}

/// True if the loop waits for what the kernel refuses, or has not been able to read the kernel at all.
fn lacks_something(status: &Status) -> bool {
    let is_unread = status.readings == 0 && status.failed_readings >= FAILED_READINGS;
    !status.is_carried && (status.is_held_up || is_unread)
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn mk_held_up() -> Status {
        Status { readings: 1, is_held_up: true, ..Status::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_switch_that_is_held_up_or_cannot_read_the_kernel_is_given_up() {
        let unread = Status { failed_readings: FAILED_READINGS, ..Status::default() };
        for status in [mk_held_up(), unread] {
            let started = Instant::now();
            let status = watch::Sender::new(status);
            let lack = Lack::default();
            lack.clone().report(&Report::HeldUp(Some("IPVS mode lacks KUBE-CLUSTER-IP")));
            let problem = for_too_long(status.subscribe(), lack.clone(), true).await;
            assert!(problem.to_string().ends_with("IPVS mode lacks KUBE-CLUSTER-IP"), "{problem}");
            assert_eq!(started.elapsed(), LIMIT);
            assert!(timeout(HOUR, for_too_long(status.subscribe(), lack, false)).await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_switch_that_comes_to_its_end_is_not() {
        let in_sync = Status { in_sync_once: true, is_carried: true, ..mk_held_up() };
        let read = Status { failed_readings: 9, readings: 1, ..Status::default() };
        for after in [in_sync, read, Status { is_held_up: false, ..mk_held_up() }] {
            let status = watch::Sender::new(mk_held_up());
            let given_up = for_too_long(status.subscribe(), Lack::default(), true);
            tokio::pin!(given_up);
            assert!(timeout(LIMIT / 2, &mut given_up).await.is_err());
            status.send_replace(after);
            assert!(timeout(HOUR, given_up).await.is_err());
        }
    }
}
