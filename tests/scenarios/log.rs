//! Log at verbosity 0: nothing of what goes on all the time, and not every mistake in what users
//! wrote.

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex};

use kernel::RefusalClass;
use plan::event::Event;
use plan::op::Op;
use plan::sets::SetKind;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

use crate::world::{World, slice, udp};

/// While there is one subscriber only, a line that another thread comes to first is off for good:
/// tracing asks that thread, which has none. With a second one, it asks all of them.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| {
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO);
    Dispatch::new(subscriber.with_writer(io::sink).finish())
});

/// The lines that were logged on this thread.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts a log of verbosity 0, which lasts as long as the guard is there.
    fn start() -> (Self, DefaultGuard) {
        LazyLock::force(&SECOND);
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// Those since the last time.
    fn take(&self) -> Vec<String> {
        let text = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_endpoints_is_no_line_of_the_log() {
    let (log, _guard) = Log::start();
    let services = [udp(1, &[1, 2])];
    let mut world = World::in_sync(&services).await;
    assert!(log.take().iter().any(|line| line.contains("in sync with the kernel")));
    world.apply_slice(slice(&services[0].0, &[2, 3])).await;
    world.compared().await;
    assert_ne!(world.fake.take_log(), []);
    assert_eq!(log.take(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn of_many_problems_ten_are_logged_and_none_of_them_twice() {
    let (log, _guard) = Log::start();
    let mut world = World::in_sync(&[]).await;
    log.take();
    let (mut service, _) = udp(1, &[1]);
    let bad = |last: u8| IpAddr::from([127, 0, 0, last]);
    service.external = (1..=200).map(bad).collect();
    world.send(Event::ServiceApplied(Box::new(service.clone()))).await;
    world.compared().await;
    let lines = log.take();
    assert_eq!(lines.len(), 11, "{lines:#?}");
    assert!(lines[0].contains("127.0.0.1 is not served"), "{lines:#?}");
    assert!(lines[10].contains("190 more problems"), "{lines:#?}");
    service.external.push(bad(201));
    world.send(Event::ServiceApplied(Box::new(service.clone()))).await;
    world.compared().await;
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("191 more problems"), "{lines:#?}");
}

#[tokio::test(start_paused = true)]
async fn of_many_refusals_ten_are_logged_and_so_is_what_is_in_order_again() {
    let (log, _guard) = Log::start();
    let mut world = World::in_sync(&[]).await;
    log.take();
    let (mut service, endpoints) = udp(1, &[1]);
    service.external = (1..=200).map(|last| IpAddr::from([198, 51, 100, last])).collect();
    let is_external =
        |op: &Op| matches!(op, Op::AddEntry(set, _) if set.kind == SetKind::ExternalIp);
    world.fake.refuse(150, RefusalClass::SetFull, is_external);
    world.feed(&[(service, endpoints)]).await;
    world.until("in order", |status, _| status.failures == 150 && status.pending == 0).await;
    world.compared().await;
    let lines = log.take();
    let counts = |of: &str| lines.iter().filter(|line| line.contains(of)).count();
    assert_eq!(counts(" to set KUBE-EXTERNAL-IP: "), 10, "{lines:#?}");
    assert_eq!(counts("140 more operations failed in the same way (kube-ipvs reads the set"), 1);
    // The entries, the virtual servers that waited for them, and the addresses that waited for these.
    assert_eq!(counts(" is as desired again"), 30, "{lines:#?}");
    assert_eq!(counts("140 more kernel objects are as desired again"), 3);
    world.assert_converged(&[]);
}
