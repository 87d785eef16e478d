//! `serviceRoutes: auto` beside a running event loop, with a kernel in memory.

use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::time::Duration;

use plan::actual::Actual;
use plan::event::Event;
use plan::model::{Family, ObjectName, Protocol, Service, ServicePort};
use plan::planner::Planner;
use plan::settings::Settings;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::app::service_routes::{LastChanges, RouteWatch};
use config::cli;
use config::{Configuration, ServiceRoutes};
use kernel::fake::Fake;
use kernel::worker::KernelHandle;
use reconcile::inquiry::inquiries;
use reconcile::{Input, Pace, Reconciler, Status};

const HOUR: Duration = Duration::from_secs(3_600);

/// Numbers of Services at which IPv6 gets routes, and at which it gives them up.
const MANY: u16 = 251;
const FEW: u16 = 124;

fn name(number: u16) -> ObjectName {
    ObjectName::new("default", format!("s{number}"))
}

/// Makes Services with cluster IPs of both families.
async fn apply(inputs: &mpsc::Sender<Input>, numbers: RangeInclusive<u16>) {
    for number in numbers {
        let [high, low] = number.to_be_bytes();
        let port = NonZeroU16::new(80).unwrap();
        let port = ServicePort { name: "p".into(), protocol: Protocol::Tcp, port, node_port: None };
        let service = Service {
            cluster_v4: Some([10, 96, high, low].into()),
            cluster_v6: Some(format!("fd00:96::{number:x}").parse().unwrap()),
            ports: vec![port],
            ..Service::new(name(number))
        };
        inputs.send(Input::Change(Event::ServiceApplied(Box::new(service)))).await.unwrap();
    }
}

/// Waits until the kernel has local routes, or none, and so many addresses of each family.
async fn until(
    status: &mut watch::Receiver<Status>,
    fake: &Fake,
    n_routes: usize,
    n_addresses: [u16; 2],
) {
    loop {
        let Actual { routes, addresses, .. } = fake.actual();
        let n_of = |family| addresses.iter().filter(|it| Family::of(**it) == family).count();
        let found = Family::BOTH.map(n_of);
        if routes.len() == n_routes && found == n_addresses.map(usize::from) {
            return;
        }
        status.changed().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_family_changes_in_the_running_loop_and_back_after_an_hour() {
    let words = ["kube-ipvs", "--proxy-mode=ipvs"].map(Into::into);
    let mut configuration = Configuration::load(&cli::parse(words).unwrap()).unwrap();
    let named = vec!["10.96.0.0/12".parse().unwrap(), "fd00:96::/108".parse().unwrap()];
    configuration.service_routes = ServiceRoutes { is_automatic: true, named, chosen: None };
    let settings = Settings { families: Family::BOTH.to_vec(), ..configuration.settings.clone() };
    let fake = Fake::new(Actual::default());
    let kernel = KernelHandle::start(fake.clone(), ()).unwrap();
    let (inquiries, questions) = inquiries();
    let planner = Planner::new(settings.clone());
    let reconciler = Reconciler::new(planner, kernel, Pace::default()).unwrap();
    let reconciler = reconciler.answering(questions);
    let mut status = reconciler.status();
    let last_changes = LastChanges::default();
    let watch = RouteWatch { configuration, settings, cluster: None, inquiries, last_changes };
    let looking = tokio::spawn(watch.run(status.clone()));
    let (inputs, inbox) = mpsc::channel(16);
    let running = tokio::spawn(reconciler.run(inbox, None, std::future::pending()));

    apply(&inputs, 1..=MANY).await;
    inputs.send(Input::Complete).await.unwrap();
    until(&mut status, &fake, 1, [MANY, 0]).await;
    let mut changed = Instant::now();
    for (number, n_routes, n_v6) in [(FEW, 0, FEW), (MANY, 1, 0)] {
        for gone in number + 1..=MANY {
            inputs.send(Input::Change(Event::ServiceRemoved(name(gone)))).await.unwrap();
        }
        apply(&inputs, 1..=number).await;
        until(&mut status, &fake, n_routes, [number, n_v6]).await;
        // The order came some seconds before the end of the change.
        let rested = changed.elapsed() + Duration::from_secs(60);
        assert!(rested >= HOUR, "{rested:?}");
        changed = Instant::now();
    }
    let Status { readings, failures, drift_repaired, .. } = *status.borrow();
    assert_eq!(
        (readings, failures, drift_repaired),
        (1, 0, 0),
        "one takeover, nothing listed again"
    );
    looking.abort();
    running.abort();
}
