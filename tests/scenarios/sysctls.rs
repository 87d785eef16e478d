//! Sysctls that another program changes are put back; a program that goes on changing
//! them is not fought with, and what cannot be put back is reported.

use std::time::Duration;

use kernel::sysctl::Sysctl;
use tokio::time::Instant;

use crate::world::{World, tcp};

const CONNTRACK: &str = "net/ipv4/vs/conntrack";
const FORWARD: &str = "net/ipv4/ip_forward";

/// A node in sync whose sysctls are all as required.
async fn mk_world() -> World {
    let world = World::in_sync(&[tcp(1, &[1])]).await;
    let kept = [CONNTRACK, FORWARD].map(|path| Sysctl::new(path, 1, true, "of a test"));
    world.fake.keep_sysctls(kept.to_vec());
    world.reports.take();
    world
}

/// Returns the warnings about sysctls since the last time.
fn warnings(world: &World) -> Vec<String> {
    let reports = world.reports.take().into_iter();
    reports.filter(|words| words.contains("net.ipv4.")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_changed_sysctl_is_put_back_within_seconds() {
    let mut world = mk_world().await;
    world.fake.disturb_sysctl(CONNTRACK, "0");
    world.fake.disturb_sysctl(FORWARD, "0");
    let started = Instant::now();
    world.until("put back", |status, _| status.sysctls_put_back == 2).await;
    assert!(started.elapsed() <= Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(world.fake.sysctl(CONNTRACK).as_deref(), Some("1"));
    assert_eq!(world.fake.sysctl(FORWARD).as_deref(), Some("1"));
    assert_eq!(warnings(&world), [""; 0], "in the log only");
    world.compared().await;
    assert_eq!(world.fake.take_log(), [], "nothing else is written for that");
    assert_eq!((world.now().sysctls_put_back, world.now().sysctl_mismatches), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_program_that_keeps_setting_a_sysctl_is_reported_once_and_not_fought_with() {
    let mut world = mk_world().await;
    world.fake.contest_sysctl(FORWARD, "0");
    let started = Instant::now();
    world.until("in conflict", |status, _| status.sysctls_put_back == 16).await;
    let took = started.elapsed();
    assert!(took > Duration::from_secs(540), "for the 16th time after {took:?}");
    let warnings = warnings(&world);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("keeps setting net.ipv4.ip_forward=0"), "{warnings:?}");
    world.until("wrong again", |status, _| status.sysctl_mismatches == 1).await;
    // It ends: the sysctl is put back for good, and after a calm time at once again.
    world.fake.end_contest();
    world.until("put back", |status, _| status.sysctl_mismatches == 0).await;
    assert_eq!(world.fake.sysctl(FORWARD).as_deref(), Some("1"));
    let passes = world.now().passes;
    world.until("calm", |status, _| status.passes > passes + 25).await;
    let (put_back, started) = (world.now().sysctls_put_back, Instant::now());
    world.fake.disturb_sysctl(FORWARD, "0");
    world.until("put back", |status, _| status.sysctls_put_back > put_back).await;
    assert!(started.elapsed() <= Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_put_back_is_reported_once_and_again_when_it_changes() {
    let mut world = mk_world().await;
    world.fake.mount_proc_sys(true);
    world.fake.disturb_sysctl(CONNTRACK, "0");
    let passes = world.now().passes;
    world.until("ten minutes later", |status, _| status.passes > passes + 20).await;
    let reported = warnings(&world);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].contains("cannot set net.ipv4.vs.conntrack=1 (it is 0)")
            && reported[0].contains("sysctl -w net.ipv4.vs.conntrack=1"),
        "{reported:?}"
    );
    assert_eq!((world.now().sysctl_mismatches, world.now().sysctls_put_back), (1, 0));
    world.fake.disturb_sysctl(FORWARD, "0");
    world.until("noticed", |status, _| status.sysctl_mismatches == 2).await;
    assert_eq!(warnings(&world).len(), 1);
    // The operator sets it on the host, and it goes wrong once more.
    world.fake.disturb_sysctl(CONNTRACK, "1");
    world.until("noticed", |status, _| status.sysctl_mismatches == 1).await;
    world.fake.disturb_sysctl(CONNTRACK, "0");
    world.until("noticed", |status, _| status.sysctl_mismatches == 2).await;
    assert_eq!(warnings(&world).len(), 1);
    world.fake.mount_proc_sys(false);
    world.until("put back", |status, _| status.sysctl_mismatches == 0).await;
    assert_eq!(world.now().sysctls_put_back, 2);
}
